"""Mistakes that a CUDA build of torch refuses and meta kernels do not, each with torch's message."""

import kernel_probe

kernel_probe.arm(num_devices=1)

import torch
import torch.nn.functional as F
from kernel_probe import finish, probe, raises
from torch import nn

from phantora.intercept import shape_inference

bf16, half, double, long, int32, bool_ = torch.bfloat16, torch.half, torch.double, torch.long, torch.int32, torch.bool
fp8, complex64 = torch.float8_e4m3fn, torch.complex64


def t(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device="cuda")


def refuse(kind, cases):
    for text, function in cases:
        for _ in range(2):  # nothing is remembered of a refused call
            raises(kind, text, function)


@probe
def matrix_products():
    pair = "mat1 and mat2 must have the same dtype, but got Float and BFloat16"
    refuse(
        RuntimeError,
        [
            (pair, lambda: nn.Linear(64, 64).cuda().bfloat16()(t(4, 64))),
            (pair, lambda: torch.addmm(t(2, 2, dtype=bf16), t(2, 2), t(2, 2, dtype=bf16))),
            ("but got: float != c10::BFloat16", lambda: t(2, 2) @ t(2, 2, dtype=bf16)),
            ("but got: float != long int", lambda: t(2, 2) @ t(2, 2, dtype=long)),
            ("self and mat2 must have the same dtype", lambda: F.linear(t(4, 8), t(4, 8), t(4, dtype=bf16))),
            ("self and mat2 must have the same dtype", lambda: t(2, 2, dtype=bf16).addmm_(t(2, 2), t(2, 2))),
            ("addmv input tensors must have the same dtype", lambda: t(2, 2) @ t(2, dtype=bf16)),
            ("dot : expected both vectors to have same dtype", lambda: t(2) @ t(2, dtype=bf16)),
            ("expected scalar type Float but found BFloat16", lambda: t(2, 2, 2) @ t(2, 2, 2, dtype=bf16)),
            ("Input dtypes must be the same", lambda: t(2, 2, 2, dtype=bf16).baddbmm(t(2, 2, 2), t(2, 2, 2))),
        ],
    )


@probe
def convolutions_and_normalizations():
    image, weight = t(1, 1, 4, 4), t(1, 1, 3, 3)
    types = "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same"
    refuse(
        RuntimeError,
        [
            (types, lambda: F.conv2d(image, weight.half())),
            (types, lambda: F.conv_transpose2d(image, weight.half())),
            ("bias type", lambda: F.conv2d(image.half(), weight.half(), t(1))),
            ("Input type (torch.FloatTensor) and weight type", lambda: nn.Conv2d(1, 1, 3).cuda()(image.cpu())),
            ("expected scalar type BFloat16 but found Float", lambda: nn.LayerNorm(4).cuda()(t(2, 4, dtype=bf16))),
            ("expected scalar type Float but found Double", lambda: F.layer_norm(t(2, 4), (4,), t(4, dtype=double))),
            ("expected scalar type Half but found Float", lambda: F.group_norm(t(2, 4, 4, dtype=half), 2, t(4), t(4))),
            ("expected scalar type Float but found Half", lambda: nn.BatchNorm1d(4).cuda().half()(t(2, 4))),
        ],
    )


@probe
def indices():
    a, rows, low = t(4, 4), t(2, dtype=long), t(2, 4, dtype=bf16)
    same = "Expected self.dtype to be equal to src.dtype"
    refuse(
        RuntimeError,
        [
            ("to have one of the following scalar types: Long, Int", lambda: F.embedding(t(3), a)),
            ("must have the same scalar type", lambda: a.index_add_(0, rows, t(2, 4, dtype=bf16))),
            ("Expected dtype int32/int64 for index but got: Float", lambda: a.index_add(0, t(2), t(2, 4))),
            ("source expected to have the same dtype", lambda: a.index_copy_(0, rows, t(2, 4, dtype=bf16))),
            ("Expected a long tensor for index", lambda: a.index_copy_(0, rows.int(), t(2, 4))),
            ("index_select(): Expected dtype int32 or int64", lambda: a.index_select(0, t(2))),
            ("source and destination dtypes match", lambda: a.__setitem__(rows, t(2, 4, dtype=bf16))),
            (same, lambda: a.scatter_(0, t(2, 4, dtype=long), low)),
            (same, lambda: a.scatter_add_(0, t(2, 4, dtype=long), low)),
            ("only supports boolean masks", lambda: a.masked_fill_(a, 1.0)),
            ("0-dimensional value tensor", lambda: a.masked_fill_(a > 0, t(4))),
            ("expected self and source to have same dtypes", lambda: a.masked_scatter_(a > 0, t(4, 4, dtype=double))),
        ],
    )
    raises(IndexError, "Expected dtype int64 for index", lambda: a.index_fill_(0, rows.int(), 1.0))


@probe
def losses():
    classes = t(4, dtype=long)
    refuse(
        RuntimeError,
        [
            ("to be Long or Byte, but got Int", lambda: F.cross_entropy(t(4, 4), classes.int())),
            ("Long but found Int", lambda: F.cross_entropy(t(1, 4, 2, 2), t(1, 2, 2, dtype=int32))),
            ("Float but found Double", lambda: F.cross_entropy(t(4, 4), classes, t(4, dtype=double))),
            ("Found dtype Double but expected Float", lambda: F.binary_cross_entropy(t(4), t(4, dtype=double))),
            ("but got scalar type Double", lambda: torch.complex(t(3), t(3, dtype=double))),
        ],
    )
    with torch.autocast("cuda"):
        raises(RuntimeError, "unsafe to autocast", lambda: F.binary_cross_entropy(t(4), t(4)))


@probe
def results_in_place():
    overlap = "more than one element of the written-to tensor refers to a single memory location"
    refuse(
        RuntimeError,
        [
            ("output with shape [3] doesn't match the broadcast shape [5, 3]", lambda: t(3).add_(t(5, 3))),
            ("must match the size of tensor", lambda: t(3).sub_(t(4))),
            (overlap, lambda: t(1).expand(3).add_(1)),
            (overlap, lambda: t(1).expand(3).relu_()),
            (overlap, lambda: torch.add(t(3), t(3), out=t(1).expand(3))),
            (overlap, lambda: torch.cat([t(2), t(2)], out=t(1).expand(4))),
            ("result type Float can't be cast to the desired output type Long", lambda: t(3, dtype=long).add_(1.5)),
            ("result type Float can't be cast to the desired output type Long", lambda: t(3, dtype=long).div_(2)),
            ("can't be cast to the desired output type Float", lambda: t(3).mul_(t(3, dtype=complex64))),
            ("result type Float can't be cast", lambda: torch._foreach_add_([t(3, dtype=long)], [t(3)])),
            ("Integer division with addcdiv", lambda: t(3, dtype=long).addcdiv_(t(3, dtype=long), t(3, dtype=long))),
            ("Integers to negative integer powers", lambda: t(3, dtype=long).pow_(-1)),
        ],
    )


@probe
def results_in_place_of_large_tensors():
    """Too large for the CPU to confirm what the meta kernel says."""
    large = torch.empty(64, 1 << 20, device="cuda")
    assert large.nbytes > shape_inference._CPU_TRIAL_LIMIT_BYTES
    raises(RuntimeError, "must match the size of tensor", lambda: large.add_(t(3)))
    raises(RuntimeError, "doesn't match the broadcast shape", lambda: large[:1].add_(large))
    raises(RuntimeError, "can't be cast", lambda: large.long().mul_(1.5))


@probe
def dtypes_without_a_kernel():
    refuse(
        NotImplementedError,
        [
            ("\"addmm_cuda\" not implemented for 'Long'", lambda: t(2, 2, dtype=long) @ t(2, 2, dtype=long)),
            ("\"addmm_cuda\" not implemented for 'Float8_e4m3fn'", lambda: t(2, 2).to(fp8) @ t(2, 2).to(fp8)),
            ("not implemented for 'Long'", lambda: F.softmax(t(4, dtype=long), 0)),
            ("not implemented for 'Float8_e4m3fn'", lambda: t(4).to(fp8) + t(4).to(fp8)),
            ("not implemented for 'Long'", lambda: F.conv2d(t(1, 1, 4, 4, dtype=long), t(1, 1, 3, 3, dtype=long))),
            ("not implemented for 'ComplexFloat'", lambda: t(3, dtype=complex64).argmax()),
            ("not implemented for 'ComplexFloat'", lambda: t(3, dtype=complex64).sort()),
            ("not implemented for 'Float'", lambda: t(3) & t(3)),
            ("not implemented for 'BFloat16'", lambda: torch.linalg.cholesky(t(2, 2, dtype=bf16))),
            ("not implemented for 'Long'", lambda: torch.randn(3, device="cuda", dtype=long)),
        ],
    )
    refuse(
        RuntimeError,
        [
            ("only support floating point and complex", lambda: t(4, dtype=long).std()),
            ("only support floating point and complex", lambda: t(4, dtype=long).var()),
            ("Promotion for Float8 Types is not supported", lambda: t(4).to(fp8) + t(4)),
            ("Boolean inputs not supported for relu", lambda: F.relu(t(4, dtype=bool_))),
        ],
    )


@probe
def impossible_values():
    refuse(
        RuntimeError,
        [
            ("cannot sample n_sample > prob_dist.size(-1)", lambda: torch.multinomial(t(3), 5)),
            ("Expected reduction dim to be specified for input.numel() == 0", lambda: t(0).max()),
            ("random_ expects 'from' to be less than 'to'", lambda: torch.randint(5, 0, (3,), device="cuda")),
            ("normal expects std >= 0.0, but found std -1", lambda: t(3).normal_(0, -1)),
            ("negative padding is not supported", lambda: F.conv2d(t(1, 1, 4, 4), t(1, 1, 3, 3), padding=-1)),
        ],
    )
    raises(IndexError, "Expected reduction dim 0 to have non-zero size", lambda: t(0, 3).max(0))


@probe
def waits_during_capture():
    graph, kept = torch.cuda.CUDAGraph(), t(1)
    with torch.cuda.graph(graph):
        kept.add_(1)
        raises(RuntimeError, "operation not permitted when stream is capturing", kept.item)
        raises(RuntimeError, "operation not permitted when stream is capturing", kept.nonzero)
    graph.replay()
    assert kept.item() >= 1


@probe
def layouts_that_are_not_simulated():
    compressed = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), device="cuda")
    raises(NotImplementedError, "is not simulated on the GPU: only COO is", lambda: compressed @ t(2, 2))
    raises(NotImplementedError, "are not simulated on the GPU", t(2, 2).to_sparse_csr)


finish()
