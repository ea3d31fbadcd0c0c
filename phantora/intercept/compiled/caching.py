"""Inductor's and AOTAutograd's caches on disk, in a folder of our own.

A graph that was compiled before, by another rank or another run, is loaded from there in a fraction of the time.
What is cached depends on the code of the interception (descriptions of kernels, which attention is chosen), on the
GPU and on prices (whether a product is padded), so all are in the folder's name: a simulation never sees a stale
graph, and a real GPU never sees ours.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import torch

from phantora.compute.call import OpCall, TensorSpec
from phantora.intercept import build, session

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def install() -> None:
    """Point Inductor at the folder; no pool of compiling processes, no folders for Triton."""
    import torch._inductor.config as config

    os.environ[_VARIABLE] = str(folder())
    config.compile_threads = 1
    config.fx_graph_remote_cache = False
    config.autotune_remote_cache = False


def folder() -> Path:
    """In the script's TORCHINDUCTOR_CACHE_DIR or beside the native device's builds, named by what compiled graphs
    depend on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    properties = torch.cuda.get_device_properties(0) if torch.cuda.device_count() else None
    digest.update(repr((build.torch_version(), properties, _prices())).encode())
    name = digest.hexdigest()[:16]
    base = Path(os.environ.get(_VARIABLE) or build.cache_dir() / "inductor")
    return base if base.name == name else base / name  # a child process inherits what install() set


@functools.cache
def _prices() -> tuple[int, ...]:
    """Prices of a few products, odd and padded: they differ wherever another GPU or table decides otherwise."""
    found = []
    for dtype in ("bfloat16", "float32"):
        for rows, inner, columns in ((8192, 768, 50257), (8192, 768, 50264), (1023, 1023, 1023), (1024, 1024, 1024)):
            left, right = _tensor(dtype, rows, inner), _tensor(dtype, inner, columns)
            args = (("self", left), ("mat2", right))
            found.append(session.price_ns(OpCall(name="aten::mm", args=args, outputs=(_tensor(dtype, rows, columns),))))
    return tuple(found)


def _tensor(dtype: str, rows: int, columns: int) -> TensorSpec:
    return TensorSpec((rows, columns), (columns, 1), dtype)
