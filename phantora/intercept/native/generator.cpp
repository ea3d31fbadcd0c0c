#include "generator.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <c10/core/GeneratorImpl.h>

#include "current.h"

namespace phantora::native {
namespace {

// As torch.cuda.get_rng_state() shows it: 16 bytes, seed then offset. DTensor's RNG tracker parses these bytes.
struct PhiloxState {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};
constexpr int64_t kStateBytes = sizeof(PhiloxState);
constexpr int64_t kSeedOnlyBytes = 8; // accepted by CUDAGeneratorImpl::set_state for old checkpoints

class SimulatedGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimulatedGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(c10::DeviceType::CUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override { *state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_->offset = offset; }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return state_->seed;
  }
  void set_state(const c10::TensorImpl& bytes) override {
    TORCH_CHECK_TYPE(bytes.dtype() == caffe2::TypeMeta::Make<uint8_t>() && bytes.device().is_cpu(),
                     "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(bytes.numel() == kStateBytes || bytes.numel() == kSeedOnlyBytes, "RNG state is wrong size");
    PhiloxState state{0, 0};
    std::memcpy(&state, bytes.data(), size_t(bytes.numel()));
    *state_ = state;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto bytes = at::detail::empty_cpu({kStateBytes}, at::ScalarType::Byte);
    std::memcpy(bytes.mutable_data_ptr(), state_.get(), kStateBytes);
    return bytes.getIntrusivePtr();
  }
  // Shares the state, as the graph-safe pair does.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* generator = dynamic_cast<SimulatedGenerator*>(other.get());
    TORCH_CHECK(generator, "Expected a CUDA Generator");
    state_ = generator->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto generator = c10::make_intrusive<SimulatedGenerator>(device_.index());
    generator->state_ = state_;
    return generator;
  }
  SimulatedGenerator* clone_impl() const override {
    auto* generator = new SimulatedGenerator(device_.index());
    *generator->state_ = *state_;
    return generator;
  }

 private:
  std::shared_ptr<PhiloxState> state_ = std::make_shared<PhiloxState>();
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto& generators = *new std::vector<at::Generator>;
  static std::once_flag once;
  std::call_once(once, [] {
    for (int index = 0; index < kMaxDevices; ++index)
      generators.push_back(at::make_generator<SimulatedGenerator>(c10::DeviceIndex(index)));
  });
  return generators.at(size_t(device < 0 ? current_device() : device));
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<SimulatedGenerator>(device < 0 ? current_device() : device);
}

void advance_philox(const at::Generator& generator, uint64_t increment) {
  auto* simulated = dynamic_cast<SimulatedGenerator*>(generator.unsafeGetGeneratorImpl());
  if (!simulated) return;
  simulated->set_offset(simulated->get_offset() + (increment + 3) / 4 * 4);
}

} // namespace phantora::native
