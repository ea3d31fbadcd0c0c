"""`--preload`: modules that are imported once, before the ranks are forked."""

from __future__ import annotations

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
