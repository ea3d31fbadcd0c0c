"""One rank of a Chakra trace of any origin as rows: what is CPU, device and communication work, and what waits for
what."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraFile, ChakraNode
from phantora.importers.chakra_order import ordered
from phantora.importers.report import ImportReport
from phantora.trace.model import HOST_DEVICE, NO_STREAM, RankTrace, SignatureInfo

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLLECTIVE = range(8)
_MAX_STREAM = 1 << 40
_MAX_NS = 10**15  # times beyond it (11 days) are taken for garbage
_MAX_TOTAL_NS = 1 << 61


class Signatures:
    """Signatures by content, over all ranks."""

    def __init__(self) -> None:
        self.infos: list[SignatureInfo] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, node: ChakraNode, duration_ns: int, is_cpu: bool) -> int:
        flops, size = _positive(node.attributes.get("num_ops")), _positive(node.attributes.get("tensor_size"))
        key = (node.name, node.inputs, node.outputs, duration_ns, flops, size, is_cpu)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.infos)
            family = "host" if is_cpu else "other"
            self.infos.append(
                SignatureInfo(
                    node.name or f"node type {node.type}", _tensors(node.inputs), _tensors(node.outputs), duration_ns, 1,
                    "measured", flops, size, family,
                )
            )  # fmt: skip
        return found


class RankGraph:
    """rows: nodes in the order of the rows of the trace, parents first; edges: (row, row it waits for)."""

    def __init__(self, rank: int, file: ChakraFile, signatures: Signatures, report: ImportReport) -> None:
        self.rank, self.file, self._signatures, self._report = rank, file, signatures, report
        nodes = {node.id: node for node in file.nodes}
        report.leave_out("nodes whose id comes again (the last counts)", str(file.path), len(file.nodes) - len(nodes))
        self.rows: list[ChakraNode] = []
        self.edges: list[tuple[int, int]] = []
        self._fill(ordered(nodes, file.path, report))

    def _fill(self, order: list[tuple[ChakraNode, tuple[int, ...]]]) -> None:
        """Nodes that are no work are left out; who waited for one waits for what it waited for."""
        rows_of: dict[int, tuple[int, ...]] = {}
        counts: dict[str, int] = {}
        for node, parents in order:
            kind = _KINDS.get(node.type, "nodes of unknown types")
            counts[kind] = counts.get(kind, 0) + 1
            if node.type in _LEFT_OUT or node.type not in _KINDS:
                rows_of[node.id] = tuple(dict.fromkeys(row for parent in parents for row in rows_of[parent]))
                continue
            row = len(self.rows)
            self.rows.append(node)
            rows_of[node.id] = (row,)
            if len(parents) == 1:
                self.edges += [(row, earlier) for earlier in rows_of[parents[0]]]
            else:
                self.edges += [(row, e) for e in dict.fromkeys(e for parent in parents for e in rows_of[parent])]
        for node_type, kind in _KINDS.items():
            (self._report.leave_out if node_type in _LEFT_OUT else self._report.take)(kind, count=counts.pop(kind, 0))
        for kind, count in counts.items():
            self._report.leave_out(kind, str(self.file.path), count)

    def trace(self, numbers: Mapping[tuple[int, int], int]) -> RankTrace:
        """The rank. numbers: (rank, row) -> collective, of rows that take part in one; other communication is work."""
        trace = RankTrace(self.rank)
        num_rows = len(self.rows)
        trace.node = array("Q", (node.id for node in self.rows))
        for name, value in (("issue_ns", 0), ("start_ns", -1), ("end_ns", -1), ("thread", 0)):
            column = getattr(trace, name)
            setattr(trace, name, array(column.typecode, [value]) * num_rows)
        for row, node in enumerate(self.rows):
            is_cpu = self._is_cpu(node)
            trace.device.append(HOST_DEVICE if is_cpu else 0)
            trace.stream.append(self._stream(node, is_cpu))
            number = numbers.get((self.rank, row), -1)
            if number >= 0:
                trace.work_collectives.append((number,))
                trace.signature.append(-len(trace.work_collectives))
            else:
                trace.signature.append(self._signatures.number(node, self._duration_ns(node), is_cpu))
        self._check_total(trace)
        trace.dependent = array("q", (row for row, _ in self.edges))
        trace.dependency = array("q", (earlier for _, earlier in self.edges))
        return trace

    def _check_total(self, trace: RankTrace) -> None:
        total_ns = sum(self._signatures.infos[signature].duration_ns for signature in trace.signature if signature >= 0)
        if total_ns > _MAX_TOTAL_NS:
            raise UserError(f"{self.file.path}: the durations of its nodes add up to {total_ns / 3.156e16:.0f} years")

    def is_communication(self, node: ChakraNode) -> bool:
        """Whether it runs on the network (older converters call the host's side of a collective by the same type)."""
        return node.type in (SEND, RECV, COLLECTIVE) and not self._is_cpu(node)

    def _is_cpu(self, node: ChakraNode) -> bool:
        """A missing attribute means GPU, as for ASTRA-sim's feeder_v3. Its own examples set it on collectives without a
        duration, which are meant to run on the network."""
        is_cpu = bool(node.attributes.get("is_cpu_op", False))
        return is_cpu and not (node.type in (SEND, RECV, COLLECTIVE) and not node.duration_micros)

    def _stream(self, node: ChakraNode, is_cpu: bool) -> int:
        """GPU: its stream; CPU: its thread."""
        value = node.attributes.get("tid" if is_cpu else "stream")
        if type(value) is not int or not 0 <= value < _MAX_STREAM:
            self._report.guess(
                f"{'CPU work without a thread' if is_cpu else 'device work without a stream'}: ordered by dependencies alone"
            )
            return NO_STREAM
        return value

    def _duration_ns(self, node: ChakraNode) -> int:
        exact = node.attributes.get("duration_ns")
        duration_ns = exact if type(exact) is int and exact >= 0 else node.duration_micros * 1000
        if duration_ns > _MAX_NS:
            self._report.doubt("durations of more than 11 days (taken as 0)", f"{self.file.path}: node {node.id}")
            return 0
        if not duration_ns:
            self._report.guess(
                "work without a duration: takes no time", f"{self.file.path}: node {node.id} ({node.name})"
            )
        return duration_ns


_KINDS = {
    COMP: "compute nodes", COLLECTIVE: "collectives", SEND: "sends", RECV: "receives",
    MEM_LOAD: "memory loads (as work)", MEM_STORE: "memory stores (as work)", METADATA: "metadata nodes", INVALID: "invalid nodes",
}  # fmt: skip
_LEFT_OUT = (METADATA, INVALID)


def _positive(value: Any) -> int:
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _tensors(texts: tuple[str, str, str] | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(dtype, shape) of the tensors among the inputs or outputs, as far as they can be read."""
    if texts is None:
        return ()
    try:
        shapes, types = json.loads(texts[1] or "[]"), json.loads(texts[2] or "[]")
    except (ValueError, RecursionError):
        return ()
    if not isinstance(shapes, list) or not isinstance(types, list):
        return ()
    found = []
    for shape, dtype in zip(shapes, types):
        if (
            isinstance(dtype, str)
            and isinstance(shape, list)
            and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
        ):
            if shape or "ensor" in dtype:
                found.append((_dtype(dtype), tuple(shape)))
    return tuple(found)


def _dtype(text: str) -> str:
    """'Tensor(float)' as torch calls it."""
    inner = text[text.find("(") + 1 : -1] if text.startswith("Tensor(") and text.endswith(")") else text
    return _DTYPES.get(inner, inner)


# PyTorch's execution traces name C++ types.
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long int": "int64",
    "long": "int64", "int": "int32", "short int": "int16", "signed char": "int8", "unsigned char": "uint8",
}  # fmt: skip
