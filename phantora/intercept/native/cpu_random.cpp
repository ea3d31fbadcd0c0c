#include "cpu_random.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "clock.h"
#include "device.h"
#include "quiet.h"

namespace phantora::native {
namespace {

// Fewer than 1024 numbers cost nothing.
constexpr int64_t kElementsPerUnit = 1024;
constexpr const char* kOperators[][2] = {{"aten::normal_", ""},      {"aten::uniform_", ""},    {"aten::random_", ""},
                                         {"aten::random_", "from"},  {"aten::random_", "to"},   {"aten::bernoulli_", "float"},
                                         {"aten::exponential_", ""}};

class ChargingKernel final : public c10::OperatorKernel {
 public:
  explicit ChargingKernel(c10::SafeKernelFunction real) : real_(std::move(real)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t num_arguments = handle.schema().arguments().size();
    const int64_t num_elements = torch::jit::peek(*stack, 0, num_arguments).toTensor().numel();
    if (num_elements >= kElementsPerUnit && !clock::is_inside_kernel())
      device::charge_units(Kind::kCpuRandom, num_elements / kElementsPerUnit);
    real_.callBoxed(handle, keys, stack);
  }

 private:
  const c10::SafeKernelFunction real_;
};

} // namespace

void register_cpu_random_kernels() {
  const QuietWarnings quiet;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& [name, overload] : kOperators) {
    const auto handle = dispatcher.findSchemaOrThrow(name, overload);
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<ChargingKernel>(handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)));
    new c10::RegistrationHandleRAII(dispatcher.registerImpl(handle.operator_name(), c10::DispatchKey::CPU, // for ever
                                                            std::move(kernel), std::nullopt, nullptr, "phantora"));
  }
}

} // namespace phantora::native
