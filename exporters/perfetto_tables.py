"""Texts of a Perfetto trace (written once, then named by number) and what is known of each kernel and collective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from phantora.trace.busbw import busbw_bytes_per_s
from phantora.trace.columns import as_int64
from phantora.trace.model import CollectiveInfo, RankTrace, Run, SignatureInfo

_SHORT_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
}  # fmt: skip


@dataclass(slots=True)
class Texts:
    """Texts of one kind and their numbers, from 1 in order of first use."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of `text`, a new one when it is new."""
        return self.numbers.setdefault(text, len(self.numbers) + 1)


@dataclass(slots=True)
class Interned:
    """The four kinds of texts that a TrackEvent may name by number."""

    names: Texts = field(default_factory=Texts)
    categories: Texts = field(default_factory=Texts)
    argument_names: Texts = field(default_factory=Texts)
    strings: Texts = field(default_factory=Texts)


def shapes_text(signature: SignatureInfo) -> str:
    """'bf16[4096,1024] bf16[1024,512] -> bf16[4096,512]'."""
    return f"{_tensors(signature.inputs)} -> {_tensors(signature.outputs)}"


def _tensors(specs: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    return " ".join(f"{_SHORT_DTYPES.get(dtype, dtype)}[{','.join(map(str, shape))}]" for dtype, shape in specs)


def rate_text(signature: SignatureInfo) -> str:
    """What the kernel reaches: '612.0 TFLOP/s, 1350 GB/s'."""
    seconds = max(signature.duration_ns, 1) / 1e9
    memory = f"{signature.bytes / seconds / 1e9:.0f} GB/s"
    return f"{signature.flops / seconds / 1e12:.1f} TFLOP/s, {memory}" if signature.flops else memory


def short_name(operator: str) -> str:
    """'addmm' of 'aten::addmm': other namespaces stay, as they say something."""
    return operator.removeprefix("aten::")


def communication_name(run: Run, rank: int, parts: tuple[int, ...]) -> str:
    """'all_gather x3', 'send to 4': what a communication kernel of `rank` does; parts: its collectives."""
    infos = [run.collectives[i] for i in parts]
    if not infos:
        return "communication"
    if all(info.kind == "send_recv" for info in infos):
        words = [f"send to {c.ranks[1]}" if c.ranks[0] == rank else f"recv from {c.ranks[0]}" for c in infos]
        return ", ".join(words) if len(words) <= 2 else f"{words[0]}, ... ({len(words)})"
    return infos[0].kind if len(infos) == 1 else f"{infos[0].kind} x{len(infos)}"


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One entry per signature: numbers of texts and plain integers, columns of the slice layout."""

    columns: dict[str, np.ndarray]

    @classmethod
    def of(cls, signatures: list[SignatureInfo], texts: Interned) -> "KernelTable":
        """Number every text of `signatures`."""
        rows = [
            (
                texts.names.number(short_name(s.name)), texts.categories.number(s.family or "other"),
                texts.strings.number(s.name), texts.strings.number(shapes_text(s)), s.bytes, s.flops,
                texts.strings.number(rate_text(s)), s.num_kernels, texts.strings.number(s.source),
            )
            for s in signatures
        ]  # fmt: skip
        names = ("name", "category", "op", "shapes", "bytes", "flops", "rate", "num_kernels", "price_source")
        matrix = np.array(rows, np.int64).reshape(-1, len(names))
        return cls(dict(zip(names, matrix.T)))


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """One entry per collective of the run. last_start_ns / last_rank: which of the exported ranks came last."""

    columns: dict[str, np.ndarray]
    busbw: np.ndarray
    start_ns: np.ndarray
    last_start_ns: np.ndarray
    last_rank: np.ndarray
    exported_members: np.ndarray

    @classmethod
    def of(cls, run: Run, ranks: list[RankTrace], texts: Interned) -> "CollectiveTable":
        """Number every text of the collectives, and find out who came last."""
        number, group_names = texts.strings.number, [group.name for group in run.groups]
        rows = [
            (
                texts.names.number(c.kind), number(c.kind), c.bytes, number(c.dtype),
                number(_group_text(c, group_names)), len(c.ranks), number(c.algorithm or "not known"),
                number(c.stack or "not known"),
            )
            for c in run.collectives
        ]  # fmt: skip
        names = ("name", "kind", "bytes", "dtype", "group", "group_size", "algorithm", "stack")
        matrix = np.array(rows, np.int64).reshape(-1, len(names))
        start = np.array([c.start_ns for c in run.collectives], np.int64)
        busbw = [busbw_bytes_per_s(c.kind, len(c.ranks), c.bytes, c.end_ns - c.start_ns) / 1e9 for c in run.collectives]
        last_start, last_rank, members = _arrivals(len(rows), ranks)
        return cls(dict(zip(names, matrix.T)), np.array(busbw), start, last_start, last_rank, members)


def _group_text(collective: CollectiveInfo, group_names: list[str]) -> str:
    ranks = collective.ranks
    regular = len(ranks) > 2 and all(b - a == ranks[1] - ranks[0] for a, b in zip(ranks, ranks[1:]))
    step = f" step {ranks[1] - ranks[0]}" if regular and ranks[1] - ranks[0] != 1 else ""
    listed = f"{ranks[0]}..{ranks[-1]}{step}" if regular else ",".join(map(str, ranks))
    name = group_names[collective.group] if 0 <= collective.group < len(group_names) else "group"
    return f"{name}: ranks {listed}"


def _arrivals(count: int, ranks: list[RankTrace]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    last_start, last_rank = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    members = np.zeros(count, np.int64)
    for trace in ranks:
        signature, start = as_int64(trace.signature), as_int64(trace.start_ns)
        rows = np.flatnonzero((signature < 0) & (start >= 0))
        pairs = [(c, r) for r in rows.tolist() for c in trace.work_collectives[-1 - int(signature[r])]]
        if not pairs:
            continue
        collective, row = np.array(pairs, np.int64).T
        members[collective] += 1
        later = start[row] > last_start[collective]
        last_start[collective[later]] = start[row[later]]
        last_rank[collective[later]] = trace.rank
    return last_start, last_rank, members
