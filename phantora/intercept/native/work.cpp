#include "work.h"

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include "current.h"
#include "device.h"

namespace phantora::native {
namespace {

using c10::ivalue::Future;

// Holds an event recorded behind the collective on its stream. Waits as ProcessGroupNCCL::WorkNCCL does
// (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, synchronizeInternal).
class SimulatedWork final : public c10d::Work {
 public:
  SimulatedWork(int device, int64_t stream, std::vector<at::Tensor> tensors, bool is_blocking)
      : device_(c10::DeviceIndex(device)), is_blocking_(is_blocking), tensors_(std::move(tensors)),
        event_(device::record_event(device_, stream)) {
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                          std::vector<c10::Device>{c10::Device(c10::DeviceType::CUDA, device_)});
    const CurrentDeviceScope device_scope(device_);
    const CurrentStreamScope stream_scope(device_, stream); // the future records its event on the current stream
    future_->markCompleted(c10::IValue(tensors_));
  }

  ~SimulatedWork() override { device::destroy_event(device_, event_); }

  bool isCompleted() override { return device::query_event(event_); }
  bool isSuccess() const override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }

  void synchronize() override {
    device::wait_event(device_, current_stream(device_), event_);
    stash_.clear();
  }
  // Inputs that must live until somebody waits (ProcessGroupNCCL's TensorShelf).
  void stash(std::vector<at::Tensor> tensors) {
    for (auto& tensor : tensors) stash_.push_back(std::move(tensor));
  }

  // The current stream waits; the host goes on, unless this is a barrier or the caller gave a timeout.
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) {
      device::synchronize_event(device_, event_);
    } else if (is_blocking_) {
      device::synchronize_stream(device_, current_stream(device_));
    }
    return true;
  }

  void blockCurrentStream() override { synchronize(); }
  void abort() override {}

 private:
  const c10::DeviceIndex device_;
  const bool is_blocking_;
  const std::vector<at::Tensor> tensors_;
  const int64_t event_;
  c10::intrusive_ptr<Future> future_;
  std::vector<at::Tensor> stash_;
};

c10::intrusive_ptr<c10d::Work> make_work(int64_t device, int64_t stream, std::vector<at::Tensor> tensors,
                                         bool blocking) {
  return c10::make_intrusive<SimulatedWork>(int(device), stream, std::move(tensors), blocking);
}

void stash_tensors(const c10::intrusive_ptr<c10d::Work>& work, std::vector<at::Tensor> tensors) {
  auto* simulated = dynamic_cast<SimulatedWork*>(work.get());
  TORCH_CHECK(simulated, "phantora: this Work was not made by make_work");
  simulated->stash(std::move(tensors));
}

} // namespace

void register_work_operators() {
  static auto& library = *new torch::Library(torch::Library::FRAGMENT, "phantora", std::nullopt, __FILE__, __LINE__);
  library.def(
      "make_work(int device, int stream, Tensor[] tensors, bool blocking) -> __torch__.torch.classes.c10d.Work",
      torch::CppFunction(&make_work));
  library.def("stash_tensors(__torch__.torch.classes.c10d.Work work, Tensor[] tensors) -> ()",
              torch::CppFunction(&stash_tensors));
}

} // namespace phantora::native
