"""Python processes of a job that the launcher did not fork: spawn DataLoader workers, managers, tools.

`intercept/site/sitecustomize.py` calls this in every such process before it can import torch. The process gets the simulated
device, so that its torch is the one its parent has, but no connection: what it does on the device is not part of the run.
"""

from __future__ import annotations

import os

from phantora import intercept
from phantora.launch.options import JobOptions

ENDPOINT, OPTIONS = "PHANTORA_ENDPOINT", "PHANTORA_OPTIONS"


def child_environment(options: JobOptions, endpoint: str) -> dict[str, str]:
    """What a rank's own child processes need in their environment."""
    folder = os.path.join(os.path.dirname(os.path.abspath(intercept.__file__)), "site")
    path = os.environ.get("PYTHONPATH", "")
    return {ENDPOINT: endpoint, OPTIONS: options.to_json(), "PYTHONPATH": folder + (os.pathsep + path if path else "")}


def attach_from_environment() -> None:
    """Arm this process as its parent rank was; imports nothing of torch."""
    text = os.environ.get(OPTIONS)
    if text is None:
        return
    from phantora.launch import outside_groups
    from phantora.launch.rank_setup import arm_interception

    arm_interception(JobOptions.from_json(text), (outside_groups.install,))
