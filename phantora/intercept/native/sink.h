// Questions that only Python (and, behind it, the engine) can answer. Takes the GIL; hold no lock of the device.
// An exception raised in Python continues as that exception in the Python caller of whatever C++ asked.
#pragma once

#include <Python.h>

#include <cstdint>

#include <ATen/core/TensorBase.h>

namespace phantora::native::sink {

void set(PyObject* object); // its methods are looked up once; a missing one means: nothing to wait for

void synchronize_stream(int device, int64_t stream);
void synchronize_event(int64_t event);
void synchronize_device(int device);
bool query_stream(int device, int64_t stream);
bool query_event(int64_t event);
double elapsed_ms(int64_t begin_event, int64_t end_event);
void issue_captured_collective(int64_t call, int device, int64_t stream);
at::TensorBase fetch(int64_t token); // uint8 on the CPU, or undefined: unknown

} // namespace phantora::native::sink
