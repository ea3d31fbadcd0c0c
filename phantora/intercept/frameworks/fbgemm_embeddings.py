"""FBGEMM's table-batched embeddings (torchrec): CUDA kernels of its CPU package's operators, forward and fused
backward.

A forward pass gathers rows and pools them in one kernel. A backward pass sorts the indices and then updates the rows
that were looked up: every one is read and written once, as if all were distinct, beside the gradient of the output.
With batches of variable size (VBE) the output is flat: rows of one feature after those of another. Rows in the host's
memory (UVM) are not modelled.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents
from phantora.intercept.custom_ops import launch_foreign
from phantora.intercept.frameworks.priced_like import launch_like
from phantora.intercept.host_sync import sync_current_stream
from phantora.intercept.schemas import Schema

_libraries: list[Any] = []
_OUTPUT_DTYPES = {
    0: torch.float32,
    1: torch.float16,
    5: torch.bfloat16,
}  # fbgemm_gpu.split_embedding_configs.SparseType


def after(module: ModuleType) -> None:
    """`module` is fbgemm_gpu.split_table_batched_embeddings_ops_training: its operators are loaded."""
    library = torch.library.Library("fbgemm", "IMPL")
    _libraries.append(library)
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        name = qualified.removeprefix("fbgemm::")
        if name == qualified or not name.startswith("split_embedding_") or not name.endswith("_pt2_wrapper"):
            continue
        kernel = _forward if "_forward_" in name else _indice_weights if "_grad_indice_weights_" in name else _backward
        op = getattr(torch.ops.fbgemm, name).default
        library.impl(name, _Bound(op, name, kernel), "CUDA")
    for name in ("permute_pooled_embs_auto_grad", "permute_pooled_embs_auto_grad_split"):
        library.impl(name, _PermutePooled.apply, "AutogradCUDA")
    library.impl("keyed_jagged_index_select_dim1", _select_of_each_key, "CUDA")


def _select_of_each_key(
    values: Tensor, lengths: Tensor, offsets: Tensor, indices: Tensor, batch_size: int, weights: Tensor | None = None,
    selected_lengths_sum: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Of a jagged tensor of `batch_size` lists for each key, lists `indices` of every key: [values, lengths, weights].

    (FBGEMM's CPU package has no kernel of it.) How long the lists are must be known; the host waits, as on a GPU, unless
    it was told the sum.
    """
    taken = [tensor for tensor in (values, weights) if tensor is not None]
    known_lengths, known_indices = contents.known(lengths), contents.known(indices)
    if known_lengths is None or known_indices is None:
        raise NotImplementedError("fbgemm::keyed_jagged_index_select_dim1: lengths of lists that are not known")
    chosen = known_lengths.view(-1, batch_size)[:, known_indices].reshape(-1)
    ends = known_lengths.view(-1).cumsum(0)
    starts = (ends - known_lengths.view(-1)).view(-1, batch_size)[:, known_indices].reshape(-1)
    shifts = torch.repeat_interleave(starts - (chosen.cumsum(0) - chosen), chosen)
    positions = torch.arange(shifts.numel(), device="cpu") + shifts
    results = [tensor.new_empty((positions.numel(),)) for tensor in taken]
    for tensor, result in zip(taken, results):
        known = contents.known(tensor)
        if known is not None:
            contents.write(result, known[positions])
    new_lengths = lengths.new_empty((chosen.numel(),))
    contents.write(new_lengths, chosen)
    results.insert(1, new_lengths)
    if new_lengths.numel():
        launch_foreign("fbgemm::keyed_jagged_index_select_dim1", [*taken, lengths, offsets, indices], results)
    if selected_lengths_sum is None:
        sync_current_stream(values.get_device())
    return results


class _PermutePooled(torch.autograd.Function):
    """Columns of features in another order. (The operators' own shape functions read the lists of columns, which have no
    values on a meta tensor.)"""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor, *lists: Tensor) -> Tensor:
        ctx.lists = lists
        return _permuted(pooled, lists)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _permuted(grads[0], ctx.lists), None, None, None, None


def _permuted(pooled: Tensor, lists: tuple[Tensor, ...]) -> Tensor:
    out = torch.empty_like(pooled, memory_format=torch.contiguous_format)
    if out.numel():
        launch_foreign("fbgemm::permute_pooled_embs", [pooled, *lists], [out])
    return out


class _Bound:
    """Calls a kernel with the operator's arguments by name."""

    def __init__(self, op: Any, name: str, kernel: Any) -> None:
        self.schema, self.name, self.kernel = Schema(op), name, kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(self.schema.bound(args, kwargs))
        if given["dev_weights"].numel() == 0:
            raise NotImplementedError(
                f"fbgemm::{self.name}: embedding tables outside the GPU's memory are not modelled"
            )
        return self.kernel(given, "_nobag_" in self.name)


def _forward(given: dict[str, Any], is_nobag: bool) -> Tensor:
    weights, indices = given["dev_weights"], given["indices"]
    dtype = _OUTPUT_DTYPES.get(given.get("output_dtype", 0), torch.float32)
    if "vbe_output_size" in given:
        out = given.get("vbe_output")
        out = weights.new_empty((given["vbe_output_size"],), dtype=dtype) if out is None else out
        rows = out.view(-1, _width(given)) if out.numel() % _width(given) == 0 else out
    elif is_nobag:
        out = weights.new_empty((indices.numel(), _width(given)), dtype=dtype)
        rows = out
    else:
        num_tables = given["D_offsets"].numel() - 1
        batch = (given["offsets"].numel() - 1) // max(num_tables, 1)
        out = weights.new_empty((batch, given["total_D"]), dtype=dtype)
        rows = out.view(batch * num_tables, -1) if given["total_D"] % max(num_tables, 1) == 0 else out
    if indices.numel() and out.numel():
        operands = (("weight", _table(given)), ("indices", indices), ("offsets", given["offsets"]))
        like = "aten::embedding" if is_nobag else "aten::_embedding_bag"
        launch_like(like, "fbgemm::embedding_forward", *operands, outputs=(rows,))
    return out


def _backward(given: dict[str, Any], is_nobag: bool) -> None:
    """None: the rows are updated in place, there is no gradient of the table."""
    indices, grad = given["indices"], given["grad_output"]
    if indices.numel():
        keys = torch.empty_like(indices)
        launch_like("aten::sort", "fbgemm::sort_indices", ("self", indices), ("dim", -1), outputs=(keys, keys))
        looked_up = torch.empty((indices.numel(), _width(given)), dtype=given["dev_weights"].dtype, device="meta")
        launch_like(
            "", "fbgemm::embedding_backward", ("grad", grad), ("rows", looked_up), ("sorted", keys), mutated=("rows",)
        )


def _indice_weights(given: dict[str, Any], is_nobag: bool) -> Tensor:
    """The gradient of each sample's weight: a product of its row and of its bag's gradient."""
    grad, indices = given["grad_output"], given["indices"]
    out = torch.empty(indices.numel(), dtype=torch.float32, device=indices.device)
    looked_up = torch.empty((indices.numel(), _width(given)), dtype=given["dev_weights"].dtype, device="meta")
    launch_like(
        "", "fbgemm::grad_indice_weights", ("grad", grad), ("rows", looked_up), ("indices", indices), outputs=(out,)
    )
    return out


def _width(given: dict[str, Any]) -> int:
    """Columns of a row: the mean where tables differ."""
    if "total_D" in given and "D_offsets" in given:
        return max(int(given["total_D"]) // max(given["D_offsets"].numel() - 1, 1), 1)
    return int(given.get("max_D") or given.get("D") or 1)


def _table(given: dict[str, Any]) -> Tensor:
    """All rows of all tables, for the price."""
    weights: Tensor = given["dev_weights"]
    width = _width(given)
    return torch.empty((max(weights.numel() // width, 1), width), dtype=weights.dtype, device="meta")
