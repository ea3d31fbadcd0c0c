"""torch.distributed._symmetric_memory: what torch's asynchronous tensor parallelism launches, counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from recording import communicated, launches, record

from phantora.cluster import load_cluster
from phantora.trace.model import Run

SCRIPT = Path(__file__).parent / "scripts/symmetric_memory.py"
ROWS, INNER, COLUMNS = 256, 512, 1024


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(tmp_path_factory.mktemp("symmetric"), 4, str(SCRIPT))


def copies(run: Run, name: str) -> Counter[int]:
    """bytes -> how often, of one rank."""
    return Counter(kind.bytes for kind in launches(run) if kind.name == name)


def test_each_peer_is_read_once(run: Run) -> None:
    """torch/distributed/_symmetric_memory/__init__.py: _pipelined_multi_all_gather_and_consume pulls the shard of each of the other
    n - 1 ranks, _pipelined_produce_and_all2all the chunk of the product that each of them made; the script half a buffer more.
    """
    shard, chunk, half = 2 * ROWS * INNER, 2 * ROWS * COLUMNS, 4 * 32 * 64
    assert copies(run, "memcpy_p2p") == {shard: 3, chunk: 3, half: 1}


def test_products_are_cut_into_chunks(run: Run) -> None:
    """One product of a shard's rows for each rank, in both operators."""
    products = Counter(kind.flops for kind in launches(run) if kind.name == "aten::mm")
    assert products == {2 * ROWS * INNER * COLUMNS: 2 * 4}


def test_barriers_and_nothing_else_join_the_ranks(run: Run) -> None:
    """All-gather: before, after the copy into the buffer, at the end. Reduce-scatter: before, at the end, and two for each of n - 1
    chunks. No collective of NCCL carries the shards; the one-shot all-reduce stands as one of its bytes.
    """
    assert communicated(run, "barrier")[0] == 3 + 2 + 2 * 3
    assert communicated(run, "all_reduce") == {4 * 64 * 64: 1}
    assert not communicated(run, "all_gather") and not communicated(run, "reduce_scatter")


def test_a_copy_between_gpus_takes_the_time_of_its_links(run: Run) -> None:
    links = load_cluster("dgx-h100").intra_node
    signature = next(s for s in run.signatures if s.name == "memcpy_p2p" and s.bytes == 2 * ROWS * COLUMNS)
    by_links_ns = signature.bytes / (links.bytes_per_s * links.efficiency) * 1e9
    assert by_links_ns < signature.duration_ns < by_links_ns + 3_000


def test_chunks_overlap(run: Run) -> None:
    """Copies and products run on two streams, as torch issues them."""
    rank = run.ranks[0]
    streams = {rank.stream[row] for row, s in enumerate(rank.signature) if s >= 0 and run.signatures[s].name in ("aten::mm", "memcpy_p2p")}
    assert len(streams) == 2
