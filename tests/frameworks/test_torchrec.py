"""torchrec with tables spread over ranks: what travels between the ranks for each way of sharding (Mudigere et al.,
Software-hardware co-design for fast and scalable training of deep learning recommendation models, 2022, section 4.2;
Naumov et al., DLRM, 2019, section 3).

T tables of `ROWS` x `WIDTH` float32, of each rank's B samples `POOLED` indices for each table; n ranks. Bytes of an
all-to-all are what a rank sends in all; of a reduce-scatter its whole input; of an all-gather its whole output.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from recording import communicated, record

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchrec") is None,
    reason="needs torchrec and fbgemm-gpu-cpu (requirements/frameworks.txt)",
)
TABLES, BATCH, WIDTH, POOLED, ROWS, STEPS, RANKS, BOTH = 4, 64, 32, 3, 1000, 2, 2, (0, 1)
INDICES_BYTES = TABLES * BATCH * POOLED * 8
LENGTHS_BYTES = TABLES * BATCH * 4
POOLED_BYTES = TABLES * BATCH * WIDTH * 4  # pooled embeddings of one rank's samples


def train(out: Path, *arguments: str) -> Run:
    return record(out, RANKS, str(Path(__file__).parent / "scripts" / "torchrec_train.py"), *arguments)


def test_whole_tables_on_ranks(tmp_path: Path) -> None:
    """Indices go to the tables' ranks; pooled embeddings come back, their gradients go."""
    run = train(tmp_path, "table_wise")
    exchanged = communicated(run, "all_to_all", BOTH)
    assert exchanged[INDICES_BYTES] == exchanged[LENGTHS_BYTES] == STEPS
    assert exchanged[POOLED_BYTES] == STEPS * 2  # T / n tables for n B samples: as much
    kernels = {signature.name for signature in run.signatures if signature.duration_ns > 0}
    assert {"fbgemm::embedding_forward", "fbgemm::embedding_backward", "fbgemm::sort_indices"} <= kernels


def test_rows_of_each_table_on_all_ranks(tmp_path: Path) -> None:
    """Each index goes to the rank of its row, with a length for each rank; every rank pools what it has for all n B
    samples, and the parts are summed: reduce-scatter, and all-gather of the gradients."""
    run = train(tmp_path, "row_wise")
    exchanged = communicated(run, "all_to_all", BOTH)
    assert exchanged[INDICES_BYTES] == exchanged[RANKS * LENGTHS_BYTES] == STEPS
    assert communicated(run, "reduce_scatter", BOTH)[RANKS * POOLED_BYTES] == STEPS
    assert communicated(run, "all_gather", BOTH)[RANKS * POOLED_BYTES] == STEPS


def test_columns_of_each_table_on_all_ranks(tmp_path: Path) -> None:
    """All indices go to all n ranks, which have WIDTH / n columns each: n times the indices, as many embeddings."""
    run = train(tmp_path, "column_wise")
    exchanged = communicated(run, "all_to_all", BOTH)
    assert exchanged[RANKS * INDICES_BYTES] == exchanged[RANKS * LENGTHS_BYTES] == STEPS
    assert exchanged[POOLED_BYTES] == STEPS * 2
    assert any(signature.name == "fbgemm::permute_pooled_embs" for signature in run.signatures)


def test_all_tables_on_every_rank(tmp_path: Path) -> None:
    """Their gradients are all-reduced, dense."""
    run = train(tmp_path, "data_parallel")
    assert communicated(run, "all_reduce", BOTH)[TABLES * ROWS * WIDTH * 4] == STEPS
    assert not [size for size in communicated(run, "all_to_all", BOTH) if size > 64]


def test_batches_of_variable_size(tmp_path: Path) -> None:
    """Tables 0 and 2, of rank 0, have B samples, tables 1 and 3 half as many. Rank 0 pools and sends 2 B rows to each
    of n ranks; each rank sends back gradients of 2 B + 2 B / 2 rows."""
    run = train(tmp_path, "table_wise", "variable")
    exchanged, row_bytes = communicated(run, "all_to_all", BOTH), WIDTH * 4
    assert exchanged[INDICES_BYTES * 3 // 4] == exchanged[LENGTHS_BYTES * 3 // 4] == STEPS
    splits = [c.split_bytes for c in run.collectives if c.kind == "all_to_all" and c.dtype == "float32"]
    forward = ((2 * BATCH * row_bytes,) * 2, (BATCH * row_bytes,) * 2)
    backward = ((2 * BATCH * row_bytes, BATCH * row_bytes),) * 2
    assert sorted(splits) == sorted([forward, backward] * STEPS)
