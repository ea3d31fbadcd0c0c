#include "guard.h"

#include "current.h"
#include "device.h"
#include "device_allocator.h"

namespace phantora::native {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

// torch keeps an event as an opaque pointer: here it is the id of its latest record.
int64_t event_id(const void* event) { return reinterpret_cast<int64_t>(event); }

Stream stream_on(Device device, c10::StreamId id) {
  return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, index_of(device)), id);
}

class SimulatedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return DeviceIndex(num_devices()); }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  Device getDevice() const override { return {DeviceType::CUDA, current_device()}; }
  void setDevice(Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { exchange_current_device(device.index()); }
  Device exchangeDevice(Device device) const override {
    const DeviceIndex previous = current_device();
    set_current_device(device.index());
    return {DeviceType::CUDA, previous};
  }

  Stream getStream(Device device) const override { return stream_on(device, current_stream(index_of(device))); }
  Stream getDefaultStream(Device device) const override { return stream_on(device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool is_high_priority) const override {
    return getNewStream(device, is_high_priority ? -1 : 0);
  }
  Stream getNewStream(Device device, int priority) const override {
    return stream_on(device, next_pool_stream(index_of(device), priority));
  }
  Stream exchangeStream(Stream stream) const override {
    return stream_on(stream.device(), exchange_current_stream(stream.device_index(), stream.id()));
  }
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const Stream& stream) const override {
    return device::query_stream(stream.device_index(), stream.id());
  }
  void synchronizeStream(const Stream& stream) const override {
    device::synchronize_stream(stream.device_index(), stream.id());
  }
  bool isStreamCapturing(const Stream&) const override { return device::is_capturing(); }
  void synchronizeDevice(const DeviceIndex index) const override {
    device::synchronize_device(index < 0 ? current_device() : index);
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(device::record_event(stream.device_index(), stream.id(), event_id(*event)));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) device::wait_event(stream.device_index(), stream.id(), event_id(event));
  }
  bool queryEvent(void* event) const override { return !event || device::query_event(event_id(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) device::synchronize_event(current_device(), event_id(event));
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    return device::elapsed_ms(event_id(begin), event_id(end));
  }
  void destroyEvent(void* event, const DeviceIndex index) const noexcept override {
    if (event) device::destroy_event(index, event_id(event));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, SimulatedGuard)

} // namespace

const c10::impl::DeviceGuardImplInterface& device_guard() {
  static const auto& guard = *new SimulatedGuard;
  return guard;
}

void register_device_guard() { c10::impl::DeviceGuardImplRegistrar(DeviceType::CUDA, &device_guard()); }

} // namespace phantora::native
