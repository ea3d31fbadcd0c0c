// DDP's C++ Reducer times its phases with CUDA events and synchronizes them when it makes its statistics, as on a GPU
// (torch/csrc/distributed/c10d/reducer_cuda.cpp).
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "current.h"
#include "device.h"

namespace c10d {

class SimulatedTimer final : public Timer {
 public:
  explicit SimulatedTimer(c10::Device device) : device_(device.index()) {}

  void record(Event event) override {
    Timer::record(event);
    int64_t& id = events_[size_t(event)];
    id = phantora::native::device::record_event(device_, phantora::native::current_stream(device_), id);
  }

  std::optional<int64_t> measureDifference(Event begin, Event end) override {
    using namespace phantora::native;
    const int64_t first = events_[size_t(begin)], last = events_[size_t(end)];
    if (!first || !last) return std::nullopt;
    device::synchronize_event(device_, first);
    device::synchronize_event(device_, last);
    const double difference_ms = device::elapsed_ms(first, last);
    if (difference_ms < 0) return std::nullopt;
    return int64_t(difference_ms * 1e6);
  }

 private:
  const c10::DeviceIndex device_;
  std::array<int64_t, 8> events_{};
};

C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, c10::DeviceType::CUDA, c10::REGISTRY_PREFERRED, SimulatedTimer)

} // namespace c10d
