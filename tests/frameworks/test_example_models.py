"""examples/ that spread experts and embedding tables over ranks, and a DLRM in plain torch: their collectives by
formula.
"""

from __future__ import annotations

from pathlib import Path

from recording import communicated, record, volume

ROOT = Path(__file__).resolve().parents[2]


def options(**sizes: int) -> list[str]:
    return [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size))]


def test_gshard(tmp_path: Path) -> None:
    """Lepikhin et al. (2021), section 3.2: an expert has room for 2 N / E of its rank's N tokens, so that each all-to-
    all of a rank carries E x C x M elements, here bfloat16, twice per mixture (there and back) forward and twice
    backward. All other parameters are replicated and their gradients all-reduced, 4 bytes each (Li et al., 2020,
    section 3.2); experts' are not.
    """
    steps, layers, m, hidden, experts, vocab, batch, context = 2, 4, 128, 256, 8, 1000, 2, 100
    sizes = options(
        steps=steps,
        layers=layers,
        width=m,
        hidden=hidden,
        experts=experts,
        vocab=vocab,
        batch=batch,
        context=context,
        heads=4,
    )
    run = record(tmp_path, 4, str(ROOT / "examples" / "gshard_moe.py"), *sizes)
    world = (0, 1, 2, 3)
    capacity = 2 * batch * context // experts
    assert communicated(run, "all_to_all", world) == {experts * capacity * m * 2: steps * (layers // 2) * 4}
    attention = 2 * 2 * m + 3 * m * m + 3 * m + m * m + m
    dense = (
        layers * attention
        + layers // 2 * (2 * m * hidden + hidden + m)
        + layers // 2 * m * experts
        + 2 * m
        + 2 * vocab * m
    )
    assert volume(run, "all_reduce", world) == steps * 4 * dense
    assert communicated(run, "broadcast", world)[4 * dense] == 1


def test_wukong(tmp_path: Path) -> None:
    """Tables by rank, as DLRM's (Naumov et al., 2019, section 4; Zhang et al., 2024, section 3): a rank sends its
    batch's indices (int64), gets the pooled embeddings of its batch from all tables (float32), and sends their
    gradients back. The rest, counted from section 3's layers, is all-reduced.
    """
    steps, batch, tables, pooling, width, dense, made, rank, hidden, layers = 2, 64, 8, 3, 32, 13, 2, 4, 48, 2
    sizes = options(steps=steps, batch=batch, tables=tables, rows=1000, pooling=pooling, width=width, dense=dense)
    sizes += options(dense_embeddings=made, rank=rank, hidden=hidden, layers=layers)
    run = record(tmp_path, 2, str(ROOT / "examples" / "wukong.py"), *sizes)
    indices, embeddings = batch * tables * pooling * 8, batch * tables * width * 4
    assert communicated(run, "all_to_all", (0, 1)) == {indices: steps, embeddings: 2 * steps}

    def mlp(*widths: int) -> int:
        return sum(inputs * outputs + outputs for inputs, outputs in zip(widths, widths[1:]))

    n = tables + made
    layer = n * rank + 2 * n * rank + mlp(n * rank, hidden, n // 2 * width) + (n - n // 2) * n + 2 * width
    parameters = mlp(dense, hidden, made * width) + layers * layer + mlp(n * width, hidden, 1)
    assert volume(run, "all_reduce", (0, 1)) == steps * 4 * parameters


DLRM = """
import os, torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(rank); dist.init_process_group("nccl"); world = dist.get_world_size()
T, D, B = 2 * world, 64, 128
tables = nn.ModuleList(nn.EmbeddingBag(20000, D, mode="sum") for _ in range(T // world)).cuda()
bottom = DDP(nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, D), nn.ReLU()).cuda(), device_ids=[rank])
n = T + 1
top = DDP(nn.Sequential(nn.Linear(n * (n - 1) // 2 + D, 256), nn.ReLU(), nn.Linear(256, 1)).cuda(), device_ids=[rank])
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): out = torch.empty_like(x); dist.all_to_all_single(out, x); return out
    @staticmethod
    def backward(ctx, g): g = g.contiguous(); out = torch.empty_like(g); dist.all_to_all_single(out, g); return out
optimizers = torch.optim.SGD([*bottom.parameters(), *top.parameters()], 0.1), torch.optim.Adam(tables.parameters(), 1e-3)
rows, columns = torch.tril_indices(n, n, -1, device="cuda")
for _ in range(3):
    offsets = torch.arange(0, B * world * 3, 3).cuda()
    pooled = torch.stack([table(torch.randint(0, 20000, (B * world * 3,)).cuda(), offsets) for table in tables], 1)
    sparse = Exchange.apply(pooled.view(world, B, T // world, D)).permute(1, 0, 2, 3).reshape(B, T, D)
    dense = bottom(torch.randn(B, 13).cuda())
    every = torch.cat([dense.unsqueeze(1), sparse], 1)
    pairs = torch.bmm(every, every.transpose(1, 2))[:, rows, columns]
    loss = nn.functional.binary_cross_entropy_with_logits(top(torch.cat([dense, pairs], 1)), torch.randint(0, 2, (B, 1)).float().cuda())
    for optimizer in optimizers: optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers: optimizer.step()
dist.destroy_process_group()
"""


def test_dlrm(tmp_path: Path) -> None:
    """Naumov et al. (2019), section 4: T tables of width 64 over the ranks; a step exchanges batch x T x 64 float32
    forward and backward. Both MLPs are all-reduced; the upper one takes the pairs of T + 1 vectors and the dense one.
    """
    steps, ranks, batch, width = 3, 4, 128, 64
    tables = 2 * ranks
    (tmp_path / "dlrm.py").write_text(DLRM)
    run = record(tmp_path / "out", ranks, str(tmp_path / "dlrm.py"))
    assert communicated(run, "all_to_all") == {batch * tables * width * 4: 2 * steps}
    pairs = (tables + 1) * tables // 2 + width
    bottom, top = (13 * 256 + 256) + (256 * width + width), (pairs * 256 + 256) + (256 + 1)
    assert communicated(run, "all_reduce") == {4 * bottom: steps, 4 * top: steps}
