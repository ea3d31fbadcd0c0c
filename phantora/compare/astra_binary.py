"""Runs ASTRA-sim's own binary on Chakra traces and reads what it prints.

Source of the output and of the traps (exit code 0 on a deadlock): ASTRA-sim 518bd513, Workload.cc, analytical network.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from phantora.errors import UserError

_FINISHED = re.compile(rb"sys\[(\d+)\] finished, (\d+) cycles")
_SHOWN_LINES = 3


def is_aware(binary: Path) -> bool:
    """Whether the name is that of the network with congestion, which has one dimension only."""
    name = binary.name.lower()
    return "aware" in name and "unaware" not in name


def check_binary(binary: Path) -> None:
    """UserError unless it is a program."""
    if not binary.is_file():
        raise UserError(
            f"--astra-sim {binary}: no such file (build ASTRA-sim's analytical backend, or leave it out for our copy)"
        )
    if not os.access(binary, os.X_OK):
        raise UserError(f"--astra-sim {binary} is not executable")


def finish_times_ns(binary: Path, folder: Path, configs: dict[str, Path], num_npus: int, limit_s: float) -> list[int]:
    """When each NPU ends. folder: of trace.RANK.et and comm_groups.json; configs: system, network, memory.

    UserError: it fails, exceeds the time limit, or not all NPUs finish (a deadlock).
    """
    with tempfile.TemporaryDirectory() as scratch:
        words = [
            str(binary.absolute()), "--workload-configuration=trace", "--comm-group-configuration=comm_groups.json",
            f"--system-configuration={configs['system'].absolute()}",
            f"--network-configuration={configs['network'].absolute()}",
            f"--remote-memory-configuration={configs['memory'].absolute()}", f"--logging-folder={scratch}/log",
        ]  # fmt: skip
        try:
            done = subprocess.run(words, cwd=folder, capture_output=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise UserError(f"{binary} did not end within {limit_s:g} s (--time-limit)") from None
        except OSError as error:
            raise UserError(f"{binary} cannot be run: {error.strerror}") from None
    output = done.stdout + done.stderr
    times = {int(npu): int(cycles) for npu, cycles in _FINISHED.findall(output)}
    if done.returncode:
        raise UserError(f"{binary} failed with exit code {done.returncode}: {_last_lines(output)}")
    missing = [npu for npu in range(num_npus) if npu not in times]
    if missing:
        raise UserError(
            f"{binary}: {len(missing)} of {num_npus} NPUs did not finish (the first: {missing[0]}): a deadlock"
        )
    return [times[npu] for npu in range(num_npus)]


def _last_lines(output: bytes) -> str:
    lines: Sequence[str] = output.decode(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-_SHOWN_LINES:]) or "it printed nothing"
