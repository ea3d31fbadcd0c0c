"""What the scripts under probes/ begin with: a process with simulated H100s, and a view of what it launched.

Each script runs in a process of its own (test_kernels.py), because arming must precede `import torch`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phantora.compute.call import OpCall, Price
from phantora.engine.protocol import RECORD, Kind
from phantora.intercept import boot, session

PROPERTIES = {
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "total_memory": 85_017_624_576,
    "multi_processor_count": 132,
    "L2_cache_size": 50 << 20,
    "clock_rate": 1_980_000,
    "memory_clock_rate": 2_619_000,
    "memory_bus_width": 5120,
}


class FlatPricer:
    """Every call takes 1 us on the device; the calls are kept in the order of their first use."""

    def __init__(self) -> None:
        self.calls: list[OpCall] = []

    def price(self, call: OpCall) -> Price:
        self.calls.append(call)
        return Price(1000, 1, "roofline", 0, 0, "test")

    def host_ns(self, call: OpCall) -> tuple[int, int]:
        return 5000, 3000


pricer = FlatPricer()
_failures: list[str] = []


def arm(num_devices: int = 2, **changes: Any) -> None:
    """Make the coming `import torch` find `num_devices` simulated H100s."""
    session.set_pricer(pricer)
    properties = {**PROPERTIES, **changes}
    boot.arm(boot.BootConfig(num_devices=num_devices, device_properties=properties, context_bytes=600 << 20))


def launches() -> list[tuple[OpCall, int, int]]:
    """(call, device, stream) of everything launched since somebody last asked, in order."""
    by_number = {number: call for call, number in session._session.signatures.items()}
    data = sys.modules["phantora_native"].drain()
    return [(by_number[a], device, b) for kind, device, _, _, a, b, _ in RECORD.iter_unpack(data) if kind == Kind.OP]


def names() -> list[str]:
    """Names of the launches since somebody last asked."""
    return [call.name.removeprefix("aten::") for call, _, _ in launches()]


def stand_ins() -> dict[str, int]:
    """Reads of unknown values so far, by operator."""
    counts: dict[str, int] = {}
    for where, count in session._session.stand_ins.items():
        operator = where.partition(" at ")[0]
        counts[operator] = counts.get(operator, 0) + count
    return counts


def probe(function: Callable[[], object]) -> Callable[[], object]:
    """Decorator: run the function now. A failure is told and does not stop the other probes (see `finish`)."""
    try:
        function()
    except BaseException:
        _failures.append(function.__name__)
        print(f"FAILED {function.__name__}")
        traceback.print_exc(file=sys.stdout)
    return function


def raises(kind: type[BaseException], text: str, function: Callable[[], object]) -> None:
    """Assert that `function` raises `kind` with `text` in its message."""
    try:
        function()
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"{kind.__name__} ({text}) was not raised")


def measured() -> dict[str, Any]:
    """What torch 2.11.0+cu130 on an H200 answered to the same questions (2026-11-29)."""
    path = Path(__file__).parent / "data" / "h200_torch211.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def operators(function: Callable[[], object]) -> list[list[Any]]:
    """[name, description of the result] of every operator that `function` calls, as a TorchDispatchMode sees them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[list[Any]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not str(func).startswith("profiler"):
                seen.append([str(func), _described(result)])
            return result

    with Watch():
        try:
            function()
        except RuntimeError as error:
            seen.append([str(error)[:90], str(error)[:90]])
    return json.loads(json.dumps(seen))


def _described(value: Any) -> Any:
    if hasattr(value, "stride"):
        return [list(value.shape), list(value.stride()), str(value.dtype), str(value.device)]
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def compare_operators(case: str, function: Callable[[], object], only: str = "") -> None:
    """Assert that `function` calls the operators, with the results, that the same code called on an H200."""
    expected, seen = measured()["dispatch"][case], operators(function)
    if only:
        expected, seen = ([op for op in ops if re.search(only, op[0])] for ops in (expected, seen))
    differences = [(a, b) for a, b in itertools.zip_longest(expected, seen) if a != b]
    assert not differences, (case, differences[0])


def finish() -> None:
    """End the script: exit code 1 when a probe failed."""
    if _failures:
        raise SystemExit(f"failed: {', '.join(_failures)}")
    print("all probes passed")
