// Blocks that were freed while other streams may still use them (torch.Tensor.record_stream).
#pragma once

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "block.h"
#include "stream_clock.h"

namespace phantora::memory {

// Waits for an event on each stream that used the block, recorded when it was freed. During a graph capture events can
// be neither recorded nor asked, so the frees wait for its end. Without a clock, events are done at once.
class PendingFrees {
 public:
  explicit PendingFrees(StreamClock* clock) : clock_(clock) {}

  // insert_events
  void add(Block* block) {
    for (const int64_t stream : std::exchange(block->stream_uses, {})) {
      events_[stream].emplace_back(clock_ ? clock_->record(stream) : 0, block);
      ++block->num_events;
    }
  }
  void defer(Block* block) { deferred_.push_back(block); }

  // process_events: frees what is done; each stream's events are asked in their order, up to the first that is not.
  template <typename Free>
  void poll(Free free) {
    add_deferred(free);
    for (auto it = events_.begin(); it != events_.end();) {
      auto& queue = it->second;
      while (!queue.empty() && (!clock_ || clock_->done(queue.front().first))) {
        finish(queue.front().second, free);
        queue.pop_front();
      }
      it = queue.empty() ? events_.erase(it) : std::next(it);
    }
  }

  // Each stream's events from the first on that is not known to be done, if it is undecided.
  std::vector<std::vector<int64_t>> undecided() const {
    std::vector<std::vector<int64_t>> found;
    for (const auto& [stream, queue] : events_) {
      if (!clock_ || queue.empty() || !clock_->is_undecided(queue.front().first)) continue;
      std::vector<int64_t>& tickets = found.emplace_back();
      for (const auto& [ticket, block] : queue) tickets.push_back(ticket);
    }
    return found;
  }

  // synchronize_and_free_events: waits for all blocks, or for those of one private pool.
  template <typename Free>
  void synchronize(const PrivatePool* pool, Free free) {
    add_deferred(free);
    for (auto it = events_.begin(); it != events_.end();) {
      std::deque<Event> others;
      for (const auto& [ticket, block] : it->second) {
        if (pool && block->pool->owner != pool) {
          others.emplace_back(ticket, block);
          continue;
        }
        if (clock_) clock_->synchronize(ticket);
        finish(block, free);
      }
      it->second.swap(others);
      it = it->second.empty() ? events_.erase(it) : std::next(it);
    }
  }

 private:
  using Event = std::pair<int64_t, Block*>;  // ticket of the StreamClock

  template <typename Free>
  static void finish(Block* block, Free& free) {
    if (--block->num_events == 0) free(block);
  }

  // insert_events_deferred_until_no_capture: uses noted during the capture need no event, the graph itself orders them.
  template <typename Free>
  void add_deferred(Free& free) {
    if (deferred_.empty()) return;
    for (Block* block : std::exchange(deferred_, {})) {
      block->forget_capture_uses();
      add(block);
      if (block->num_events == 0) free(block);
    }
  }

  StreamClock* const clock_;
  std::vector<Block*> deferred_;
  std::map<int64_t, std::deque<Event>> events_;  // by stream
};

}  // namespace phantora::memory
