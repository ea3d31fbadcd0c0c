"""Sane bounds of every number of a cluster file, so that no value can overflow, hang or fill the memory later.

The bounds are far outside of any machine. They are found by the end of a field's name, which is its unit
(`bytes_per_s`, `latency_ns`), or by its whole name. What a field means may narrow them further (spec.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

MAX_GPUS = 1 << 20
MAX_MESH_GPUS = 32
"""GPUs joined by a link for every pair."""

_ANY = (-(2.0**62), 2.0**62)
_BY_NAME = {
    "num_nodes": (1, MAX_GPUS),
    "gpus_per_node": (1, 4096),
    "count": (0, 4096),
    "hosts_per_leaf": (1, MAX_GPUS),
    "num_spines": (1, 1 << 16),
    "num_domain_nodes": (1, 4096),
    "oversubscription": (0, 1e3),
    "efficiency": (1e-3, 1),
    "cpu_speed": (1e-6, 1e6),
    "compute_capability": (0, 999),
    "num_sms": (0, 1e6),
    "power_w": (0, 1e6),
    "peak_flops": (0, 1e24),
    "straggler.factor": (1e-6, 1e6),
    "fault.factor": (1e-6, 1),
}  # name or table.name -> (least but for 0, most)
_BY_UNIT = {
    "bytes_per_s": (1e3, 1e16),
    "bytes": (0, 2.0**50),
    "ns": (0, 1e10),
    "hz": (1, 1e15),
    "s": (0, 1e9),
}
_MAX_TEXT = 4096


def check_bounds(owner: object, table: str = "") -> None:
    """ValueError '<field> must be ...' for a number of the dataclass `owner` that is out of bounds or not finite, or a
    text that cannot be printed in one line. 0 and infinity pass where the field's own check is the one to speak."""
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        value = getattr(owner, field.name)
        low, high = _bounds(field.name, table)
        may_be_endless = field.name == "until_s"
        for number in _numbers(value):
            if may_be_endless and number == math.inf:
                continue
            if not math.isfinite(number):
                raise ValueError(f"{field.name} must be finite, not {number}")
            if number > high or 0 < number < low or number < _ANY[0]:
                raise ValueError(f"{field.name} must be between {_short(low)} and {_short(high)}, not {_short(number)}")
        if isinstance(value, str) and not (value.isprintable() and len(value) <= _MAX_TEXT):
            raise ValueError(f"{field.name} must be one line of at most {_MAX_TEXT} printable characters")


def _bounds(name: str, table: str) -> tuple[float, float]:
    known = _BY_NAME.get(f"{table}.{name}") or _BY_NAME.get(name)
    if known is not None:
        return known
    for unit, bounds in _BY_UNIT.items():
        if name.endswith(f"_{unit}") or name == unit:
            return bounds
    return _ANY


def _numbers(value: object) -> Iterator[float]:
    """The numbers in a value; whole ones that no float can hold as infinity."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            yield float(value)
        except OverflowError:
            yield math.inf if value > 0 else -math.inf


def _short(number: float) -> str:
    return f"{number:.15g}"
