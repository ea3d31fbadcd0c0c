"""Execution traces: alone, and linked with a Kineto trace of the same step."""

from __future__ import annotations

import json
from pathlib import Path

import et_samples as et
import pytest
from kineto_samples import document as kineto_document
from kineto_samples import launched, op, written

from phantora.errors import UserError
from phantora.importers import pytorch_et
from phantora.importers.operator_calls import Argument, parse_schema

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "reference"


@pytest.mark.parametrize(
    "make,schema", [(et.flat, "1.0.1"), (et.nested, "1.0.2-chakra.0.0.4"), (et.nested, "1.1.1-chakra.0.0.4")]
)
def test_operators_that_launch_something_are_rows(tmp_path: Path, make: object, schema: str) -> None:
    run, report = pytorch_et.read(written(tmp_path, et.document(et.step(make), schema)))
    trace = run.ranks[0]
    names = [run.signatures[s].name if s >= 0 else "communication" for s in trace.signature]
    assert names == ["aten::mm", "communication", "aten::add_", "aten::add", "aten::_local_scalar_dense"]
    assert list(trace.stream) == [0, 1, 0, 0, 0] and set(trace.start_ns) == {-1}
    assert list(zip(trace.dependent, trace.dependency)) == [(1, 0), (3, 1)]
    assert trace.wait_rows == [(4,)] and list(trace.wait_position) == [5]
    assert [(c.kind, c.bytes, c.dtype) for c in run.collectives] == [("all_reduce", 32, "float32")]
    assert all(s.source == "unknown" and s.duration_ns == 0 for s in run.signatures)
    assert any("must be priced" in note for note in run.notes)
    assert report.left_out["operators that launch no kernel"].examples == ["aten::view", "aten::relu"]
    assert report.left_out["operators and ranges made of other operators"].examples == ["aten::matmul", "aten::item"]


def test_calls_can_be_priced(tmp_path: Path) -> None:
    from phantora.cluster import load_cluster
    from phantora.compute.call_json import from_json
    from phantora.compute.pricer import Pricer

    cluster = load_cluster("dgx-h100")
    run, _ = pytorch_et.read(written(tmp_path, et.document(et.step(et.flat))))
    calls = {s.name: from_json(json.loads(s.call)) for s in run.signatures}
    product = calls["aten::mm"].arg("mat2")
    assert (product.shape, product.stride, product.dtype) == ((8, 2), (2, 1), "float32")  # type: ignore[union-attr]
    assert calls["aten::add_"].mutated == ("self",) and calls["aten::add"].overload == "Scalar"
    assert calls["aten::add"].outputs[0].shape == (4, 2)
    assert all(Pricer(cluster.gpu, cluster.host).price(call).duration_ns > 0 for call in calls.values())


def test_schemas() -> None:
    schema = parse_schema(
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
    )
    assert schema is not None and (schema.name, schema.overload) == ("aten::sum", "dim_IntList")
    assert [(a.name, a.kind) for a in schema.arguments] == [
        ("self", "Tensor"),
        ("dim", "int[1]?"),
        ("keepdim", "bool"),
        ("dtype", "ScalarType?"),
    ]
    out = parse_schema("aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)")
    assert out is not None and out.arguments[-1] == Argument("out", "Tensor(a!)", True)
    assert parse_schema("") is None and parse_schema("nonsense(") is None


def test_a_kineto_trace_gives_the_times_and_the_execution_trace_the_rest(tmp_path: Path) -> None:
    """Record function ids agree; the kernel's operator gets outputs and a call."""
    events = [
        op("aten::matmul", 0, 50, **{"Record function id": 2}),
        op("aten::mm", 5, 40, **{"Record function id": 3}),
    ]
    paths = written(
        tmp_path,
        kineto_document(events + launched("gemm", 10, 20, 5, 1)),
        et.document(et.step(et.nested), "1.1.0-chakra.0.0.4"),
    )
    run, report = pytorch_et.read(paths)
    signature = run.signatures[run.ranks[0].signature[0]]
    assert run.source == "kineto" and run.ranks[0].end_ns[0] == 25_000
    assert signature.outputs == (("float32", (4, 2)),) and '"outputs"' in signature.call
    assert report.taken["operators linked with an execution trace"].count == 2


def test_operators_of_older_traces_are_paired_in_order(tmp_path: Path) -> None:
    events = [op("aten::matmul", 0, 50), op("aten::extra", 1, 1), op("aten::mm", 5, 40), op("aten::view", 60, 5)]
    events += launched("gemm", 10, 20, 5, 1)
    run, report = pytorch_et.read(written(tmp_path, kineto_document(events), et.document(et.step(et.flat))))
    assert report.taken["operators linked with an execution trace"].count == 3
    assert report.left_out["operators that are not in the execution trace"].count == 1
    assert run.signatures[run.ranks[0].signature[0]].outputs


def test_a_trace_of_another_step_is_not_linked(tmp_path: Path) -> None:
    events = [op(f"aten::op{i}", 10 * i, 5) for i in range(9)] + launched("k", 1, 2, 1, 1)
    run, report = pytorch_et.read(written(tmp_path, kineto_document(events), et.document(et.step(et.flat))))
    assert "execution traces of another step than the Kineto trace of their process" in report.left_out
    assert not run.signatures[0].outputs


def test_groups_by_name_address_and_init_node(tmp_path: Path) -> None:
    config = json.dumps([{"pg_name": "7", "backend_id": 94_594_108_284_448, "ranks": [], "group_size": 4}])
    nodes = [et.flat(1, "## process_group:init ##", 0, [(config, [], "String")], []), *et.step(et.flat)]
    run, _ = pytorch_et.read(written(tmp_path, et.document(nodes)))
    assert run.world_size == 1 and not run.groups
    assert "all_reduce of 4 ranks" in [signature.name for signature in run.signatures]


@pytest.mark.parametrize(
    "document,message",
    [
        (et.document([], "2.0.0"), "schema '2.0.0'; 1.0.x and 1.1.x are known"),
        (et.document([]), "nothing to import: no operator works on a GPU"),
        (kineto_document(launched("k", 0, 1, 1, 1)), "no execution trace among the files"),
        ({"nodes": [{"id": 3}]}, "schema '\\(none\\)'"),
    ],
)
def test_mistakes(tmp_path: Path, document: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pytorch_et.read(written(tmp_path, document))


@pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the traces in shared/reference are not here")
def test_real_execution_traces() -> None:
    run, _ = pytorch_et.read([SHARED / "traces/param_dlrm_pytorch_et.tar.gz"])
    assert run.world_size == 8 and len(run.collectives) == 8
    assert all(
        len(c.ranks) == 8 and all((i,) in t.work_collectives for t in run.ranks) for i, c in enumerate(run.collectives)
    )
    run, report = pytorch_et.read([SHARED / "traces/param_pt2_et.json.tar.gz"])
    assert [run.signatures[s].name for s in run.ranks[0].signature] == [
        "aten::mm",
        "triton_poi_fused_add_cos_neg_sin_0",
    ] * 2
    run, report = pytorch_et.read([SHARED / "traces/chakra_1.0.2-chakra.0.0.4.tgz"])
    what = "collectives whose other ranks have no trace: as work that takes no time (the trace has no durations)"
    assert run.world_size == 1 and not run.collectives and report.guessed[what].count == 10


@pytest.mark.skipif(not (SHARED / "h200").is_dir(), reason="the traces in shared/reference are not here")
def test_the_priced_operators_of_a_step_take_as_long_as_its_kernels() -> None:
    """models.jsonl: gpt2-124m-b8-s1024 is busy for 57.2 ms on the GPU whose prices the shipped table holds."""
    from phantora.cluster import load_cluster
    from phantora.compute.call_json import from_json
    from phantora.compute.pricer import Pricer

    cluster = load_cluster("hgx-h200")
    pricer = Pricer(cluster.gpu, cluster.host)
    run, _ = pytorch_et.read([SHARED / "h200/traces/gpt2-124m-b8-s1024.et.json.gz"])
    prices = [pricer.price(from_json(json.loads(s.call))).duration_ns if s.call else 0 for s in run.signatures]
    assert sum(prices[s] for s in run.ranks[0].signature) == pytest.approx(57.2e6, rel=0.05)
