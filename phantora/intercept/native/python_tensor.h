// Between at::Tensor and Python's torch.Tensor. libtorch_python is loaded after this module, so that its two functions
// are looked up by connect_to_libtorch_python(), and the place of at::Tensor inside a Python tensor is probed.
#pragma once

#include <Python.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace phantora::native {

void connect_to_libtorch_python(const char* path);
void probe_tensor_layout(); // after `import torch`; throws when the layout is not understood

PyObject* wrap_tensor(const at::TensorBase& tensor);
PyObject* wrap_generator(const at::Generator& generator);

extern int tensor_offset_bytes;
inline const at::Tensor& tensor_of(PyObject* object) {
  return *reinterpret_cast<const at::Tensor*>(reinterpret_cast<char*>(object) + tensor_offset_bytes);
}
bool is_tensor(PyObject* object);

} // namespace phantora::native
