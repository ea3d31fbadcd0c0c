// Turns a C++ function into a Python one: arguments and result are converted by their types, errors become exceptions.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "python_tensor.h"

namespace phantora::native {

// Called inside a catch block: sets the Python exception for the one being handled.
void set_python_error();
void set_out_of_memory_error(PyObject* type); // torch.OutOfMemoryError

template <typename Function>
PyObject* translate_errors(Function function) {
  try {
    return function();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// Conversion errors leave a Python exception, which is looked for once, after all arguments.
template <typename T>
T from_python(PyObject* object) {
  if constexpr (std::is_same_v<T, PyObject*>) {
    return object;
  } else if constexpr (std::is_same_v<T, bool>) {
    return PyObject_IsTrue(object) == 1;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(PyLong_AsLongLong(object));
  } else if constexpr (std::is_floating_point_v<T>) {
    return PyFloat_AsDouble(object);
  } else if constexpr (std::is_same_v<T, std::string_view>) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyUnicode_Check(object)) {
      data = const_cast<char*>(PyUnicode_AsUTF8AndSize(object, &size));
    } else {
      PyBytes_AsStringAndSize(object, &data, &size);
    }
    return data ? std::string_view(data, size_t(size)) : std::string_view();
  } else {
    static_assert(std::is_same_v<T, const at::Tensor&>, "no conversion from Python");
    static const at::Tensor kNothing;
    if (is_tensor(object)) return tensor_of(object);
    PyErr_SetString(PyExc_TypeError, "expected a torch.Tensor");
    return kNothing;
  }
}

template <typename T>
PyObject* to_python(T value) {
  if constexpr (std::is_same_v<T, PyObject*>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    return PyBool_FromLong(value);
  } else if constexpr (std::is_integral_v<T>) {
    return PyLong_FromLongLong(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return PyFloat_FromDouble(value);
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    if (value.defined()) return wrap_tensor(value);
    Py_RETURN_NONE;
  } else {
    PyObject* tuple = PyTuple_New(2); // a pair
    if (!tuple) return nullptr;
    PyTuple_SET_ITEM(tuple, 0, to_python(value.first));
    PyTuple_SET_ITEM(tuple, 1, to_python(value.second));
    return tuple;
  }
}

template <auto function>
struct Binding;

template <typename Return, typename... Parameters, Return (*function)(Parameters...)>
struct Binding<function> {
  static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != Py_ssize_t(sizeof...(Parameters))) {
      PyErr_Format(PyExc_TypeError, "phantora_native: expected %zu arguments, got %zd", sizeof...(Parameters), count);
      return nullptr;
    }
    return translate_errors([&] { return invoke(arguments, std::index_sequence_for<Parameters...>()); });
  }

 private:
  template <size_t... index>
  static PyObject* invoke([[maybe_unused]] PyObject* const* arguments, std::index_sequence<index...>) {
    std::tuple<Parameters...> values{from_python<Parameters>(arguments[index])...};
    if (sizeof...(Parameters) > 0 && PyErr_Occurred()) return nullptr;
    if constexpr (std::is_void_v<Return>) {
      std::apply(function, values);
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_NONE;
    } else {
      Return result = std::apply(function, values);
      if constexpr (!std::is_same_v<Return, PyObject*>)
        if (PyErr_Occurred()) return nullptr;
      return to_python<Return>(std::move(result));
    }
  }
};

// One entry of a PyMethodDef table.
template <auto function>
PyMethodDef method(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Binding<function>::call)), METH_FASTCALL,
          doc};
}

} // namespace phantora::native
