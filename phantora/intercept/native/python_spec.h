// The Python class Spec: what a new simulated tensor looks like. Spec(meta_tensor).make(device) -> torch.Tensor.
#pragma once

#include <Python.h>

#include "storage_kernels.h"

namespace phantora::native {

bool add_spec_type(PyObject* module);
const TensorSpec* spec_of(PyObject* object); // null with a TypeError set when it is no Spec

} // namespace phantora::native
