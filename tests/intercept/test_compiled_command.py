"""torch.compile through the command line: a small script in each mode, what the report says, and that runs repeat."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phantora.intercept import build

problem = build.status().problem
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(bool(problem), reason=problem or "the device can be built"),
]

SCRIPT = """
import sys
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(256, 1024), nn.LayerNorm(1024), nn.Linear(1024, 16)

    def forward(self, x):
        return self.down(self.norm(nn.functional.gelu(self.up(x))))


torch.manual_seed(0)
model = Model().cuda()
model.compile(mode=None if sys.argv[1] == "default" else sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("allocated", torch.cuda.max_memory_allocated())
"""


def simulate(folder: Path, mode: str) -> tuple[dict[str, Any], dict[str, bytes], str]:
    """(summary without what differs by design, the traces, what was printed)"""
    script, out = folder / "train.py", folder / "results"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", "lab-h200", "--out", str(out),
        "--no-perfetto", str(script), mode,
    ]  # fmt: skip
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "graphs")}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    summary = json.loads((out / "summary.json").read_text())
    for name in ("wall_s",):
        summary.pop(name, None)
    traces = {path.name: path.read_bytes() for path in sorted(out.rglob("*.et")) + sorted(out.rglob("operators.jsonl"))}
    assert traces
    shutil.rmtree(out)  # the next run has the same command line
    return summary, traces, done.stdout


def remarks(summary: dict[str, Any]) -> str:
    return json.dumps(summary["notes"])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_script_is_reported_and_repeats(tmp_path: Path, mode: str) -> None:
    """The first run compiles, the others find their graphs in the cache: the same results, and then the same bytes.

    The first one's trace may list prices of what the compiler did with the device, which no launch uses.
    """
    summary, traces, printed = simulate(tmp_path, mode)
    assert "2 graphs compiled, modelled" in remarks(summary)
    assert "compiled, modelled" in printed
    assert ("replayed as CUDA graphs" in remarks(summary)) == (mode == "reduce-overhead")
    cached, traces_cached, _ = simulate(tmp_path, mode)
    again, traces_again, _ = simulate(tmp_path, mode)
    assert summary == cached == again
    assert traces["operators.jsonl"] == traces_cached["operators.jsonl"]
    assert traces_cached == traces_again


def test_max_autotune_is_accepted_and_says_what_it_is_not(tmp_path: Path) -> None:
    summary, _, _ = simulate(tmp_path, "max-autotune")
    assert "max-autotune is simulated with the products of the default mode" in remarks(summary)
    assert "replayed as CUDA graphs" in remarks(summary)
