"""`--preload`: modules that are imported once, before the ranks are forked."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Simulate

SCRIPT = """
import os, sys
was_there = "sched" in sys.modules
import sched
print(was_there, os.environ["RANK"])
"""


@pytest.mark.torch
@pytest.mark.parametrize("modules", ["sched", "wave,sched", ""])
def test_ranks_find_them_imported(simulate: Simulate, modules: str) -> None:
    outcome = simulate(SCRIPT, 2, options=("--preload", modules, "--tee", "all"))
    assert outcome.code == 0, outcome.stderr
    for rank in range(2):
        assert f"{'sched' in modules} {rank}" in outcome.stdout


@pytest.mark.torch
def test_a_module_that_is_not_there(simulate: Simulate) -> None:
    outcome = simulate("pass", options=("--preload", "no_such_module"))
    assert outcome.code == 2 and outcome.stderr.strip() == "phantora: --preload no_such_module: ModuleNotFoundError: No module named 'no_such_module'"


def test_what_is_no_module(simulate: Simulate) -> None:
    outcome = simulate("pass", options=("--preload", "a-b"))
    assert outcome.code == 2 and outcome.stderr.strip() == "phantora: --preload a-b: not the name of a module"


@pytest.mark.torch
@pytest.mark.parametrize("text, words", [("import sys; sys.exit(7)", "SystemExit: 7"), ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "starts threads")])
def test_modules_that_cannot_be_shared(simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    (tmp_path / "odd_module.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = simulate("pass", options=("--preload", "odd_module"))
    assert outcome.code == 2 and outcome.stderr.startswith("phantora: --preload odd_module: ") and words in outcome.stderr, outcome.stderr
