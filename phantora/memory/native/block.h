// Blocks (ranges of addresses, in use or free) and the pools that keep the free ones in best-fit order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory_resource>
#include <set>
#include <vector>

#include "config.h"
#include "statistics.h"

namespace phantora::memory {

struct BlockPool;

// A range of reserved addresses of which pages are mapped as needed. `size` covers 9/8 of the device's memory.
struct ExpandableSegment {
  int64_t stream;
  uint64_t address;
  size_t size, page_size;
};

struct Block {
  int64_t stream = 0;
  uint64_t address = 0;
  size_t size = 0;
  size_t requested_size = 0;  // of the last allocation; kept when the block is freed, as in torch
  BlockPool* pool = nullptr;
  Block* prev = nullptr;  // neighbours in the same segment
  Block* next = nullptr;
  ExpandableSegment* expandable = nullptr;
  int64_t gc_base = 0;  // the pool's count of searches when this block became free
  int num_events = 0;   // events to wait for before the block is free
  bool allocated = false;
  bool mapped = true;
  std::vector<int64_t> stream_uses;   // other streams that use it, sorted; events are recorded on them at free
  std::vector<int64_t> capture_uses;  // those of them that were noted during a graph capture

  bool is_split() const { return prev || next; }
  bool is_active() const { return allocated || num_events > 0 || !stream_uses.empty(); }
  void note_use(int64_t user, bool capturing) {
    insert_sorted(stream_uses, user);
    if (capturing) insert_sorted(capture_uses, user);
  }
  void forget_capture_uses() {
    std::vector<int64_t> rest;
    std::set_difference(stream_uses.begin(), stream_uses.end(), capture_uses.begin(), capture_uses.end(),
                        std::back_inserter(rest));
    stream_uses = std::move(rest);
    capture_uses.clear();
  }
  void link(Block* before, Block* after) {
    if ((prev = before)) before->next = this;
    if ((next = after)) after->prev = this;
  }

 private:
  static void insert_sorted(std::vector<int64_t>& values, int64_t value) {
    const auto at = std::lower_bound(values.begin(), values.end(), value);
    if (at == values.end() || *at != value) values.insert(at, value);
  }
};

// Order of the free blocks of a pool: streams apart, then smallest, then lowest address.
struct FreeKey {
  int64_t stream;
  size_t size;
  uint64_t address;
  Block* block;
  friend bool operator<(const FreeKey& a, const FreeKey& b) {
    if (a.stream != b.stream) return a.stream < b.stream;
    if (a.size != b.size) return a.size < b.size;
    return a.address < b.address;
  }
};

struct PrivatePool;

struct BlockPool {
  BlockPool(bool is_small, PrivatePool* owner, std::pmr::memory_resource* nodes)
      : is_small(is_small), owner(owner), free(nodes), unmapped(nodes) {}

  const bool is_small;
  PrivatePool* const owner;  // null: the default pool
  std::pmr::set<FreeKey> free;
  std::pmr::set<FreeKey> unmapped;  // ranges without pages, by address (size 0 in the key)
  int64_t num_searches = 0;         // counted only while garbage collection is on

  PoolId id() const;
  bool has_own_allocator() const;
  void insert(Block* block) {
    block->gc_base = num_searches;
    free.insert({block->stream, block->size, block->address, block});
  }
  void erase(const Block* block) { free.erase({block->stream, block->size, block->address, nullptr}); }
  void insert_unmapped(Block* block) { unmapped.insert({block->stream, 0, block->address, block}); }
  void erase_unmapped(const Block* block) { unmapped.erase({block->stream, 0, block->address, nullptr}); }
  int64_t age(const Block* block) const { return num_searches - block->gc_base; }
};

// Memory kept apart for a graph or a torch.cuda.MemPool.
struct PrivatePool {
  PrivatePool(PoolId id, bool own_allocator, std::pmr::memory_resource* nodes)
      : id(id), own_allocator(own_allocator), large(false, this, nodes), small(true, this, nodes) {}

  const PoolId id;
  const bool own_allocator;  // its segments come from a user's allocator: never expandable
  int use_count = 1;         // graphs and MemPools that hold it; at 0 its free segments may be released
  size_t reserved_bytes = 0;
  BlockPool large, small;
};

inline PoolId BlockPool::id() const { return owner ? owner->id : PoolId{0, 0}; }
inline bool BlockPool::has_own_allocator() const { return owner && owner->own_allocator; }

// Storage of Block objects: stable addresses, reused.
class BlockStore {
 public:
  Block* make(int64_t stream, uint64_t address, size_t size, BlockPool* pool, ExpandableSegment* expandable = nullptr) {
    Block* block = take();
    block->stream = stream;
    block->address = address;
    block->size = size;
    block->pool = pool;
    block->expandable = expandable;
    return block;
  }
  void drop(Block* block) { unused_.push_back(block); }

 private:
  Block* take() {
    if (unused_.empty()) return &blocks_.emplace_back();
    Block* block = unused_.back();
    unused_.pop_back();
    *block = Block{};
    return block;
  }
  std::deque<Block> blocks_;
  std::vector<Block*> unused_;
};

}  // namespace phantora::memory
