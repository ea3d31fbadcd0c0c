"""Sorting and what needs it, scans, and random numbers."""

from __future__ import annotations

from phantora.compute.call import OpCall
from phantora.compute.families.streaming import items, rows, stream
from phantora.compute.roof import Roof
from phantora.compute.work import Work, base_name, first_tensor, item_bytes, nbytes, numel, written

FAMILY = "sort"
RANDOM_FAMILY = "random"
WEIGHTS = (1.0, 1.0)

# fmt: off
_SCANS = ("cumsum", "cumsum_", "cumprod", "cumprod_", "cummax", "cummin", "_cummax_helper", "_cummin_helper",
          "logcumsumexp", "_logcumsumexp")
_SORTS = ("sort", "argsort", "msort", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive",
          "randperm", "nonzero",
          "nonzero_static", "searchsorted", "bucketize", "bincount", "histc", "_histogramdd_bin_edges", "isin",
          "multinomial")
_RANDOM = ("bernoulli", "bernoulli_", "normal_", "normal", "uniform_", "uniform", "random_", "random", "rand",
           "randn", "randint", "rand_like",
           "randn_like", "randint_like", "exponential_", "log_normal_", "cauchy_", "geometric_", "poisson",
           "_standard_gamma",
           "native_dropout", "_fused_dropout", "dropout", "rrelu_with_noise", "rrelu_with_noise_", "binomial")
# fmt: on
NAMES = _SCANS + _SORTS + _RANDOM + ("topk",)

# One pass of a radix sort (8 bits of the key): 6.7 us for 65,536 pairs of 64-bit keys and values, launch included.
_PASS_NS = 5000.0
_SORT_TRAFFIC = 3.0  # each pass reads and writes keys and values, at about two thirds of the streaming rate


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    source = first_tensor(call) or next(iter(written(call)), None)
    if source is None:
        return ()
    if name in _RANDOM:
        return _random(call, name)
    if name in _SCANS or name == "topk":
        given = call.arg("dim", -1)
        dim = given if isinstance(given, int) else -1
        columns = source.shape[dim % len(source.shape)] if source.shape else 1
        like = "topk2" if name == "topk" else "cumsum"
        return (
            rows(
                FAMILY,
                (like,),
                source.dtype,
                numel(source) // max(columns, 1),
                columns,
                num_kernels=2 if name == "topk" else 1,
            ),
        )
    return _sort(call, name)


def _random(call: OpCall, name: str) -> tuple[Work, ...]:
    targets = written(call)
    source = first_tensor(call)
    count = max((numel(t) for t in targets), default=0)
    moved = sum(map(nbytes, targets))
    if "dropout" in name and source is not None:
        return (stream(RANDOM_FAMILY, ("dropout",), source.dtype, moved + nbytes(source), flops=count),)
    return (items(RANDOM_FAMILY, "random", count, moved),)


def _sort(call: OpCall, name: str) -> tuple[Work, ...]:
    targets = written(call)
    source = first_tensor(call) or targets[0]
    count = max(numel(source), 1)
    if name in ("nonzero", "nonzero_static"):  # count, prefix sum, write
        return (items(FAMILY, "offsets", 2 * count, 3 * nbytes(source), num_kernels=4),)
    if name in ("searchsorted", "bucketize", "bincount", "histc", "multinomial"):
        return (items(FAMILY, "gather", 8 * count, 2 * nbytes(source), num_kernels=2),)
    key = item_bytes(source.dtype) if name != "randperm" else 4
    return (
        Work(
            family=FAMILY,
            curves=("radix_sort/pairs",),
            at=(count, key),
            bytes=2 * key * count * (key + 8),
            num_kernels=key + 2 + (4 if "unique" in name else 0),
        ),
    )


def radix_sort_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Sort of `at` = (pairs, bytes of a key), one pass per byte of the key."""
    count, key = at
    return (key + 2) * _PASS_NS + key * roof.stream_ns(_SORT_TRAFFIC * count * (key + 8))
