"""Runs ASTRA-sim's own binary on Chakra traces and reads what it prints.

Source of the output and of the traps (exit code 0 on a deadlock): ASTRA-sim 518bd513, Workload.cc, analytical network.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
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
            code, output = _run(words, folder, limit_s)
        except subprocess.TimeoutExpired:
            raise UserError(f"{binary} did not end within {limit_s:g} s (--time-limit)") from None
        except OSError as error:
            raise UserError(f"{binary} cannot be run: {error.strerror}") from None
    times = {int(npu): int(cycles) for npu, cycles in _FINISHED.findall(output)}
    if code:
        raise UserError(f"{binary} failed with exit code {code}: {_last_lines(output)}")
    if not times:
        what = "a deadlock of all NPUs, or no ASTRA-sim" if output.strip() else "it is no ASTRA-sim"
        raise UserError(f"{binary} ended without a line 'sys[NPU] finished' ({what}): {_last_lines(output)}")
    missing = [npu for npu in range(num_npus) if npu not in times]
    if missing:
        raise UserError(
            f"{binary}: {len(missing)} of {num_npus} NPUs did not finish (the first: {missing[0]}): a deadlock"
        )
    return [times[npu] for npu in range(num_npus)]


def _run(words: Sequence[str], folder: Path, limit_s: float) -> tuple[int, bytes]:
    """(exit code, output) of a program, of which nothing is left running in any case. TimeoutExpired; OSError."""
    with _ended_in_order(), subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=limit_s)
        finally:  # a wrapper's children too: they are of the session that was made for it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output + errors


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does: a program in a session of its own hears none of them."""

    def end(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is signal.SIG_DFL:
                before[signum] = signal.signal(signum, end)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _last_lines(output: bytes) -> str:
    lines: Sequence[str] = output.decode(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-_SHOWN_LINES:]) or "it printed nothing"
