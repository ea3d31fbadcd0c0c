// Planned operators: the repeat of a call whose signature is known never enters Python.
//
// A boxed C++ kernel stands in front of each Python kernel. The first call with a new signature (shapes, strides,
// dtypes, integers, ...; see CallReader) goes to the Python kernel, which may say with plan() what the outcome of such
// a call is: a signature to launch, and for each result either the index of an argument or the specification of a new
// tensor. Repeats are then done here. The plan steps aside whenever contents could be computed: when all inputs are
// known (or will be) and something that is written is small enough to carry contents.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

namespace phantora::native::planned {

// Puts a planning kernel in front of the Python kernel registered for `name` ("add" or "namespace::name"). `pure_out`:
// index of an argument that is only written (copy_, fill_), or -1; keyword-only written arguments always are.
void put_in_front(const char* name, const char* overload, int pure_out);
// From the Python kernel during the first call of a signature. `outs`: a sequence of int (argument) | Spec |
// (Spec, CPU tensor with the contents) | list of the latter two | None (an undefined tensor); None: such calls always go
// to Python. `large`: nothing
// written is small enough to carry contents. `philox_increment`: random numbers per thread that the kernel uses.
// `temporaries`: null, or for each result the bytes of a block taken and given back once it is there (0: none).
bool plan(int64_t signature, PyObject* outs, bool large, int64_t philox_increment, PyObject* temporaries);
bool is_plan_wanted();
std::pair<int64_t, int64_t> statistics(); // hits, misses
void set_enabled(bool on);
// Global switches that change a kernel's price (allow_tf32, ...) as one number: part of every signature.
void set_context(int64_t context);

} // namespace phantora::native::planned
