"""torch_geometric: a graph attention network on a whole graph, and on sampled neighbourhoods under DDP."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from recording import launches, record, volume

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_geometric") is None, reason="torch_geometric is not installed"
)

NODES, EDGES, WIDTH, HEADS, CHANNELS, CLASSES, STEPS = 2000, 12000, 64, 8, 8, 7, 2
# Two GATConv (Velickovic et al., 2018, section 2.1, without a bias in W): W, the two halves of the attention vector a, the bias.
PARAMETERS = (WIDTH * HEADS * CHANNELS + 2 * HEADS * CHANNELS + HEADS * CHANNELS) + (
    HEADS * CHANNELS * CLASSES + 2 * CLASSES + CLASSES
)

MODEL = """
import os, torch, torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from torch_geometric.utils import k_hop_subgraph, remove_self_loops
torch.manual_seed(0)
N, E = 2000, 12000
edges = remove_self_loops(torch.randint(0, N, (2, E + 100)))[0][:, :E]
data = Data(x=torch.randn(N, 64), edge_index=edges, y=torch.randint(0, 7, (N,)), train_mask=torch.arange(N) < 500)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GATConv(64, 8, heads=8, dropout=0.6)
        self.second = GATConv(64, 7, heads=1, concat=False, dropout=0.6)
    def forward(self, x, edge_index):
        x = F.elu(self.first(F.dropout(x, 0.6, self.training), edge_index))
        return self.second(F.dropout(x, 0.6, self.training), edge_index)
"""
WHOLE = (
    MODEL
    + """
data, model = data.to("cuda"), Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for _ in range(2):
    out = model(data.x, data.edge_index)[data.train_mask]
    assert out.shape == (500, 7)  # the mask is known
    loss = F.cross_entropy(out, data.y[data.train_mask])
    optimizer.zero_grad(); loss.backward(); optimizer.step(); float(loss)
model.eval()
correct = int((model(data.x, data.edge_index).argmax(1) == data.y).sum())
"""
)
SAMPLED = (
    MODEL
    + """
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[rank])
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for step in range(2):
    seeds = torch.randperm(N, generator=torch.Generator().manual_seed(10 * rank + step))[:32]
    nodes, near, where, _ = k_hop_subgraph(seeds, 2, data.edge_index, relabel_nodes=True)
    x, near, where, y = data.x[nodes].cuda(), near.cuda(), where.cuda(), data.y[seeds].cuda()
    loss = F.cross_entropy(model(x, near)[where], y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("sampled", nodes.numel(), near.shape[1], flush=True)
dist.destroy_process_group()
"""
)


def gathers(run: Run, rank: int) -> Counter[tuple[int, ...]]:
    """Shapes that index_select gathered -> how often."""
    return Counter(signature.outputs[0][1] for signature in launches(run, rank) if signature.name == "aten::index_select")


def test_whole_graph(tmp_path: Path) -> None:
    """Each convolution gathers the transformed features of the sources of all edges and of a self-loop for each node,
    times heads (Velickovic et al., 2018, equation 4), in two steps of training and one evaluation.
    """
    (tmp_path / "gat.py").write_text(WHOLE)
    run = record(tmp_path / "out", 1, str(tmp_path / "gat.py"))
    found = gathers(run, 0)
    assert found[EDGES + NODES, HEADS, CHANNELS] == found[EDGES + NODES, 1, CLASSES] == STEPS + 1
    assert run.collectives == []


def test_sampled_neighbourhoods_under_ddp(tmp_path: Path) -> None:
    """Batches of other sizes on each rank and in each step, as sampled by CPU; gradients are all-reduced, 4 bytes per
    parameter (Li et al., 2020, PyTorch Distributed, section 3.2).
    """
    (tmp_path / "gat.py").write_text(SAMPLED)
    run = record(tmp_path / "out", 2, str(tmp_path / "gat.py"))
    assert volume(run, "all_reduce", (0, 1)) == STEPS * 4 * PARAMETERS
    sizes = set()
    for rank in range(2):
        lines = (tmp_path / "out" / "logs" / f"rank_{rank}" / "stdout.log").read_text().splitlines()
        batches = [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("sampled")]
        sizes.update(batches)
        expected = Counter((edges + nodes, HEADS, CHANNELS) for nodes, edges in batches)
        found = gathers(run, rank)
        assert len(batches) == STEPS and all(found[shape] == count for shape, count in expected.items())
    assert len(sizes) == 2 * STEPS
