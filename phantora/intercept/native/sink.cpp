#include "sink.h"

#include <torch/csrc/Exceptions.h>

#include "python_support.h"
#include "python_tensor.h"

namespace phantora::native::sink {
namespace {

PyObject* methods_of_sink = nullptr;

[[noreturn]] void throw_current_python_error() {
  python_error error; // what torch's own bindings turn back into the Python exception
  error.persist();
  throw error;
}

// `use(answer)` runs with the GIL held; without a sink, or when the interpreter is going down, `otherwise` is returned.
template <typename Result, typename Use, typename... Arguments>
Result ask(const char* method, Result otherwise, Use use, Arguments... arguments) {
  if (!methods_of_sink || interpreter_is_finalizing()) return otherwise;
  WithGil gil;
  Reference bound(PyObject_GetAttrString(methods_of_sink, method));
  if (!bound) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw_current_python_error();
    PyErr_Clear();
    return otherwise;
  }
  Reference tuple(PyTuple_New(sizeof...(arguments)));
  Py_ssize_t position = 0;
  (PyTuple_SET_ITEM(tuple.get(), position++, PyLong_FromLongLong(static_cast<long long>(arguments))), ...);
  Reference answer(PyObject_Call(bound.get(), tuple.get(), nullptr));
  if (!answer) throw_current_python_error();
  if (answer.get() == Py_None) return otherwise;
  Result result = use(answer.get());
  if (PyErr_Occurred()) throw_current_python_error();
  return result;
}

bool as_bool(PyObject* answer) { return PyObject_IsTrue(answer) == 1; }

double as_double(PyObject* answer) { return PyFloat_AsDouble(answer); }

} // namespace

void set(PyObject* object) {
  Py_XINCREF(object);
  Py_XDECREF(methods_of_sink);
  methods_of_sink = object;
}

void synchronize_stream(int device, int64_t stream) { ask("sync_stream", true, as_bool, device, stream); }

void synchronize_event(int64_t event) { ask("sync_event", true, as_bool, event); }

void synchronize_device(int device) { ask("sync_device", true, as_bool, device); }

bool query_stream(int device, int64_t stream) { return ask("query_stream", true, as_bool, device, stream); }

bool query_event(int64_t event) { return ask("query_event", true, as_bool, event); }

double elapsed_ms(int64_t begin_event, int64_t end_event) {
  return ask("elapsed", 0.0, as_double, begin_event, end_event);
}

void issue_captured_collective(int64_t call, int device, int64_t stream) {
  ask("graph_collective", true, as_bool, call, device, stream);
}

at::TensorBase fetch(int64_t token) {
  return ask("fetch", at::TensorBase(), [](PyObject* answer) { return at::TensorBase(tensor_of(answer)); }, token);
}

} // namespace phantora::native::sink
