#include "python_spec.h"

#include "contents.h"
#include "python_binding.h"
#include "python_tensor.h"

namespace phantora::native {
namespace {

struct SpecObject {
  PyObject_HEAD
  TensorSpec* spec;
};

TensorSpec& spec_in(PyObject* self) { return *reinterpret_cast<SpecObject*>(self)->spec; }

PyObject* spec_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  return translate_errors([&]() -> PyObject* {
    PyObject* like = nullptr;
    if (!PyArg_ParseTuple(arguments, "O", &like)) return nullptr;
    if (!is_tensor(like)) {
      PyErr_SetString(PyExc_TypeError, "Spec: expected a tensor (on the meta device)");
      return nullptr;
    }
    auto spec = std::make_unique<TensorSpec>(TensorSpec::of(tensor_of(like)));
    PyObject* self = type->tp_alloc(type, 0);
    if (self) reinterpret_cast<SpecObject*>(self)->spec = spec.release();
    return self;
  });
}

void spec_dealloc(PyObject* self) {
  delete reinterpret_cast<SpecObject*>(self)->spec;
  Py_TYPE(self)->tp_free(self);
}

PyObject* spec_make(PyObject* self, PyObject* device) {
  return translate_errors([&]() -> PyObject* {
    const long index = PyLong_AsLong(device);
    if (index == -1 && PyErr_Occurred()) return nullptr;
    return wrap_tensor(spec_in(self).make(c10::DeviceIndex(index)));
  });
}

PyObject* spec_nbytes(PyObject* self, void*) { return PyLong_FromSize_t(spec_in(self).num_bytes); }

PyObject* spec_small(PyObject* self, void*) {
  const TensorSpec& spec = spec_in(self);
  return PyBool_FromLong(spec.num_bytes <= shadow_limit_bytes(c10::typeMetaToScalarType(spec.dtype)));
}

PyObject* spec_ndim(PyObject* self, void*) { return PyLong_FromSize_t(spec_in(self).sizes.size()); }

PyMethodDef spec_methods[] = {
    {"make", spec_make, METH_O, "make(device) -> a new tensor on cuda:device, on its current stream"}, {}};

PyGetSetDef spec_getters[] = {{"nbytes", spec_nbytes, nullptr, "bytes of the storage", nullptr},
                              {"small", spec_small, nullptr, "may it carry known contents?", nullptr},
                              {"ndim", spec_ndim, nullptr, "number of dimensions", nullptr},
                              {}};

PyTypeObject spec_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

} // namespace

bool add_spec_type(PyObject* module) {
  spec_type.tp_name = "phantora_native.Spec";
  spec_type.tp_doc = "Spec(meta_tensor): shape, strides and dtype of new simulated tensors";
  spec_type.tp_basicsize = sizeof(SpecObject);
  spec_type.tp_flags = Py_TPFLAGS_DEFAULT;
  spec_type.tp_new = spec_new;
  spec_type.tp_dealloc = spec_dealloc;
  spec_type.tp_methods = spec_methods;
  spec_type.tp_getset = spec_getters;
  if (PyType_Ready(&spec_type) < 0) return false;
  Py_INCREF(&spec_type);
  return PyModule_AddObject(module, "Spec", reinterpret_cast<PyObject*>(&spec_type)) == 0;
}

const TensorSpec* spec_of(PyObject* object) {
  if (PyObject_TypeCheck(object, &spec_type)) return &spec_in(object);
  PyErr_SetString(PyExc_TypeError, "expected a Spec");
  return nullptr;
}

} // namespace phantora::native
