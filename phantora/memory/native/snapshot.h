// What torch.cuda.memory_snapshot tells of a segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block.h"

namespace phantora::memory {

// One entry of torch.cuda.memory_snapshot: a segment, or one mapped range of an expandable segment.
struct Segment {
  struct Part {
    uint64_t address;
    size_t size, requested_size;
    bool allocated, active;
    const char* state() const { return allocated ? "active_allocated" : active ? "active_pending_free" : "inactive"; }
  };
  int device = 0;
  uint64_t address = 0;
  int64_t stream = 0;
  size_t total_size = 0, allocated_size = 0, active_size = 0, requested_size = 0;
  bool is_large = false, is_expandable = false;
  PoolId pool{0, 0};
  std::vector<Part> blocks;
};

// Describes the mapped range that starts with `head`.
inline Segment describe(int device, const Block* head) {
  Segment segment;
  segment.device = device;
  segment.address = head->address;
  segment.stream = head->stream;
  segment.is_large = !head->pool->is_small;
  segment.is_expandable = head->expandable != nullptr;
  segment.pool = head->pool->id();
  for (const Block* block = head; block && block->mapped; block = block->next) {
    segment.blocks.push_back(
        {block->address, block->size, block->requested_size, block->allocated, block->is_active()});
    segment.total_size += block->size;
    if (block->allocated) segment.allocated_size += block->size;
    if (!block->is_active()) continue;
    segment.active_size += block->size;
    segment.requested_size += block->requested_size;
  }
  return segment;
}

}  // namespace phantora::memory
