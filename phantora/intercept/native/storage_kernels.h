// Operators that only touch metadata or storage, and how new simulated tensors come about.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace phantora::native {

struct TensorSpec {
  c10::SmallVector<int64_t, 6> sizes, strides;
  caffe2::TypeMeta dtype;
  size_t num_bytes = 0;

  static TensorSpec of(const at::Tensor& like);
  at::Tensor make(c10::DeviceIndex device) const; // on the current stream, with unknown contents
};

void resize_storage(c10::StorageImpl& storage, size_t num_bytes); // keeps known contents
void register_storage_kernels();

} // namespace phantora::native
