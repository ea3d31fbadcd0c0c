"""What is said when nothing can move any more."""

from __future__ import annotations

from typing import Any

from phantora.engine.collectives import Matcher, describe
from phantora.engine.host_collectives import HostCollectives
from phantora.engine.rank import Rank


def deadlock_text(matcher: Matcher, host_collectives: HostCollectives, ranks: list[Rank]) -> str:
    """Who waits for whom, with the calls and Python stacks."""
    lines = ["no rank can go on: a collective was not joined by all of its ranks"]
    for collective in sorted(matcher.open.values(), key=lambda c: c.key):
        if collective.begun or not collective.members:
            continue
        missing = collective.missing()
        if missing:
            first = collective.members[min(collective.members)]
            lines.append(f"{describe(collective, first)}: joined by ranks {sorted(collective.members)}, not by ranks {missing}")
            lines.append(f"rank {first.rank} called it from\n{first.stack}")
    lines += host_collectives.incomplete()
    for rank in ranks:
        if rank.call:
            stack = rank.stacks.get(rank.call.get("stack", -1), "")
            lines.append(f"rank {rank.number} {rank.state.value} ({_call_text(rank.call)}) at\n{stack}")
        else:
            lines.append(f"rank {rank.number} {rank.state.value}")
    if len(lines) == 1 + len(ranks):
        lines[0] = "no rank can go on: their calls wait for one another"
    return "\n".join(lines)


def _call_text(call: dict[str, Any]) -> str:
    method = call["method"]
    if method == "sync":
        return f"{call['what']} synchronize"
    if method in ("store_get", "store_wait"):
        return f"{method.replace('_', '.')} {call.get('key') or call.get('keys')}"
    return method
