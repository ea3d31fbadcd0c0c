"""The list of CUDA operators, and that nothing on it was forgotten."""

from __future__ import annotations

import pytest

pytest.importorskip("torchgen")

from phantora.intercept.operators import NATIVE, NOT_SIMULATED, DeviceCheck, cuda_operators, is_simulated

pytestmark = pytest.mark.torch

YAML = """
- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
  device_check: NoCheck   # TensorIterator
  structured_delegate: add.out
  dispatch:
    SparseCPU: add_sparse

- func: mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU: mm_out_cpu
    CUDA: mm_out_cuda

- func: index_select(Tensor self, int dim, Tensor index) -> Tensor
  variants: method, function
  dispatch:
    CPU, QuantizedCPU: index_select_cpu_
    CUDA, QuantizedCUDA: index_select_cuda # also quantized

- func: copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
  device_check: NoCheck
  dispatch:
    SparseCUDA: copy_sparse_

- func: cat.names(Tensor[] tensors, Dimname dim) -> Tensor
"""


def test_parsing(tmp_path):
    path = tmp_path / "native_functions.yaml"
    path.write_text(YAML)
    found = {operator.name: operator for operator in cuda_operators(str(path))}
    assert list(found) == ["add.Tensor", "mm.out", "index_select"]
    assert found["add.Tensor"].check is DeviceCheck.ITERATOR
    assert found["mm.out"].check is DeviceCheck.ALL_SAME
    assert [op.wrapper for op in found.values()] == [
        "wrapper_CUDA_add_Tensor", "wrapper_CUDA_mm_out", "wrapper_CUDA__index_select"
    ]  # fmt: skip


def test_size_of_the_list():
    """About as many as a CUDA build registers: the parser has not lost a part of the file."""
    assert 1200 < len(cuda_operators()) < 1500


def test_everything_left_out_is_named():
    left_out = [op.name for op in cuda_operators() if not is_simulated(op.name)]
    unexplained = [n for n in left_out if n not in NATIVE and n not in NOT_SIMULATED and not n.startswith("miopen")]
    assert not unexplained
