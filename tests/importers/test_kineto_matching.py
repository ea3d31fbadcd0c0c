"""Which parts are one collective, where ranks tell it differently."""

from __future__ import annotations

import pytest

from phantora.importers.kineto_comm import CommPart, kind_of, message_elements, part_from_arguments
from phantora.importers.kineto_match import match
from phantora.importers.report import ImportReport


def _part(
    row: int, kind: str = "all_reduce", num_bytes: int = 64, seq: int = -1, end_ns: int = -1, **more: object
) -> CommPart:
    values = {"dtype": "float32", "group": "g", "ranks": (0, 1), "root": 0, "peer": -1, "stream": 0, **more}
    return CommPart(row, kind, num_bytes, seq=seq, end_ns=end_ns, **values)  # type: ignore[arg-type]


def _rows(parts: dict[int, list[CommPart]], world_size: int = 2) -> list[dict[int, int]]:
    """For each collective rank -> row."""
    return [{rank: part.row for rank, part in m.parts.items()} for m in match(parts, world_size, ImportReport())]


def test_numbers_of_c10d_count_before_order() -> None:
    parts = {0: [_part(0, seq=4), _part(1, seq=5)], 1: [_part(0, seq=5), _part(1, seq=6)]}
    assert _rows(parts) == [{0: 0}, {0: 1, 1: 0}, {1: 1}]


def test_without_numbers_the_order_counts() -> None:
    parts = {0: [_part(3), _part(5)], 1: [_part(2), _part(9)]}
    assert _rows(parts) == [{0: 3, 1: 2}, {0: 5, 1: 9}]


def test_a_capture_that_begins_later_is_shifted() -> None:
    sizes = [8, 16, 8, 32, 64]
    parts = {
        0: [_part(i, num_bytes=n) for i, n in enumerate(sizes)],
        1: [_part(i, num_bytes=n) for i, n in enumerate(sizes[2:])],
    }
    report = ImportReport()
    found = match(parts, 2, report)
    assert [{r: p.row for r, p in m.parts.items()} for m in found if len(m.parts) == 2] == [
        {0: 2, 1: 0},
        {0: 3, 1: 1},
        {0: 4, 1: 2},
    ]
    assert list(report.guessed) == ["ranks whose capture begins at another collective: shifted"]


def test_captures_that_leave_collectives_out_are_paired_by_their_ends() -> None:
    times = [(1, 10_000_000), (2, 20_000_000), (3, 30_000_000), (4, 40_000_000)]
    first = [_part(i, end_ns=ns) for i, ns in times if i != 2]
    second = [_part(i, end_ns=ns + 3000) for i, ns in times if i != 3]
    assert [m for m in _rows({0: first, 1: second}) if len(m) == 2] == [{0: 1, 1: 1}, {0: 4, 1: 4}]


def test_messages_are_matched_by_their_ends_in_order() -> None:
    sends = [_part(0, "send", peer=1), _part(1, "send", peer=1), _part(2, "send", peer=2)]
    recvs = [_part(7, "recv", peer=0), _part(8, "recv", peer=0)]
    assert _rows({0: sends, 1: recvs}, 3) == [{0: 0, 1: 7}, {0: 1, 1: 8}, {0: 2}]


@pytest.mark.parametrize(
    "name,kind",
    [
        ("allreduce", "all_reduce"), ("nccl:_all_gather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"), ("c10d::alltoall_base_", "all_to_all"), ("allreduce_coalesced", "all_reduce"),
        ("_reduce_oop", "reduce"), ("broadcast", "broadcast"), ("gather", "gather"),
        ("scatter", "scatter"), ("barrier", "barrier"),
        ("send", "send"), ("recv", "recv"), ("nccl:recv", "recv"), ("wait", ""),
        ("init", ""), ("all_gather_single", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"), ("_c10d_functional::all_reduce", "all_reduce"),
    ],
)  # fmt: skip
def test_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "kind,sent,received,elements",
    [
        ("all_reduce", 10, 10, 10), ("all_gather", 10, 40, 40), ("all_gather", 10, 0, 40),
        ("reduce_scatter", 40, 10, 40),
        ("reduce_scatter", 0, 10, 40), ("all_to_all", 40, 40, 40), ("gather", 10, 0, 40), ("scatter", 0, 10, 40),
        ("broadcast", 10, 0, 10), ("barrier", 1, 1, 0), ("recv", 0, 10, 10),
    ],
)  # fmt: skip
def test_sizes_are_those_of_nccl_tests(kind: str, sent: int, received: int, elements: int) -> None:
    assert message_elements(kind, sent, received, 4) == elements


@pytest.mark.parametrize(
    "text,size,world,ranks",
    [
        ("[0, 2, 4, 6]", 4, 8, (0, 2, 4, 6)), ("[3, 1]", 2, 4, (3, 1)),
        ([1, 5], 2, 8, (1, 5)), ("", 2, 4, ()), (None, 2, 4, ()),
        ("[0, 1, 2, ..., 127]", 128, 128, tuple(range(128))), ("[0, 8, 16, ...]", 6, 128, (0, 8, 16, 24, 32, 40)),
    ],
)  # fmt: skip
def test_lists_of_ranks_that_the_profiler_cuts_off(text: object, size: int, world: int, ranks: tuple[int, ...]) -> None:
    args = {
        "Collective name": "allreduce",
        "Group size": size,
        "Process Group Ranks": text,
        "dtype": "Float",
        "In msg nelems": 1,
    }
    part = part_from_arguments(0, args, 0, world, ImportReport())
    assert part is not None and part.ranks == ranks
