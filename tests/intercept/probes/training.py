"""A GPT-2-like training step. Arguments: planned | unplanned, and plain | reentrant | nonreentrant | selective.

Prints the number of launches, a digest of them, the peak of memory in bytes and the random offset.
"""

import functools
import hashlib
import sys

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, launches, probe
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformer_block import Block

PLANNING, MODE = sys.argv[1:3]
NATIVE = sys.modules["phantora_native"]
NATIVE.set_planning(PLANNING == "planned")
SAVED = [torch.ops.aten.addmm.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default]


class Model(nn.Module):
    def __init__(self, vocabulary=5000, width=256, heads=4, layers=3) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = run_block(block, x)
        return self.head(self.norm(x))


def run_block(block, x):
    if MODE == "plain":
        return block(x)
    if MODE == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, SAVED)
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return checkpoint(block, x, use_reentrant=MODE == "reentrant")


@probe
def steps():
    with torch.device("cuda"):
        model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        ids = torch.randint(0, 5000, (4, 128)).to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        assert loss.item() == 1.0
    assert CheckpointPolicy.MUST_SAVE is not None


work = launches()
digest = hashlib.sha1(
    repr([(call.name, call.args, call.outputs, stream) for call, _, stream in work]).encode()
).hexdigest()
offset = torch.cuda.default_generators[0].get_offset()
print(len(work), digest, torch.cuda.max_memory_allocated(), offset)
hits, misses = NATIVE.plan_stats()
assert (hits > 2 * misses) if PLANNING == "planned" else hits == 0, (hits, misses)
finish()
