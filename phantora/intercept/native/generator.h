// Random generators of simulated devices: a seed and a Philox offset, no random numbers.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace phantora::native {

const at::Generator& default_generator(c10::DeviceIndex device); // negative: the current device
at::Generator new_generator(c10::DeviceIndex device);

// A random kernel used `increment` numbers per thread. Offsets advance in multiples of 4, as
// CUDAGeneratorImpl::philox_cuda_state rounds them (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp).
void advance_philox(const at::Generator& generator, uint64_t increment);

} // namespace phantora::native
