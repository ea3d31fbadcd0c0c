"""torchrec with tables spread over ranks: indices go to the tables, pooled embeddings come back (Naumov et al., DLRM,
2019, section 3)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from recording import communicated, record

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchrec") is None,
    reason="needs torchrec and fbgemm-gpu-cpu (requirements/frameworks.txt)",
)
TABLES, BATCH, WIDTH, POOLED, STEPS = 4, 64, 32, 3, 2


def test_sharded_embedding_bags(tmp_path: Path) -> None:
    run = record(tmp_path, 2, str(Path(__file__).parent / "scripts" / "torchrec_train.py"))
    exchanged = communicated(run, "all_to_all", (0, 1))
    assert exchanged[TABLES * BATCH * POOLED * 8] == STEPS  # indices
    assert exchanged[TABLES * BATCH * 4] == STEPS  # how many of each bag
    # Two tables of each rank, for both ranks' batches, forward; their gradients backward.
    assert exchanged[TABLES // 2 * 2 * BATCH * WIDTH * 4] == STEPS * 2
    kernels = {signature.name for signature in run.signatures if signature.duration_ns > 0}
    assert {"fbgemm::embedding_forward", "fbgemm::embedding_backward", "fbgemm::sort_indices"} <= kernels
