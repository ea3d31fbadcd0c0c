"""Chakra files made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora.exporters import chakra_schema as schema
from phantora.exporters.protobuf_rows import varint


def node(
    number: int,
    kind: int = schema.COMP_NODE,
    *,
    name: str = "",
    data: tuple[int, ...] = (),
    ctrl: tuple[int, ...] = (),
    micros: int = 0,
    **attributes: Any,
) -> schema.Node:
    """attributes: bool, int (int64) or str; a pair (case, value) for another case of the value."""
    made = schema.Node(
        id=number, name=name or f"node {number}", type=kind, data_deps=data, ctrl_deps=ctrl, duration_micros=micros
    )
    for key, value in attributes.items():
        if isinstance(value, tuple):
            made.attr.add(name=key, **{value[0]: value[1]})
        elif isinstance(value, bool):
            made.attr.add(name=key, bool_val=value)
        elif isinstance(value, int):
            made.attr.add(name=key, int64_val=value)
        else:
            made.attr.add(name=key, string_val=value)
    return made


def encoded(nodes: list[schema.Node]) -> bytes:
    frames = [schema.GlobalMetadata(version="0.0.4").SerializeToString(), *(n.SerializeToString() for n in nodes)]
    return b"".join(varint(len(frame)) + frame for frame in frames)


def write(folder: Path, ranks: list[list[schema.Node]]) -> list[Path]:
    paths = []
    for rank, nodes in enumerate(ranks):
        paths.append(folder / f"trace.{rank}.et")
        paths[-1].write_bytes(encoded(nodes))
    return paths
