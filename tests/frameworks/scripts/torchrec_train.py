"""Four embedding tables shared by the ranks, and a dense layer above (torchrec). torchrec_train.py SHARDING [variable]

SHARDING: table_wise, row_wise, column_wise or data_parallel. variable: each feature has a batch of its own size.
"""

import os
import sys

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

TABLES, BATCH, WIDTH, ROWS, POOLED = 4, 64, 32, 1000, 3
sharding, is_variable = sys.argv[1], "variable" in sys.argv
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
names = [f"feature{i}" for i in range(TABLES)]
tables = [
    torchrec.EmbeddingBagConfig(name=f"table_{n}", embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=[n])
    for n in names
]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = torchrec.EmbeddingBagCollection(device=torch.device("meta"), tables=tables)
        if sharding != "data_parallel":
            apply_optimizer_in_backward(torch.optim.SGD, self.bags.parameters(), {"lr": 0.1})
        self.dense = torch.nn.Linear(TABLES * WIDTH, 1, device=device)

    def forward(self, features):
        return self.dense(self.bags(features).values())


def batch():
    """Where batches vary, every other feature has half of the rows, each of which stands for two."""
    sizes = [BATCH // (1 + is_variable * (n % 2)) for n in range(TABLES)]
    lengths = torch.full((sum(sizes),), POOLED, dtype=torch.int32)
    values = torch.randint(0, ROWS, (sum(sizes) * POOLED,))
    more = {}
    if is_variable:
        rows = [torch.arange(BATCH) // (BATCH // size) for size in sizes]
        more = {"stride_per_key_per_rank": [[size] for size in sizes], "inverse_indices": (names, torch.stack(rows))}
    return KeyedJaggedTensor(keys=names, values=values, lengths=lengths, **more).to(device)


net = Net()
sharder = EmbeddingBagCollectionSharder()
planner = EmbeddingShardingPlanner(
    topology=Topology(world_size=dist.get_world_size(), compute_device="cuda"),
    constraints={table.name: ParameterConstraints(sharding_types=[sharding], min_partition=16) for table in tables},
)
plan = planner.collective_plan(net, [sharder], dist.group.WORLD)
model = DistributedModelParallel(net, device=device, plan=plan, sharders=[sharder])
dense = [p for name, p in model.named_parameters() if "dense" in name or sharding == "data_parallel"]
optimizer = torch.optim.SGD(dense, lr=0.1)
for _ in range(2):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
