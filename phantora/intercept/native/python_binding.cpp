#include "python_binding.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace phantora::native {
namespace {

PyObject* out_of_memory_error = nullptr;

}

void set_out_of_memory_error(PyObject* type) {
  Py_XINCREF(type);
  Py_XDECREF(out_of_memory_error);
  out_of_memory_error = type;
}

void set_python_error() {
  try {
    throw;
  } catch (python_error& error) {
    error.restore();
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(out_of_memory_error ? out_of_memory_error : PyExc_MemoryError, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

} // namespace phantora::native
