"""Points at which the host waits for the device inside an operator."""

from __future__ import annotations

import torch


def sync_current_stream(device: int) -> None:
    """Wait for the current stream of `device`, through torch's own stream object and so through the device guard."""
    torch.accelerator.current_stream(device).synchronize()
