"""The nodes of one PyTorch execution trace (ExecutionTraceObserver), schemas 1.0.1 to 1.1.1.

Fields as torch's execution_trace_observer.cpp writes them: up to 1.0.1 flat (`inputs`, `input_shapes`, `rf_id`,
`parent`), from 1.0.2-chakra on nested (`inputs.values`, `attrs`, the parent in `ctrl_deps`). A tensor's value is
[tensor id, storage id, offset, elements, bytes an element, device].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from phantora.errors import UserError
from phantora.importers.json_stream import clean_text, whole_number
from phantora.importers.kineto_comm import kind_of
from phantora.importers.dtypes import torch_dtype
from phantora.importers.kineto_events import Tensors
from phantora.importers.operator_calls import Schema, call_text, parse_schema, tensor
from phantora.importers.report import ImportReport

_SCHEMA = re.compile(r"1\.[01]\.\d+(?:-chakra\.\d+\.\d+\.\d+)?$")
_TENSOR = re.compile(r"Tensor\(([^()]{0,60}(?:<[^()]{0,20}>)?)\)")
_MAX_TENSORS = 4096
_MAX_NESTING = 3
_MAX_CONFIG = 1 << 22


@dataclass(frozen=True, slots=True)
class EtTensor:
    """dtype and shape as in SignatureInfo; device: '' when not known; storage: -1 when not known."""

    dtype: str
    shape: tuple[int, ...]
    storage: int
    device: str


@dataclass(slots=True)
class EtNode:
    """One operator. comm: arguments of a collective under the names that Kineto gives them; wait_for: the number (Seq)
    of the collective that a 'wait' record waits for, else -1. call: as in SignatureInfo. is_kernel: it is a kernel
    itself, made by a compiler."""

    id: int
    parent: int
    name: str
    rf_id: int
    tid: int
    scope: int
    inputs: tuple[EtTensor, ...]
    outputs: tuple[EtTensor, ...]
    comm: dict[str, Any] | None = None
    wait_for: int = -1
    call: str = ""
    is_kernel: bool = False


@dataclass(slots=True)
class EtFile:
    """One rank's execution trace. groups: name of a process group -> (global ranks, size)."""

    shown: str
    schema: str = ""
    pid: int = -1
    nodes: list[EtNode] = field(default_factory=list)
    groups: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    backends: dict[int, str] = field(default_factory=dict)  # older traces name groups by the address of their backend


def specs(tensors: tuple[EtTensor, ...]) -> Tensors:
    """(dtype, shape) pairs."""
    return tuple((tensor.dtype, tensor.shape) for tensor in tensors)


class EtReader:
    """Takes the members of a document one after another."""

    def __init__(self, shown: str, report: ImportReport) -> None:
        self.file = EtFile(shown)
        self._report = report
        self._schemas: dict[str, Schema | None] = {}
        self._calls: dict[str, str] = {}

    def member(self, key: str, value: Any) -> None:
        """A member of the document that is no node."""
        if key == "schema":
            self.file.schema = clean_text(value)[:100]
        elif key == "pid":
            pid = whole_number(value, 0)
            self.file.pid = -1 if pid is None else pid

    def node(self, node: Any) -> None:
        """One member of nodes."""
        if not isinstance(node, dict):
            self._report.leave_out("nodes that are not objects", str(node)[:100])
            return
        number = whole_number(node.get("id"), 0)
        if number is None:
            self._report.leave_out("nodes without an id", clean_text(node.get("name")))
            return
        attributes = _attributes(node)
        inputs, outputs = _values(node, "inputs", "input"), _values(node, "outputs", "output")
        numbers = [whole_number(attributes.get(name), 0) for name in ("rf_id", "tid", "scope")]
        rf_id, tid, scope = (-1 if value is None else value for value in numbers)
        parent = whole_number(node.get("ctrl_deps", node.get("parent")), 0)
        found = EtNode(
            number, -1 if parent is None else parent, clean_text(node.get("name", "")), rf_id, tid, scope,
            _tensors(*inputs[:3]), _tensors(*outputs[:3]),
        )  # fmt: skip
        found.is_kernel = bool(_text(attributes.get("kernel_backend")))
        schema = _text(attributes.get("op_schema"))
        if schema and found.name == schema.partition("(")[0].partition(".")[0]:
            found.call = self._call(schema, inputs, found)
        if found.name == "record_param_comms":
            self._communication(found, inputs[0], attributes)
        elif "process_group:init" in found.name:
            self._groups(inputs[0])
        self.file.nodes.append(found)

    def _call(self, text: str, inputs: tuple[list[Any], ...], node: EtNode) -> str:
        if text not in self._schemas:
            self._schemas[text] = parse_schema(text)
        schema = self._schemas[text]
        if schema is None or not any(
            tensor.device.startswith(("cuda", "hip")) for tensor in (*node.inputs, *node.outputs)
        ):
            return ""
        outputs = [tensor(one.shape, None, one.dtype, one.device) for one in node.outputs]
        call = call_text(schema, *inputs, outputs)
        return self._calls.setdefault(call, call)

    def finish(self) -> EtFile:
        """The file, its nodes by id, groups entered into the arguments of collectives."""
        file = self.file
        if not _SCHEMA.match(file.schema):
            known = "1.0.x and 1.1.x are known"
            raise UserError(f"{file.shown}: execution trace of schema {file.schema or '(none)'!r}; {known}")
        file.nodes.sort(key=lambda node: node.id)
        unique = {node.id: node for node in file.nodes}
        if len(unique) < len(file.nodes):
            self._report.doubt("nodes with the id of another node", file.shown, len(file.nodes) - len(unique))
            file.nodes = list(unique.values())
        pointers: dict[int, str] = {}
        for node in file.nodes:
            if node.comm is not None and isinstance(node.comm.get("Process Group Name"), int):
                pointer = node.comm["Process Group Name"]
                name = file.backends.get(pointer) or pointers.setdefault(pointer, f"group {len(pointers)}")
                node.comm["Process Group Name"] = name
            if node.comm is not None and node.comm.get("Process Group Name") in file.groups:
                ranks, size = file.groups[node.comm["Process Group Name"]]
                node.comm.setdefault("Process Group Ranks", list(ranks))
                node.comm.setdefault("Group size", size)
        return file

    def _communication(self, node: EtNode, values: list[Any], attributes: dict[str, Any]) -> None:
        name = attributes.get("collective_name") or next(
            (v for v in values if isinstance(v, str) and (kind_of(v) or v == "wait")), ""
        )
        numbers = [whole_number(value, 0) for value in values if isinstance(value, int) and not isinstance(value, bool)]
        seq = numbers[0] if numbers else None
        if name == "wait" and seq is not None:
            node.wait_for = seq
        if not isinstance(name, str) or not kind_of(name):
            return
        dtype = node.inputs[0].dtype if node.inputs else (node.outputs[0].dtype if node.outputs else "unknown")
        comm: dict[str, Any] = {
            "Collective name": name, "dtype": attributes.get("dtype", dtype),
            "In msg nelems": attributes.get("in_msg_nelems", _elements(node.inputs)),
            "Out msg nelems": attributes.get("out_msg_nelems", _elements(node.outputs)),
        }  # fmt: skip
        if seq is not None:
            comm["Seq"] = seq
        splits = next(
            (value for value in values[1:] if isinstance(value, list) and value and isinstance(value[0], int)), None
        )
        if splits is not None:
            comm["In split size"] = splits
        named = attributes.get("pg_name") or attributes.get("process_group_name")
        group = clean_text(named)[:200] if isinstance(named, str) else self._group_name(values)
        if group is not None:
            comm["Process Group Name"] = group
        size = attributes.get("pg_size", attributes.get("group_size"))
        if whole_number(size, 1) is not None:
            comm["Group size"] = size
        node.comm = comm

    @staticmethod
    def _group_name(values: list[Any]) -> str | int | None:
        """The name in a (name, description) pair, or the address of a backend."""
        for value in values[1:4]:
            if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
                return clean_text(value[0])[:200]
        return next((int(value) for value in values[1:4] if whole_number(value, 1 << 20) is not None), None)

    def _groups(self, values: list[Any]) -> None:
        text = values[0] if values else None
        try:
            if not isinstance(text, str) or len(text) > _MAX_CONFIG:
                raise ValueError
            groups = json.loads(text)
        except (ValueError, RecursionError):
            self._report.leave_out("descriptions of process groups that cannot be read", clean_text(text)[:100])
            return
        for group in groups if isinstance(groups, list) else []:
            if not isinstance(group, dict):
                continue
            ranks = group.get("ranks")
            if isinstance(ranks, dict):
                ranks = list(ranks)
            numbers = [whole_number(rank, 0, 1 << 24) for rank in ranks] if isinstance(ranks, list) else []
            size = whole_number(group.get("group_size"), 1, 1 << 24) or len(numbers)
            known = tuple(dict.fromkeys(number for number in numbers if number is not None)) or tuple(
                range(min(size, 1 << 16))
            )
            name = clean_text(group.get("pg_name", ""))[:200]
            self.file.groups[name] = known, size
            backend = whole_number(group.get("backend_id"), 1 << 20)
            if backend is not None:
                self.file.backends[backend] = name


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: node[name] for name in ("rf_id", "tid", "scope", "op_schema") if name in node}
    listed = node.get("attrs")
    for attribute in listed if isinstance(listed, list) else []:
        if isinstance(attribute, dict) and isinstance(attribute.get("name"), str):
            found[attribute["name"].lower().replace(" ", "_")] = attribute.get("value")
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _values(node: dict[str, Any], nested: str, flat: str) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """(values, shapes, types, strides) of the inputs or outputs of a node of either form."""
    value = node.get(nested)
    if isinstance(value, dict):
        lists = value.get("values"), value.get("shapes"), value.get("types"), value.get("strides")
    else:
        lists = value, node.get(f"{flat}_shapes"), node.get(f"{flat}_types"), node.get(f"{flat}_strides")
    values, shapes, types, strides = (part if isinstance(part, list) else [] for part in lists)
    return values, shapes, types, strides


def _tensors(values: list[Any], shapes: list[Any], types: list[Any]) -> tuple[EtTensor, ...]:
    found: list[EtTensor] = []
    for value, shape, kind in zip(values, shapes, types):
        if isinstance(kind, str) and "Tensor(" in kind[:200]:
            dtypes = iter(_TENSOR.findall(kind[: 80 * _MAX_TENSORS]))
            _collect(value, shape, dtypes, found, 0)
    return tuple(found)


def _collect(value: Any, shape: Any, dtypes: Iterator[str], found: list[EtTensor], depth: int) -> None:
    """A tensor, or a list (of lists) of them."""
    if not isinstance(value, list) or not isinstance(shape, list) or len(found) >= _MAX_TENSORS:
        return
    if len(value) >= 6 and isinstance(value[5], str):
        dtype = next(dtypes, "")
        numbers = [whole_number(size, 0) for size in shape[:65]]
        if None not in numbers and len(numbers) <= 64:
            storage = whole_number(value[1], 0)
            device = clean_text(value[5])[:40]
            known = tuple(number for number in numbers if number is not None)
            found.append(EtTensor(torch_dtype(dtype), known, -1 if storage is None else storage, device))
    elif depth < _MAX_NESTING:
        for inner, sizes in zip(value, shape):
            _collect(inner, sizes, dtypes, found, depth + 1)


def _elements(tensors: tuple[EtTensor, ...]) -> int:
    total = 0
    for one in tensors:
        numel = 1
        for size in one.shape:
            numel = min(numel * size, 1 << 40)
        total += numel
    return total
