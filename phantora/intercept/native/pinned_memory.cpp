#include "pinned_memory.h"

#include <cstdint>
#include <map>
#include <mutex>

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace phantora::native {
namespace {

std::mutex& pinned_mutex = *new std::mutex;
auto& ranges = *new std::map<uintptr_t, size_t>; // begin -> bytes

void free_pinned(void* address) {
  unpin(address);
  c10::free_cpu(address);
}

void free_nothing_pinned(void*) {}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (num_bytes == 0) return {nullptr, nullptr, &free_nothing_pinned, cpu};
    void* address = c10::alloc_cpu(num_bytes);
    pin(address, num_bytes);
    return {address, address, &free_pinned, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    default_copy_data(target, source, num_bytes);
  }
};

PinnedAllocator& the_pinned_allocator = *new PinnedAllocator;

} // namespace

c10::Allocator& pinned_allocator() { return the_pinned_allocator; }

void pin(const void* address, size_t num_bytes) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  ranges[reinterpret_cast<uintptr_t>(address)] = num_bytes;
}

void unpin(const void* address) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  ranges.erase(reinterpret_cast<uintptr_t>(address));
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto range = ranges.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (range == ranges.begin()) return false;
  --range;
  return reinterpret_cast<uintptr_t>(address) < range->first + range->second;
}

void lock_pinned_for_fork() { pinned_mutex.lock(); }

void unlock_pinned_after_fork() { pinned_mutex.unlock(); }

} // namespace phantora::native
