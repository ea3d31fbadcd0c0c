// The calling thread's device and streams, as in CUDA: each thread starts on device 0 and the default streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace phantora::native {

constexpr int kMaxDevices = 64;

int num_devices();
void set_num_devices(int count);

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device); // throws on an invalid ordinal; negative: nothing
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) noexcept; // the previous one; negative: only asks
c10::StreamId current_stream(c10::DeviceIndex device);
c10::StreamId exchange_current_stream(c10::DeviceIndex device, c10::StreamId stream);

// Ids as c10/cuda/CUDAStream.cpp makes them: index << 5 | type << 1 | 1, type 1 = lowest priority. Pools of 32 streams
// per device and priority are handed out in turn: the 33rd is the first again.
c10::StreamId next_pool_stream(c10::DeviceIndex device, int priority); // 0 (default) to -5 (highest)

// Of a device that may have no index yet ("cuda").
inline c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

class CurrentDeviceScope {
 public:
  explicit CurrentDeviceScope(c10::DeviceIndex device) : previous_(current_device()) { set_current_device(device); }
  ~CurrentDeviceScope() { exchange_current_device(previous_); }
  CurrentDeviceScope(const CurrentDeviceScope&) = delete;
  CurrentDeviceScope& operator=(const CurrentDeviceScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

class CurrentStreamScope {
 public:
  CurrentStreamScope(c10::DeviceIndex device, c10::StreamId stream)
      : device_(device), previous_(exchange_current_stream(device, stream)) {}
  ~CurrentStreamScope() { exchange_current_stream(device_, previous_); }
  CurrentStreamScope(const CurrentStreamScope&) = delete;
  CurrentStreamScope& operator=(const CurrentStreamScope&) = delete;

 private:
  c10::DeviceIndex device_;
  c10::StreamId previous_;
};

} // namespace phantora::native
