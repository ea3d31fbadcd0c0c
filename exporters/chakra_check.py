"""Whether ASTRA-sim can run a set of Chakra traces: the rules that it does not check itself, or only by hanging.

Source of the rules: ASTRA-sim 518bd513 (Workload.cc, Sys.cc, feeder_v3), analytical network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra import attributes, read_chakra

_CASES = {
    "is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "pg_name": "string_val",
    "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val", "num_ops": "int64_val",
    "tensor_size": "uint64_val",
}  # fmt: skip
_REQUIRED = {
    schema.COMP_NODE: ("is_cpu_op", "num_ops", "tensor_size"),
    schema.COMM_COLL_NODE: ("is_cpu_op", "comm_type", "comm_size", "pg_name"),
    schema.COMM_SEND_NODE: ("is_cpu_op", "comm_size", "comm_src", "comm_dst", "comm_tag"),
    schema.COMM_RECV_NODE: ("is_cpu_op", "comm_size", "comm_src", "comm_dst", "comm_tag"),
}
_SIMULATED = (schema.ALL_REDUCE, schema.ALL_GATHER, schema.ALL_TO_ALL, schema.REDUCE_SCATTER)


def check_astra_safe(files: Sequence[Path], groups: Mapping[str, Sequence[int]]) -> list[str]:
    """What is wrong, in words; empty when nothing is. files[r] is the trace of rank r; groups: comm_groups.json."""
    problems = [f"comm_groups: {p}" for p in _group_problems(groups, len(files))]
    issued: dict[str, dict[int, list[tuple[int, int]]]] = {}  # group -> rank -> (type, size) in order of ids
    sends: Counter[tuple[int, int, int, int]] = Counter()
    recvs: Counter[tuple[int, int, int, int]] = Counter()
    for rank, path in enumerate(files):
        seen: set[int] = set()
        for node in read_chakra(path):
            attrs = attributes(node)
            found = [*_node_problems(node, seen), *_attribute_problems(node)]
            if not found and node.type == schema.COMM_COLL_NODE:
                found = _collective_problems(attrs, groups, rank)
                issued.setdefault(attrs["pg_name"], {}).setdefault(rank, []).append(
                    (attrs["comm_type"], attrs["comm_size"])
                )
            elif not found and node.type != schema.COMP_NODE:
                found = _message_problems(node, attrs, rank)
                key = (attrs["comm_tag"], attrs["comm_src"], attrs["comm_dst"], attrs["comm_size"])
                (sends if node.type == schema.COMM_SEND_NODE else recvs)[key] += 1
            problems += [f"rank {rank} node {node.id} ({node.name}): {problem}" for problem in found]
            seen.add(node.id)
        if not seen:
            problems.append(f"rank {rank}: no nodes")
    problems += _mismatches(issued, groups)
    problems += [f"no recv for send {key}" for key in sends - recvs] + [
        f"no send for recv {key}" for key in recvs - sends
    ]
    return problems


def _group_problems(groups: Mapping[str, Sequence[int]], num_ranks: int) -> Iterable[str]:
    for name, ranks in groups.items():
        if not name.isdecimal() or int(name) < 1:
            yield f"{name!r} is no positive integer"
        if len(set(ranks)) < 2 or len(set(ranks)) != len(ranks):
            yield f"group {name} needs two or more different ranks"
        if any(not 0 <= rank < num_ranks for rank in ranks):
            yield f"group {name} names a rank without a trace"


def _node_problems(node: schema.Node, seen: set[int]) -> Iterable[str]:
    if node.id < 1 or node.id in seen:
        yield "ids must be unique, from 1"
    if node.type not in _REQUIRED:
        yield f"node type {node.type} is not one that every ASTRA-sim runs"
    if node.ctrl_deps:
        yield "has ctrl_deps"
    if not seen.issuperset(node.data_deps):
        yield "a parent is missing or comes later (a cycle)"
    if len(set(node.data_deps)) != len(node.data_deps):
        yield "a parent is listed twice"


def _attribute_problems(node: schema.Node) -> Iterable[str]:
    cases = {attribute.name: attribute.WhichOneof("value") for attribute in node.attr}
    if len(cases) != len(node.attr):
        yield "an attribute is there twice"
    for name in _REQUIRED.get(node.type, ()):
        if name not in cases:
            yield f"{name} is missing"
    for name, case in cases.items():
        if _CASES.get(name, case) != case:
            yield f"{name} must be {_CASES[name]}"
    if any(attribute.name == "is_cpu_op" and attribute.bool_val for attribute in node.attr):
        yield "is_cpu_op is true"


def _collective_problems(attrs: Mapping[str, object], groups: Mapping[str, Sequence[int]], rank: int) -> list[str]:
    ranks = groups.get(attrs["pg_name"])
    if ranks is None:
        return [f"group {attrs['pg_name']!r} is not in comm_groups"]
    problems = [] if rank in ranks else ["the rank is not in the group"]
    if attrs["comm_type"] not in _SIMULATED:
        problems.append(f"comm_type {attrs['comm_type']} is not simulated")
    divisor = 1 if attrs["comm_type"] == schema.ALL_GATHER else len(ranks)
    if attrs["comm_size"] <= 0 or attrs["comm_size"] % divisor:
        problems.append(f"comm_size {attrs['comm_size']} is not a positive multiple of {divisor}")
    return problems


def _message_problems(node: schema.Node, attrs: Mapping[str, object], rank: int) -> list[str]:
    own = attrs["comm_src"] if node.type == schema.COMM_SEND_NODE else attrs["comm_dst"]
    problems = [] if own == rank else ["names another rank as its own"]
    if attrs["comm_src"] == attrs["comm_dst"]:
        problems.append("is a message to itself")
    if attrs["comm_size"] <= 0 or not 0 <= attrs["comm_tag"] < 500_000_000:
        problems.append("size or tag out of range")
    return problems


def _mismatches(
    issued: Mapping[str, Mapping[int, list[tuple[int, int]]]], groups: Mapping[str, Sequence[int]]
) -> Iterable[str]:
    for name, by_rank in issued.items():
        lists = [by_rank.get(rank, []) for rank in groups.get(name, ())]
        if any(entry != lists[0] for entry in lists):
            yield f"group {name}: its ranks do not issue the same collectives in the same order"
