"""A test process with simulated devices: armed once, before torch is imported."""

from __future__ import annotations

import struct
import sys
from typing import Any, NamedTuple

import pytest

from phantora.compute.call import OpCall, Price
from phantora.engine.protocol import RECORD
from phantora.errors import UserError
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
CONTEXT_BYTES = 600 << 20
NUM_DEVICES = 8
KERNEL_NS, FORWARD_NS, BACKWARD_NS = 10_000, 5_000, 3_000


class ConstantPricer:
    """Every kernel takes KERNEL_NS, every launch FORWARD_NS or BACKWARD_NS."""

    def price(self, call: OpCall) -> Price:
        return Price(duration_ns=KERNEL_NS, num_kernels=1, source="roofline", flops=0, bytes=0, family="constant")

    def host_ns(self, call: OpCall) -> tuple[int, int]:
        return FORWARD_NS, BACKWARD_NS


class Record(NamedTuple):
    """One record of the native device, see phantora/engine/protocol.py."""

    kind: int
    device: int
    thread: int
    host_ns: int
    a: int
    b: int
    c: int


def records(data: bytes) -> list[Record]:
    try:
        return [Record(*fields) for fields in RECORD.iter_unpack(data)]
    except struct.error:  # not whole records
        raise AssertionError(f"{len(data)} bytes are not whole records") from None


def _arm() -> str:
    """Why there are no simulated devices in this process, or ''."""
    if boot.is_armed():
        return ""
    if "torch" in sys.modules:
        return "torch was imported in this process before the simulated device was armed"
    session.set_pricer(ConstantPricer())
    config = boot.BootConfig(
        num_devices=NUM_DEVICES, device_properties=PROPERTIES, context_bytes=CONTEXT_BYTES, parts=("patches", "kernels")
    )
    try:
        boot.arm(config)
    except UserError as error:
        return str(error)
    return ""


# Done when the tests are collected: by the time they run, another test may have imported torch.
_problem = _arm()


def arm() -> Any:
    """The native module, after `import torch`; skips when there can be no simulated devices here."""
    if _problem:
        pytest.skip(_problem)
    import torch  # noqa: F401

    return sys.modules["phantora_native"]
