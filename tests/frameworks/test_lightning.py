"""Lightning, which starts its own ranks: DDP and FSDP against formulas."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from recording import communicated, record, volume

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pytorch_lightning") is None, reason="pytorch_lightning is not installed")

TRAIN = """
import sys, torch, pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    def training_step(self, batch, index):
        loss = self.layers(batch[0]).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)
data = DataLoader(TensorDataset(torch.randn(64, 512)), 4)
pl.Trainer(accelerator="gpu", devices=2, strategy=sys.argv[1], max_steps=2, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False).fit(Model(), data)
"""
PARAMETERS = 4 * (512 * 512 + 512)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_strategy(strategy: str, tmp_path: Path) -> None:
    """DDP all-reduces 4 bytes per parameter and step (Li et al., 2020, section 3.2); FSDP, here one unit in fp32, gathers it once per
    step and reduce-scatters the gradients (Zhao et al., 2023, section 3.2). The logged loss is all-reduced.
    """
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    run = record(tmp_path / "out", 2, "", command=(sys.executable, str(script), strategy))
    if strategy == "ddp":
        assert volume(run, "all_reduce", (0, 1), at_least=1024) == 2 * 4 * PARAMETERS
    else:
        assert volume(run, "all_reduce", (0, 1), at_least=1024) == 0
        assert communicated(run, "all_gather", (0, 1))[4 * PARAMETERS] == 2
        assert communicated(run, "reduce_scatter", (0, 1))[4 * PARAMETERS] == 2
