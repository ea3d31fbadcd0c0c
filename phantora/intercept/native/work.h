// The c10d::Work of simulated collectives.
#pragma once

namespace phantora::native {

// Defines the operator phantora::make_work(int device, int stream, Tensor[] tensors, bool blocking) -> Work: the one way
// by which a Work made here becomes the boxed object that c10d::* kernels written in Python return.
void register_work_operator();

} // namespace phantora::native
