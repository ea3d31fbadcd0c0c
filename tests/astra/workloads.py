"""Small workloads for tests: traces, configuration files, and jobs made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora.astra.simulate import Inputs, Job, load
from phantora.exporters.chakra_schema import (
    ALL_REDUCE, COMM_COLL_NODE, COMM_RECV_NODE, COMM_SEND_NODE, COMP_NODE, GlobalMetadata, Node,
)  # fmt: skip

SYSTEM: dict[str, Any] = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 1,
    "collective-optimization": "localBWAware", "local-mem-bw": 1600,
}  # fmt: skip
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def framed(*messages: Any) -> bytes:
    """Messages, each with its length before it."""
    parts = [message if isinstance(message, bytes) else message.SerializeToString() for message in messages]
    return b"".join(varint(len(part)) + part for part in parts)


def set_attribute(node: Any, name: str, value: Any) -> None:
    attr = node.attr.add(name=name)
    if isinstance(value, bool):
        attr.bool_val = value
    elif isinstance(value, int):
        attr.int64_val = value
    elif isinstance(value, float):
        attr.double_val = value
    elif isinstance(value, list):
        attr.bool_list.values.extend(value)
    else:
        attr.string_val = value


def node(
    id: int, kind: int, deps: list[int] | None = None, micros: int = 0, ctrl: list[int] | None = None, **attributes: Any
) -> Any:
    """A node; attributes that are None are left out."""
    made = Node(id=id, name=f"n{id}", type=kind, duration_micros=micros, data_deps=deps or [], ctrl_deps=ctrl or [])
    for name, value in {"is_cpu_op": False, **attributes}.items():
        if value is not None:
            set_attribute(made, name, value)
    return made


def comp(id: int, micros: int, deps: list[int] | None = None, **attributes: Any) -> Any:
    return node(id, COMP_NODE, deps, micros, **attributes)


def coll(
    id: int,
    size: int = 1 << 20,
    deps: list[int] | None = None,
    kind: int = ALL_REDUCE,
    group: int = 0,
    **attributes: Any,
) -> Any:
    name = str(group) if group else None
    return node(id, COMM_COLL_NODE, deps, **{"comm_type": kind, "comm_size": size, "pg_name": name, **attributes})


def send(id: int, dst: int, size: int = 4096, deps: list[int] | None = None, tag: int = 1, **attributes: Any) -> Any:
    return node(id, COMM_SEND_NODE, deps, comm_dst=dst, comm_size=size, comm_tag=tag, **attributes)


def recv(id: int, src: int, size: int = 4096, deps: list[int] | None = None, tag: int = 1, **attributes: Any) -> Any:
    return node(id, COMM_RECV_NODE, deps, comm_src=src, comm_size=size, comm_tag=tag, **attributes)


@dataclass
class Workload:
    """One node list per rank, and the files around them."""

    ranks: list[list[Any]]
    topology: list[str] = field(default_factory=lambda: ["Ring"])
    sizes: list[int] = field(default_factory=lambda: [4])
    bandwidth: list[float] | None = None
    latency: list[float] | None = None
    algorithms: list[str] | None = None
    system: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=lambda: {"memory-type": "NO_MEMORY_EXPANSION"})
    groups: dict[str, list[int]] | None = None

    def write(self, folder: Path) -> Path:
        """Into a folder, which is returned."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank, nodes in enumerate(self.ranks):
            (folder / f"w.{rank}.et").write_bytes(framed(GlobalMetadata(version="0.0.4"), *nodes))
        algorithms = self.algorithms or ["ring"] * len(self.sizes)
        system = {**SYSTEM, **{f"{kind}-implementation": algorithms for kind in _KINDS}, **self.system}
        (folder / "system.json").write_text(
            json.dumps({key: value for key, value in system.items() if value is not None})
        )
        lists = {
            "topology": self.topology, "npus_count": self.sizes,
            "bandwidth": self.bandwidth or [50.0] * len(self.sizes),
            "latency": self.latency or [500.0] * len(self.sizes),
        }  # fmt: skip
        (folder / "network.yml").write_text(
            "".join(f"{key}: [ {', '.join(map(str, v))} ]\n" for key, v in lists.items())
        )
        (folder / "memory.json").write_text(json.dumps(self.memory))
        if self.groups is not None:
            (folder / "groups.json").write_text(json.dumps(self.groups))
        return folder

    def job(self, folder: Path, **options: Any) -> Job:
        """Read back as a user's files would be."""
        return load(inputs(self.write(folder), **options))


def inputs(folder: Path, **options: Any) -> Inputs:
    groups = folder / "groups.json"
    return Inputs(
        workload=folder / "w", system=folder / "system.json", network=folder / "network.yml",
        memory=folder / "memory.json",
        groups=groups if groups.is_file() else None, **options,
    )  # fmt: skip


def arguments(folder: Path, *more: str) -> list[str]:
    """Of `phantora simulate`."""
    words = ["simulate", str(folder / "w")]
    for option, name in (
        ("--astra-system", "system.json"),
        ("--astra-network", "network.yml"),
        ("--astra-memory", "memory.json"),
    ):
        words += [option, str(folder / name)]
    if (folder / "groups.json").is_file():
        words += ["--comm-groups", str(folder / "groups.json")]
    return [*words, *more]
