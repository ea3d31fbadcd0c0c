"""What frameworks bring beside torch and need stood in for: off unless the package is imported.

Two ways, both by finders on sys.meta_path, so that a process that never imports a package pays nothing:

* AROUND: a module that is installed. `before()` and `after(module)` of the stand-in, where it has them, run around its import.
* ABSENT: a package that a machine with a GPU has and this one may lack. The folder `packages/` holds a stand-in of the same name,
  which is found only when no other finder knows the package. What it cannot do raises; it never returns made-up results.

Stand-ins import torch; this module does not, as it is armed before torch is imported.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

AROUND: Mapping[str, str] = {
    "torch._higher_order_ops.flex_attention": "flex_attention",
    "torch.nn.attention.flex_attention": "flex_attention",
    "torch._inductor.kernel.flex.flex_attention": "flex_attention",
    "torch.nn.attention._fa3": "flash_attention_3",
    "torch.distributed._symmetric_memory": "symmetric_memory",
    "torch.serialization": "sparse_checkpoints",
    "torch.distributed.checkpoint.filesystem": "sparse_checkpoints",
    "safetensors.torch": "sparse_checkpoints",
    "megatron.core.dist_checkpointing.strategies.filesystem_async": "sparse_checkpoints",
    "torchtitan": "torchtitan_on_older_torch",
    "torchvision.extension": "torchvision_operators",
    "deepspeed.ops.op_builder.builder": "deepspeed_ops",
    "megatron.core.datasets.utils": "megatron_datasets",
    "megatron.training": "megatron_training",
    "fbgemm_gpu.split_table_batched_embeddings_ops_training": "fbgemm_embeddings",
}
"""Module of a framework -> module of this package that knows what to do around its import."""

ABSENT: frozenset[str] = frozenset(
    ("amp_C", "apex", "deep_ep", "flash_attn", "flash_attn_interface", "transformer_engine", "triton", "xformers")
)
"""Top-level packages in `packages/`."""

HIDDEN_FROM: Mapping[str, frozenset[str]] = {"triton": frozenset(("torch",)), "apex": frozenset(("transformers",))}
"""Packages that take one of ABSENT without being asked when it is there: for them it is not. (torch.compile has its own way
without Triton, `compiled/`; transformers' T5 would take apex's norm, which few installations have.)"""

DISTRIBUTIONS: Mapping[str, tuple[str, str]] = {"flash_attn": ("flash_attn", "2.8.3"), "flash_attn_interface": ("flash_attn_3", "3.0.0b1")}
"""Package of ABSENT -> name and version under which it is distributed, for frameworks (transformers) that look among the distributions."""

_PACKAGES_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages")


def arm() -> None:
    """Once, before `import torch`: follow the imports named above."""
    from phantora.intercept.boot import Hook, HookFinder

    hooks = {name: Hook(_Around(stand_in).before, _Around(stand_in).after) for name, stand_in in AROUND.items()}
    sys.meta_path.insert(0, HookFinder(hooks))
    sys.meta_path.append(AbsentFinder())


class _Around:
    """Calls `before` and `after` of a module that is imported no earlier than then."""

    def __init__(self, stand_in: str) -> None:
        self.stand_in = stand_in

    def before(self) -> None:
        self._call("before")

    def after(self, module: ModuleType) -> None:
        self._call("after", module)

    def _call(self, function: str, *arguments: Any) -> None:
        module = importlib.import_module(f"{__name__}.{self.stand_in}")
        if hasattr(module, function):
            getattr(module, function)(*arguments)


class AbsentFinder:
    """The last finder: a package of ABSENT from `packages/`. Its submodules are found through its __path__, as always."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in ABSENT or _importer() in HIDDEN_FROM.get(name, ()):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [_PACKAGES_DIR])

    def find_distributions(self, context: importlib.metadata.DistributionFinder.Context) -> Iterator[importlib.metadata.Distribution]:
        """What importlib.metadata asks finders for: distributions of that name, or all of them."""
        for package, (name, version) in DISTRIBUTIONS.items():
            is_asked = context.name is None or context.name.replace("-", "_").lower() == name
            if is_asked and _is_stand_in(package):
                yield _StandInDistribution(package, name, version)


class _StandInDistribution(importlib.metadata.Distribution):
    """The metadata of a stand-in: its name, version and package."""

    def __init__(self, package: str, name: str, version: str) -> None:
        self._texts = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "top_level.txt": f"{package}\n"}

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return os.path.join(_PACKAGES_DIR, path)


def _is_stand_in(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None and spec.origin.startswith(_PACKAGES_DIR)


def _importer() -> str:
    """The top-level package whose code imports (or asks whether it could)."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("importlib", "phantora"):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else frame.f_globals.get("__name__", "").partition(".")[0]
