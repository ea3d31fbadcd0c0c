"""Python processes of a job that phantora did not fork: ranks of a user's own launcher, loader workers, managers, tools.

`intercept/site/sitecustomize.py` calls this in every such process before it can import torch. Every process gets the simulated
device. Those that a launcher started as ranks join the run (joining.py); others, such as loader workers of a rank, have no
connection: what they do on the device is not part of the run.
"""

from __future__ import annotations

import os

from phantora import intercept
from phantora.launch.options import JobOptions

ENDPOINT, OPTIONS = "PHANTORA_ENDPOINT", "PHANTORA_OPTIONS"


def child_environment(options: JobOptions, endpoint: str) -> dict[str, str]:
    """What the processes of a job need in their environment."""
    folder = os.path.join(os.path.dirname(os.path.abspath(intercept.__file__)), "site")
    path = os.environ.get("PYTHONPATH", "")
    if folder not in path.split(os.pathsep):
        path = folder + (os.pathsep + path if path else "")
    return {ENDPOINT: endpoint, OPTIONS: options.to_json(), "PYTHONPATH": path}


def attach_from_environment() -> None:
    """Arm this process as the run's ranks are; imports nothing of torch."""
    text = os.environ.get(OPTIONS)
    if text is None:
        return
    from phantora.launch import joining, outside_groups
    from phantora.launch.rank_setup import arm_interception

    options, endpoint = JobOptions.from_json(text), os.environ[ENDPOINT]
    if not options.launch_command or joining.is_below_a_rank(os.environ):
        arm_interception(options, (outside_groups.install,))
        return
    joining.seed_before_the_script(os.environ)
    arm_interception(options, (lambda: joining.install(options, endpoint),))
