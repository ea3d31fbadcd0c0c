#include "current.h"

#include <algorithm>
#include <atomic>

#include <c10/util/Exception.h>

namespace phantora::native {
namespace {

constexpr int kStreamsPerPool = 32;
constexpr int kNumPriorities = 6;

int device_count = 8;
thread_local c10::DeviceIndex device_of_thread = 0;
thread_local c10::StreamId streams_of_thread[kMaxDevices] = {};
std::atomic<uint32_t> num_handed_out[kMaxDevices][kNumPriorities] = {};

c10::DeviceIndex checked(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "CUDA error: invalid device ordinal");
  return device;
}

} // namespace

int num_devices() { return device_count; }

void set_num_devices(int count) {
  TORCH_CHECK(count >= 0 && count <= kMaxDevices, "phantora: at most ", kMaxDevices, " devices per process");
  device_count = count;
}

c10::DeviceIndex current_device() { return device_of_thread; }

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device < device_count, "CUDA error: invalid device ordinal");
  if (device >= 0) device_of_thread = device;
}

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) noexcept {
  const c10::DeviceIndex previous = device_of_thread;
  if (device >= 0 && device < device_count) device_of_thread = device;
  return previous;
}

c10::StreamId current_stream(c10::DeviceIndex device) { return streams_of_thread[checked(device)]; }

c10::StreamId exchange_current_stream(c10::DeviceIndex device, c10::StreamId stream) {
  const c10::StreamId previous = streams_of_thread[checked(device)];
  streams_of_thread[device] = stream;
  return previous;
}

c10::StreamId next_pool_stream(c10::DeviceIndex device, int priority) {
  const int pool = std::clamp(-priority, 0, kNumPriorities - 1);
  const int64_t index = num_handed_out[checked(device)][pool]++ % kStreamsPerPool;
  return index << 5 | int64_t(pool + 1) << 1 | 1;
}

} // namespace phantora::native
