"""Calls whose results must look alike (shape, dtype, stride) on the CPU and on the simulated GPU. Data, not tests.

Each case is a Python expression of `t` (a factory of tensors on the device in question), `torch` and `F`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CASES: dict[str, str] = {
    "add": "t(3, 4) + t(3, 4)",
    "add_broadcast": "t(3, 1) + t(1, 4)",
    "add_scalar": "t(3, 4) + 2.5",
    "add_int_scalar_promotes": "t(3, 4, dtype=torch.int32) + 2.5",
    "add_mixed_dtypes": "t(3, 4, dtype=torch.bfloat16) + t(3, 4)",
    "add_transposed": "t(4, 3).t() + t(4, 3).t()",
    "add_channels_last": "t(2, 3, 4, 5).to(memory_format=torch.channels_last) + 1",
    "sub_": "t(3, 4).sub_(1)",
    "mul_complex": "t(3, 4, dtype=torch.complex64) * 2",
    "div_int": "t(3, dtype=torch.int64) / t(3, dtype=torch.int64)",
    "floor_divide": "torch.floor_divide(t(3), 2)",
    "remainder": "t(5, dtype=torch.int64) % 3",
    "pow": "t(3, 4) ** 2",
    "compare": "t(3, 4) > 0",
    "logical": "(t(3) > 0) & (t(3) < 1)",
    "where": "torch.where(t(3, 4) > 0, t(3, 4), 0.0)",
    "clamp": "t(3, 4).clamp(0, 1)",
    "exp": "t(3, 4).exp()",
    "abs_complex": "t(3, dtype=torch.complex64).abs()",
    "rsqrt": "t(3, 4, dtype=torch.bfloat16).rsqrt()",
    "to_bfloat16": "t(4, 3).t().to(torch.bfloat16)",
    "to_channels_last": "t(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)",
    "clone": "t(4, 3).t().clone()",
    "contiguous": "t(4, 3).t().contiguous()",
    "cat": "torch.cat([t(2, 3), t(4, 3)])",
    "cat_promotes": "torch.cat([t(2, 3), t(4, 3, dtype=torch.float64)])",
    "stack": "torch.stack([t(2, 3), t(2, 3)], 1)",
    "split": "torch.split(t(10, 3), 4)",
    "chunk": "t(10, 3).chunk(3)",
    "unbind": "t(3, 4).unbind(1)",
    "index_slice": "t(5, 6)[1:4, ::2]",
    "index_tensor": "t(5, 6)[torch.tensor([0, 2], device=t.device)]",
    "index_two_tensors": "t(5, 6, 7)[:, torch.tensor([0, 2], device=t.device), torch.tensor([1, 1], device=t.device)]",
    "index_put": "t(5, 6).index_put_((torch.tensor([0, 2], device=t.device),), t(6))",
    "index_select": "t(5, 6).index_select(1, torch.tensor([0, 2], device=t.device))",
    "index_add": "t(5, 6).index_add_(0, torch.tensor([0, 2], device=t.device), t(2, 6))",
    "gather": "t(5, 6).gather(1, torch.zeros(5, 2, dtype=torch.int64, device=t.device))",
    "scatter": "t(5, 6).scatter(1, torch.zeros(5, 2, dtype=torch.int64, device=t.device), 1.0)",
    "scatter_add": "t(5, 6).scatter_add(1, torch.zeros(5, 2, dtype=torch.int64, device=t.device), t(5, 2))",
    "scatter_reduce": "t(5).scatter_reduce(0, torch.zeros(5, dtype=torch.int64, device=t.device), t(5), 'amax')",
    "masked_fill": "t(3, 4).masked_fill(t(3, 4) > 0, 0.0)",
    "take_along_dim": "torch.take_along_dim(t(3, 4), torch.zeros(3, 1, dtype=torch.int64, device=t.device), 1)",
    "sum": "t(3, 4).sum()",
    "sum_dim_keep": "t(3, 4, 5).sum((0, 2), keepdim=True)",
    "sum_int": "t(3, 4, dtype=torch.int32).sum(0)",
    "mean": "t(3, 4, dtype=torch.bfloat16).mean(1)",
    "var_mean": "torch.var_mean(t(3, 4), 1)",
    "std": "t(3, 4).std()",
    "norm": "torch.linalg.vector_norm(t(3, 4), 2)",
    "max_dim": "t(3, 4).max(1)",
    "argmax": "t(3, 4).argmax(1)",
    "amax": "t(3, 4).amax(0)",
    "aminmax": "t(3, 4).aminmax()",
    "all": "(t(3, 4) > 0).all(1)",
    "cumsum": "t(3, 4).cumsum(1)",
    "cumprod": "t(3, 4).cumprod(1)",
    "logsumexp": "t(3, 4).logsumexp(1)",
    "sort": "t(3, 4).sort(1)",
    "argsort": "t(3, 4).argsort(1)",
    "topk": "t(3, 8).topk(2)",
    "kthvalue": "t(3, 8).kthvalue(2)",
    "median": "t(3, 8).median()",
    "mm": "t(3, 4) @ t(4, 5)",
    "mm_transposed": "t(4, 3).t() @ t(5, 4).t()",
    "mv": "t(3, 4) @ t(4)",
    "dot": "t(4) @ t(4)",
    "bmm": "t(2, 3, 4) @ t(2, 4, 5)",
    "matmul_broadcast": "t(2, 3, 4, 5) @ t(5, 6)",
    "addmm": "torch.addmm(t(5), t(3, 4), t(4, 5))",
    "baddbmm": "torch.baddbmm(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5))",
    "einsum": "torch.einsum('bij,bjk->bik', t(2, 3, 4), t(2, 4, 5))",
    "outer": "torch.outer(t(3), t(4))",
    "linear": "F.linear(t(2, 3, 4), t(5, 4), t(5))",
    "linear_bf16": "F.linear(t(2, 3, 4, dtype=torch.bfloat16), t(5, 4, dtype=torch.bfloat16))",
    "conv1d": "F.conv1d(t(2, 3, 10), t(5, 3, 3), t(5), padding=1)",
    "conv2d": "F.conv2d(t(2, 3, 8, 8), t(5, 3, 3, 3), t(5), stride=2, padding=1)",
    "conv2d_groups": "F.conv2d(t(2, 4, 8, 8), t(4, 1, 3, 3), groups=4)",
    "conv2d_channels_last": "F.conv2d(t(2, 4, 8, 8).to(memory_format=torch.channels_last), t(6, 4, 3, 3))",
    "conv_transpose2d": "F.conv_transpose2d(t(2, 3, 8, 8), t(3, 5, 3, 3), stride=2)",
    "conv3d": "F.conv3d(t(1, 2, 4, 5, 6), t(3, 2, 2, 2, 2))",
    "max_pool2d": "F.max_pool2d(t(2, 3, 8, 8), 2)",
    "avg_pool2d": "F.avg_pool2d(t(2, 3, 8, 8), 2)",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(t(2, 3, 8, 8), 3)",
    "interpolate": "F.interpolate(t(2, 3, 8, 8), scale_factor=2, mode='bilinear')",
    "interpolate_nearest": "F.interpolate(t(2, 3, 8, 8), size=(4, 5))",
    "pad_reflect": "F.pad(t(2, 3, 8, 8), (1, 2, 1, 2), mode='circular')",
    "pad_constant": "F.pad(t(2, 3), (1, 2), value=3.0)",
    "grid_sample": "F.grid_sample(t(2, 3, 8, 8), t(2, 4, 4, 2), align_corners=False)",
    "batch_norm_eval": "F.batch_norm(t(2, 3, 4, 4), t(3), t(3).abs(), t(3), t(3))",
    "batch_norm_train": "F.batch_norm(t(2, 3, 4, 4), t(3), t(3).abs(), t(3), t(3), training=True)",
    "layer_norm": "F.layer_norm(t(2, 3, 4), (4,), t(4), t(4))",
    "group_norm": "F.group_norm(t(2, 6, 4, 4), 3, t(6), t(6))",
    "instance_norm": "F.instance_norm(t(2, 3, 4, 4))",
    "rms_norm": "F.rms_norm(t(2, 3, 4), (4,), t(4))",
    "relu": "F.relu(t(3, 4))",
    "gelu": "F.gelu(t(3, 4), approximate='tanh')",
    "silu": "F.silu(t(4, 3).t())",
    "leaky_relu": "F.leaky_relu(t(3, 4))",
    "softplus": "F.softplus(t(3, 4))",
    "glu": "F.glu(t(3, 4))",
    "softmax": "F.softmax(t(3, 4, dtype=torch.bfloat16), -1)",
    "softmax_to_float": "F.softmax(t(3, 4, dtype=torch.bfloat16), -1, dtype=torch.float32)",
    "log_softmax": "F.log_softmax(t(3, 4), 1)",
    "embedding": "F.embedding(torch.zeros(2, 3, dtype=torch.int64, device=t.device), t(7, 4))",
    "embedding_bag": "F.embedding_bag(torch.zeros(2, 3, dtype=torch.int64, device=t.device), t(7, 4))",
    "one_hot": "F.one_hot(torch.tensor([0, 2, 1], device=t.device), 5)",
    "cross_entropy": "F.cross_entropy(t(3, 4), torch.tensor([0, 2, 1], device=t.device))",
    "nll_loss": "F.nll_loss(t(3, 4), torch.tensor([0, 2, 1], device=t.device), reduction='none')",
    "mse_loss": "F.mse_loss(t(3, 4), t(3, 4))",
    "bce_with_logits": "F.binary_cross_entropy_with_logits(t(3, 4), t(3, 4))",
    "smooth_l1": "F.smooth_l1_loss(t(3, 4), t(3, 4))",
    "kl_div": "F.kl_div(t(3, 4), t(3, 4), reduction='batchmean')",
    "arange": "torch.arange(0, 10, 3, device=t.device)",
    "arange_float": "torch.arange(0, 1, 0.3, device=t.device)",
    "linspace": "torch.linspace(0, 1, 5, device=t.device)",
    "full": "torch.full((2, 3), 7, device=t.device)",
    "full_like": "torch.full_like(t(4, 3).t(), 7)",
    "zeros_like": "torch.zeros_like(t(4, 3).t())",
    "eye": "torch.eye(3, device=t.device)",
    "tril": "torch.tril(t(4, 4))",
    "triu_indices": "torch.triu_indices(4, 4, device=t.device)",
    "meshgrid": "torch.meshgrid(t(3), t(4), indexing='ij')",
    "roll": "torch.roll(t(3, 4), 1, 0)",
    "flip": "torch.flip(t(3, 4), (1,))",
    "repeat": "t(3, 4).repeat(2, 1)",
    "expand": "t(3, 1).expand(3, 4)",
    "permute": "t(2, 3, 4).permute(2, 0, 1)",
    "view_dtype": "t(4, 4).view(torch.int32)",
    "view_as_complex": "torch.view_as_complex(t(3, 2))",
    "unfold": "t(10).unfold(0, 3, 2)",
    "im2col": "F.unfold(t(1, 2, 5, 5), 3)",
    "diagonal": "t(3, 4).diagonal()",
    "rand": "torch.rand(3, 4, device=t.device)",
    "randn_like": "torch.randn_like(t(4, 3).t())",
    "randint": "torch.randint(0, 9, (3, 4), device=t.device)",
    "randperm": "torch.randperm(9, device=t.device)",
    "dropout": "F.dropout(t(3, 4), 0.5)",
    "bernoulli": "torch.bernoulli(t(3, 4).abs().clamp(0, 1))",
    "multinomial": "torch.multinomial(torch.ones(3, 4, device=t.device), 2)",
    "fft_rfft": "torch.fft.rfft(t(3, 8))",
    "fft_ifft": "torch.fft.ifft(t(3, 8, dtype=torch.complex64))",
    "linalg_inv": "torch.linalg.inv(torch.eye(3, device=t.device) + t(3, 3) * 0)",
    "linalg_qr": "torch.linalg.qr(t(4, 3))",
    "linalg_svdvals": "torch.linalg.svdvals(t(4, 3))",
    "linalg_eigh": "torch.linalg.eigh(torch.eye(3, device=t.device))",
    "linalg_cholesky": "torch.linalg.cholesky(torch.eye(3, device=t.device))",
    "linalg_solve": "torch.linalg.solve(torch.eye(3, device=t.device), t(3, 2))",
    "bucketize": "torch.bucketize(t(3, 4), torch.tensor([0.0, 1.0], device=t.device))",
    "searchsorted": "torch.searchsorted(torch.tensor([0.0, 1.0], device=t.device), t(3, 4))",
    "cdist": "torch.cdist(t(3, 4), t(5, 4))",
    "cosine_similarity": "F.cosine_similarity(t(3, 4), t(3, 4))",
    "isnan": "torch.isnan(t(3, 4))",
    "nan_to_num": "torch.nan_to_num(t(3, 4))",
    "isin": "torch.isin(torch.arange(4, device=t.device), torch.arange(2, device=t.device))",
    "lerp": "torch.lerp(t(3), t(3), 0.5)",
    "addcmul": "torch.addcmul(t(3), t(3), t(3), value=0.1)",
    "foreach_add": "torch._foreach_add([t(3), t(2, 2)], 1.0)",
    "foreach_norm": "torch._foreach_norm([t(3), t(2, 2)])",
    "sdpa_math_4d": "F.scaled_dot_product_attention(t(2, 3, 5, 6), t(2, 3, 7, 6), t(2, 3, 7, 6))",
    "out_variant": "torch.add(t(3, 4), t(3, 4), out=torch.empty(0, device=t.device))",
    "conj": "t(3, dtype=torch.complex64).conj() * 2",
    "neg_view": "torch._neg_view(t(3, 4)) + 1",
    "histc": "torch.histc(t(10), 4, 0.0, 1.0)",
    "multi_head_projection": "t(2, 5, 12).view(2, 5, 3, 4).transpose(1, 2).reshape(6, 5, 4)",
}


class Factory:
    """t(shape..., dtype=) -> a random tensor on `device`."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.device = torch.device(device)

    def __call__(self, *shape: int, dtype: Any = None) -> Any:
        torch = self.torch
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            return torch.arange(1, 1 + int(torch.tensor(shape).prod()), device=self.device).to(dtype).view(shape)
        return torch.randn(*shape, device=self.device, dtype=dtype)


def describe(value: Any) -> Any:
    """(shape, stride, dtype) of every tensor of a result, as JSON holds it."""
    if hasattr(value, "stride"):
        return [list(value.shape), list(value.stride()), str(value.dtype)[6:]]
    return [describe(item) for item in value]


def evaluate(name: str, torch: Any, device: str) -> Any:
    """The description of what case `name` gives on `device`."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "t": Factory(torch, device)}
    case: Callable[[], Any] = eval(f"lambda: {CASES[name]}", scope)  # noqa: S307 (our own table)
    return describe(case())
