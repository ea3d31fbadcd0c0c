"""Sorting and what needs it, scans, and random numbers."""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, stream
from phantora.compute.roof import Roof
from phantora.compute.work import Work, base_name, first_tensor, inputs, item_bytes, nbytes, numel, written

FAMILY = "sort"
RANDOM_FAMILY = "random"
WEIGHTS = (0.6, 0.6, 0.06)

# fmt: off
_SCANS = ("cumsum", "cumsum_", "cumprod", "cumprod_", "cummax", "cummin", "_cummax_helper", "_cummin_helper",
          "logcumsumexp", "_logcumsumexp")
_SORTS = ("sort", "argsort", "msort", "topk")
_OTHERS = ("unique", "_unique", "_unique2", "unique_dim", "unique_consecutive", "randperm", "nonzero", "nonzero_static",
           "searchsorted", "bucketize", "bincount", "histc", "_histogramdd_bin_edges", "isin", "multinomial")
_RANDOM = ("bernoulli", "bernoulli_", "normal_", "normal", "uniform_", "uniform", "random_", "random", "rand",
           "randn", "randint", "rand_like", "randn_like", "randint_like", "exponential_", "log_normal_", "cauchy_",
           "geometric_", "poisson", "_standard_gamma", "native_dropout", "_fused_dropout", "dropout", "rrelu_with_noise",
           "rrelu_with_noise_", "binomial")
# fmt: on
NAMES = _SCANS + _SORTS + _OTHERS + _RANDOM

_LIKE_RANDOM = {
    "rand": "uniform_",
    "rand_like": "uniform_",
    "randn": "normal_",
    "randn_like": "normal_",
    "normal": "normal_",
    "uniform": "uniform_",
    "randint": "random_",
    "randint_like": "random_",
    "random": "random_",
    "log_normal_": "exponential_",
    "cauchy_": "exponential_",
}
_KERNELS = {
    "_unique2": 23,
    "unique_dim": 23,
    "_unique": 23,
    "unique_consecutive": 3,
    "randperm": 21,
    "nonzero": 5,
    "bincount": 8,
    "histc": 8,
    "isin": 61,
    "multinomial": 14,
}

# Radix sort: 8 bits of the key a pass, each about 5 us for few keys, with its memset.
_PASS_NS = 5000.0
_PASS_TRAFFIC = 3.0  # keys and indices read and written, at about two thirds of the streaming rate
_SEGMENT_LIMIT = 4096  # longer rows are sorted by radix passes, shorter ones by a block each


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    source = first_tensor(call) or next(iter(written(call)), None)
    if source is None:
        return ()
    if name in _RANDOM:
        return (_random(call, name),)
    if name in _SCANS or name in _SORTS:
        return (_rows(call, name, source),)
    if name == "isin" and _compares_all_pairs(call):
        return _all_pairs(call)
    count = max((numel(t) for t in (*inputs(call), *written(call))), default=1)
    moved = sum(map(nbytes, (*inputs(call), *written(call))))
    return (
        items(
            FAMILY,
            name,
            count,
            moved,
            num_kernels=_KERNELS.get(name, 2),
            op=str(item_bytes(source.dtype)),
            like="_unique2",
        ),
    )


def _random(call: OpCall, name: str) -> Work:
    targets, source = written(call), first_tensor(call)
    count, moved = max((numel(t) for t in targets), default=0), sum(map(nbytes, targets))
    if "dropout" in name and source is not None:
        return stream(RANDOM_FAMILY, ("native_dropout", "dropout"), source.dtype, moved + nbytes(source), flops=count)
    moved += nbytes(source) if source is not None and not call.mutated else 0
    size = str(item_bytes(targets[0].dtype)) if targets else "4"
    return items(RANDOM_FAMILY, name, count, moved, op=size, like=_LIKE_RANDOM.get(name, "normal_"))


def _compares_all_pairs(call: OpCall) -> bool:
    """Few tests are compared with each element instead of being sorted (isin_Tensor_Tensor_out of ATen/native/TensorCompare.cpp)."""
    elements, tests = call.arg("elements"), call.arg("test_elements", call.arg("test_element"))
    if not isinstance(elements, TensorSpec):
        return True
    return not isinstance(tests, TensorSpec) or numel(tests) < 10.0 * numel(elements) ** 0.145


def _all_pairs(call: OpCall) -> tuple[Work, ...]:
    """The output filled, every pair compared, any of a row taken, and that copied to the output (isin_default_kernel_gpu)."""
    tests = call.arg("test_elements", call.arg("test_element"))
    elements = first_tensor(call)
    found = sum(map(numel, written(call)))
    pairs = found * (numel(tests) if isinstance(tests, TensorSpec) else 1)
    dtype = elements.dtype if elements is not None else "int64"
    return (
        stream(FAMILY, ("fill_", "clone"), "bool", found),
        stream(FAMILY, ("eq", "add", "clone"), dtype, pairs + sum(map(nbytes, inputs(call))), flops=pairs),
        stream(FAMILY, ("any", "clone"), "bool", pairs + found, flops=pairs),
        stream(FAMILY, ("clone",), "bool", 2 * found),
    )


def _rows(call: OpCall, name: str, source: TensorSpec) -> Work:
    """A scan, a sort or a selection of the k greatest along one dimension: at = (rows, columns, k or inner size)."""
    given = call.arg("dim", -1)
    dim = (given if isinstance(given, int) else -1) % max(len(source.shape), 1)
    columns = source.shape[dim] if source.shape else 1
    rows = max(numel(source) // max(columns, 1), 1)
    inner = 1
    for size in source.shape[dim + 1 :]:
        inner *= size
    k = call.arg("k", 1)
    kind = name.strip("_").removesuffix("_helper")
    kind = {"topk": "topk", "sort": "sort", "argsort": "sort", "msort": "sort"}.get(kind, "cumsum")
    third = max(int(k), 1) if isinstance(k, int) and name == "topk" else inner
    variant = "long" if columns > _SEGMENT_LIMIT else "short"
    if kind == "cumsum":
        variant = "inner" if inner == 1 and rows > 1 else "outer" if inner > 1 else "one"
    elif rows == 1:
        variant = "one"
    return Work(
        family=FAMILY,
        curves=(f"sort/{kind}/{variant}/{item_bytes(source.dtype)}", f"sort/{kind}/{variant}/4"),
        at=(rows, max(columns, 1), third),
        flops=numel(source),
        bytes=2 * nbytes(source),
        num_kernels=_num_kernels(kind, variant, item_bytes(source.dtype), columns),
    )


def _num_kernels(kind: str, variant: str, key_bytes: int, columns: int) -> int:
    if kind == "cumsum":
        return 2 if variant == "one" else 1
    if columns < 1024:
        return 2
    return {"topk": 22 if key_bytes > 2 else 16, "sort": 2 * key_bytes + 6}[kind] if variant != "short" else 5


def rows_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a scan, sort or selection of `at` = (rows, columns, k or inner size)."""
    _, kind, variant, size = curve.split("/")
    rows, columns, _ = at
    key, count = int(size), float(rows * columns)
    occupancy = min(1.0, rows / roof.num_sms) if variant == "inner" else 1.0
    if kind == "cumsum" and variant == "outer":  # a thread walks each column, waiting for memory at every step
        return 3000.0 + 150.0 * columns * rows**0.1 + roof.stream_ns(2 * count * key)
    if kind == "cumsum":
        return 3000.0 + roof.stream_ns(2 * count * key) / max(occupancy, 0.05)
    if kind == "topk":
        return 20_000.0 + roof.items_ns(count, 20e9 if variant == "short" else 120e9)
    if variant == "short":
        return 10_000.0 + roof.items_ns(count, 6e9) * max(columns, 32) ** 0.2
    return (key + 2) * _PASS_NS + key * roof.stream_ns(_PASS_TRAFFIC * count * (key + 8))
