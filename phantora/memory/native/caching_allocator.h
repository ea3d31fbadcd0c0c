// PyTorch's CUDA caching allocator, emulated: the same blocks, segments and statistics, without memory.
//
// Mirrors DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp (torch 2.11 to 2.14). Header-only C++20.
// One object per device. Nothing locks inside: the caller holds one mutex per object, for reading too.
//
//   namespace phantora::memory
//   struct StreamClock { virtual int64_t record(int64_t stream); virtual bool done(int64_t ticket);
//                        virtual void synchronize(int64_t ticket); };     // stream_clock.h; null: all work is done
//   struct DeviceMemory { size_t total_bytes, context_bytes; };           // capacity; what a CUDA context takes of it
//   struct Hooks { std::function<void(const TraceEvent&)> trace;          // every action of torch's memory history
//                  std::function<void(const DeviceCall&)> device_call;  // driver calls: their cost
//                  std::function<uint64_t(size_t bytes)> place; };        // a segment's address (0: ours)
//   CachingAllocator(int device, Config, DeviceMemory, StreamClock*, Hooks = {});
//
//   Result allocate(size_t bytes, int64_t stream);       // Result{address, ok, oom}; 0 bytes: address 0, ok
//   Result allocate_unless_undecided(size_t, int64_t);   // the same; is_undecided: memory would have to grow while it
//                                                        // is not known whether the undecided_events() are over
//   std::vector<std::vector<int64_t>> undecided_events();  // tickets of the StreamClock, in order for each stream
//   void free(uint64_t address);                         // 0: nothing
//   void record_stream(uint64_t address, int64_t stream);
//   bool owns(uint64_t address) const;                   // a live allocation starts there
//   size_t block_size(uint64_t address) const;           // rounded bytes of that allocation, 0 if unknown
//   std::pair<uint64_t, size_t> segment_of(uint64_t address) const;       // base and bytes, as for an IPC handle
//   void empty_cache(PoolId = {0, 0});
//   size_t largest_free_block() const;                   // torch's cacheInfo
//
//   void set_device_memory(DeviceMemory);                // capacity, when it becomes known later
//   std::pair<size_t, size_t> memory_info() const;       // free, total: cudaMemGetInfo
//   void set_other_bytes(size_t);                        // memory held outside the allocator (NCCL, other processes)
//   void set_memory_fraction(double);                    // of total_bytes: torch.cuda.set_per_process_memory_fraction
//   double memory_fraction() const;
//   void set_memory_limit(std::optional<size_t> bytes);  // the same in bytes; none: only the capacity limits
//   void apply_settings(std::string_view);               // torch.cuda.memory._set_allocator_settings; ConfigError
//   const Config& config() const;
//
//   const DeviceStats& stats() const;                    // .flatten(): names and values of torch.cuda.memory_stats
//   void reset_peak();
//   void reset_accumulated();
//   std::vector<Segment> snapshot(PoolId = {0, 0});      // torch.cuda.memory_snapshot, sorted by address
//
//   Private pools (CUDA graphs, torch.cuda.MemPool), as in torch:
//   void create_pool(PoolId, bool own_allocator = false);                 // or one more user of it
//   void begin_allocate_to_pool(PoolId, std::function<bool(int64_t stream)> filter);
//   void end_allocate_to_pool(PoolId);
//   void release_pool(PoolId);
//   int pool_use_count(PoolId) const;
//   void set_use_on_oom(PoolId, bool);
//   void set_no_split(PoolId);
//
// Beside it: parse_config(text), config_from_environment() (config.h); oom_message(const Oom&), format_size (oom.h).
// Streams are any int64 ids, 0 is the default stream. Addresses of device d lie in [(d + 1) << 54, (d + 2) << 54).
// Mistakes of the caller (an unknown address or pool, ...) throw std::invalid_argument.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "heap.h"
#include "oom.h"
#include "pending_frees.h"
#include "snapshot.h"

namespace phantora::memory {

struct Result {
  uint64_t address = 0;
  bool ok = true;
  Oom oom;  // filled when not ok and nothing is undecided
  bool is_undecided = false;
};

class CachingAllocator {
 public:
  CachingAllocator(int device, Config config, DeviceMemory memory, StreamClock* clock, Hooks hooks = {})
      : device_(device),
        heap_(device, std::move(config), memory, std::move(hooks)),
        large_(false, nullptr, heap_.nodes()),
        small_(true, nullptr, heap_.nodes()),
        active_(heap_.nodes()),
        pending_(clock) {
    active_.reserve(4096);
    set_memory_fraction(heap_.config().per_process_memory_fraction);
    heap_.stats().max_split_size = static_cast<int64_t>(heap_.config().max_split_size);
  }

  // malloc: best fit, else a new segment, else release cached memory step by step and retry, else out of memory.
  Result allocate(size_t bytes, int64_t stream) { return allocate(bytes, stream, false); }
  Result allocate_unless_undecided(size_t bytes, int64_t stream) { return allocate(bytes, stream, true); }
  std::vector<std::vector<int64_t>> undecided_events() const { return pending_.undecided(); }

  void free(uint64_t address) {
    if (address == 0) return;
    Block* block = allocated_block(address);
    block->allocated = false;
    heap_.stats().allocation.decrease(1, block->pool->is_small);
    heap_.stats().allocated_bytes.decrease(block->size, block->pool->is_small);
    heap_.trace(TraceEvent::kFreeRequested, block, block->requested_size);
    if (block->size >= heap_.config().max_split_size) heap_.stats().oversize_allocations.decrease(1);
    if (block->stream_uses.empty())
      finish_free(block);
    else if (captures_.empty())
      pending_.add(block);
    else
      pending_.defer(block);
  }

  void record_stream(uint64_t address, int64_t stream) {
    Block* block = allocated_block(address);
    if (stream != block->stream) block->note_use(stream, !captures_.empty());
  }

  bool owns(uint64_t address) const { return find_allocated(address) != nullptr; }
  size_t block_size(uint64_t address) const {
    const Block* block = find_allocated(address);
    return block ? block->size : 0;
  }

  // getBaseAllocation: the segment that an allocation lies in.
  std::pair<uint64_t, size_t> segment_of(uint64_t address) const {
    const Block* block = find_allocated(address);
    if (!block) throw std::invalid_argument("invalid device pointer");
    while (block->prev) block = block->prev;
    const uint64_t base = block->address;
    size_t size = 0;
    for (; block; block = block->next) size += block->size;
    return {base, size};
  }

  void empty_cache(PoolId pool = {0, 0}) { release_cached(pool); }

  size_t largest_free_block() const {
    size_t largest = 0;
    each_pool([&](const BlockPool& pool) {
      for (const FreeKey& key : pool.free) largest = std::max(largest, key.size);
    });
    return largest;
  }

  // ---- limits and settings ----

  void set_memory_fraction(double fraction) {
    if (!(fraction >= 0 && fraction <= 1))
      throw std::invalid_argument("invalid fraction:" + std::to_string(fraction) + ". Please set within [0, 1].");
    set_memory_limit(std::nullopt);
    if (fraction < 1) set_memory_limit(static_cast<size_t>(fraction * static_cast<double>(heap_.memory().total_bytes)));
  }
  double memory_fraction() const {
    const auto allowed = heap_.allowed_bytes();
    return allowed ? static_cast<double>(*allowed) / static_cast<double>(heap_.memory().total_bytes) : 1.0;
  }
  void set_memory_limit(std::optional<size_t> bytes) { heap_.set_allowed_bytes(bytes); }
  void set_device_memory(DeviceMemory memory) { heap_.set_memory(memory); }
  void set_other_bytes(size_t bytes) { heap_.set_other_bytes(bytes); }
  std::pair<size_t, size_t> memory_info() const { return {heap_.available_bytes(), heap_.memory().total_bytes}; }
  void apply_settings(std::string_view text) { memory::apply_settings(text, heap_.config()); }
  const Config& config() const { return heap_.config(); }

  // ---- what is going on ----

  const DeviceStats& stats() const { return heap_.stats(); }
  void reset_peak() { heap_.stats().reset_peak(); }
  void reset_accumulated() { heap_.stats().reset_accumulated(); }

  std::vector<Segment> snapshot(PoolId pool = {0, 0}) {
    std::vector<Segment> segments;
    size_t active = 0;
    for (const Block* head : segment_heads()) {
      if (pool != PoolId{0, 0} && head->pool->id() != pool) continue;
      segments.push_back(describe(device_, head));
      active += segments.back().active_size;
    }
    heap_.trace(TraceEvent::kSnapshot, 0, active, 0, pool);
    return segments;
  }

  // ---- private pools ----

  void create_pool(PoolId id, bool own_allocator = false) {
    const auto found = pools_.find(id);
    if (found == pools_.end()) {
      pools_.emplace(std::piecewise_construct, std::forward_as_tuple(id),
                     std::forward_as_tuple(id, own_allocator, heap_.nodes()));
    } else {
      if (own_allocator || found->second.use_count == 0)
        throw std::invalid_argument("memory pool exists and cannot be shared");
      ++found->second.use_count;
    }
  }

  void begin_allocate_to_pool(PoolId id, std::function<bool(int64_t stream)> filter) {
    for (const auto& capture : captures_)
      if (capture.first == id) throw std::invalid_argument("beginAllocateToPool: already recording to mempool_id");
    create_pool(id);
    captures_.emplace_back(id, std::move(filter));
  }
  void end_allocate_to_pool(PoolId id) {
    const auto found = std::find_if(captures_.begin(), captures_.end(), [&](const auto& c) { return c.first == id; });
    if (found == captures_.end()) throw std::invalid_argument("endAllocatePool: not currently recording to mempool_id");
    captures_.erase(found);
  }
  void release_pool(PoolId id) {
    PrivatePool& pool = private_pool(id);
    if (pool.use_count == 0) throw std::invalid_argument("memory pool was released already");
    --pool.use_count;
  }
  int pool_use_count(PoolId id) const { return const_cast<CachingAllocator*>(this)->private_pool(id).use_count; }
  void set_use_on_oom(PoolId id, bool on) { on ? (void)use_on_oom_.insert(id) : (void)use_on_oom_.erase(id); }
  void set_no_split(PoolId id) { no_split_.insert(id); }

 private:
  static constexpr size_t kExbibyte = size_t{1} << 60;

  struct Request {
    size_t size;  // rounded
    int64_t stream;
    BlockPool* pool = nullptr;
    size_t segment_bytes = 0;
    bool expandable = false;
    Block* block = nullptr;  // what was found
  };

  Result allocate(size_t bytes, int64_t stream, bool may_be_undecided) {
    if (bytes == 0) return {};
    if (bytes >= kExbibyte) return too_large();
    if (captures_.empty()) pending_.poll([this](Block* block) { finish_free(block); });
    Request request{round_size(bytes), stream};
    request.pool = &pool_for(request.size, stream);
    request.segment_bytes = segment_size(request.size);
    request.expandable = heap_.config().expandable_segments && !request.pool->has_own_allocator();
    request.block = heap_.take_free(*request.pool, stream, request.size, request.expandable);
    if (!request.block && may_be_undecided && captures_.empty() && !pending_.undecided().empty()) {
      if (heap_.collects_garbage()) --request.pool->num_searches;  // this call will be repeated
      return {0, false, {}, true};
    }
    if (!request.block && !obtain_more(request)) return out_of_memory(request);
    return hand_out(request, bytes);
  }

  size_t round_size(size_t bytes) const {
    if (bytes < kMinBlockSize) return kMinBlockSize;
    const size_t divisions = heap_.config().divisions_for(bytes);
    if (divisions > 1 && bytes > kMinBlockSize * divisions) return round_to_division(bytes, divisions);
    return (bytes + kMinBlockSize - 1) / kMinBlockSize * kMinBlockSize;
  }
  // Up to the next of `divisions` equal steps between two powers of two.
  static size_t round_to_division(size_t bytes, size_t divisions) {
    if (std::has_single_bit(bytes)) return bytes;
    const size_t floor = std::bit_floor(bytes), step = floor >> (std::bit_width(divisions) - 1);
    if (step == 0) return floor << 1;
    return (bytes + step - 1) & ~(step - 1);
  }
  size_t segment_size(size_t size) const {
    if (size <= kSmallSize) return kSmallBuffer;
    if (size < kMinLargeAlloc) return heap_.config().large_segment_size;
    return (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
  }

  // get_pool: the pool of the latest capture that claims the stream, else the default one.
  BlockPool& pool_for(size_t size, int64_t stream) {
    for (auto capture = captures_.rbegin(); capture != captures_.rend(); ++capture) {
      if (!capture->second(stream)) continue;
      PrivatePool& pool = private_pool(capture->first);
      return size <= kSmallSize ? pool.small : pool.large;
    }
    return size <= kSmallSize ? small_ : large_;
  }

  bool obtain_more(Request& request) {
    if (heap_.collects_garbage()) heap_.collect_garbage(large_);
    return obtain(request) || borrow_from_pool(request) ||
           (heap_.release_oversize(*request.pool, request.stream, request.size) && obtain(request)) ||
           (captures_.empty() && retry_after_release(request));
  }
  bool retry_after_release(Request& request) {
    release_cached({0, 0});
    ++heap_.stats().num_alloc_retries;
    return obtain(request);
  }
  bool obtain(Request& request) {
    if (!heap_.within_limit(request.segment_bytes)) return false;
    request.block = request.expandable ? heap_.expand(*request.pool, request.stream, request.size)
                                       : heap_.new_segment(*request.pool, request.stream, request.segment_bytes);
    return request.block != nullptr;
  }
  // try_mempool_fallback: private pools that were offered as a last resort.
  bool borrow_from_pool(Request& request) {
    if (request.pool->owner) return false;
    for (const PoolId& id : use_on_oom_) {
      const auto found = pools_.find(id);
      if (found == pools_.end()) continue;
      BlockPool& pool = request.pool->is_small ? found->second.small : found->second.large;
      request.block = heap_.take_free(pool, request.stream, request.size, false);
      if (!request.block) continue;
      request.pool = &pool;
      request.expandable = false;
      return true;
    }
    return false;
  }

  bool should_cut(const Request& request) const {
    const Block* block = request.block;
    if (!no_split_.empty() && no_split_.count(block->pool->id())) return false;
    const size_t rest = block->size - request.size;
    if (block->pool->is_small || request.expandable) return rest >= kMinBlockSize;
    return request.size < heap_.config().max_split_size && rest > kSmallSize;
  }

  Result hand_out(const Request& request, size_t bytes) {
    Block* block = heap_.take_front(request.block, request.size, should_cut(request));
    block->allocated = true;
    block->requested_size = bytes;
    active_.emplace(block->address, block);
    const bool is_small = block->pool->is_small;
    DeviceStats& stats = heap_.stats();
    stats.allocation.increase(1, is_small);
    stats.allocated_bytes.increase(block->size, is_small);
    stats.active.increase(1, is_small);
    stats.active_bytes.increase(block->size, is_small);
    stats.requested_bytes.increase(bytes, is_small);
    if (block->size >= heap_.config().max_split_size) stats.oversize_allocations.increase(1);
    heap_.trace(TraceEvent::kAlloc, block, bytes);
    return {block->address, true, {}};
  }

  Oom numbers() const {
    Oom oom;
    oom.device = device_;
    oom.total_bytes = heap_.memory().total_bytes;
    oom.free_bytes = heap_.available_bytes();
    oom.process_bytes = heap_.used_bytes();
    oom.allowed_bytes = heap_.allowed_bytes();
    oom.allocated_bytes = static_cast<size_t>(heap_.stats().allocated_bytes.all.current);
    oom.reserved_bytes = static_cast<size_t>(heap_.stats().reserved_bytes.all.current);
    for (const auto& [id, pool] : pools_)
      for (const BlockPool* part : {&pool.large, &pool.small})
        for (const FreeKey& key : part->free) oom.private_pool_bytes += key.size;
    return oom;
  }
  Result out_of_memory(const Request& request) {
    DeviceStats& stats = heap_.stats();
    ++stats.num_ooms;
    if (heap_.config().throw_on_cudamalloc_oom && !heap_.within_limit(request.segment_bytes))
      ++stats.num_oom_rejections;
    heap_.trace(TraceEvent::kOom, heap_.available_bytes(), request.size, request.stream, request.pool->id());
    Result result{0, false, numbers()};
    result.oom.alloc_bytes = request.segment_bytes;
    return result;
  }
  Result too_large() const {
    Result result{0, false, numbers()};
    result.oom.beyond_any_device = true;
    return result;
  }

  Block* find_allocated(uint64_t address) const {
    const auto found = active_.find(address);
    return found != active_.end() && found->second->allocated ? found->second : nullptr;
  }
  Block* allocated_block(uint64_t address) const {
    Block* block = find_allocated(address);
    if (!block) throw std::invalid_argument("invalid device pointer: " + std::to_string(address));
    return block;
  }
  void finish_free(Block* block) {
    active_.erase(block->address);
    heap_.put_back(block);
  }

  void synchronize_events(const PrivatePool* pool) {
    ++heap_.stats().num_sync_all_streams;
    if (!captures_.empty()) throw std::invalid_argument("cannot wait for events while a graph is captured");
    pending_.synchronize(pool, [this](Block* block) { finish_free(block); });
  }

  // release_cached_blocks: of the default pool and all released private pools, or of one released private pool.
  void release_cached(PoolId id) {
    const bool everything = id == PoolId{0, 0};
    if (everything && captures_.empty()) {
      synchronize_events(nullptr);
      heap_.release_all(large_);
      heap_.release_all(small_);
    }
    for (auto it = pools_.begin(); it != pools_.end();) {
      PrivatePool& pool = it->second;
      if (pool.use_count > 0 || (!everything && it->first != id)) {
        ++it;
        continue;
      }
      if (!everything) synchronize_events(&pool);
      heap_.release_all(pool.small);
      heap_.release_all(pool.large);
      it = pool.reserved_bytes == 0 ? pools_.erase(it) : std::next(it);
    }
  }

  PrivatePool& private_pool(PoolId id) {
    const auto found = pools_.find(id);
    if (found == pools_.end()) throw std::invalid_argument("unknown memory pool");
    return found->second;
  }
  template <typename F>
  void each_pool(F f) const {
    f(large_), f(small_);
    for (const auto& [id, pool] : pools_) f(pool.large), f(pool.small);
  }

  // First blocks of the mapped ranges, by address.
  std::vector<const Block*> segment_heads() const {
    std::vector<const Block*> heads;
    const auto add = [&](const Block* block) {
      if (!block->prev || !block->prev->mapped) heads.push_back(block);
    };
    each_pool([&](const BlockPool& pool) {
      for (const FreeKey& key : pool.free) add(key.block);
    });
    for (const auto& [address, block] : active_) add(block);
    std::sort(heads.begin(), heads.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
    return heads;
  }

  const int device_;
  Heap heap_;
  BlockPool large_, small_;
  std::pmr::unordered_map<uint64_t, Block*> active_;  // in use or waiting for events, by address
  std::map<PoolId, PrivatePool> pools_;
  std::vector<std::pair<PoolId, std::function<bool(int64_t)>>> captures_;
  std::set<PoolId> use_on_oom_, no_split_;
  PendingFrees pending_;
};

}  // namespace phantora::memory
