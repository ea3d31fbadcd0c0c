"""Which parts of which ranks are one collective: by the group's numbers, by order, or by their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from phantora.importers.kineto_comm import CommPart
from phantora.importers.report import ImportReport

_MAX_SHIFT = 256
_TOGETHER_NS = 500_000  # large collectives over many nodes end up to 0.3 ms apart
Key = tuple[str, tuple[int, ...]]  # name and ranks of a group


@dataclass(slots=True)
class Matched:
    """One collective. parts: rank -> its part (one of them, or several, may be missing)."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    parts: dict[int, CommPart] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of the member that moves most."""
        return max(part.bytes for part in self.parts.values())


def match(parts_by_rank: Mapping[int, Sequence[CommPart]], world_size: int, report: ImportReport) -> list[Matched]:
    """Every part is in one of the result, in an order that depends on what they are alone."""
    found: list[Matched] = []
    collectives: dict[Key, dict[int, list[CommPart]]] = {}
    messages: dict[tuple[str, int, int], dict[int, list[CommPart]]] = {}
    for rank in sorted(parts_by_rank):
        for part in parts_by_rank[rank]:
            if part.kind in ("send", "recv"):
                source, target = (rank, part.peer) if part.kind == "send" else (part.peer, rank)
                messages.setdefault((part.group, source, target), {}).setdefault(rank, []).append(part)
            else:
                ranks = part.ranks or tuple(range(world_size))
                ranks = ranks if rank in ranks else tuple(sorted({*ranks, rank}))
                if not part.ranks:
                    report.guess("collectives whose group is not in the trace: all ranks", part.kind)
                collectives.setdefault((part.group, ranks), {}).setdefault(rank, []).append(part)
    for (group, ranks), by_rank in collectives.items():
        found += _match_group(group, ranks, by_rank, report)
    for (group, source, target), by_rank in messages.items():
        found += _match_messages(group, source, target, by_rank)
    return found


def _match_messages(group: str, source: int, target: int, by_rank: dict[int, list[CommPart]]) -> list[Matched]:
    found = []
    for number in range(max(map(len, by_rank.values()))):
        message = Matched("send_recv", group, (source, target))
        message.parts = {rank: parts[number] for rank, parts in by_rank.items() if number < len(parts)}
        found.append(message)
    return found


def _match_group(
    group: str, ranks: tuple[int, ...], by_rank: dict[int, list[CommPart]], report: ImportReport
) -> list[Matched]:
    numbers = _sequence_numbers(by_rank)
    if numbers is None:
        numbers = _by_ends_if_better(by_rank, _shifted(by_rank, report), report)
    slots: dict[tuple[int, str], Matched] = {}
    for rank, parts in by_rank.items():
        for number, part in zip(numbers[rank], parts):
            slot = slots.setdefault((number, part.kind), Matched(part.kind, group, ranks))
            slot.parts[rank] = part
    present = set(by_rank)
    for (_, kind), slot in slots.items():
        missing = [rank for rank in ranks if rank in present and rank not in slot.parts]
        if missing:
            report.doubt(
                "collectives that ranks of the import lack",
                f"{kind} of group {group or '(unnamed)'} on rank {missing[0]}",
            )
    return list(slots.values())


def _sequence_numbers(by_rank: dict[int, list[CommPart]]) -> dict[int, list[int]] | None:
    """The numbers that c10d gave, if every part has one and no rank has one twice."""
    numbers = {rank: [part.seq for part in parts] for rank, parts in by_rank.items()}
    for listed in numbers.values():
        if min(listed) < 0 or len(set(listed)) < len(listed):
            return None
    return numbers


def _shifted(by_rank: dict[int, list[CommPart]], report: ImportReport) -> dict[int, list[int]]:
    """Counted from the first, where needed shifted so that most kinds and sizes agree with those of the first rank."""
    reference_rank = min(by_rank, key=lambda rank: (-len(by_rank[rank]), rank))
    reference = [_likeness(part) for part in by_rank[reference_rank]]
    numbers = {}
    for rank, parts in by_rank.items():
        own = [_likeness(part) for part in parts]
        shift = 0 if own == reference else _best_shift(own, reference)
        if shift:
            report.guess("ranks whose capture begins at another collective: shifted", f"rank {rank} by {shift}")
        numbers[rank] = [number + shift for number in range(len(own))]
    return numbers


def _by_ends_if_better(
    by_rank: dict[int, list[CommPart]], numbers: dict[int, list[int]], report: ImportReport
) -> dict[int, list[int]]:
    """Members end together. Where a capture leaves collectives out, that pairs them better than counting does."""
    if len(by_rank) < 2 or any(part.end_ns < 0 for parts in by_rank.values() for part in parts):
        return numbers
    by_ends = _by_ends(by_rank)
    if _num_together(by_rank, by_ends) <= _num_together(by_rank, numbers):
        return numbers
    report.guess(
        "groups of whose collectives some are not in every trace: paired by their ends", str(len(by_rank)) + " ranks"
    )
    return by_ends


def _by_ends(by_rank: dict[int, list[CommPart]]) -> dict[int, list[int]]:
    parts = sorted((part.end_ns, rank, i) for rank, listed in by_rank.items() for i, part in enumerate(listed))
    numbers = {rank: [0] * len(listed) for rank, listed in by_rank.items()}
    number, first, members, kind = -1, 0, {-1}, ""
    for end, rank, i in parts:
        part = by_rank[rank][i]
        if end > first + _TOGETHER_NS or rank in members or part.kind != kind or number < 0:
            number, first, members, kind = number + 1, end, set(), part.kind
        members.add(rank)
        numbers[rank][i] = number
    return numbers


def _num_together(by_rank: dict[int, list[CommPart]], numbers: dict[int, list[int]]) -> int:
    """How many more parts end near those of their number than far from them. Clocks differ by constants."""
    slots: dict[int, dict[int, CommPart]] = {}
    for rank, parts in by_rank.items():
        for number, part in zip(numbers[rank], parts):
            slots.setdefault(number, {})[rank] = part
    shared = [slot for slot in slots.values() if len(slot) > 1]
    late: dict[int, list[int]] = {}
    for slot in shared:
        middle = median_low(part.end_ns for part in slot.values())
        for rank, part in slot.items():
            late.setdefault(rank, []).append(part.end_ns - middle)
    ahead = {rank: median_low(found) for rank, found in late.items()}
    together = 0
    for slot in shared:
        ends = [part.end_ns - ahead[rank] for rank, part in slot.items()]
        together += len(ends) if max(ends) - min(ends) <= _TOGETHER_NS else -len(ends)
    return together


def _likeness(part: CommPart) -> tuple[str, str, int]:
    return part.kind, part.dtype, 0 if part.kind == "all_to_all" else part.bytes


def _best_shift(own: list[tuple[str, str, int]], reference: list[tuple[str, str, int]]) -> int:
    def agreeing(shift: int) -> int:
        return sum(a == b for a, b in zip(own[max(0, -shift) :], reference[max(0, shift) :]))

    reach = min(_MAX_SHIFT, max(len(own), len(reference)))
    return max(range(-reach, reach + 1), key=lambda shift: (agreeing(shift), -abs(shift), shift))
