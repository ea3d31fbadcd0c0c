"""flex_attention: one launch forward and one backward, priced by the blocks of scores that its mask leaves.

On a GPU it is a Triton template that torch.compile makes; here its products and softmax would run unfused, with every score in
memory. Both the operator itself and Inductor's lowering of it end in the operators below, and the compiled graph around it stays
fused. A block mask made by create_block_mask is evaluated at the four corners of each block, which tells empty, partial and full
blocks of causal, document, window and prefix masks exactly; making it is one launch, as when it is compiled.

Price: memory-bound work aside, that of flash attention on the share of keys that a query's blocks hold (FlexAttention, Dong et
al., 2024, section 5: 0.68 to 1.43 of FlashAttention-2's speed).
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents, unknown_values
from phantora.intercept.frameworks.priced_like import launch_like
from phantora.intercept.launching import launch

native: Any = sys.modules["phantora_native"]
_FLASH = "aten::_scaled_dot_product_flash_attention"
_libraries: list[Any] = []

_FORWARD = (
    "flex_attention(Tensor query, Tensor key, Tensor value, Tensor num_blocks, Tensor? num_full_blocks, SymInt keys_per_block)"
    " -> (Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "flex_attention_backward(Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor grad_out, "
    "Tensor num_blocks, Tensor? num_full_blocks, SymInt keys_per_block) -> (Tensor, Tensor, Tensor)"
)


def after(module: ModuleType) -> None:
    """`module` is the operator, its Python interface, or Inductor's lowering."""
    _declare()
    if module.__name__ == "torch._higher_order_ops.flex_attention":
        _replace_dense(module)
    elif module.__name__ == "torch.nn.attention.flex_attention":
        module.create_block_mask = _block_mask_by_corners(module)  # type: ignore[attr-defined]
    else:
        _replace_lowerings()


@functools.cache
def _declare() -> None:
    library = torch.library.Library("phantora", "FRAGMENT")
    _libraries.append(library)
    library.define(_FORWARD)
    library.define(_BACKWARD)
    library.impl("flex_attention", _forward, "CUDA")
    library.impl("flex_attention_backward", _backward, "CUDA")
    library.impl("flex_attention", _forward_shapes, "Meta")
    library.impl("flex_attention_backward", _backward_shapes, "Meta")


# ------------------------------------------------------------------ the kernels


def _forward(query: Tensor, key: Tensor, value: Tensor, num_blocks: Tensor, num_full_blocks: Tensor | None, keys_per_block: int) -> Any:
    outputs = _forward_shapes(query, key, value, num_blocks, num_full_blocks, keys_per_block)
    density = _density_percent(num_blocks, num_full_blocks, key.shape[-2], keys_per_block)
    operands = (("query", query), ("key", key), ("value", value), ("density_percent", density))
    launch_like(_FLASH, "flex_attention::forward", *operands, outputs=outputs)
    return outputs


def _backward(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, grad_out: Tensor,
    num_blocks: Tensor, num_full_blocks: Tensor | None, keys_per_block: int,
) -> Any:  # fmt: skip
    outputs = _backward_shapes(query, key, value, out, logsumexp, grad_out, num_blocks, num_full_blocks, keys_per_block)
    density = _density_percent(num_blocks, num_full_blocks, key.shape[-2], keys_per_block)
    operands = (("grad_out", grad_out), ("query", query), ("key", key), ("value", value), ("density_percent", density))
    launch_like(_FLASH + "_backward", "flex_attention::backward", *operands, outputs=outputs)
    return outputs


def _forward_shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    from torch._higher_order_ops.flex_attention import _permute_strides

    out = _permute_strides(query.new_empty((*query.shape[:3], value.shape[-1])), query.stride())
    rows = query.shape[:3]
    return out, query.new_empty(rows, dtype=torch.float32), query.new_empty(rows, dtype=torch.float32)


def _backward_shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    from torch._higher_order_ops.flex_attention import _permute_strides

    return tuple(_permute_strides(t.new_empty(t.shape), t.stride()) for t in (query, key, value))  # type: ignore[return-value]


def _density_percent(num_blocks: Tensor, num_full_blocks: Tensor | None, num_keys: int, keys_per_block: int) -> int:
    """Share of the scores that lie in blocks which are computed: a percentage, so that few signatures arise."""
    counts = [contents.known(blocks) for blocks in (num_blocks, num_full_blocks) if blocks is not None]
    if any(count is None for count in counts):
        unknown_values.count("phantora::flex_attention (block mask)")
        return max(round(100 * unknown_values.policy().density), 1)
    per_row = sum(float(count.double().mean()) for count in counts)  # type: ignore[union-attr]
    blocks_per_row = -(-num_keys // keys_per_block)
    return min(max(round(100 * per_row / blocks_per_row), 1), 100)


# ------------------------------------------------------------------ where they are called


def _blocks_of(block_mask: Any) -> tuple[Any, Any, Any]:
    """(num_blocks, num_full_blocks, keys per block) of BlockMask.as_tuple()."""
    return block_mask[2], block_mask[4], block_mask[-2]


def _replace_dense(module: ModuleType) -> None:
    """Eager calls, and compiled graphs that run eagerly, end in these two."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    forward, backward = module.flex_attention, module.flex_attention_backward
    dense, dense_backward = forward.py_kernels[key], backward.py_kernels[key]

    def flex_attention(query: Tensor, keys: Tensor, value: Tensor, score_mod: Any, block_mask: Any, *rest: Any) -> Any:
        if not query.is_cuda:
            return dense(query, keys, value, score_mod, block_mask, *rest)
        return torch.ops.phantora.flex_attention(query, keys, value, *_blocks_of(block_mask))

    def flex_attention_backward(*args: Any) -> Any:
        query, keys, value, out, logsumexp, grad_out, _, _, _, block_mask, _, _, captured, _ = args
        if not query.is_cuda:
            return dense_backward(*args)
        saved = (query, keys, value, out, logsumexp, grad_out)
        grads = torch.ops.phantora.flex_attention_backward(*saved, *_blocks_of(block_mask))
        return (*grads, tuple(torch.empty_like(t) if isinstance(t, Tensor) and t.requires_grad else None for t in captured))

    forward.py_kernels[key], backward.py_kernels[key] = flex_attention, flex_attention_backward
    forward._dispatch_cache.clear()
    backward._dispatch_cache.clear()


def _replace_lowerings() -> None:
    """In a graph that Inductor compiles: calls of the same operators, everything around them fused."""
    from torch._inductor import lowering

    higher, ours = torch.ops.higher_order, torch.ops.phantora
    call = lowering.fallback_handler(ours.flex_attention.default)
    call_backward = lowering.fallback_handler(ours.flex_attention_backward.default)
    original, original_backward = lowering.lowerings[higher.flex_attention], lowering.lowerings[higher.flex_attention_backward]

    def flex_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *rest: Any) -> Any:
        if query.get_device().type != "cuda":
            return original(query, key, value, score_mod, block_mask, *rest)
        return call(query, key, value, *_blocks_of(block_mask))

    def flex_attention_backward(*args: Any) -> Any:
        if args[0].get_device().type != "cuda":
            return original_backward(*args)
        if args[12]:
            raise NotImplementedError("gradients of tensors that score_mod uses")  # the graph then runs eagerly
        return (*call_backward(*args[:6], *_blocks_of(args[9])), ())

    lowering.lowerings[higher.flex_attention] = flex_attention
    lowering.lowerings[higher.flex_attention_backward] = flex_attention_backward


# ------------------------------------------------------------------ block masks


def _block_mask_by_corners(module: Any) -> Any:
    original = module.create_block_mask

    @functools.wraps(original)
    def create_block_mask(
        mask_mod: Any, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
        BLOCK_SIZE: int | tuple[int, int] = 128, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if torch.compiler.is_dynamo_compiling():  # part of a larger compiled function
            return original(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, *args, **kwargs)
        target = torch.device(device) if device is not None else torch.accelerator.current_accelerator()
        if target is None or target.type != "cuda" or kwargs.get("compute_dq_write_order") or len(args) > 2:
            return original(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, *args, **kwargs)
        sizes = BLOCK_SIZE if isinstance(BLOCK_SIZE, tuple) else (BLOCK_SIZE, BLOCK_SIZE)
        separate = kwargs.get("separate_full_blocks", args[1] if len(args) > 1 else True)
        native.set_recording(False)
        try:
            corners = _corners(module, mask_mod, (B or 1, H or 1), (Q_LEN, KV_LEN), sizes, target)
            some, every = corners.amax((-1, -3)), corners.amin((-1, -3))
            blocks = (some & ~every, every) if separate else (some, None)
            parts = tuple(None if part is None else part.to(torch.int8) for part in blocks)
            mask = module._create_sparse_block_from_block_mask(parts, mask_mod, (Q_LEN, KV_LEN), *sizes)
        finally:
            native.set_recording(True)
        made = (mask.kv_num_blocks, mask.kv_indices, mask.q_num_blocks, mask.q_indices)
        launch(made[0].get_device(), "flex_attention::create_block_mask", ("self", made[0]), outputs=made)
        return mask

    _leave_uncompiled(create_block_mask)
    return create_block_mask


def _corners(module: Any, mask_mod: Any, heads: tuple[int, int], lengths: tuple[int, int], sizes: tuple[int, int], device: Any) -> Tensor:
    """The mask at the corners of its blocks: [batch, heads, query blocks, 2, key blocks, 2]."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    indices = [torch.arange(size, device=device) for size in heads]
    for length, size in zip(lengths, sizes):
        first = torch.arange(0, length, size, device=device)
        indices.append(torch.stack((first, (first + (size - 1)).clamp(max=length - 1)), 1).flatten())
    with TransformGetItemToIndex():
        mask = module._vmap_for_bhqkv(mask_mod, prefix=())(*indices)
    return mask.expand(*heads, *mask.shape[2:]).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))


def _leave_uncompiled(function: Any) -> None:
    """torch.compile(create_block_mask) is the function itself, which is priced as compiled code already."""
    compile_function = torch.compile

    @functools.wraps(compile_function)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        return function if model is function else compile_function(model, **kwargs)

    torch.compile = compile
