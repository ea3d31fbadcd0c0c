"""Slow and broken links: the [[fault]] tables of a cluster file as changes of link rates in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from phantora.cluster.spec import FaultSpec
from phantora.cluster.topology import Topology
from phantora.errors import UserError, nearest

Change = tuple[int, int, float]
"""(virtual time in ns, link index, bytes/s from then on)."""


def link_changes(topology: Topology, faults: Sequence[FaultSpec]) -> list[Change]:
    """All changes in order of time. Faults that overlap on one link multiply. A link that the cluster has and the nodes
    in use do not cross is left out; UserError when a name fits no link of the whole cluster."""
    if not faults:
        return []
    names = list(topology.names())
    by_link: dict[int, list[tuple[int, float, float]]] = {}
    for fault in faults:
        found = [index for index, name in enumerate(names) if fnmatchcase(name, fault.link)]
        if not found and not Topology(topology.cluster).has_link(fault.link):
            examples = nearest(fault.link, topology.some_names())[:200]
            raise UserError(f"{topology.cluster.name}: [[fault]] link {fault.link!r}: no such link{examples}")
        until_ns = math.inf if math.isinf(fault.until_s) else round(fault.until_s * 1e9)
        for link in found:
            by_link.setdefault(link, []).append((round(fault.from_s * 1e9), until_ns, fault.factor))
    changes = [
        (instant, link, float(topology.bytes_per_s[link]) * _factor(spans, instant))
        for link, spans in by_link.items()
        for instant in sorted({int(end) for begin, until, _ in spans for end in (begin, until) if end < math.inf})
    ]
    return sorted(changes)


def _factor(spans: list[tuple[int, float, float]], now_ns: int) -> float:
    return math.prod(factor for begin, until, factor in spans if begin <= now_ns < until)

