"""Scaled dot-product attention: the fused forward and backward kernels of flash, memory-efficient and cuDNN attention.

Work: 4 b h sq sk d FLOPs forward and 2.5 times that backward (five products instead of two; Dao, FlashAttention-2,
2023), half under a causal mask. Blocks of 128 queries run in waves over the SMs. Dropout and an additive mask cost
instructions per score, which the tensor cores do not hide.
"""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.roof import Roof
from phantora.compute.work import Work, base_name, ceil_div, first_tensor, flag, is_contiguous, nbytes, read, written

FAMILY = "attention"

# Per doubling of (batch x heads, queries, keys, head size, queries that share a key head).
WEIGHTS = (0.4, 0.7, 0.7, 0.7, 0.4)

# fmt: off
_BACKENDS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "flash",
    "_flash_attention_forward": "flash",
    "_flash_attention_forward_quantized": "flash",
    "_efficient_attention_forward": "efficient",
    "_cudnn_attention_forward": "cudnn",
    "_scaled_dot_product_attention_math": "efficient",
    "_transformer_encoder_layer_fwd": "efficient",
    "_native_multi_head_attention": "efficient",
}
# fmt: on
NAMES = tuple(_BACKENDS) + tuple(
    (name[:-8] if name.endswith("_forward") else name) + "_backward" for name in _BACKENDS if "quantized" not in name
)

# Share of the 16-bit peak reached on long sequences (head size 128): measured 357, 175 and 690 of 989 TF forward,
# 305, 138 and 600 backward.
_SHARE = {"flash": (0.36, 0.31), "efficient": (0.175, 0.14), "cudnn": (0.70, 0.60)}

# Their kernels are those of Ampere (mma.sync), which use half of what Hopper's tensor cores can do. On Ampere and Ada
# flash attention reaches 73 % of the peak forward and 63 % backward at best (Dao, FlashAttention-2, 2023, figures 4-6:
# 190 to 224 and 150 to 196 of 312 TF by head size on an A100); the same share is taken for cuDNN's.
_AMPERE_SHARE = {"flash": (0.68, 0.56), "efficient": (0.38, 0.27), "cudnn": (0.68, 0.56)}

# Scores per second of the random mask (forward, backward): GPT-2 124M, dropout 0.1, batch 8 x 1024 tokens, spends 57 us
# more per forward and 15 us more per backward call than without dropout, on 50 million scores under the causal mask.
_DROPOUT_SCORES_PER_S = (0.9e12, 3.0e12)
# The same for an additive mask read per score (a compiled GPT-2 passes one: 53 and 110 us on 100 million scores).
_MASK_SCORES_PER_S = (1.9e12, 0.9e12)

# Memory-efficient attention's backward pass spills its accumulators when heads are wider than 128.
_WIDE_BACKWARD = 3.3

_BLOCKS = {"efficient": 64}  # queries and keys of a block, 128 elsewhere

_FIXED_NS = {"forward": 6000.0, "backward": 16000.0}
# Times that queries, keys and their like cross memory: q, k, v, o; backward also their gradients, with dq in float32.
_PASSES = {"forward": 2, "backward": 9}
_NUM_KERNELS = {("flash", "backward"): 3, ("efficient", "backward"): 2, ("cudnn", "backward"): 3}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    backward = name.endswith("_backward")
    backend = _backend(name)
    query, key = first_tensor(call, "query"), first_tensor(call, "key")
    value = first_tensor(call, "value") or key
    if query is None or key is None or value is None or len(query.shape) < 3:
        return ()
    batch, heads, queries, keys, head_size = _sizes(call, name, query, key)
    density = call.arg("density_percent")
    if isinstance(density, int):  # a block mask: as if so much of the keys were there
        keys = max(keys * density // 100, 1)
    causal = bool(call.arg("is_causal", False)) or bool(call.arg("custom_mask_type", 0))
    share = _causal_share(queries, keys) if causal else 1.0
    scores = batch * heads * queries * keys
    flops = int(2 * scores * (head_size + value.shape[-1]) * share * (2.5 if backward else 1))
    direction = "backward" if backward else "forward"
    mask = "causal" if causal else "full"
    curves = _curves(call, query, direction, backend, mask)
    kernels = _NUM_KERNELS.get((backend, direction), 1)
    traffic = sum(map(nbytes, read(call))) + sum(map(nbytes, written(call)))
    return (
        Work(
            family=FAMILY,
            curves=curves,
            at=(max(batch * heads, 1), queries, keys, head_size, _sharing(query, key, heads)),
            flops=flops,
            bytes=traffic,
            num_kernels=kernels,
        ),
    )


def _backend(name: str) -> str:
    for stem, backend in _BACKENDS.items():
        if name.startswith(stem.removesuffix("_forward")):
            return backend
    return "efficient"


def _sizes(call: OpCall, name: str, query: TensorSpec, key: TensorSpec) -> tuple[int, int, int, int, int]:
    """(batch, heads, queries, keys, head size); a packed batch counts as sequences of its greatest length."""
    q, k = query.shape, key.shape
    if len(q) == 3:  # packed: tokens, heads, head size
        max_q = _length(call, ("max_q", "max_seqlen_q", "max_seqlen_batch_q"), q[0])
        max_k = _length(call, ("max_k", "max_seqlen_k", "max_seqlen_batch_k"), k[0])
        return max(q[0] // max_q, 1), q[1], max_q, max_k, q[2]
    if name.startswith(("_flash_attention", "_efficient_attention")):  # batch, tokens, heads, head size
        if q[0] == 1 and isinstance(call.arg("cu_seqlens_q"), TensorSpec):
            max_q = _length(call, ("max_seqlen_q", "max_q"), q[1])
            return max(q[1] // max_q, 1), q[2], max_q, _length(call, ("max_seqlen_k", "max_k"), max_q), q[3]
        return q[0], q[2], q[1], k[1], q[3]
    return q[0], q[1], q[2], k[2], q[3]


def _length(call: OpCall, names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = call.arg(name)
        if isinstance(value, int) and value > 0:
            return value
    return max(default, 1)


def _causal_share(queries: int, keys: int) -> float:
    """Share of the scores under the diagonal: half, more when there are more keys than queries."""
    return 0.5 if queries >= keys else 1.0 - queries / (2.0 * keys)


def _sharing(query: TensorSpec, key: TensorSpec, heads: int) -> int:
    """Query heads per key head (grouped-query attention)."""
    key_heads = heads if len(query.shape) != 4 or query.shape[1] != heads else key.shape[1]
    return max(heads // max(key_heads, 1), 1)


def _curves(call: OpCall, query: TensorSpec, direction: str, backend: str, mask: str) -> tuple[str, ...]:
    """sdpa/direction/backend/mask and what else costs instructions per score/dtype/layout of the operands."""
    if flag(call, "dropout", False) or float(call.arg("dropout_p", 0.0) or 0.0) > 0.0:  # type: ignore[arg-type]
        mask += "-dropout"
    if isinstance(call.arg("attn_bias"), TensorSpec) or isinstance(call.arg("attn_mask"), TensorSpec):
        mask += "-bias"
    operands = [t for n in ("query", "key", "value", "grad_out") if isinstance(t := call.arg(n), TensorSpec)]
    layouts = ("dense", "view") if all(map(is_contiguous, operands)) else ("view", "dense")
    dtypes = (query.dtype, "bfloat16") if query.dtype == "float16" else (query.dtype,)
    return tuple(f"sdpa/{direction}/{backend}/{mask}/{dtype}/{layout}" for dtype in dtypes for layout in layouts)


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of attention `at` = (batch x heads, queries, keys, head size, sharing) on a curve of `_curves`."""
    words = curve.split("/")
    direction, backend, mask, dtype = words[1], words[2], words[3], words[4]
    heads, queries, keys, head_size, _ = at
    backward = direction == "backward"
    wide = _WIDE_BACKWARD if backward and backend == "efficient" and head_size > 128 else 1.0
    shares, by_size = (_SHARE, 0.5) if roof.generation >= 9 else (_AMPERE_SHARE, 0.25)
    share = shares[backend][backward] * min(1.0, (head_size / 128) ** by_size) / (4.0 if dtype == "float32" else 1.0)
    # Forward, a block walks the keys of 128 queries; backward, the queries of 128 keys.
    blocks = heads * ceil_div(keys if backward else queries, 128)
    waves = ceil_div(blocks, roof.num_sms) * roof.num_sms / blocks if blocks < 4 * roof.num_sms else 1.0
    block = _BLOCKS.get(backend, 128)
    scores = float(heads * ceil_div(queries, block) * block * ceil_div(keys, block) * block)
    if mask.startswith("causal"):
        scores = min(scores, scores * _causal_share(queries, keys) + _causal_excess(heads, queries, keys, roof))
    flops = 4.0 * scores * head_size * (2.5 if backward else 1.0) * wide
    passes = _PASSES[direction] * (2 if dtype == "float32" else 1)
    moved = roof.stream_ns(2.0 * heads * head_size * (queries + keys) * passes)
    compute = flops / (roof.flops_per_ns("bfloat16") * share) * (0.5 + 0.5 * waves)
    return _FIXED_NS[direction] + compute + moved + _per_score_ns(mask, scores, backward, roof)


def _per_score_ns(mask: str, scores: float, backward: bool, roof: Roof) -> float:
    """Instructions that dropout and an additive mask cost per score; the tensor cores do not hide them."""
    dropout = roof.items_ns(scores, _DROPOUT_SCORES_PER_S[backward]) if "dropout" in mask else 0.0
    return dropout + (roof.items_ns(scores, _MASK_SCORES_PER_S[backward]) if "bias" in mask else 0.0)


def _causal_excess(heads: int, queries: int, keys: int, roof: Roof) -> float:
    """Scores whose time the mask does not save: blocks on the diagonal, and SMs idle beside the longest rows."""
    return 1.2 * heads * queries * 128.0 + 0.8 * roof.num_sms * 128.0 * keys
