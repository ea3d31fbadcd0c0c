"""Points at which the host waits for the device inside an operator."""

from __future__ import annotations

import sys
from typing import Any

import torch

native: Any = sys.modules["phantora_native"]


def sync_current_stream(device: int) -> None:
    """Wait for the current stream of `device`, through torch's own stream object and so through the device guard."""
    if native.capturing() and native.stream(device) != 0:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    torch.accelerator.current_stream(device).synchronize()
