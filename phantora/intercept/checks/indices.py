"""Indexing: dtypes of indices, masks and sources."""

from __future__ import annotations

import torch
from torch import Tensor

from phantora.intercept.checks.helpers import Arguments, Rule, c_type_name, require, type_name

_INDICES = (torch.int32, torch.int64)


# ------------------------------------------------------------------ indices (TensorAdvancedIndexing.cpp)


def _index_add(a: Arguments) -> None:
    self, index, source = a["self"], a["index"], a["source"]
    require(index.dtype in _INDICES, f"index_add_(): Expected dtype int32/int64 for index but got: {type_name(index)}")
    message = f"index_add_(): self ({type_name(self)}) and source ({type_name(source)}) must have the same scalar type"
    require(self.dtype == source.dtype, message)


def _index_copy(a: Arguments) -> None:
    self, index, source = a["self"], a["index"], a["source"]
    require(index.dtype == torch.int64, f"index_copy_(): Expected a long tensor for index, but got {type_name(index)}")
    require(
        self.dtype == source.dtype,
        "index_copy_(): self and source expected to have the same dtype, but got "
        f"(self) {type_name(self)} and (source) {type_name(source)}",
    )


def _index_fill(a: Arguments) -> None:
    require(a["index"].dtype == torch.int64, "index_fill_(): Expected dtype int64 for index.", IndexError)


def _index_select(a: Arguments) -> None:
    require(a["index"].dtype in _INDICES, "index_select(): Expected dtype int32 or int64 for index")


def _bucketize(a: Arguments) -> None:
    """BucketizationUtils.h"""
    num_dims = a["boundaries"].dim()
    require(num_dims == 1, f"boundaries tensor must be 1 dimension, but got dim({num_dims})")


def _index_put(a: Arguments) -> None:
    self, values = a["self"], a["values"]
    if not values.is_cuda and values.numel() == 1:  # with a mask, this becomes masked_fill_, which converts
        return
    require(
        self.dtype == values.dtype,
        f"Index put requires the source and destination dtypes match, got {type_name(self)} for the destination and "
        f"{type_name(values)} for the source.",
    )


def _put(a: Arguments) -> None:
    self, index, source = a["self"], a["index"], a["source"]
    require(index.dtype == torch.int64, f"put_(): Expected a long tensor for index, but got {type_name(index)}")
    require(
        self.dtype == source.dtype,
        "put_(): self and source expected to have the same dtype, but got "
        f"self.dtype = {type_name(self)} and source.dtype = {type_name(source)}",
    )


def _masked_fill(a: Arguments) -> None:
    mask, value = a["mask"], a["value"]
    message = f"masked_fill_ only supports boolean masks, but got mask with dtype {c_type_name(mask)}"
    require(mask.dtype == torch.bool, message)
    if isinstance(value, Tensor):
        message = "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with"
        require(value.dim() == 0, f"{message} {value.dim()} dimension(s).")


def _masked_scatter(a: Arguments) -> None:
    self, mask, source = a["self"], a["mask"], a["source"]
    types = f"{type_name(self)} and {type_name(source)}"
    require(self.dtype == source.dtype, f"masked_scatter: expected self and source to have same dtypes but got{types}")
    message = f"masked_scatter_ only supports boolean masks, but got mask with dtype {type_name(mask)}"
    require(mask.dtype == torch.bool, message)


RULES: dict[str, Rule] = {
    "index_add": _index_add,
    "index_copy": _index_copy,
    "index_fill": _index_fill,
    "index_select": _index_select,
    "_index_put_impl_": _index_put,
    "bucketize": _bucketize,
    "put_": _put,
    "masked_fill_": _masked_fill,
    "masked_scatter_": _masked_scatter,
}
