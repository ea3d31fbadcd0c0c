"""Arrows between folders point one way, and only `intercept` (and what runs inside a rank) knows torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# folder -> folders of the package that it may import at module level or inside functions
ALLOWED = {
    "errors": set(),
    "cluster": {"errors"},
    "network": {"cluster", "errors"},
    "compute": {"cluster", "errors"},
    "memory": {"errors"},
    "trace": {"errors"},
    "engine": {"network", "compute", "memory", "cluster", "trace", "errors"},
    "intercept": {"engine", "compute", "memory", "cluster", "errors"},
    "report": {"trace", "cluster", "errors", "network"},
    "exporters": {"trace", "cluster", "errors"},
    "importers": {"trace", "cluster", "errors"},
    "view": {"trace", "cluster", "exporters", "importers", "report", "errors"},
    "compare": {"trace", "cluster", "exporters", "importers", "report", "astra", "errors"},
    "astra": {"importers", "errors"},
    "simulate_command": {"astra", "replay", "errors"},
    "replay": {"engine", "network", "compute", "cluster", "trace", "importers", "report", "launch", "errors"},
    "launch": {"engine", "intercept", "report", "exporters", "network", "compute", "cluster", "trace", "errors"},
}


def _sources() -> list[tuple[str, Path]]:
    found = []
    for folder in ALLOWED:
        top = ROOT / folder if folder in ("exporters", "importers") else ROOT / "phantora" / folder
        files = sorted(top.rglob("*.py")) if top.is_dir() else [top.with_suffix(".py")]
        found += [(folder, path) for path in files]
    return found


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("folder,path", _sources(), ids=lambda value: str(value.relative_to(ROOT)) if isinstance(value, Path) else value)
def test_imports_point_one_way(folder: str, path: Path) -> None:
    type_checking = "if TYPE_CHECKING:" in path.read_text()
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "phantora" and len(parts) > 1 and parts[1] in ALLOWED:
            target = parts[1]
            if target == folder or (type_checking and folder == "engine" and target == "launch"):
                continue
            assert target in ALLOWED[folder], f"{path}: {folder} must not import {target}"
        if parts[0] == "torch":
            # compute/sweep measures operators on a real GPU (phantora calibrate); nothing else of compute imports it
            is_sweep = path.parent.name == "sweep"
            assert folder in ("intercept", "launch") or is_sweep, f"{path}: {folder} must not import torch"


def test_the_command_line_does_not_import_torch() -> None:
    code = "import sys, phantora, phantora.cli, phantora.launch.run_command; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their base name, and would refuse the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
