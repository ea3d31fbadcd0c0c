"""Chakra of our own and of others: nothing lost of the one, everything said of the other."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path

import pytest
from chakra_builder import encoded, node, write
from made_up_run import made_up_run

from phantora.cluster import load_cluster
from phantora.cluster.loader import list_clusters
from phantora.cluster.plain import as_plain, from_plain
from phantora.errors import UserError
from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra import write_chakra
from phantora.importers.chakra import read
from phantora.importers.chakra_recorded import unpacked_sint64
from phantora.replay import replay
from phantora.trace.model import HOST_DEVICE, NO_STREAM

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CLUSTER = load_cluster("dgx-h100")
COMP, SEND, RECV, COLL = schema.COMP_NODE, schema.COMM_SEND_NODE, schema.COMM_RECV_NODE, schema.COMM_COLL_NODE
METADATA = 1


def collective(number, size=1 << 20, kind=0, **more):
    return node(number, COLL, comm_type=kind, comm_size=size, **more)


# ------------------------------------------------------------------ our own


def test_a_recorded_run_comes_back_as_it_was(tmp_path):
    run = made_up_run()
    run.cluster, run.contention = CLUSTER, (1.2, 1.9)
    run.signatures[2].call = '{"name":"aten::mm"}'
    run.collectives[0].split_bytes = ((1, 2), (3, 4))
    for trace in run.ranks:
        for _ in trace.wait_reason:
            trace.wait_position.append(3)
            trace.wait_thread.append(0)
            trace.wait_delay_ns.append(-5)
            trace.wait_rows.append((1, 2))
            trace.wait_peers.append(((0, 1), (3, 0)))
        trace.thread.extend([0] * len(trace.signature))
    back, report = read(write_chakra(run, tmp_path) / "trace")
    assert back.wall_s == 0.0
    back.wall_s = run.wall_s
    assert back == run
    assert not (report.guessed or report.left_out or report.broken)
    assert read(tmp_path)[0].ranks == run.ranks  # the folder of the run


def test_work_that_never_ran_and_ranks_that_failed_come_back_too(tmp_path):
    run = made_up_run(num_steps=1)
    for trace in run.ranks:
        trace.start_ns[-1] = trace.end_ns[-1] = -1
        trace.exit_code = 3
    run.complete, run.error = False, "rank 0 failed"
    back, _ = read(write_chakra(run, tmp_path))
    assert [t.start_ns for t in back.ranks] == [t.start_ns for t in run.ranks]
    assert (back.complete, back.error, back.ranks[1].exit_code) == (False, "rank 0 failed", 3)


def test_after_an_edit_the_nodes_speak(tmp_path):
    """A kernel made 1 ms longer: the tables of the file do not count any more."""
    folder = write_chakra(made_up_run(num_steps=1), tmp_path)
    path = folder / "trace.0.et"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"aten::mm", b"aten::xx", 1))
    run, report = read(folder)
    assert run.source == "chakra" and report.taken["compute nodes"].count > 0
    assert replay(run, CLUSTER).virtual_ns > 0


def test_a_file_of_another_rank_and_too_few_files_are_refused(tmp_path):
    folder = write_chakra(made_up_run(num_steps=1), tmp_path)
    files = [folder / f"trace.{rank}.et" for rank in range(4)]
    with pytest.raises(UserError, match="holds rank 2, not rank 1"):
        read([files[0], files[2], files[1], files[3]])
    with pytest.raises(UserError, match="the run has 4 ranks, but there are 2 files"):
        read(files[:2])
    files[1].unlink()
    with pytest.raises(UserError, match="no trace of rank 1"):
        read(folder)


def test_clusters_travel_as_plain_values():
    for name in list_clusters():
        cluster = load_cluster(name)
        assert from_plain(json.loads(json.dumps(as_plain(cluster))), "x") == cluster


def test_zigzag():
    values = [0, -1, 1, 127, -128, 1 << 40, -(1 << 62)]
    message = schema.AttributeProto(name="x")
    message.sint64_list.values.extend(values)
    packed = message.sint64_list.SerializeToString()
    assert unpacked_sint64(packed[2:]).tolist() == values


# ------------------------------------------------------------------ other tools


def test_nodes_of_the_pytorch_converter(tmp_path):
    """CPU nodes on a thread, a kernel and a collective on streams; metadata nodes are passed over and describe
    groups."""
    groups = json.dumps([json.dumps([{"pg_name": "7", "ranks": [0, 1]}, {"pg_name": "8", "ranks": [0, 5]}])])

    def rank_nodes():
        init = node(1, METADATA, name="process_group:init")
        init.inputs.values = groups
        return [
            init,
            node(2, ctrl=(1,), micros=10, is_cpu_op=True, tid=3),
            node(3, ctrl=(2,), data=(2,), micros=5, is_cpu_op=True, tid=3),
            node(4, name="gemm", ctrl=(3,), micros=100, is_cpu_op=False, stream=7),
            collective(5, ctrl=(3,), data=(4,), is_cpu_op=False, stream=20, pg_name="7"),
        ]

    run, report = read(write(tmp_path, [rank_nodes(), rank_nodes()]))
    trace = run.ranks[0]
    assert list(zip(trace.device, trace.stream)) == [(HOST_DEVICE, 3), (HOST_DEVICE, 3), (0, 7), (0, 20)]
    assert list(trace.node) == [2, 3, 4, 5]
    assert [group.name for group in run.groups] == ["7"] and run.collectives[0].ranks == (0, 1)
    assert report.broken["process groups whose ranks have no trace"].count == 2
    new = replay(run, CLUSTER)
    assert list(new.ranks[1].start_ns) == [0, 10_000, 15_000, 115_000]


def test_dangling_and_contradicting_control_dependencies_are_left_out(tmp_path):
    nodes = [
        node(1, micros=10, ctrl=(2, 99), is_cpu_op=False),
        node(2, micros=10, data=(1,), ctrl=(2,), is_cpu_op=False),
        node(3, micros=10, data=(77,), ctrl=(1,), is_cpu_op=False),
    ]
    run, report = read(write(tmp_path, [nodes]))
    counts = {what: counted.count for what, counted in report.left_out.items()}
    assert counts == {
        "control dependencies on absent nodes": 1, "data dependencies on absent nodes": 1,
        "control dependencies of nodes on themselves": 1, "control dependencies that contradict data dependencies": 1,
    }  # fmt: skip
    assert list(replay(run, CLUSTER).ranks[0].start_ns) == [0, 10_000, 10_000]


def test_a_cycle_of_data_dependencies_is_an_error(tmp_path):
    nodes = [node(1, data=(3,)), node(2, data=(1,)), node(3, data=(2,)), node(4)]
    with pytest.raises(
        UserError,
        match="trace.0.et: data dependencies form a cycle: node 1 waits for node 3 waits for node 2 waits for node 1",
    ):
        read(write(tmp_path, [nodes]))


def test_sizes_and_order_of_collectives(tmp_path):
    """comm_size is what one rank puts in; the k-th by id meets the k-th, whatever the order in the file."""
    first = [collective(10, 512, 2), collective(20, 4096, 0)]
    run, _ = read(write(tmp_path, [first, first[::-1]]))
    assert [(info.kind, info.bytes) for info in run.collectives] == [("all_gather", 1024), ("all_reduce", 4096)]
    assert [run.ranks[1].work_collectives[i] for i in range(2)] == [(0,), (1,)]
    assert set(run.ranks[0].stream) == {NO_STREAM}


def test_groups_of_a_file(tmp_path):
    paths = write(tmp_path, [[collective(1, pg_name=str(1 + rank // 2))] for rank in range(4)])
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1], "2": [3, 2]}')
    run, _ = read(paths, groups)
    assert [info.ranks for info in run.collectives] == [(0, 1), (3, 2)]
    for text, message in (
        ('{"1": [0, 1]}', r"trace.2.et: node 1: group '2' is not among \['1'\]"),
        ('{"1": [0, 3], "2": [1, 2]}', r"trace.1.et: node 1: rank 1 is not in group '1' \[0, 3\]"),
        ('{"1": [0, 9]}', "group '1' names rank 9, but there are 4 traces"),
        ('{"1": [0,, 9]}', r"groups.json:1:10: not JSON"),
        ("[1]", "must be an object"),
    ):
        groups.write_text(text)
        with pytest.raises(UserError, match=message):
            read(paths, groups)


def test_messages_meet_by_tag_pair_and_size(tmp_path):
    def send(number, to, tag, size=1000):
        return node(number, SEND, comm_dst=("int32_val", to), comm_tag=tag, comm_size=size)

    def receive(number, source, tag, size=1000):
        return node(number, RECV, comm_src=("int32_val", source), comm_tag=tag, comm_size=size)

    run, report = read(write(tmp_path, [[send(1, 1, 5), send(2, 1, 6)], [receive(1, 0, 6), receive(2, 0, 5)]]))
    assert [info.ranks for info in run.collectives] == [(0, 1)] * 2 and not report.broken
    assert replay(run, CLUSTER).virtual_ns > 0
    run, report = read(write(tmp_path, [[send(1, 1, 5)], [receive(7, 0, 5, 999)]]))
    assert report.broken["receives that nobody sends"].count == 1
    with pytest.raises(
        UserError, match=r"message \d from rank 0 to rank 1: rank 1 node 7 waits for rank 0 for ever"
    ):
        replay(run, CLUSTER)
    with pytest.raises(UserError, match="node 1: names rank 4, but there are 1 traces"):
        read(write(tmp_path, [[send(1, 4, 5)]])[:1])


def test_collectives_that_differ_between_ranks(tmp_path):
    with pytest.raises(
        UserError,
        match=r"collective 1 of group 'world' differs: all_reduce on rank 0 \(node 3\), all_gather on rank 1 \(node 4\)",
    ):
        read(write(tmp_path, [[collective(3)], [collective(4, kind=2)]]))
    run, report = read(write(tmp_path, [[collective(3, 100)], [collective(4, 200)]]))
    assert (
        run.collectives[0].bytes == 200
        and "collectives whose ranks have different sizes (the largest counts)" in report.broken
    )
    run, _ = read(write(tmp_path, [[collective(3)], []]))
    with pytest.raises(UserError, match=r"rank 0 node 3 waits for rank 1 for ever"):
        replay(run, CLUSTER)


def test_what_is_guessed_is_counted(tmp_path):
    nodes = [
        node(1, micros=0), node(1, micros=5), node(2, COLL, micros=7), node(3, COLL, comm_type=9), node(4, SEND, micros=3),
        node(5, 0), node(6, 42), node(7, COLL, comm_type=0, comm_size=8, involved_dim=("bool_list", schema.AttributeProto(bool_list={"values": [True, False]}).bool_list)),
    ]  # fmt: skip
    _, report = read(write(tmp_path, [nodes, nodes]))
    assert set(report.guessed) == {
        "collectives of no known comm_type: as work of their duration",
        "messages that do not name their other end: as work of their duration", "device work without a stream: ordered by dependencies alone",
        "collectives of some dimensions of ASTRA-sim's network: as of all ranks",
    }  # fmt: skip
    assert set(report.left_out) == {
        "nodes whose id comes again (the last counts)",
        "invalid nodes",
        "nodes of unknown types",
    }
    text = "\n".join(report.lines())
    assert "trace.0.et: node 2" in text


@pytest.mark.parametrize("size", [None, "8", -1, 1 << 62])
def test_a_collective_has_a_size(tmp_path, size):
    attributes = {"comm_type": 0} | ({} if size is None else {"comm_size": size})
    paths = write(tmp_path, [[collective(1)], [node(5, COLL, **attributes)]])
    what = "is missing" if size is None else "must be an integer"
    with pytest.raises(UserError, match=f"trace.0.et: node 1|trace.1.et: node 5, rank 1: comm_size {what}"):
        read(paths)


@pytest.mark.parametrize(
    "name, meant",
    [("pg_nam", "pg_name"), ("com_size", "comm_size"), ("commSize", "comm_size"), ("comm_tpye", "comm_type")],
)
def test_misspelt_attributes_are_refused(tmp_path, name, meant):
    paths = write(tmp_path, [[collective(1)], [collective(1), collective(4, **{name: 3})]])
    with pytest.raises(UserError, match=f"trace.1.et: rank 1, node 4: attribute '{name}' .* is '{meant}' meant"):
        read(paths)


def test_attributes_of_other_tools_are_no_mistakes(tmp_path):
    others = dict.fromkeys(("comm_priority", "pg_desc", "pg_size", "rf_id", "tensor_loc", "duration_us", "my_notes"), 1)
    run, _ = read(write(tmp_path, [[collective(1, **others)]] * 2))
    assert len(run.collectives) == 1


def test_traces_in_an_archive(tmp_path):
    (tmp_path / "in").mkdir()
    paths = write(tmp_path / "in", [[collective(1)], [collective(1)]])
    (tmp_path / "in/readme.txt").write_text("x")
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "in", "in")
    run, report = read(archive)
    assert run.world_size == 2 and len(run.collectives) == 1
    assert report.files == [f"{archive}!trace.0.et", f"{archive}!trace.1.et"]
    assert report.left_out["members of archives that are no Chakra traces (.et)"].count == 1
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(paths[1], "in/trace.1.et")
    with pytest.raises(UserError, match="x.tar.gz: no trace of rank 0"):
        read([archive])
    archive.write_bytes(b"no archive")
    with pytest.raises(UserError, match="x.tar.gz: not a readable archive"):
        read(archive)


def test_nothing_to_import(tmp_path):
    (tmp_path / "t.0.et").write_bytes(bytes(100))
    with pytest.raises(UserError, match="t.0.et: nothing to import"):
        read(tmp_path / "t")


def test_real_traces(tmp_path):
    archive = SHARED / "reference/traces/chakra_feeder_tests_trace.tar.gz"
    if not archive.exists():
        pytest.skip("the reference traces are not here")
    with tarfile.open(archive) as tar:
        member = next(m for m in tar if m.name.endswith(".et") and not Path(m.name).name.startswith("."))
        (tmp_path / "x.0.et").write_bytes(tar.extractfile(member).read())
    run, report = read(tmp_path / "x")
    assert report.taken["compute nodes"].count == 3643 and report.taken["collectives"].count == 21
    assert report.left_out["control dependencies that contradict data dependencies"].count > 0
    new = replay(run, CLUSTER)
    assert min(new.ranks[0].start_ns) == 0 and len(new.ranks[0].start_ns) == 3664
    busy_ns = sum(end - start for start, end in zip(new.ranks[0].start_ns, new.ranks[0].end_ns))
    assert 80e6 < new.virtual_ns < busy_ns


def test_cases_of_astra_sim(tmp_path):
    """All of them run on a cluster of ours: collectives in groups, messages, control dependencies, late receives."""
    archive = SHARED / "reference/astra_sim/inputs.tar.xz"
    if not archive.exists():
        pytest.skip("the reference traces are not here")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    cases = sorted((tmp_path / "inputs").iterdir())
    assert len(cases) > 200
    for case in cases[::4]:
        groups = [path for path in case.glob("*.json") if "group" in path.name]
        run, _ = read(case / "workload", groups[0] if groups else None)
        new = replay(run, CLUSTER)
        assert new.virtual_ns > 0 and all(info.end_ns > 0 for info in new.collectives), case.name


# ------------------------------------------------------------------ malformed


def test_malformed_files(tmp_path):
    path = tmp_path / "x.0.et"
    for data, message in (
        (b"", "byte 0: .*the file is empty"),
        (b"\xff" * 40, "byte 0"),
        (b"\x07\x0a\x050.0.4\x05\x08", r"byte 8: .*5 bytes, but the file ends after 1"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=f"x.0.et: {message}"):
            read(tmp_path / "x")


def _small_run():
    run = made_up_run(num_steps=1, num_layers=1, world_size=2)
    run.cluster = CLUSTER
    return run


def _foreign_nodes(rank):
    return [
        node(1, METADATA), node(2, micros=5, ctrl=(1,), is_cpu_op=True, tid=1),
        node(3, data=(2,), micros=9, is_cpu_op=False, stream=7), collective(4, data=(3,), pg_name="1", involved_dim=True),
        node(5, SEND if rank == 0 else RECV, data=(4,), comm_src=0, comm_dst=1, comm_tag=3, comm_size=64),
        node(6, data=(4, 5), ctrl=(2,), micros=1, num_ops=7, tensor_size=("uint64_val", 9)), collective(7, 64, 2, data=(6,)),
    ]  # fmt: skip


def _mutated(rng, data):
    """Bytes changed, cut out, doubled, or the end cut off."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found)) if found else 0
        kind = rng.randrange(6)
        if kind < 3 and found:
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 3:
            del found[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            found[at:at] = found[at : at + rng.randrange(1, 40)]
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("source,count", [("foreign", 16_000), ("recorded", 3_000), ("groups", 1_000)])
def test_mutated_files_end_in_errors_of_our_own(tmp_path, source, count):
    """20,000 in all, of a fixed seed. What is still a trace can be replayed, or the replay says why not."""
    if source == "recorded":
        write_chakra(_small_run(), tmp_path)
        folder = tmp_path / "chakra"
        paths = [folder / "trace.0.et", folder / "trace.1.et"]
    else:
        paths = write(tmp_path, [_foreign_nodes(0), _foreign_nodes(1)])
    groups = tmp_path / "groups.json"
    groups.write_text('{"1": [0, 1], "2": [1]}')
    target = groups if source == "groups" else paths[0]
    data, rng, num_read = target.read_bytes(), random.Random(source), 0
    for _ in range(count):
        target.write_bytes(_mutated(rng, data))
        try:
            run, report = read(paths, groups)
            num_read += 1
            report.lines()
            if num_read % 40 == 0:
                replay(run, CLUSTER)
        except UserError as error:
            assert str(error)
    assert 0 < num_read < count


def test_mutated_tables_that_claim_to_be_whole(tmp_path):
    """The CRC made right again, as nobody does by accident: still no crash."""
    import zlib

    folder = write_chakra(_small_run(), tmp_path)
    paths = [folder / "trace.0.et", folder / "trace.1.et"]
    data, rng = paths[0].read_bytes(), random.Random(7)
    crc_at = data.index(b"\x0a\x05crc32") + 9
    for _ in range(1_500):
        changed = bytearray(data)
        changed[rng.randrange(10, crc_at - 9)] = rng.randrange(256)
        changed[crc_at : crc_at + 4] = zlib.crc32(changed[crc_at + 4 :], zlib.crc32(changed[:crc_at])).to_bytes(
            4, "little"
        )
        paths[0].write_bytes(changed)
        try:
            read(paths)
        except UserError as error:
            assert str(error)


def test_encoded_is_what_the_schema_says():
    assert encoded([]) == b"\x07\x0a\x050.0.4"
