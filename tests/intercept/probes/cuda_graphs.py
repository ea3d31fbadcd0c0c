"""CUDA graphs: capture, replay, pools, make_graphed_callables."""

import sys

import kernel_probe

kernel_probe.arm()

import torch
from kernel_probe import finish, names, probe, raises
from torch import nn

NATIVE = sys.modules["phantora_native"]
MIB = 1 << 20


@probe
def capturing_runs_nothing_and_replaying_runs_all_of_it():
    x = torch.empty(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    names()
    with torch.cuda.graph(graph):
        y = (x @ x).relu()
    assert names() == []
    for _ in range(3):
        graph.replay()
        assert names() == ["mm", "relu"]
    assert y.shape == (64, 64)


@probe
def a_replay_costs_the_host_one_launch():
    x = torch.empty(64, device="cuda")
    times = []
    for count in (1, 100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                x.add_(1)
        torch.cuda.synchronize()
        begin_ns = NATIVE.now_ns()
        graph.replay()
        times.append(NATIVE.now_ns() - begin_ns)
        end_ns, is_known = NATIVE.stream_state(0, 0)
        assert is_known and end_ns == begin_ns + times[-1] + count * 1000  # back to back on the device
    assert times == [8000, 8000], times


@probe
def memory_stays_in_the_graphs_pool():
    before = torch.cuda.memory_allocated()
    x = torch.empty(MIB, device="cuda")  # 4 MiB
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.sin().cos()  # the sine is freed inside the pool
    kept = torch.cuda.memory_allocated() - before
    for _ in range(3):
        graph.replay()
    assert torch.cuda.memory_allocated() - before == kept == 8 * MIB, kept
    reserved = torch.cuda.memory_reserved()
    del y, graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved


@probe
def graphs_share_a_pool():
    x = torch.empty(MIB, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = x.sin()
    with torch.cuda.graph(second, pool=first.pool()):
        z = y.cos()
    assert first.pool() == second.pool() and z.shape == x.shape
    names()
    first.replay(), second.replay()
    assert names() == ["sin", "cos"]


@probe
def graphed_callables_train():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    graphed = torch.cuda.make_graphed_callables(net, (torch.empty(32, 64, device="cuda", requires_grad=True),))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        names()
        output = graphed(torch.empty(32, 64, device="cuda"))
        forward = names()
        output.sum().backward()
        assert [name for name in forward if name in ("addmm", "relu")] == ["addmm", "relu", "addmm"], forward
        assert names().count("mm") >= 3
        optimizer.step()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())


@probe
def what_may_not_be_captured():
    raises(RuntimeError, "preceding successful capture", lambda: torch.cuda.CUDAGraph().replay())
    raises(RuntimeError, "non-default stream", lambda: torch.cuda.CUDAGraph().capture_begin())


finish()
