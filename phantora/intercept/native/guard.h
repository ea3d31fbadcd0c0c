// The device guard of "cuda": how torch's C++ (autograd, streams, events, futures) reaches the simulated devices.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace phantora::native {

const c10::impl::DeviceGuardImplInterface& device_guard();
void register_device_guard(); // again after libtorch_cuda, which registers its own when it is loaded

} // namespace phantora::native
