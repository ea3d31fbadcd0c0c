"""The cases of a train_bench.py under torch.compile: `compiled-X` is its case X with model.compile(), `compiled-MODE-X`
with model.compile(mode=MODE).

usage: compiled_bench.py TRAIN_BENCH.PY --case compiled-X ...   (its other options as they are)
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

PREFIX = "compiled-"
MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compiled(make: Callable[[], tuple[Any, ...]], mode: str | None) -> Callable[[], tuple[Any, ...]]:
    """The case that `make` makes, with its model compiled in place."""

    def made() -> tuple[Any, ...]:
        model, *rest = make()
        model.compile(mode=mode)
        return (model, *rest)

    return made


def main() -> None:
    path = sys.argv.pop(1)
    spec = importlib.util.spec_from_file_location("train_bench", path)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    for name, make in list(bench.CASES.items()):
        bench.CASES[PREFIX + name] = compiled(make, None)
        bench.CASES.update({f"{PREFIX}{mode}-{name}": compiled(make, mode) for mode in MODES})
    bench.main()


if __name__ == "__main__":
    main()
