"""Activation checkpointing must lower the peak: none > selective > full."""

import functools

import torch
from model import Decoder, batch, loss_of
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


class Checkpointed(Decoder):
    how = "none"

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            if self.how == "none":
                x = layer(x)
            elif self.how == "reentrant":
                x = checkpoint(layer, x, use_reentrant=True)
            elif self.how == "full":
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, keep_matmuls))
        return self.head(self.norm(x))


def keep_matmuls(context, operator, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if operator == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def peak(how):
    with torch.device("cuda"):
        model = Checkpointed(width=512, layers=6)
    model.how = how
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        ids = batch("cuda", 8, 512)
        loss_of(model(ids), ids).backward()
        model.zero_grad()
    return torch.cuda.max_memory_allocated() - before


def main():
    peaks = {how: peak(how) for how in ("none", "selective", "full", "reentrant")}
    print(peaks)
    assert peaks["none"] > peaks["selective"] > peaks["full"]
    assert abs(peaks["full"] - peaks["reentrant"]) < 0.2 * peaks["full"]
    print("done")


if __name__ == "__main__":
    main()
