"""Four embedding tables shared by the ranks, and a dense layer above (torchrec)."""

import os

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

TABLES, BATCH, WIDTH, ROWS, POOLED = 4, 64, 32, 1000, 3
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
        apply_optimizer_in_backward(torch.optim.SGD, self.bags.parameters(), {"lr": 0.1})
        self.dense = torch.nn.Linear(TABLES * WIDTH, 1, device=device)

    def forward(self, features):
        return self.dense(self.bags(features).values())


model = DistributedModelParallel(Net(), device=device)
optimizer = torch.optim.SGD(model.module.dense.parameters(), lr=0.1)
for _ in range(2):
    lengths = torch.full((TABLES * BATCH,), POOLED, dtype=torch.int32)
    values = torch.randint(0, ROWS, (TABLES * BATCH * POOLED,))
    loss = model(KeyedJaggedTensor(keys=names, values=values, lengths=lengths).to(device)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
