// What ATen asks about CUDA through CUDAHooksInterface. getCUDAHooks() looks the class up by its name, once, and caches
// the answer: this module must be loaded before libtorch_python. On a CUDA build libtorch_cuda registers its own class
// under the same name; REGISTRY_PREFERRED makes ours stay (libtorch_cuda says so on stderr).
#include <ATen/detail/CUDAHooksInterface.h>

#include "current.h"
#include "device.h"
#include "device_allocator.h"
#include "generator.h"
#include "pinned_memory.h"

namespace phantora::native {
namespace {

constexpr long kCudaVersion = 12080;  // as cudaRuntimeGetVersion
constexpr long kCudnnVersion = 92000; // as cudnnGetVersion

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  std::string showConfig() const override { return "  - simulated CUDA 12.8\n"; }

  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(num_devices()); }
  int getNumGPUs() const override { return num_devices(); }
  c10::DeviceIndex current_device() const override { return native::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return native::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_current_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    return {c10::DeviceType::CUDA, device_of_address(address)};
  }
  void deviceSynchronize(c10::DeviceIndex device) const override { device::synchronize_device(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }

  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const override { return kCudnnVersion; }
  long versionCUDART() const override { return kCudaVersion; }
  double batchnormMinEpsilonCuDNN() const override { return 1e-5; } // CUDNN_BN_MIN_EPSILON
};

} // namespace
} // namespace phantora::native

namespace at {
using phantora::native::CUDAHooks;
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks)
}
