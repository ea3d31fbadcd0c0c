"""torch.distributed under the product's launcher: scripts that check real contents, and the streams they use."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.launch.job import Job, JobResult
from phantora.launch.options import JobOptions
from phantora.trace.causality import violations
from phantora.trace.model import RankTrace, Run

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parent / "distributed_scripts"


def simulate(script: Path, nproc: int, tmp_path: Path, name: str = "run") -> tuple[JobResult, str]:
    out = tmp_path / name
    options = JobOptions(
        script=str(script), nproc_per_node=nproc, out=str(out), log_dir=str(out / "logs"), command=("test",)
    )
    lines: list[str] = []
    result = Job(options, lambda text, stream: lines.append(text), lambda simulation: None).run()
    return result, "".join(lines)


def record(script: Path | str, nproc: int, tmp_path: Path, name: str = "run") -> Run:
    if isinstance(script, str):
        (tmp_path / "script.py").write_text(script)
        script = tmp_path / "script.py"
    result, output = simulate(script, nproc, tmp_path, name)
    assert result.error is None, f"{result.error}\n{output}"
    assert "done" in output, output
    return result.run


def communication(run: Run, rank: int = 0) -> list[tuple[str, int]]:
    """(kinds joined by '+', stream) of each communication kernel of a rank, in issue order."""
    trace: RankTrace = run.ranks[rank]
    found = []
    for row, signature in enumerate(trace.signature):
        if signature < 0:
            kinds = [run.collectives[index].kind for index in trace.work_collectives[-1 - signature]]
            found.append(("+".join(kinds), trace.stream[row]))
    return found


@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("name", ["device_contents", "p2p", "p2p_eager", "host_contents", "functional"])
def test_contents_are_real(name: str, nproc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "p2p_eager":
        name = "p2p"
        monkeypatch.setenv("EAGER", "1")
    run = record(SCRIPTS / f"{name}.py", nproc, tmp_path)
    assert violations(run) == []
    assert all(collective.end_ns > collective.start_ns for collective in run.collectives)


START = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.ones(1 << 20, device="cuda")
"""
END = """
torch.cuda.synchronize()
print("done", flush=True)
"""


def test_streams_are_those_of_process_group_nccl(tmp_path: Path) -> None:
    """Synchronous: the current stream; asynchronous: the group's own; unbatched send/recv: one per pair of ranks."""
    run = record(
        START
        + """
dist.all_reduce(x)
dist.all_reduce(x, async_op=True).wait()
dist.all_reduce(x, group=dist.new_group([0, 1]), async_op=True).wait()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    dist.all_reduce(x)
(dist.send if rank == 0 else dist.recv)(x, 1 - rank)
ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, x.clone(), 1 - rank)]
[work.wait() for work in dist.batch_isend_irecv(ops)]
"""
        + END,
        2,
        tmp_path,
    )
    kinds, streams = zip(*communication(run))
    assert kinds == ("all_reduce",) * 4 + ("send_recv", "send_recv+send_recv")
    sync, group, subgroup, side, pair, batch = streams
    assert sync == 0 and group == batch and len({sync, group, subgroup, side, pair}) == 5


def test_coalesced_calls_are_one_kernel(tmp_path: Path) -> None:
    run = record(
        START
        + """
from torch.distributed.distributed_c10d import _coalescing_manager
with _coalescing_manager():
    for _ in range(3):
        dist.all_reduce(x)
dist.all_gather([torch.empty(3 + r, device="cuda") for r in range(size)], torch.ones(3 + rank, device="cuda"))
"""
        + END,
        2,
        tmp_path,
    )
    assert [kind for kind, _ in communication(run)] == ["all_reduce+all_reduce+all_reduce", "broadcast+broadcast"]


def test_list_collectives_copy_through_a_flat_buffer(tmp_path: Path) -> None:
    run = record(
        START
        + """
dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
dist.reduce_scatter(torch.empty_like(x), [x] * size)
"""
        + END,
        2,
        tmp_path,
    )
    names = [
        run.signatures[s].name if s >= 0 else run.collectives[run.ranks[0].work_collectives[-1 - s][0]].kind
        for s in run.ranks[0].signature
    ]
    tail = names[names.index("all_gather") :]
    assert tail == ["all_gather", "memcpy_d2d", "memcpy_d2d", "memcpy_d2d", "memcpy_d2d", "reduce_scatter"]


def test_overlap_and_barrier(tmp_path: Path) -> None:
    """An asynchronous all-reduce runs beside a matmul; a barrier holds the host until the slowest rank has come."""
    run = record(
        START
        + """
import time
a = torch.randn(8192, 8192, device="cuda")
big = torch.ones(64 << 20, device="cuda")
torch.cuda.synchronize()
work = dist.all_reduce(big, async_op=True)
b = a @ a
work.wait()
torch.cuda.synchronize()
begin = time.perf_counter()
time.sleep(0.5 * rank)
dist.barrier()
assert time.perf_counter() - begin >= 0.5 * (size - 1)
"""
        + END,
        2,
        tmp_path,
    )
    trace = run.ranks[0]
    collective = next(c for c in run.collectives if c.kind == "all_reduce")
    matmul = next(row for row, s in enumerate(trace.signature) if s >= 0 and run.signatures[s].name == "aten::mm")
    assert trace.start_ns[matmul] < collective.end_ns and collective.start_ns < trace.end_ns[matmul]


def test_a_replayed_graph_repeats_its_collectives(tmp_path: Path) -> None:
    run = record(
        START
        + """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    dist.all_reduce(y)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
for _ in range(3):
    graph.replay()
"""
        + END,
        2,
        tmp_path,
    )
    assert [kind for kind, _ in communication(run)] == ["all_reduce"] * 6


@pytest.mark.parametrize(
    "calls,words",
    [
        ("dist.all_reduce(x if rank else x[:5])", ["number of elements differs", "rank 0", "rank 1", "script.py"]),
        ("dist.broadcast(x, src=rank)", ["root differs"]),
        (
            "dist.all_reduce(x, op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)",
            ["reduction differs", "MAX", "SUM"],
        ),
        (
            "dist.barrier() if rank else torch.cuda.synchronize(); dist.all_reduce(x) if not rank else None",
            ["operation differs"],
        ),
        ("dist.recv(x, 1 - rank); x.sum().item()", ["no rank can go on", "recv from rank"]),
    ],
)
def test_calls_that_do_not_match_end_the_run(calls: str, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(START + calls + END)
    result, _ = simulate(script, 2, tmp_path)
    assert result.error is not None
    for word in words:
        assert word in result.error, result.error


def test_results_do_not_depend_on_the_run(tmp_path: Path) -> None:
    first, second = (record(SCRIPTS / "p2p.py", 4, tmp_path, name) for name in ("first", "second"))
    assert first.virtual_ns == second.virtual_ns
    for a, b in zip(first.ranks, second.ranks):
        assert (a.start_ns, a.end_ns, a.stream, a.host_end_ns) == (b.start_ns, b.end_ns, b.stream, b.host_end_ns)
