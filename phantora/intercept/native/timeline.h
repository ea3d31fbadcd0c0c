// When do streams and events end, as far as this process can tell by itself?
//
// A kernel starts at max(host time of its launch, end of the stream's previous work), events carry the end of the
// stream on which they were recorded. Only what depends on other ranks (a collective, and everything behind it) is not
// known here: its `end_ns` is then a lower bound, until the engine's answer arrives through resolve_*. The same holds for
// kernels when the engine simulates that collectives slow them down; what does not need the exact time (the allocator:
// may a block be used again?) takes the lower bound then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace phantora::native {

struct Progress {
  int64_t end_ns = 0;
  bool is_known = true; // no collective before it that the engine has not said the end of
  bool is_exact = true; // no such kernel either

  void join(const Progress& other) {
    end_ns = std::max(end_ns, other.end_ns);
    is_known = is_known && other.is_known;
    is_exact = is_exact && other.is_exact;
  }
  bool is_certain() const { return is_known && is_exact; }
};

class Timeline {
 public:
  void run(int device, int64_t stream, int64_t host_ns, int64_t duration_ns) {
    Progress& progress = stream_entry(device, stream);
    progress.end_ns = std::max(progress.end_ns, host_ns) + duration_ns;
    progress.is_exact = progress.is_exact && kernels_are_exact_;
  }

  // False: from now on a kernel may take longer than its duration; only the engine knows how long.
  void set_kernels_exact(bool are_exact) { kernels_are_exact_ = are_exact; }

  void record_event(int64_t event, int device, int64_t stream, int64_t host_ns) {
    Progress progress = stream_entry(device, stream);
    progress.end_ns = std::max(progress.end_ns, host_ns);
    events_[event] = {progress, device, stream};
  }

  void wait_event(int device, int64_t stream, int64_t event, int64_t host_ns) {
    Progress progress = event_state(event);
    progress.end_ns = std::max(progress.end_ns, host_ns);
    stream_entry(device, stream).join(progress);
  }

  void forget_event(int64_t event) { events_.erase(event); }

  void mark_unresolved(int device, int64_t stream) { stream_entry(device, stream).is_known = false; }

  // The lower bound stays: another thread may have queued more since the engine was asked. `last_event`: the newest
  // event there is.
  void resolve_stream(int device, int64_t stream, int64_t end_ns, int64_t last_event) {
    Progress& progress = stream_entry(device, stream);
    progress = {std::max(progress.end_ns, end_ns), true, true};
    done_[{device, stream}].add(last_event, end_ns);
  }

  void resolve_event(int64_t event, int64_t time_ns) {
    const auto entry = events_.find(event);
    if (entry == events_.end()) return;
    entry->second.progress = {time_ns, true, true};
    done_[{entry->second.device, entry->second.stream}].add(event, time_ns);
  }

  // Like resolve_event for an event of which only this is known: at `now_ns` it was over.
  void note_done(int64_t event, int64_t now_ns) {
    const auto entry = events_.find(event);
    if (entry != events_.end()) done_[{entry->second.device, entry->second.stream}].add(event, now_ns);
  }

  enum class Certainty { kDone, kNotDone, kUnknown };

  // Whether an event is over at `now_ns`. A stream works in order, so an event is over when a younger one of its stream
  // is, even if the time of neither is known; and not over before the lower bound of its time.
  Certainty is_done(int64_t event, int64_t now_ns) const {
    const auto entry = events_.find(event);
    if (entry == events_.end()) return Certainty::kDone;
    const EventEntry& found = entry->second;
    if (found.progress.end_ns > now_ns) return Certainty::kNotDone;
    if (found.progress.is_known) return Certainty::kDone;
    const auto done = done_.find({found.device, found.stream});
    const bool is_covered = done != done_.end() && done->second.covers(event, now_ns);
    return is_covered ? Certainty::kDone : Certainty::kUnknown;
  }

  const Progress& stream_state(int device, int64_t stream) { return stream_entry(device, stream); }

  // An event that was never recorded, or was destroyed, is complete (as in CUDA).
  Progress event_state(int64_t event) const {
    const auto entry = events_.find(event);
    return entry == events_.end() ? Progress{} : entry->second.progress;
  }

  Progress device_state(int device) const {
    Progress progress;
    for (const auto& entry : device_entry(device).pooled) progress.join(entry);
    for (const auto& entry : device_entry(device).external) progress.join(entry.second);
    return progress;
  }

  size_t num_events() const { return events_.size(); }

 private:
  // Ids of CUDA's pools are index << 5 | type << 1 | 1 with index < 32: all below 1024. Others are ExternalStream's.
  static constexpr int64_t kNumPooled = 1024;
  struct Device {
    std::vector<Progress> pooled;
    std::unordered_map<int64_t, Progress> external;
  };
  struct EventEntry {
    Progress progress;
    int device;
    int64_t stream;
  };
  // Everything before `event` on a stream was over at `time_ns`. Events are numbered in the order of their records.
  struct DoneMark {
    int64_t event = 0, time_ns = 0;

    void add(int64_t newer_event, int64_t newer_ns) {
      if (newer_event < event) return;
      event = newer_event;
      time_ns = std::max(time_ns, newer_ns);
    }
    bool covers(int64_t other, int64_t now_ns) const { return other <= event && time_ns <= now_ns; }
  };

  const Device& device_entry(int device) const {
    static const Device kEmpty;
    return size_t(device) < devices_.size() ? devices_[device] : kEmpty;
  }

  Progress& stream_entry(int device, int64_t stream) {
    if (size_t(device) >= devices_.size()) devices_.resize(device + 1);
    Device& entry = devices_[device];
    if (stream < 0 || stream >= kNumPooled) return entry.external[stream];
    if (size_t(stream) >= entry.pooled.size()) entry.pooled.resize(stream + 1);
    return entry.pooled[stream];
  }

  bool kernels_are_exact_ = true;
  std::vector<Device> devices_;
  std::unordered_map<int64_t, EventEntry> events_;
  std::map<std::pair<int, int64_t>, DoneMark> done_;  // by (device, stream)
};

} // namespace phantora::native
