"""Chakra traces: the bytes, the rules of ASTRA-sim, and that its rules of execution give back the time of the run."""

import importlib
import json
import random
import tarfile
from pathlib import Path

import pytest
from astra_model import finish_times_ns
from made_up_run import ADD, MM, Builder, made_up_run
from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra import attributes, comm_size_bytes, read_chakra, write_chakra
from phantora.exporters.chakra_check import check_astra_safe

from phantora.trace.model import CollectiveInfo


def exported(run, tmp_path):
    folder = write_chakra(run, tmp_path)
    files = [folder / f"trace.{trace.rank}.et" for trace in run.ranks]
    return files, json.loads((folder / "comm_groups.json").read_text())


def test_made_up_run_is_safe(tmp_path):
    files, groups = exported(made_up_run(), tmp_path)
    assert check_astra_safe(files, groups) == []
    assert groups == {"1": [0, 1, 2, 3]}


def test_time_survives(tmp_path):
    """Launch-bound gaps, waiting hosts and overlap: ASTRA-sim's rules end where the run ended, to a thousandth.

    What is lost: a collective launched in the middle of a kernel starts with it (4 us in each of the three steps).
    """
    run = made_up_run()
    files, _ = exported(run, tmp_path)
    for finished, trace in zip(finish_times_ns(files), run.ranks):
        assert finished == pytest.approx(trace.host_end_ns, rel=1e-3)


def test_sums_of_microseconds_are_right(tmp_path):
    """2,000 kernels of 0.4 us: rounding each alone would make 0 of 800 us."""
    run = made_up_run(num_steps=1)
    b = Builder(1)
    b.run.signatures = [run.signatures[-1]]
    for _ in range(2000):
        b.kernel(0)
    files, _ = exported(b.finish(), tmp_path)
    kernels = [node for node in read_chakra(files[0]) if node.name == "memcpy_d2h"]
    assert sum(node.duration_micros for node in kernels) == 800
    assert len(kernels) == 2000


def test_every_kind_has_a_form_that_astra_sim_runs(tmp_path):
    b = Builder(4)
    for kind in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all",
        "gather",
        "scatter",
        "barrier",
    ):
        b.kernel(ADD)
        b.collective(kind, 0 if kind == "barrier" else 1000003, 50.0, stream=5, ranks=[0, 1, 2])
    b.collective("send_recv", 77, 9.0, stream=6, ranks=[3, 1])
    b.collective("all_reduce", 4096, 9.0, stream=6, ranks=[2])
    b.synchronize()
    files, groups = exported(b.finish(), tmp_path)
    assert check_astra_safe(files, groups) == []
    assert all(len(ranks) > 1 for ranks in groups.values())
    alone = [node for node in read_chakra(files[2]) if "one rank" in node.name]
    assert [node.type for node in alone] == [schema.COMP_NODE]
    finish_times_ns(files)


def test_sizes():
    def size(kind, size_bytes, ranks=(0, 1, 2, 3)):
        return comm_size_bytes(CollectiveInfo(kind, 0, ranks, size_bytes, "float32"))

    assert size("all_gather", 4 << 20) == 1 << 20  # the shard
    assert size("all_reduce", 4 << 20) == 4 << 20
    assert size("all_reduce", 4) == 64
    assert size("reduce_scatter", 1000003) == 1000064
    assert size("barrier", 0) == 64


def test_stragglers_with_independent_groups_do_not_deadlock(tmp_path):
    """Random programs on overlapping groups and streams, ranks late at random: one order of communication for all."""
    for seed in range(20):
        rng, b = random.Random(seed), Builder(6)
        for _ in range(40):
            b.host[rng.randrange(6)] += rng.choice((0, 0, 100_000))
            ranks = sorted(rng.sample(range(6), rng.randint(2, 4)))
            kind = rng.choice(("all_reduce", "all_gather", "send_recv"))
            if kind == "send_recv":
                b.collective(kind, 4096, rng.uniform(1, 80), stream=20 + rng.randrange(3), ranks=ranks[:2])
            else:
                b.collective(kind, 4096, rng.uniform(1, 80), stream=10 + rng.randrange(4), ranks=ranks)
            if rng.random() < 0.5:
                b.kernel(rng.choice((ADD, MM)))
            if rng.random() < 0.1:
                b.synchronize()
        files, groups = exported(b.finish(), tmp_path / str(seed))
        assert check_astra_safe(files, groups) == []
        finish_times_ns(files)  # asserts that every node ran


def test_edges_of_the_run_can_be_told_from_those_for_astra_sim(tmp_path):
    run = made_up_run(num_steps=1)
    files, _ = exported(run, tmp_path)
    rows, edges = {}, set()
    for node in read_chakra(files[0]):
        attrs = attributes(node)
        rows[node.id] = attrs.get("row", -1)
        for parent in set(node.data_deps) - set(attrs.get("order_only_deps", ())):
            edges.add((attrs["row"], rows[parent]))
    trace, last, expected = run.ranks[0], {}, set(zip(run.ranks[0].dependent, run.ranks[0].dependency))
    for row, stream in enumerate(trace.stream):
        if stream in last:
            expected.add((row, last[stream]))
        last[stream] = row
    assert edges == expected


def test_row_attributes(tmp_path):
    run = made_up_run(num_steps=1)
    files, _ = exported(run, tmp_path)
    for node in read_chakra(files[1]):
        attrs = attributes(node)
        if "row" not in attrs:
            assert attrs["op"] == "host_gap"
            continue
        row, trace = attrs["row"], run.ranks[1]
        assert (attrs["stream"], attrs["start_ns"]) == (trace.stream[row], trace.start_ns[row])
        assert attrs["duration_ns"] == trace.end_ns[row] - trace.start_ns[row]
        if node.type == schema.COMP_NODE:
            info = run.signatures[trace.signature[row]]
            assert (attrs["op"], attrs["flops"], attrs["bytes"]) == (info.name, info.flops, info.bytes)
            assert json.loads(node.inputs.shapes) == [list(shape) for _, shape in info.inputs]


def test_unfinished_work_is_left_out(tmp_path):
    run = made_up_run(num_steps=1)
    for trace in run.ranks:
        trace.start_ns[-1] = trace.end_ns[-1] = -1
    files, groups = exported(run, tmp_path)
    assert check_astra_safe(files, groups) == []
    assert all("memcpy_d2h" != node.name for path in files for node in read_chakra(path))


def test_equal_runs_give_equal_bytes(tmp_path):
    first, _ = exported(made_up_run(), tmp_path / "a")
    second, _ = exported(made_up_run(), tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_check_finds_what_is_wrong(tmp_path):
    run = made_up_run(num_steps=1)
    files, groups = exported(run, tmp_path)
    assert any("not in comm_groups" in p for p in check_astra_safe(files, {}))
    assert any("no positive integer" in p for p in check_astra_safe(files, {**groups, "0": [0, 1]}))
    data = files[0].read_bytes()
    files[0].write_bytes(data[:-3])
    with pytest.raises(ValueError, match="cut off"):
        check_astra_safe(files, groups)


def test_cut_off_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.et"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        list(read_chakra(path))
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError):
        list(read_chakra(path))


def test_messages_are_canonical(tmp_path):
    """Parsing and serialising again gives the same bytes: nothing over-long, fields in order."""
    files, _ = exported(made_up_run(num_steps=1), tmp_path)
    data = files[0].read_bytes()
    for node in read_chakra(files[0]):
        assert node.SerializeToString() in data


def test_same_bytes_as_mlc_chakra(tmp_path):
    try:
        et_def = importlib.import_module("chakra.schema.protobuf.et_def_pb2")
    except ImportError:
        pytest.skip("mlc-chakra is not installed")
    files, _ = exported(made_up_run(num_steps=1), tmp_path)
    for node in read_chakra(files[0]):
        theirs = et_def.Node.FromString(node.SerializeToString())
        assert theirs.SerializeToString() == node.SerializeToString()
        assert [a.WhichOneof("value") for a in theirs.attr] == [a.WhichOneof("value") for a in node.attr]
    data = files[0].read_bytes()
    at = next(i for i, byte in enumerate(data) if byte < 128) + 1  # behind the length of the first message
    size = sum((byte & 127) << 7 * i for i, byte in enumerate(data[:at]))
    assert et_def.GlobalMetadata.FromString(data[at : at + size]).SerializeToString() == data[at : at + size]


def test_reads_traces_of_astra_sim(tmp_path):
    archive = Path(__file__).parents[2].parent / "shared/reference/astra_sim/inputs.tar.xz"
    if not archive.exists():
        pytest.skip("the reference traces are not here")
    with tarfile.open(archive) as tar:
        member = next(m for m in tar if m.name.endswith(".et"))
        (tmp_path / "x.et").write_bytes(tar.extractfile(member).read())
    nodes = list(read_chakra(tmp_path / "x.et"))
    assert nodes and all(node.id >= 0 for node in nodes)
    assert any("comm_size" in attributes(node) for node in nodes)


def test_traces_of_an_earlier_run_with_more_ranks_go_away(tmp_path):
    exported(made_up_run(num_steps=1), tmp_path)
    (tmp_path / "chakra" / "trace.mine.et").write_bytes(b"")
    exported(made_up_run(num_steps=1, world_size=2), tmp_path)
    assert sorted(path.name for path in (tmp_path / "chakra").glob("*.et")) == ["trace.0.et", "trace.1.et", "trace.mine.et"]


def test_work_of_the_cpu_becomes_a_gap(tmp_path):
    """A kernel that waited 50 us for CPU work, as traces of other tools have it, is held back by a gap of that length."""
    b = Builder(1)
    b.kernel(ADD)
    cpu = b.kernel(MM, stream=2)
    b.kernel(ADD, stream=3, after=(cpu,))
    run = b.finish()
    run.ranks[0].device[cpu] = -1
    run.ranks[0].host_end_ns = 0
    files, groups = exported(run, tmp_path)
    assert check_astra_safe(files, groups) == []
    assert [node.name for node in read_chakra(files[0])] == ["host gap", "aten::add", "host gap", "aten::add"]
    assert finish_times_ns(files)[0] == pytest.approx(max(run.ranks[0].end_ns), abs=1000)
