"""Checkpoints of weights that were not computed take no room on the disk, and load again."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import record

SAVE = """
import os, sys, torch
import torch.distributed.checkpoint as dcp
way, folder = sys.argv[1:3]
state = torch.nn.Linear(4096, 4096).cuda().state_dict()
os.makedirs(folder)
if way == "torch.save":
    torch.save(state, folder + "/state.pt")
    loaded = torch.load(folder + "/state.pt", map_location="cpu")
elif way == "dcp":
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    loaded = {name: torch.empty_like(value) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=folder, no_dist=True)
else:
    from safetensors.torch import load_file, save_file
    save_file({name: value.cpu() for name, value in state.items()}, folder + "/state.safetensors")
    loaded = load_file(folder + "/state.safetensors")
assert {name: value.shape for name, value in loaded.items()} == {name: value.shape for name, value in state.items()}
"""


@pytest.mark.parametrize("way", ["torch.save", "dcp", "safetensors"])
def test_files_are_sparse_and_load_again(way: str, tmp_path: Path) -> None:
    if way == "safetensors":
        pytest.importorskip("safetensors")
    script, saved = tmp_path / "save.py", tmp_path / "saved"
    script.write_text(SAVE)
    record(tmp_path / "out", 1, str(script), way, str(saved))
    files = [path.stat() for path in saved.iterdir()]
    assert sum(file.st_size for file in files) >= 4 * 4096 * 4096
    assert sum(file.st_blocks * 512 for file in files) < 4 * 4096 * 4096 / 10
