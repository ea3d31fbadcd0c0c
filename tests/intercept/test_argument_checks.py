"""What the simulated device refuses, and what it must not refuse (probes/mistakes.py, probes/accepted.py)."""

from __future__ import annotations

import pytest
from test_kernels import pytestmark, run  # noqa: F401  (pytestmark: the same conditions)


@pytest.mark.parametrize("name", ["mistakes", "accepted"])
def test_probe(name: str) -> None:
    run(name)
