// The c10d::Work of simulated collectives.
#pragma once

namespace phantora::native {

// Defines operators: the one way by which a Work made here becomes the boxed object that c10d::* kernels written in
// Python return.
//   phantora::make_work(int device, int stream, Tensor[] tensors, bool blocking) -> Work
//   phantora::stash_tensors(Work work, Tensor[] tensors) -> ()
void register_work_operators();

} // namespace phantora::native
