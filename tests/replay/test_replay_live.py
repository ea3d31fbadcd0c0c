"""Whole training scripts: their replay gives the live run's times to the nanosecond, here and on another fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.cluster import load_cluster
from phantora.exporters.chakra import write_chakra
from phantora.importers.chakra import read
from phantora.launch.job import Job
from phantora.launch.options import JobOptions
from phantora.network.contention import ContentionModel
from phantora.replay import ReplayOptions, replay
from phantora.trace.model import Run

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "scripts"
SLOW = 'base = "dgx-h100"\n[intra_node]\nbytes_per_s = 30e9\nlatency_ns = 5000\nnvls = false\n'
# Hosts that wait for hosts: gloo, asynchronously too, the store, a barrier, and the device in between.
HOSTS = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
x, group = torch.randn(4096, 4096, device="cuda"), dist.new_group(backend="gloo")
for step in range(4):
    y = x @ x
    dist.all_reduce(y)
    if rank == step % size:
        torch.cuda.synchronize()
    t = torch.ones(3) * rank
    dist.all_reduce(t, group=group)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "value": float(t[0])}, group=group)
    y.sum().item()
    work = dist.all_reduce(t, group=group, async_op=True)
    y = x @ y
    work.wait()
    if rank == 0:
        dist.send(t, 1)
    if rank == 1:
        dist.recv(t, 0)
    dist.barrier()
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    torch.cuda.synchronize()
    store.set("hello", "x")
if rank == 0:
    store.get("hello")
dist.all_reduce(y)
torch.cuda.synchronize()
"""


def live(
    script: Path,
    nproc: int,
    tmp_path: Path,
    cluster: str = "dgx-h100",
    contention: tuple[float, float] | None = None,
    nnodes: int = 1,
) -> Run:
    out = tmp_path / "run"
    options = JobOptions(
        script=str(script), nproc_per_node=nproc, nnodes=nnodes, cluster=cluster, out=str(out), log_dir=str(out / "logs"), contention=contention,
        command=("test",),
    )  # fmt: skip
    lines: list[str] = []
    result = Job(options, lambda text, stream: lines.append(text), lambda simulation: None).run()
    assert result.error is None, result.error + "\n" + "".join(lines)
    return result.run


def assert_same(expected: Run, found: Run) -> None:
    """Everything that has a time, and everything else too."""
    for mine, other in zip(expected.ranks, found.ranks, strict=True):
        for name in (
            "start_ns",
            "end_ns",
            "issue_ns",
            "wait_begin_ns",
            "wait_end_ns",
            "mark_ns",
            "memory_ns",
            "host_end_ns",
        ):
            assert getattr(mine, name) == getattr(other, name), f"rank {mine.rank}: {name}"
    assert found.collectives == expected.collectives
    assert found.virtual_ns == expected.virtual_ns


@pytest.mark.parametrize(
    "name,nproc",
    [
        ("gpt_amp", 1),
        ("prefetcher", 1),
        ("ddp", 4),
        ("fsdp2", 4),
        ("tensor_parallel", 2),
        ("pipeline", 4),
        ("two_dimensional", 4),
    ],
)
def test_on_its_own_cluster(name: str, nproc: int, tmp_path: Path) -> None:
    """Also after a detour through files, which lose nothing."""
    run = live(SCRIPTS / f"{name}.py", nproc, tmp_path)
    assert_same(run, replay(run, run.cluster))
    back, _ = read(write_chakra(run, tmp_path / "copy") / "trace")
    run.wall_s = back.wall_s
    assert back == run
    assert_same(run, replay(back, back.cluster))


@pytest.mark.parametrize("name,nproc", [("fsdp2", 4), ("pipeline", 4), ("two_dimensional", 4)])
def test_on_another_fabric_as_a_live_run_there(name: str, nproc: int, tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    run = live(SCRIPTS / f"{name}.py", nproc, tmp_path)
    there = live(SCRIPTS / f"{name}.py", nproc, tmp_path, str(tmp_path / "slow.toml"))
    assert [info.end_ns for info in there.collectives] != [info.end_ns for info in run.collectives]
    assert_same(there, replay(run, load_cluster(tmp_path / "slow.toml")))
    assert_same(run, replay(there, load_cluster("dgx-h100")))


def test_hosts_that_wait_for_hosts(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    script = tmp_path / "hosts.py"
    script.write_text(HOSTS)
    run = live(script, 3, tmp_path)
    there = live(script, 3, tmp_path, str(tmp_path / "slow.toml"))
    assert_same(run, replay(run, run.cluster))
    assert_same(there, replay(run, there.cluster))


def test_with_contention(tmp_path: Path) -> None:
    run = live(SCRIPTS / "fsdp2.py", 4, tmp_path, contention=(1.3, 1.9))
    model = ContentionModel(compute_factor=1.3, collective_factor=1.9)
    assert_same(run, replay(run, run.cluster, ReplayOptions(contention=model)))


def test_repriced_for_its_own_gpu_and_for_another(tmp_path: Path) -> None:
    run = live(SCRIPTS / "gpt_amp.py", 1, tmp_path)
    assert_same(run, replay(run, run.cluster, ReplayOptions(reprice=True)))
    there = live(SCRIPTS / "gpt_amp.py", 1, tmp_path, "hgx-h200")
    again = replay(run, there.cluster, ReplayOptions(reprice=True))
    assert any("repriced" in note for note in again.notes)
    if there.cluster.host.launch_ns == run.cluster.host.launch_ns:
        assert_same(there, again)
    else:
        assert again.virtual_ns == pytest.approx(there.virtual_ns, rel=0.02)


PRODUCTS = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
pinned = torch.empty(1 << 24, pin_memory=True)
for step in range(3):
    for _ in range(40):
        b = a @ a
    pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
print(b.sum().item())
"""


def test_under_a_power_limit(tmp_path: Path) -> None:
    """The clock is that of the live run: with recorded times, with new prices, and at another limit."""
    script, limited = tmp_path / "products.py", tmp_path / "limited.toml"
    script.write_text(PRODUCTS)
    limited.write_text('base = "dgx-h100"\n[gpu]\npower_w = 400\n')
    run, there = live(script, 1, tmp_path), live(script, 1, tmp_path, str(limited))
    assert there.virtual_ns > 1.3 * run.virtual_ns
    assert any("lowered by the limit of 400 W" in note for note in there.notes)
    assert_same(run, replay(run, run.cluster))
    assert_same(run, replay(run, run.cluster, ReplayOptions(reprice=True)))
    again = replay(run, there.cluster, ReplayOptions(reprice=True))
    assert_same(there, again)
    assert again.notes[-1] == there.notes[-1]
    assert_same(there, replay(there, there.cluster))
