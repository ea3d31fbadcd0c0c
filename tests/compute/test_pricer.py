"""The order of estimation, other GPUs, host time, speed, and that no operator is free or breaks the pricer."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import pytest
from compute_calls import call, contiguous, mm, pointwise

from phantora.cluster.loader import load_cluster
from phantora.compute import OpCall, Pricer
from phantora.compute.families import fallback

BF16, F32 = "bfloat16", "float32"


def test_sources_in_order(h200: Pricer) -> None:
    assert h200.price(mm(4096, 4096, 4096)).source == "measured"
    assert h200.price(mm(3000, 4096, 4096)).source == "interpolated"
    x = contiguous((2, 1 << 30, 3), F32)
    assert h200.price(call("cumsum", x, self=x, dim=2)).source == "roofline"  # far from every measured scan


def test_operators_never_seen_are_guesses(h200: Pricer) -> None:
    """Priced, not free, and named as guesses, although their kernels may resemble measured ones."""
    x, half = contiguous((4096, 4096), F32), contiguous((4096, 2048), F32)
    for name, out in (("special_airy_ai", x), ("mine::twist", x), ("never_heard_of", half), ("mine::shrink", half)):
        price = h200.price(call(name, out, self=x))
        assert price.source == "roofline" and price.duration_ns > 10_000, name
    assert h200.price(call("neg", x, self=x)).source != "roofline"


def test_a_price_depends_on_the_call_only(h200: Pricer) -> None:
    assert h200.price(mm(3000, 4096, 4096)) == h200.price(mm(3000, 4096, 4096))


def test_other_gpus_scale_by_the_roof_that_binds(h200: Pricer, h100: Pricer, a100: Pricer) -> None:
    product, x = mm(8192, 8192, 8192), contiguous((1 << 28,), F32)
    add = pointwise("add", x, x, x)
    same = h100.price(product).duration_ns / h200.price(product).duration_ns
    assert same == pytest.approx(1.0, abs=0.05)  # the same peak
    slower = h100.price(add).duration_ns / h200.price(add).duration_ns
    assert slower == pytest.approx(4.8 / 3.35, rel=0.02)  # the ratio of bandwidths
    ratio = a100.price(product).duration_ns / h200.price(product).duration_ns
    assert ratio == pytest.approx(989 / 312, rel=0.1)


def test_other_gpus_are_flagged(h100: Pricer, a100: Pricer) -> None:
    assert h100.price(mm(4096, 4096, 4096)).source == "interpolated"
    assert a100.price(mm(4096, 4096, 4096)).source == "roofline"


def test_copies_between_gpus_take_the_rate_of_their_links() -> None:
    """64 MiB over NVLink, over the PCIe lanes of a cluster that has nothing else, and over the host's where nothing is known."""
    x = contiguous((1 << 24,), F32)
    copy = OpCall(name="memcpy_p2p", args=(("self", x), ("src", x)), mutated=("self",))
    cluster = load_cluster("dgx-h100")
    links = cluster.intra_node
    nvlink_ns = Pricer(cluster.gpu, cluster.host, intra_node=links).price(copy).duration_ns
    assert nvlink_ns == pytest.approx((1 << 26) / (links.bytes_per_s * links.efficiency) * 1e9, rel=0.02)
    pcie_ns = Pricer(cluster.gpu, cluster.host).price(copy).duration_ns
    assert pcie_ns == pytest.approx((1 << 26) / cluster.host.pcie_d2h_bytes_per_s * 1e9, rel=0.02)


def test_host_time_by_class(h200: Pricer) -> None:
    x, q = contiguous((1024, 768), F32), contiguous((8, 12, 1024, 64), BF16)
    plain = h200.host_ns(pointwise("add", x, x, x))[0]
    product = h200.host_ns(mm(1024, 768, 768))[0]
    attention = call("_cudnn_attention_backward", [q, q, q], grad_out=q, query=q, key=q, value=q, is_causal=True)
    assert plain < product < h200.host_ns(attention)[1]
    index = contiguous((8192,), "int64")
    many = call(
        "embedding_dense_backward",
        contiguous((50257, 768), F32),
        grad_output=contiguous((8192, 768), F32),
        indices=index,
    )
    assert h200.host_ns(many)[1] > 5 * plain
    assert 0 < h200.host_ns(pointwise("view", x, x))[0] < plain


def test_lists_cost_host_time_per_tensor(h200: Pricer) -> None:
    def host(count: int, made: bool) -> int:
        tensors = (contiguous((64,), F32),) * count
        mutated = () if made else ("self",)
        return h200.host_ns(
            OpCall("aten::_foreach_sqrt", args=(("self", tensors),), outputs=tensors if made else (), mutated=mutated)
        )[0]

    assert host(10, False) < host(100, False) < host(100, True)


def test_new_signatures_are_priced_fast(h200: Pricer) -> None:
    h200.price(mm(33, 4096, 4096))
    times = []
    for m in range(100, 300, 2):
        x = contiguous((m, 4096), BF16)
        for op in (mm(m, 4096, 4096), pointwise("add", x, x, x), call("_softmax", x, self=x, dim=-1)):
            start = time.perf_counter()
            h200.price(op)
            times.append(time.perf_counter() - start)
    assert statistics.median(times) < 300e-6  # about 60 us on an idle core


@pytest.mark.torch
def test_no_operator_is_free_or_breaks(h200: Pricer) -> None:
    """Every aten schema, with tensors of several ranks and dtypes: a price above zero, or a known view."""
    torch = pytest.importorskip("torch")
    known = {f"aten::{name}" for name in fallback.NAMES}
    free = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        for shape, dtype in (((8, 16), F32), ((4, 8, 16), BF16), ((2, 4, 8, 16), "int64")):
            price = h200.price(_call_of_schema(schema, shape, dtype))
            if price.duration_ns <= 0:
                free.add(schema.name)
    assert {name.removesuffix("_") for name in free} <= {name.removesuffix("_") for name in known}


def _call_of_schema(schema: Any, shape: tuple[int, ...], dtype: str) -> OpCall:
    tensor = contiguous(shape, dtype)
    values = {
        "Tensor": tensor,
        "int": 1,
        "float": 0.0,
        "number": 0.0,
        "bool": False,
        "List[int]": (1,),
        "List[Tensor]": (tensor,) * 3,
    }
    args = tuple((a.name, values.get(str(a.type))) for a in schema.arguments)
    mutated = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    outputs = tuple(tensor for r in schema.returns if str(r.type) == "Tensor")
    return OpCall(schema.name, schema.overload_name, args, outputs, mutated)


def test_compute_does_not_import_torch() -> None:
    code = "import sys, phantora.compute; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
