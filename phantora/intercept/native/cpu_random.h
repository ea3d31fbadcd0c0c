// Host time of random numbers that the script makes on the CPU, such as synthetic images: the kernels are ATen's own;
// their time on the cluster's host is charged by the number of elements.
#pragma once

namespace phantora::native {

void register_cpu_random_kernels();

} // namespace phantora::native
