"""Lightning, which starts its own ranks: DDP and FSDP against formulas, with what people switch on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from recording import communicated, record, volume

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None, reason="pytorch_lightning is not installed"
)

STEPS = 4
TRAIN = """
import sys, torch, pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
strategy, precision, patience = sys.argv[1], sys.argv[2], int(sys.argv[3])
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    def training_step(self, batch, index):
        loss = self.layers(batch[0]).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss
    def validation_step(self, batch, index):
        self.log("valid", self.layers(batch[0]).pow(2).mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)
data = TensorDataset(torch.randn(32, 512))
stopping = EarlyStopping("valid", patience=patience, check_on_train_epoch_end=False)
trainer = pl.Trainer(
    accelerator="gpu", devices=2, strategy=strategy, precision=precision, max_steps=4, min_epochs=0, val_check_interval=1,
    callbacks=[ModelCheckpoint(dirpath="saved", every_n_train_steps=2, save_top_k=-1), stopping],
    gradient_clip_val=1.0 if strategy == "ddp" else None, num_sanity_val_steps=0,
    logger=False, enable_progress_bar=False, enable_model_summary=False)
loaders = DataLoader(data, 4), DataLoader(data, 4)
trainer.fit(Model(), *loaders)
if patience > 9 and strategy == "ddp":
    trainer.fit(Model(), *loaders, ckpt_path="saved/epoch=0-step=2.ckpt")
"""
PARAMETERS = 4 * (512 * 512 + 512)


def train(tmp_path: Path, *arguments: str):
    (tmp_path / "train.py").write_text(TRAIN)
    return record(tmp_path / "out", 2, "", command=(sys.executable, str(tmp_path / "train.py"), *arguments))


def test_ddp_resumed_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 bytes per parameter and step (Li et al., 2020, section 3.2) whatever autocast computes in; clipping is local.
    Four steps, and the two after the checkpoint again. Early stopping is patient.
    """
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path, "ddp", "bf16-mixed", "100")
    assert volume(run, "all_reduce", (0, 1), at_least=1024) == (STEPS + 2) * 4 * PARAMETERS
    assert {path.name for path in (tmp_path / "saved").iterdir()} >= {"epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"}


def test_early_stopping_stops_on_the_loss_that_never_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/frameworks.md: the loss is the same at every step, so a patience of 1 ends the training after the second
    validation.
    """
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path, "ddp", "16-mixed", "1")
    assert volume(run, "all_reduce", (0, 1), at_least=1024) == 2 * 4 * PARAMETERS


def test_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit here (Zhao et al., 2023, section 3.2), gathered and reduce-scattered in bfloat16. The outermost unit
    stays gathered until a backward pass has ended: one gather serves the batches of a validation and the training step
    behind it. Checkpoints gather the state in float32.
    """
    monkeypatch.chdir(tmp_path)
    run = train(tmp_path, "fsdp", "bf16-mixed", "100")
    gathered = communicated(run, "all_gather", (0, 1))
    assert volume(run, "all_reduce", (0, 1), at_least=1024) == 0
    assert communicated(run, "reduce_scatter", (0, 1))[2 * PARAMETERS] == STEPS
    assert gathered[2 * PARAMETERS] == 1 + STEPS
    assert gathered[4 * PARAMETERS] >= 2
