"""What an NPU executes: the nodes of its trace in ascending id, checked, with their dependencies as indices.

Source of what is read, of defaults and of what goes wrong: astra-sim, workload/Workload.cc and HardwareResource.cc;
chakra feeder_v3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from phantora.astra.config import ALL_GATHER, BROADCAST, COLLECTIVES, System
from phantora.astra.documents import shown
from phantora.astra.plan import Collective
from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraFile, ChakraNode

# Kinds of operations
WAIT, SKIP, MEMORY, SEND, RECEIVE, COLLECTIVE = range(6)
# Units of an NPU: each executes one node at a time, receives excepted
CPU, GPU, COMMUNICATION, RECEIVES = range(4)
_METADATA, _LOAD, _STORE, _COMP, _SEND, _RECV, _COLL = range(1, 8)
_NATIVE_TAGS = 500_000_000
_COLLECTIVE_NAMES = {
    1: "reduce", 3: "gather", 4: "scatter", 8: "reduce-scatter of blocks", 9: "barrier",
}  # fmt: skip


class Operation(NamedTuple):
    """A node, ready to be executed."""

    id: int
    kind: int
    unit: int
    wait_ns: int = 0
    size: int = 0
    """bytes of a message or of a memory access"""
    source: int = -1
    """rank; -1: this one"""
    target: int = -1
    tag: int = 0
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """Ids and dependencies of a trace; traces that differ in nothing else share it."""

    order: tuple[int, ...]
    """where in the file the node with the lowest id, the next, ... stands"""
    num_parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The nodes of one trace in ascending id."""

    operations: tuple[Operation, ...]
    structure: Structure


class Compiler:
    """Makes programs of traces; what is equal is made once."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._operations: dict[int, Operation] = {}
        self._distinct: dict[Operation, Operation] = {}
        self._programs: dict[int, Program] = {}
        self._edges: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        self._edges_of: dict[int, int] = {}
        self._structures: dict[tuple[int, ...], Structure] = {}

    def program(self, file: ChakraFile) -> Program:
        """UserError names file and node."""
        program = self._programs.get(file.content)
        if program is None:
            try:
                program = self._programs[file.content] = self._compile(file.nodes)
            except UserError as error:
                raise UserError(f"{file.path}: {error}") from None
        return program

    def _compile(self, nodes: Sequence[ChakraNode]) -> Program:
        edges_of, operations = self._edges_of, self._operations
        for node in nodes:
            if node.serial not in operations:
                operations[node.serial] = self._operation(node)
                edges = node.id, node.data_deps, node.ctrl_deps
                edges_of[node.serial] = self._edges.setdefault(edges, len(self._edges))
        key = tuple([edges_of[node.serial] for node in nodes])
        structure = self._structures.get(key)
        if structure is None:
            structure = self._structures[key] = _structure(nodes)
        in_file = [operations[node.serial] for node in nodes]
        return Program(tuple([in_file[i] for i in structure.order]), structure)

    def _operation(self, node: ChakraNode) -> Operation:
        try:
            operation = make_operation(node, self._system)
            return self._distinct.setdefault(operation, operation)
        except UserError as error:
            raise UserError(f"node {node.id} ({shown(node.name)}): {error}") from None


def _structure(nodes: Sequence[ChakraNode]) -> Structure:
    if not nodes:
        raise UserError("no nodes")
    order = sorted(range(len(nodes)), key=lambda i: nodes[i].id)
    in_order = [nodes[i] for i in order]
    index = {node.id: i for i, node in enumerate(in_order)}
    if len(index) < len(nodes):
        twice = next(a.id for a, b in zip(in_order, in_order[1:]) if a.id == b.id)
        raise UserError(f"node {twice} stands there twice")
    parents = [_parents(node, index) for node in in_order]
    children: list[list[int]] = [[] for _ in nodes]
    for i, of_one in enumerate(parents):
        for parent in of_one:
            children[parent].append(i)
    num_parents = tuple(map(len, parents))
    _check_acyclic([node.id for node in in_order], num_parents, children)
    return Structure(tuple(order), num_parents, tuple(map(tuple, children)))


def _parents(node: ChakraNode, index: dict[int, int]) -> list[int]:
    """Indices of the parents; data and control dependencies count alike."""
    deps = node.data_deps
    if node.ctrl_deps:
        deps = (*deps, *node.ctrl_deps)
    if len(deps) > 1:
        deps = tuple(dict.fromkeys(deps))
    try:
        return [index[parent] for parent in deps]
    except KeyError as error:
        raise UserError(f"node {node.id} depends on node {error.args[0]}, which is not there") from None


def _check_acyclic(ids: list[int], num_parents: Iterable[int], children: list[list[int]]) -> None:
    left = list(num_parents)
    free = [i for i, count in enumerate(left) if not count]
    num_done = 0
    while free:
        num_done += 1
        for child in children[free.pop()]:
            left[child] -= 1
            if not left[child]:
                free.append(child)
    if num_done < len(ids):
        stuck = {i for i, count in enumerate(left) if count}
        cycle = _cycle(stuck, children)
        text = " -> ".join(str(ids[i]) for i in cycle[:10]) + (" -> ..." if len(cycle) > 10 else "")
        raise UserError(f"nodes depend on each other in a circle: {text}")


def _cycle(stuck: set[int], children: list[list[int]]) -> list[int]:
    """Nodes along a cycle, the first one again at the end."""
    parent_of: dict[int, int] = {}
    for i in sorted(stuck):
        for child in children[i]:
            if child in stuck:
                parent_of.setdefault(child, i)
    at, seen = min(stuck), []
    while at not in seen:
        seen.append(at)
        at = parent_of[at]
    return [at, *reversed(seen[seen.index(at) :])]


def make_operation(node: ChakraNode, system: System) -> Operation:
    """What a node means. UserError for attributes and values on which ASTRA-sim throws, aborts or hangs."""
    is_cpu = _is_cpu(node)
    if node.type == _METADATA:
        raise UserError("ASTRA-sim aborts on METADATA_NODE")
    if not 0 <= node.type <= _COLL:
        raise UserError(f"unknown node type {node.type}")
    unit = CPU if is_cpu else GPU if node.type == _COMP else RECEIVES if node.type == _RECV else COMMUNICATION
    if system.replay_only:
        return Operation(node.id, WAIT, unit, _recorded_ns(node))
    if is_cpu and node.type >= _SEND:
        raise UserError("is_cpu_op is true on a communication node")
    if node.type == _COMP:
        return _compute(node, unit, system)
    if node.type in (_LOAD, _STORE):
        return Operation(node.id, MEMORY, unit, size=_integer(node, "tensor_size"))
    if node.type == _COLL:
        return _collective(node, system)
    if node.type in (_SEND, _RECV):
        return _message(node, unit)
    return Operation(node.id, SKIP, unit)


def _recorded_ns(node: ChakraNode) -> int:
    """Source: Workload::issue_replay."""
    return node.duration_micros * 1000 or 1


def _is_cpu(node: ChakraNode) -> bool:
    value = node.attributes.get("is_cpu_op", False)
    if not isinstance(value, int):
        raise UserError(f"is_cpu_op must be true or false, not {shown(value)}")
    return bool(value)


def _compute(node: ChakraNode, unit: int, system: System) -> Operation:
    """Source: Workload::issue_comp."""
    if not system.roofline or unit == CPU:
        return Operation(node.id, WAIT, unit, _recorded_ns(node))
    num_ops, size = _integer(node, "num_ops"), _integer(node, "tensor_size")
    if not size:
        return Operation(node.id, SKIP, unit)
    if not num_ops:
        raise UserError("num_ops is 0, for which ASTRA-sim's roofline gives no time")
    rate = min(system.local_mem_bytes_per_ns * 1000000000 * (num_ops / size), system.peak_flops)
    return Operation(node.id, WAIT, unit, int(num_ops / rate * 1e9))


def _integer(node: ChakraNode, name: str, default: int | None = None, bits: int = 64) -> int:
    value: Any = node.attributes.get(name, default)
    if value is None:
        raise UserError(f"{name} is missing")
    if not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise UserError(f"{name} must be an integer, not negative, not {shown(value)}")
    return int(value)


def _collective(node: ChakraNode, system: System) -> Operation:
    kind, size = _integer(node, "comm_type"), _integer(node, "comm_size")
    group = _group(node)
    if kind == BROADCAST:
        return Operation(node.id, WAIT, COMMUNICATION, _recorded_ns(node))
    if kind not in COLLECTIVES:
        name = _COLLECTIVE_NAMES.get(kind, "unknown")
        raise UserError(f"comm_type {kind} ({name}), which ASTRA-sim does not support (it knows {_known_kinds()})")
    if kind == ALL_GATHER and not size:
        raise UserError("an all-gather of 0 bytes never ends in ASTRA-sim")
    custom = system.custom_nodes.get(node.id) or system.custom.get(kind, "")
    collective = Collective(kind, size, group, () if group else _involved(node), custom)
    return Operation(node.id, COLLECTIVE, COMMUNICATION, size=size, collective=collective)


def _known_kinds() -> str:
    return ", ".join(f"{kind} {name}" for kind, name in sorted({**COLLECTIVES, BROADCAST: "broadcast"}.items()))


def _involved(node: ChakraNode) -> tuple[bool, ...]:
    value = node.attributes.get("involved_dim", (True,) * 4)
    if not isinstance(value, tuple) or not value or not all(isinstance(one, bool) for one in value):
        raise UserError(f"involved_dim must be a list of booleans, not {shown(value)}")
    return value


def _group(node: ChakraNode) -> int:
    """The number of the group; 0 is the world."""
    name = node.attributes.get("pg_name", "")
    if not isinstance(name, str):
        raise UserError(f"pg_name must be a string, not {shown(name)}")
    if name == "":
        return 0
    if not (name.isascii() and name.isdigit() and len(name) <= 9):
        raise UserError(f"pg_name must be a decimal number, not {shown(name)}")
    return int(name)


def _message(node: ChakraNode, unit: int) -> Operation:
    size, tag = _integer(node, "comm_size"), _integer(node, "comm_tag", bits=31) % _NATIVE_TAGS
    if not size:
        raise UserError("a message of 0 bytes, on which ASTRA-sim aborts")
    is_send = node.type == _SEND
    required, optional = ("comm_dst", "comm_src") if is_send else ("comm_src", "comm_dst")
    peer = _integer(node, required, bits=31)
    own = node.attributes.get(optional)
    own = -1 if own is None else _integer(node, optional, bits=31)
    kind = SEND if is_send else RECEIVE
    source, target = (own, peer) if is_send else (peer, own)
    return Operation(node.id, kind, unit, size=size, source=source, target=target, tag=tag)
