"""What an ops.json profile leaves out (dtypes, strides, dimensions of reductions), inferred from its case.

Cases are float32, pure bfloat16 (with normalisation and loss in float32), or mixed precision (autocast to bfloat16);
one is channels_last. Inference is by operator and shape, so single rows may be wrong; Kineto traces need none of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from phantora.compute import OpCall, TensorSpec
from phantora.validation.profile_calls import channels_last, contiguous, make_call

Calls = tuple[tuple[OpCall, float], ...]

# Rows of activations in the profiled cases: a left operand with this many columns is a transposed gradient.
_TOKENS = (8192, 256, 16384, 100_000)
_VOCABULARY = {768: 50257, 2048: 128256, 4096: 32000}  # hidden size -> vocabulary
_EMBEDDING_BAG_TABLE = (400_000, 128)
_KEPT_IN_FLOAT32 = (
    "pow mean rsqrt div _log_softmax _log_softmax_backward_data nll_loss_backward nll_loss_forward".split()
)
# fmt: off
_INDEX_PLACES = {
    "gather": (2,), "index_add_": (2,), "scatter_add_": (2,), "scatter_": (2,), "scatter_reduce_": (2,), "cumsum": (0,),
    "nll_loss_forward": (1,), "nll_loss_backward": (2,), "embedding_dense_backward": (1,), "_embedding_bag": (1, 2),
    "_embedding_bag_dense_backward": (1, 2),
}
_LIST_DEPTHS = {"_foreach_addcdiv_": 3, "_foreach_addcmul_": 3, "_foreach_lerp_": 2}
# fmt: on


class Guess:
    """The inference for one case."""

    def __init__(self, case: str, rows: list[dict], num_params: int) -> None:
        self.mixed = case.startswith(("gpt2", "compiled", "llama-1b")) or "amp" in case
        self.pure = case.endswith("-bf16")
        self.llama = case.startswith("llama")
        self.channels_last = "channels-last" in case
        self.matrix = "bfloat16" if self.mixed or self.pure else "float32"
        norms = [json.loads(row["shapes"])[0] for row in rows if row["op"] == "aten::linalg_vector_norm"]
        self.num_tensors = next((shape[0] for shape in norms if len(shape) == 1), 160)
        self.num_params = num_params

    def calls(self, name: str, shapes: list[list[int]]) -> Calls:
        """(call, share of the row) alternatives for aten::`name` on `shapes`."""
        if name.startswith("_foreach"):
            return self.lists(name, len(shapes))
        made = ((self._call(name, shapes, dtypes), share) for dtypes, share in self._dtypes(name, shapes))
        return tuple((call, share) for call, share in made if call is not None)

    def lists(self, name: str, num_args: int) -> Calls:
        """A _foreach_ operator over all parameters, taken as equally large tensors (lists are not recorded)."""
        dtype = "bfloat16" if self.pure else "float32"
        group = (contiguous((max(self.num_params // self.num_tensors, 1),), dtype),) * self.num_tensors
        adds_lists = name.startswith("_foreach_add") and num_args == 3 and not self.mixed
        depth = _LIST_DEPTHS.get(name, 2 if adds_lists else 1)
        outputs = group if not name.endswith("_") and "norm" not in name else ()
        args = tuple((key, group) for key in ("self", "tensor1", "tensor2")[:depth])
        mutated = ("self",) if name.endswith("_") else ()
        return ((OpCall("aten::" + name, args=args, outputs=outputs, mutated=mutated), 1.0),)

    def _dtypes(self, name: str, shapes: list[list[int]]) -> list[tuple[tuple[str, ...], float]]:
        n, low, high = len(shapes), "bfloat16", "float32"
        if name in ("mm", "bmm", "addmm") or "conv" in name or "attention" in name or "max_pool" in name:
            return [((self.matrix,) * n, 1.0)]
        if name == "copy_" and (self.mixed or self.pure):
            if len(shapes[0]) <= 2 and self.mixed:  # weights to bfloat16, their gradients back
                return [((low, high), 0.5), ((high, low), 0.5)]
            return [((low, high), 0.4), ((high, low), 0.4), ((low, low), 0.2)]
        in_mlp = self.mixed and self.llama and bool(shapes[0]) and shapes[0][-1] == 8192
        if in_mlp or self.channels_last or (self.pure and not self._stays_float32(name, shapes)):
            return [((low,) * n, 1.0)]
        return [((high,) * n, 1.0)]

    @staticmethod
    def _stays_float32(name: str, shapes: list[list[int]]) -> bool:
        """Parts of an RMSNorm and of the loss of a bfloat16 model."""
        per_row = any(shape and shape[-1] == 1 for shape in shapes)
        return (
            name in _KEPT_IN_FLOAT32
            or (name in ("mul", "add", "sum") and per_row)
            or (name == "mul" and not shapes[-1])
        )

    def _call(self, name: str, shapes: list[list[int]], dtypes: tuple[str, ...]) -> OpCall | None:
        values: list = []
        for place, shape in enumerate(shapes):
            indexes = place in _INDEX_PLACES.get(name, ())
            layout = channels_last if self.channels_last and len(shape) == 4 else contiguous
            dtype = "int64" if indexes else dtypes[min(place, len(dtypes) - 1)]
            values.append(layout(shape, dtype) if shape else None)
        if len(shapes[0]) == 4 and self.llama and not name.startswith("fill"):
            values[0] = _heads_view(shapes[0], dtypes[0])
        if name in _COMPLETIONS:
            _COMPLETIONS[name](values, shapes)
        result = _result_shape(name, shapes)
        if result is not None:
            place = "weight" if name == "_embedding_bag" else "grad_output"
            args = ((place, values[0]), ("indices", values[1]))
            return OpCall("aten::" + name, args=args, outputs=(contiguous(result, dtypes[0]),))
        return make_call(name, values)


def _heads_view(shape: list[int], dtype: str) -> TensorSpec:
    """Queries or keys as a view of (batch, tokens, heads, head size); 32 columns are the half of a head of 64."""
    b, h, s, d = shape
    full = 64 if d == 32 else d
    return TensorSpec((b, h, s, d), (s * h * full, full, h * full, 1), dtype)


def _result_shape(name: str, shapes: list[list[int]]) -> tuple[int, ...] | None:
    """Outputs of operators on embeddings, which their inputs do not tell."""
    if name == "_embedding_bag":
        return (shapes[2][0], shapes[0][1])
    if name == "_embedding_bag_dense_backward":
        return _EMBEDDING_BAG_TABLE
    if name == "embedding_dense_backward":
        positions = shapes[0][0] == 1 and shapes[0][1] == 1024
        return (1024 if positions else _VOCABULARY[shapes[0][-1]], shapes[0][-1])
    return None


def _complete_product(values: list, shapes: list[list[int]]) -> None:
    if shapes[0][1] in _TOKENS and shapes[0][0] not in _TOKENS:  # the gradient of a weight
        values[0] = contiguous(shapes[0], values[0].dtype, (1, 0))


def _complete_sum(values: list, shapes: list[list[int]]) -> None:
    """The gradient of a bias sums rows; anything else is taken to sum the last dimension."""
    values[1:] = [(0,) if len(shapes[0]) == 2 else (-1,)]


def _complete_gather(values: list, shapes: list[list[int]]) -> None:
    """PyTorch Geometric expands one index per edge over all features."""
    if len(shapes) > 2 and len(shapes[2]) > 1 and math.prod(shapes[2][1:]) > 1:
        values[2] = TensorSpec(tuple(shapes[2]), (1,) + (0,) * (len(shapes[2]) - 1), "int64")


def _complete_attention(values: list, shapes: list[list[int]]) -> None:
    """Operands are views of heads; GPT-2 trains with dropout 0.1; without an additive mask attention is causal."""
    backward = len(shapes) > 13
    for place in range(5 if backward else 3):
        values[place] = _heads_view(shapes[place], values[place].dtype)
    values += [None] * (16 - len(values))
    mask, dropout, causal = (8, 13, 14) if backward else (3, 9, 10)
    values[dropout] = 0.1 if shapes[0][1] == 12 else 0.0
    values[causal] = not isinstance(values[mask], TensorSpec)


def _complete_convolution_backward(values: list, shapes: list[list[int]]) -> None:
    if shapes[1][1] == 3:  # images need no gradient
        values[10] = (False, True, False)


def _set(place: int, value: Callable[[list[list[int]]], object]) -> Callable[[list, list[list[int]]], None]:
    def complete(values: list, shapes: list[list[int]]) -> None:
        values[place] = value(shapes)

    return complete


_COMPLETIONS: dict[str, Callable[[list, list[list[int]]], None]] = {
    "mm": _complete_product,
    "sum": _complete_sum,
    "mean": _set(1, lambda shapes: (-1,)),
    "gather": _complete_gather,
    "scatter_add_": _complete_gather,
    "_cudnn_attention_forward": _complete_attention,
    "_cudnn_attention_backward": _complete_attention,
    "convolution_backward": _complete_convolution_backward,
    "native_layer_norm": _set(1, lambda shapes: (shapes[0][-1],)),
    "native_layer_norm_backward": _set(2, lambda shapes: (shapes[0][-1],)),
    "_index_put_impl_": _set(3, lambda shapes: True),
}
