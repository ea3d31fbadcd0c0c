// The allocator's history and the Python stacks of allocations, for torch.cuda.memory._record_memory_history/_snapshot.
//
// As in DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp: which actions are kept, which of them carry a
// stack, and that a free without a stack of its own shows the stack of the allocation. Equal stacks share a number; the
// code objects of every stack that was ever seen stay alive.
#pragma once

#include <Python.h>

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "../../memory/native/hooks.h"

namespace phantora::native::memory_history {

using StackId = int64_t; // 0: none

// torch's RecordContext: for which actions stacks are taken.
enum Level : int { kNever = 0, kState = 1, kAlloc = 2, kAll = 3 };

struct Settings {
  bool is_on = false;
  int level = kNever;
  size_t max_entries = 1;
  uint32_t skipped_actions = 0; // bits: memory::TraceEvent::Action
};

Settings settings();
void set(const Settings& settings); // of all devices
StackId take_stack(int level); // of the calling thread, if `level` asks for one; may take the GIL: hold no lock
PyObject* describe_stack(StackId stack); // [(file, line, function), ...], innermost first; with the GIL

struct Entry {
  memory::TraceEvent event;
  int64_t time_ns;
  StackId stack;
};

// Of one device; its methods are called with the allocator's mutex held.
class History {
 public:
  void add(const memory::TraceEvent& event, StackId stack, int64_t time_ns);
  void clear() { entries_.clear(); }
  StackId stack_of_block(uint64_t address) const { return find(blocks_, address); }
  StackId stack_of_segment(uint64_t address) const { return find(segments_, address); }
  const std::deque<Entry>& entries() const { return entries_; }

 private:
  using Stacks = std::unordered_map<uint64_t, StackId>;

  static StackId find(const Stacks& stacks, uint64_t address) {
    const auto entry = stacks.find(address);
    return entry == stacks.end() ? 0 : entry->second;
  }
  StackId follow(const memory::TraceEvent& event, StackId stack);

  std::deque<Entry> entries_; // oldest first
  Stacks blocks_, segments_;  // by address, of what there is now
};

} // namespace phantora::native::memory_history
