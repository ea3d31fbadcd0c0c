#include "python_tensor.h"

#include <dlfcn.h>

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "python_support.h"

namespace phantora::native {

int tensor_offset_bytes = 0;

namespace {

PyObject* (*wrap_tensor_function)(const at::TensorBase&) = nullptr;
PyObject* (*wrap_generator_function)(const at::Generator&) = nullptr;
PyTypeObject* tensor_base_type = nullptr;

} // namespace

void connect_to_libtorch_python(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(library, "phantora: ", path, " is not loaded");
  // THPVariable_Wrap(at::TensorBase const&), THPGenerator_initDefaultGenerator(at::Generator const&)
  wrap_tensor_function = reinterpret_cast<decltype(wrap_tensor_function)>(
      dlsym(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE"));
  wrap_generator_function = reinterpret_cast<decltype(wrap_generator_function)>(
      dlsym(library, "_Z33THPGenerator_initDefaultGeneratorRKN2at9GeneratorE"));
  TORCH_CHECK(wrap_tensor_function && wrap_generator_function,
              "phantora: this libtorch_python lacks THPVariable_Wrap or THPGenerator_initDefaultGenerator");
}

void probe_tensor_layout() {
  const auto tensor = at::detail::empty_cpu({1}, at::ScalarType::Float);
  Reference object(wrap_tensor(tensor));
  TORCH_CHECK(object, "phantora: cannot make a Python tensor");
  // After PyObject_HEAD there may be a vtable, a weak list or flags before the at::Tensor (THPVariable).
  for (int offset = sizeof(PyObject); offset < Py_TYPE(object.get())->tp_basicsize; offset += sizeof(void*)) {
    if (*reinterpret_cast<void**>(reinterpret_cast<char*>(object.get()) + offset) == tensor.unsafeGetTensorImpl()) {
      tensor_offset_bytes = offset;
      break;
    }
  }
  TORCH_CHECK(tensor_offset_bytes, "phantora: the layout of torch.Tensor in this version of torch is not known");
  tensor_base_type = Py_TYPE(object.get())->tp_base; // torch._C.TensorBase
  Py_INCREF(tensor_base_type);
}

PyObject* wrap_tensor(const at::TensorBase& tensor) { return wrap_tensor_function(tensor); }

PyObject* wrap_generator(const at::Generator& generator) { return wrap_generator_function(generator); }

bool is_tensor(PyObject* object) { return tensor_base_type && PyObject_TypeCheck(object, tensor_base_type); }

} // namespace phantora::native
