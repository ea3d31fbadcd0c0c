"""Known contents are exact: counting, sorting, indexing, copying, and reading back give what a real GPU gives."""

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, probe, stand_ins

X = torch.tensor([3, 1, 3, 0], device="cuda")
HALVES = torch.tensor([1.5, 2.5], device="cuda")


@probe
def counting():
    values, inverse, counts = torch.unique(X, return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([0, 1, 3], [2, 1, 2, 0], [1, 1, 2])
    assert torch.bincount(X, minlength=5).tolist() == [1, 1, 0, 2, 0]
    assert torch.histc(X.float(), 4, 0, 4).tolist() == [1, 1, 0, 2]
    assert torch.histc(X, 4, 0, 4).tolist() == [1, 1, 0, 2]
    assert F.one_hot(X, 5).sum(0).tolist() == [1, 1, 0, 2, 0]
    assert torch.unique_consecutive(X).tolist() == [3, 1, 3, 0]
    assert torch.arange(5, device="cuda").cumsum(0).tolist() == [0, 1, 3, 6, 10]


@probe
def selecting():
    assert (X == 3).nonzero().tolist() == [[0], [2]]
    assert torch.masked_select(X, X > 1).tolist() == [3, 3]
    assert X[X > 0].tolist() == [3, 1, 3]
    assert torch.repeat_interleave(torch.arange(4, device="cuda"), X).tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert X.sort().values.tolist() == [0, 1, 3, 3]
    assert X.topk(2).values.tolist() == [3, 3]


@probe
def writing():
    counts = torch.zeros(4, dtype=torch.int64, device="cuda")
    counts.scatter_add_(0, X, torch.ones_like(X))
    assert counts.tolist() == [1, 1, 0, 2]
    counts[1:3] = 7
    assert counts.tolist() == [1, 7, 7, 2]
    counts.index_add_(0, X, X)
    assert counts.tolist() == [1, 8, 7, 8]
    counts[torch.tensor([True, False, False, True], device="cuda")] = 0
    assert counts.tolist() == [0, 8, 7, 0]
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    torch.add(X, X, out=out)
    assert out.tolist() == [6, 2, 6, 0]
    grown = X.clone()
    grown.resize_(6)
    assert grown.tolist()[:4] == [3, 1, 3, 0]


@probe
def arithmetic():
    assert (HALVES * 2).sum().item() == 8.0
    assert HALVES.mean().item() == 2.0
    assert (X / 2).tolist() == [1.5, 0.5, 1.5, 0.0]
    assert X.view(2, 2).t().contiguous().tolist() == [[3, 3], [1, 0]]
    assert HALVES.to(torch.bfloat16).float().tolist() == [1.5, 2.5]


@probe
def conjugate_and_negative_bits():
    z = torch.complex(HALVES, HALVES).conj()
    assert z.is_conj()
    assert (z * 1).cpu().tolist() == [1.5 - 1.5j, 2.5 - 2.5j]
    assert z.resolve_conj().tolist() == [1.5 - 1.5j, 2.5 - 2.5j]
    assert torch._neg_view(HALVES).cpu().tolist() == [-1.5, -2.5]


@probe
def equality_is_real():
    assert torch.equal(X, X.clone())
    assert not torch.equal(X, X + 1)
    assert not torch.equal(X, X[:2])
    assert bool((X == X).all())


@probe
def copies():
    assert X.cpu().numpy().tolist() == [3, 1, 3, 0]
    z = torch.zeros(3, device="cuda")
    z.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert z.tolist() == [1, 2, 3]
    assert z.fill_(4).tolist() == [4, 4, 4]
    assert X.to(torch.float64).to("cpu", torch.int32).tolist() == [3, 1, 3, 0]
    big = torch.zeros(2048, 1024, dtype=torch.bool, device="cuda")
    assert not big.any()
    assert big.logical_not().all()


@probe
def permutations_are_permutations():
    for n in (1, 9, 1000):
        assert torch.randperm(n, device="cuda").sort().values.tolist() == list(range(n))
    torch.cuda.manual_seed(3)
    first = torch.randperm(50, device="cuda").tolist()
    assert torch.randperm(50, device="cuda").tolist() != first
    torch.cuda.manual_seed(3)
    assert torch.randperm(50, device="cuda").tolist() == first


@probe
def nothing_was_made_up():
    assert stand_ins() == {}, stand_ins()


@probe
def overwritten_contents_are_forgotten():
    known = torch.zeros(4, device="cuda")
    known.copy_(torch.randn(4, device="cuda"))
    known.sum().item()
    assert stand_ins() != {}


@probe
def large_floats_are_not_followed():
    large = torch.ones(100_000, device="cuda")
    before = sum(stand_ins().values())
    assert large[0].item() == 1.0
    assert sum(stand_ins().values()) == before + 1


finish()
