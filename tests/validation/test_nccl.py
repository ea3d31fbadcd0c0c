"""Published tables: each has a source and a status, and is met as well as docs/network.md says."""

from __future__ import annotations

import statistics

import pytest

from phantora.errors import UserError
from phantora.validation import nccl

# mean |error| that docs/network.md states, and some more
BOUNDS = {
    "a100-2nodes-roce": 0.23, "a100-8gpus-azure": 0.05, "a100-sendrecv": 0.18, "aws-2nodes": 0.07,
    "gb200-4gpus-azure": 0.07, "gb200-racks-coreweave": 0.45, "h100-2nodes-ib": 0.08, "h100-4nodes-ib": 0.08,
    "h100-8gpus-azure": 0.11, "h100-8nodes": 0.18, "h100-8nodes-coreweave": 0.06, "h200-2nodes-ethernet": 0.19,
    "h200-8gpus-azure": 0.05, "p5-allreduce": 0.18, "p5-alltoall": 0.14,
}  # fmt: skip


def test_every_table_has_a_bound() -> None:
    assert sorted(BOUNDS) == nccl.tables()


@pytest.mark.parametrize("table", nccl.tables())
def test_a_table(table: str) -> None:
    assert len(nccl.heading(table)) == 4  # source, version, machine, what was fitted
    assert nccl.is_held_out(table) == (table not in ("a100-8gpus-azure", "h200-8gpus-azure"))
    errors = [abs(row.error) for row in nccl.compare(table)]
    assert statistics.mean(errors) < BOUNDS[table]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert nccl.main(["a100-sendrecv", "--rows"]) == 0
    output = capsys.readouterr().out
    assert "134217728" in output and "held out: 4 rows" in output
    with pytest.raises(UserError, match="no such table .did you mean a100-sendrecv"):
        nccl.main(["a100-sendrec"])
