"""Runs of torchtitan 0.3.0's own entry point on its debug models, each recorded once, and the sizes that formulas need.

llama3_debugmodel_ce_loss: d = 256, 6 layers, 16 heads, f = 768, vocabulary 2048. Parameters of a layer: 4 d^2 (attention)
+ 3 d f (SwiGLU) + 2 d (norms); 2 V d in the embedding and the head; d in the last norm.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recording import record
from titan_assets import write_assets

from phantora.trace.model import Run

needs_torchtitan = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")

STEPS, BATCH, SEQUENCE = 2, 2, 256
D, F, V, LAYERS = 256, 768, 2048, 6
LAYER = 4 * D * D + 3 * D * F + 2 * D
EMBEDDING, HEAD = V * D, V * D + D
PARAMETERS = LAYERS * LAYER + EMBEDDING + HEAD
ACTIVATIONS = 2 * BATCH * SEQUENCE * D  # bytes between two layers, bf16

# FSDP2 with bf16 parameters and fp32 gradients (Zhao et al., 2023, PyTorch FSDP, section 3.2: parameters are gathered for the
# forward and, when resharded after it, for the backward pass; gradients are reduce-scattered once). torchtitan keeps the head's.
FSDP_GATHERS = {2 * LAYER: 2 * LAYERS, 2 * EMBEDDING: 2, 2 * HEAD: 1}
FSDP_SCATTERS = {4 * LAYER: LAYERS, 4 * EMBEDDING: 1, 4 * HEAD: 1}

PRELOADED = ("datasets", "transformers")  # half of what a rank would do before its first step
WITHOUT_GRAPHS = "--training.disable-cuda-graphs"


@functools.cache
def assets() -> Path:
    """A folder with torchtitan's tests/assets, removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="titan-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_assets(folder)
    return folder


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@functools.cache
def titan(
    nproc: int, *parallelism: str, config: str = "llama3_debugmodel_ce_loss", model: str = "llama3", more: tuple[str, ...] = (),
    steps: int = STEPS, batch: int = BATCH, sequence: int = SEQUENCE,
) -> Run:  # fmt: skip
    """titan(2, 'tensor-parallel-degree=2') is the run with --parallelism.tensor-parallel-degree 2."""
    degrees = [part for option in parallelism for part in (f"--parallelism.{option.split('=')[0]}", option.split("=")[1])]
    arguments = arguments_of(model, config, *degrees, *more, steps=steps, batch=batch, sequence=sequence)
    with tempfile.TemporaryDirectory() as out, working_in(assets()):
        return record(Path(out) / "out", nproc, "torchtitan.train", *arguments, is_module=True, preload=PRELOADED)


def arguments_of(model: str, config: str, *more: str, steps: int = STEPS, batch: int = BATCH, sequence: int = SEQUENCE) -> list[str]:
    sizes = {"steps": steps, "seq-len": sequence, "local-batch-size": batch}
    training = [part for name, value in sizes.items() for part in (f"--training.{name}", str(value))]
    return ["--module", model, "--config", config, *training, "--parallelism.spmd-backend", "partial_dtensor", *more]


def times(counts: dict[int, int], factor: int) -> Counter[int]:
    return Counter({size: count * factor for size, count in counts.items()})


def large(counts: Counter[int], at_least: int = 1024) -> Counter[int]:
    """Without losses, gradient norms and token counts."""
    return Counter({size: count for size, count in counts.items() if size >= at_least})
