// Segments: getting them from the device, cutting them into blocks, merging blocks again, giving segments back.
//
// The lower half of the allocator (caching_allocator.h decides what to try in which order). Each function mirrors the
// one of DeviceCachingAllocator that its comment names.
#pragma once

#include <list>
#include <optional>

#include "address_space.h"
#include "block.h"
#include "hooks.h"

namespace phantora::memory {

class Heap {
 public:
  Heap(int device, Config config, DeviceMemory memory, Hooks hooks)
      : device_(device), config_(std::move(config)), memory_(memory), hooks_(std::move(hooks)), addresses_(device) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Config& config() { return config_; }
  const Config& config() const { return config_; }
  DeviceStats& stats() { return stats_; }
  const DeviceStats& stats() const { return stats_; }
  const DeviceMemory& memory() const { return memory_; }
  void set_memory(DeviceMemory memory) { memory_ = memory; }
  std::pmr::memory_resource* nodes() { return &nodes_; }
  std::optional<size_t> allowed_bytes() const { return allowed_bytes_; }
  void set_allowed_bytes(std::optional<size_t> bytes) { allowed_bytes_ = bytes; }
  void set_other_bytes(size_t bytes) { other_bytes_ = bytes; }
  size_t used_bytes() const { return memory_.context_bytes + other_bytes_ + reserved_bytes_; }
  size_t available_bytes() const { return memory_.total_bytes - std::min(memory_.total_bytes, used_bytes()); }
  bool within_limit(size_t bytes) const { return !allowed_bytes_ || reserved_bytes_ + bytes <= *allowed_bytes_; }
  bool collects_garbage() const { return allowed_bytes_ && config_.garbage_collection_threshold > 0; }

  void trace(TraceEvent::Action action, uint64_t address, size_t bytes, int64_t stream, PoolId pool) const {
    if (hooks_.trace) hooks_.trace({action, device_, address, bytes, stream, pool});
  }
  void trace(TraceEvent::Action action, const Block* block, size_t bytes) const {
    if (hooks_.trace) hooks_.trace({action, device_, block->address, bytes, block->stream, block->pool->id()});
  }

  // get_free_block: the best fit, taken out of its pool; null if none may be used.
  Block* take_free(BlockPool& pool, int64_t stream, size_t size, bool expandable) {
    if (collects_garbage()) ++pool.num_searches;
    auto it = pool.free.lower_bound({stream, size, 0, nullptr});
    const auto ours = [&](auto at) { return at != pool.free.end() && at->stream == stream; };
    if (!ours(it)) return nullptr;
    if (it->block->expandable) {
      it = expandable ? least_expandable(pool, it, ours) : first_not_expandable(it, ours);
      if (!ours(it)) return nullptr;
    }
    const size_t found = it->size, limit = config_.max_split_size;
    if (size < limit && found >= limit) return nullptr;
    if (size >= limit && found >= size + config_.max_non_split_rounding_size) return nullptr;
    Block* block = it->block;
    pool.free.erase(it);
    return block;
  }

  // alloc_block without expandable segments: a new segment, or null.
  Block* new_segment(BlockPool& pool, int64_t stream, size_t bytes) {
    if (bytes > available_bytes()) {
      call(DeviceCall::kMalloc, 0, bytes, bytes, stream, false);
      return nullptr;
    }
    Block* block = blocks_.make(stream, reserve_addresses(bytes), bytes, &pool);
    count_reserved(pool, static_cast<int64_t>(bytes));
    stats_.segment.increase(1, pool.is_small);
    if (bytes >= config_.max_split_size) stats_.oversize_segments.increase(1);
    ++stats_.num_device_alloc;
    call(DeviceCall::kMalloc, block->address, bytes, bytes, stream, true);
    trace(TraceEvent::kSegmentAlloc, block, bytes);
    return block;
  }

  // try_allocate_expandable_block: a free block of at least `size`, made by mapping pages behind (or between) free
  // ones.
  Block* expand(BlockPool& pool, int64_t stream, size_t size) {
    Block* block = find_expandable(pool, stream, size);
    if (!block->mapped && !map(block, std::min(block->size, size))) return nullptr;
    while (block->size < size) {
      Block* following = block->next;  // unmapped; mapping it merges `block` into it
      if (!map(following, std::min(size - block->size, following->size))) return nullptr;
      block = following;
    }
    pool.erase(block);
    return block;
  }

  // alloc_found_block: cuts `size` bytes off the front of a block; the rest goes to the pool. Null `rest`: nothing cut.
  Block* take_front(Block* block, size_t size, bool cut) {
    const bool was_split = block->is_split();
    const bool counted = !block->expandable;  // parts of expandable segments do not count as inactive_split
    const bool is_small = block->pool->is_small;
    if (!cut) {
      if (was_split && counted) {
        stats_.inactive_split_bytes.decrease(block->size, is_small);
        stats_.inactive_split.decrease(1, is_small);
      }
      return block;
    }
    Block* front = blocks_.make(block->stream, block->address, size, block->pool, block->expandable);
    front->link(block->prev, block);
    block->address += size;
    block->size -= size;
    block->pool->insert(block);
    if (was_split && counted) {
      stats_.inactive_split_bytes.decrease(size, is_small);
    } else if (counted) {
      stats_.inactive_split_bytes.increase(block->size, is_small);
      stats_.inactive_split.increase(1, is_small);
    }
    return front;
  }

  // free_block: merges a block that nothing uses any more with its free neighbours and puts it into its pool.
  void put_back(Block* block) {
    trace(TraceEvent::kFreeCompleted, block, block->requested_size);
    const size_t size = block->size;
    const bool is_small = block->pool->is_small;
    int64_t num_inactive = 0, inactive_bytes = 0;
    for (Block* neighbour : {block->prev, block->next}) {
      if (const size_t merged = merge(block, neighbour)) {
        num_inactive -= 1;
        inactive_bytes -= static_cast<int64_t>(merged);
      }
    }
    block->pool->insert(block);
    if (block->is_split()) {
      num_inactive += 1;
      inactive_bytes += static_cast<int64_t>(block->size);
    }
    if (!block->expandable) {
      stats_.inactive_split.change(num_inactive, is_small);
      stats_.inactive_split_bytes.change(inactive_bytes, is_small);
    }
    stats_.active.decrease(1, is_small);
    stats_.active_bytes.decrease(size, is_small);
    stats_.requested_bytes.decrease(block->requested_size, is_small);
  }

  // release_blocks: gives all free segments, and all free pages of expandable segments, back to the device.
  void release_all(BlockPool& pool) {
    std::vector<Block*> whole, expandable;
    for (const FreeKey& key : pool.free) {
      if (key.block->expandable)
        expandable.push_back(key.block);
      else if (!key.block->is_split())
        whole.push_back(key.block);
    }
    for (Block* block : whole) release(block);
    for (Block* block : expandable) {
      unmap(block);
      if (!block->is_split()) drop_expandable(block);
    }
  }

  // release_available_cached_blocks: with max_split_size_mb, frees one oversize block that is large enough, else the
  // largest ones until their sum is. False: not enough.
  bool release_oversize(BlockPool& pool, int64_t stream, size_t size) {
    const size_t limit = config_.max_split_size;
    if (limit == kUnlimited) return false;
    const size_t wanted = std::max(size, limit);
    auto it = pool.free.lower_bound({stream, wanted, 0, nullptr});
    if (it != pool.free.end() && it->stream == stream && !it->block->expandable) {
      release(it->block);
      return true;
    }
    std::vector<Block*> chosen;
    size_t sum = 0;
    while (it != pool.free.begin() && sum < wanted) {
      --it;
      if (it->size < limit || it->stream != stream) break;
      if (it->block->expandable) continue;
      sum += it->size;
      chosen.push_back(it->block);
    }
    for (Block* block : chosen) release(block);
    return sum >= wanted;
  }

  // garbage_collect_cached_blocks: above the threshold, releases whole free segments, the longest unused first.
  void collect_garbage(BlockPool& large) {
    const auto threshold =
        static_cast<size_t>(config_.garbage_collection_threshold * static_cast<double>(*allowed_bytes_));
    if (reserved_bytes_ <= threshold) return;
    const size_t target = reserved_bytes_ - threshold;
    int64_t total_age = 0, num_candidates = 0;
    for (const FreeKey& key : large.free) {
      if (key.block->is_split()) continue;
      total_age += large.age(key.block);
      ++num_candidates;
    }
    size_t reclaimed = 0;
    for (bool progress = true; progress && reclaimed < target && num_candidates > 0;) {
      const double oldest = static_cast<double>(total_age) / static_cast<double>(num_candidates);
      std::vector<Block*> chosen;
      for (const FreeKey& key : large.free) {
        if (!key.block->is_split() && !key.block->expandable && static_cast<double>(large.age(key.block)) >= oldest)
          chosen.push_back(key.block);
      }
      for (Block* block : chosen) {
        reclaimed += block->size;
        total_age -= large.age(block);
        --num_candidates;
        release(block);
      }
      progress = !chosen.empty();
    }
  }

 private:
  using FreeIterator = std::pmr::set<FreeKey>::iterator;

  // A block at the end of the mapped pages counts with what it could grow to.
  static size_t growable_size(const Block* block) {
    return block->size + (block->next && !block->next->mapped ? block->next->size : 0);
  }
  template <typename Ours>
  static FreeIterator least_expandable(BlockPool& pool, FreeIterator it, Ours ours) {
    for (auto next = std::next(it); it->block->expandable && next != pool.free.end() && ours(next) &&
                                    growable_size(next->block) < growable_size(it->block);)
      it = next++;
    return it;
  }
  template <typename Ours>
  static FreeIterator first_not_expandable(FreeIterator it, Ours ours) {
    do ++it;
    while (ours(it) && it->block->expandable);
    return it;
  }

  uint64_t reserve_addresses(size_t bytes) {
    const uint64_t address = hooks_.place ? hooks_.place(bytes) : 0;
    return address ? address : addresses_.take(bytes);
  }

  void call(DeviceCall::Kind kind, uint64_t address, size_t bytes, size_t page_bytes, int64_t stream, bool ok) const {
    if (hooks_.device_call) hooks_.device_call({kind, device_, address, bytes, page_bytes, stream, ok});
  }

  void count_reserved(const BlockPool& pool, int64_t change) {
    reserved_bytes_ += static_cast<size_t>(change);  // wraps to the right value for negative changes
    stats_.reserved_bytes.change(change, pool.is_small);
    if (!pool.owner) return;
    pool.owner->reserved_bytes += static_cast<size_t>(change);
    stats_.reserved_bytes_by_private_pools[pool.owner->id].change(change, pool.is_small);
  }

  // try_merge_blocks: `block` swallows a free neighbour. Returns the neighbour's size, 0 if it stays.
  size_t merge(Block* block, Block* neighbour) {
    if (!neighbour || neighbour->is_active() || block->mapped != neighbour->mapped) return 0;
    if (neighbour->mapped)
      block->pool->erase(neighbour);
    else
      block->pool->erase_unmapped(neighbour);
    if (block->prev == neighbour) {
      block->address = neighbour->address;
      block->link(neighbour->prev, block->next);
    } else {
      block->link(block->prev, neighbour->next);
    }
    const size_t size = neighbour->size;
    block->size += size;
    blocks_.drop(neighbour);
    return size;
  }

  // find_expandable_block: the lowest unmapped range that, with the free block before it, has room for `size`; else a
  // new segment, as long as 9/8 of the device's memory so that pages can move.
  Block* find_expandable(BlockPool& pool, int64_t stream, size_t size) {
    for (auto it = pool.unmapped.lower_bound({stream, 0, 0, nullptr});
         it != pool.unmapped.end() && it->stream == stream; ++it) {
      Block* block = it->block;
      if (block->prev && !block->prev->is_active()) block = block->prev;
      size_t room = 0;
      for (const Block* part = block; part && room < size && !part->is_active(); part = part->next) room += part->size;
      if (room >= size) return block;
    }
    const size_t page = pool.is_small ? kSmallBuffer : config_.large_segment_size;
    const size_t bytes = (memory_.total_bytes + memory_.total_bytes / 8 + page - 1) / page * page;
    ExpandableSegment* segment =
        &expandable_.emplace_back(ExpandableSegment{stream, reserve_addresses(bytes), bytes, page});
    Block* block = blocks_.make(stream, segment->address, bytes, &pool, segment);
    block->mapped = false;
    pool.insert_unmapped(block);
    return block;
  }

  // map_block: gives pages to the front of an unmapped range and merges it with free neighbours. False: no memory.
  bool map(Block* block, size_t size) {
    BlockPool& pool = *block->pool;
    const size_t page = block->expandable->page_size;
    const size_t bytes = (size + page - 1) / page * page;
    if (bytes > available_bytes()) {
      call(DeviceCall::kMap, block->address, bytes, page, block->stream, false);
      return false;
    }
    const uint64_t address = block->address;
    pool.erase_unmapped(block);
    block->mapped = true;
    if (bytes < block->size) {
      Block* rest = blocks_.make(block->stream, address + bytes, block->size - bytes, &pool, block->expandable);
      rest->mapped = false;
      rest->link(block, block->next);
      pool.insert_unmapped(rest);
      block->size = bytes;
    }
    merge(block, block->prev);
    merge(block, block->next);
    pool.insert(block);
    count_reserved(pool, static_cast<int64_t>(bytes));
    ++stats_.num_device_alloc;
    call(DeviceCall::kMap, address, bytes, page, block->stream, true);
    trace(TraceEvent::kSegmentMap, address, bytes, block->stream, pool.id());
    return true;
  }

  // unmap_block: takes back the pages that lie wholly inside a free block; `block` becomes the unmapped range.
  void unmap(Block* block) {
    const ExpandableSegment& segment = *block->expandable;
    BlockPool& pool = *block->pool;
    const size_t page = segment.page_size, offset = block->address - segment.address;
    const size_t begin = (offset + page - 1) / page * page, end = (offset + block->size) / page * page;
    if (begin >= end) return;
    pool.erase(block);
    if (const size_t before = begin - offset) {
      Block* head = blocks_.make(block->stream, block->address, before, &pool, block->expandable);
      head->link(block->prev, block);
      pool.insert(head);
    }
    if (const size_t after = offset + block->size - end) {
      Block* tail = blocks_.make(block->stream, segment.address + end, after, &pool, block->expandable);
      tail->link(block, block->next);
      pool.insert(tail);
    }
    const uint64_t address = segment.address + begin;
    const size_t bytes = end - begin;
    block->address = address;
    block->size = bytes;
    block->mapped = false;
    merge(block, block->prev);
    merge(block, block->next);
    pool.insert_unmapped(block);
    count_reserved(pool, -static_cast<int64_t>(bytes));
    ++stats_.num_device_free;
    call(DeviceCall::kUnmap, address, bytes, page, block->stream, true);
    trace(TraceEvent::kSegmentUnmap, address, bytes, block->stream, pool.id());
  }

  // release_block: cudaFree of a segment that is one free block.
  void release(Block* block) {
    BlockPool& pool = *block->pool;
    pool.erase(block);
    count_reserved(pool, -static_cast<int64_t>(block->size));
    stats_.segment.decrease(1, pool.is_small);
    if (block->size >= config_.max_split_size) stats_.oversize_segments.decrease(1);
    ++stats_.num_device_free;
    call(DeviceCall::kFree, block->address, block->size, block->size, block->stream, true);
    trace(TraceEvent::kSegmentFree, block, block->size);
    addresses_.give_back(block->address, block->size);
    blocks_.drop(block);
  }

  void drop_expandable(Block* block) {
    block->pool->erase_unmapped(block);
    addresses_.give_back(block->address, block->size);
    expandable_.remove_if([&](const ExpandableSegment& segment) { return &segment == block->expandable; });
    blocks_.drop(block);
  }

  const int device_;
  Config config_;
  DeviceMemory memory_;
  const Hooks hooks_;
  DeviceStats stats_;
  std::optional<size_t> allowed_bytes_;
  size_t other_bytes_ = 0;
  size_t reserved_bytes_ = 0;
  AddressSpace addresses_;
  std::pmr::unsynchronized_pool_resource nodes_;
  BlockStore blocks_;
  std::list<ExpandableSegment> expandable_;
};

}  // namespace phantora::memory
