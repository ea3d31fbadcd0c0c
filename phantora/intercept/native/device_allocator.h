// Simulated device memory: the real caching allocator's decisions (phantora/memory/native), addresses without memory.
#pragma once

#include <Python.h>

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "contents.h"

namespace phantora::native {

// What a DataPtr on a simulated device refers to; lives as long as the storage keeps it.
struct Block {
  uint64_t address;
  size_t num_bytes;
  c10::DeviceIndex device;
  Contents contents;
};

Block* block_of(const c10::DataPtr& data); // null: not ours, or empty
Block* block_of(const at::TensorBase& tensor);

c10::DeviceAllocator& device_allocator();
c10::DataPtr allocate(size_t num_bytes, c10::DeviceIndex device); // on the current stream; throws OutOfMemoryError
// A block that a library call takes and gives back before the next allocation (the workspace of a convolution).
void touch_temporary(size_t num_bytes, c10::DeviceIndex device);
c10::DeviceIndex device_of_address(const void* address);
bool is_simulated_allocator(const c10::Allocator* allocator);

namespace memory_control {

// Before the first allocation. `config` is the text of PYTORCH_CUDA_ALLOC_CONF.
void set_capacity(int64_t total_bytes, int64_t context_bytes);
void set_limit_bytes(int64_t limit_bytes); // what may be reserved per device; negative: no limit
int64_t limit_bytes();
void set_fraction(double fraction, c10::DeviceIndex device);
double fraction(c10::DeviceIndex device);
void set_other_bytes(c10::DeviceIndex device, int64_t num_bytes); // held outside the allocator (NCCL's buffers)
void apply_settings(const char* text);
std::pair<int64_t, int64_t> memory_info(c10::DeviceIndex device); // free, total
void empty_cache();
void reset_peak(c10::DeviceIndex device);
void reset_accumulated(c10::DeviceIndex device);
PyObject* statistics(c10::DeviceIndex device); // dict of the names of torch.cuda.memory_stats
// Segments of torch.cuda.memory_snapshot; in place of frames, numbers for memory_history::describe_stack.
PyObject* snapshot(c10::DeviceIndex device);
// Of torch.cuda.memory._record_memory_history: [(action, address, bytes, stream, *pool, time_ns, stack), ...]
PyObject* history(c10::DeviceIndex device);
void record_history(bool is_on, int64_t level, int64_t max_entries, bool clear, int64_t skipped_actions);
bool is_history_on();
void observe_out_of_memory(PyObject* observer); // called with (device, bytes wanted, most allowed, bytes free)
PyObject* settings_of_allocator(c10::DeviceIndex device); // as `allocator_settings` of torch's snapshot
int64_t block_bytes(c10::DeviceIndex device, uint64_t address); // rounded size of a live allocation

// Private pools of CUDA graphs and torch.cuda.MemPool. begin: which allocations go there.
constexpr int64_t kThisThread = -1, kAllStreams = -2;
void create_pool(c10::DeviceIndex device, uint64_t first, uint64_t second);
void begin_pool(c10::DeviceIndex device, uint64_t first, uint64_t second, int64_t stream);
void end_pool(c10::DeviceIndex device, uint64_t first, uint64_t second);
void release_pool(c10::DeviceIndex device, uint64_t first, uint64_t second);
int pool_use_count(c10::DeviceIndex device, uint64_t first, uint64_t second);

void lock_for_fork();
void unlock_after_fork();

} // namespace memory_control
} // namespace phantora::native
