"""A process that measures one group of a sweep from one case on, and the watch over it.

A kernel that never ends cannot be interrupted from within its process (seen: cuDNN's GRU with 2,048 hidden units in
float16), so a worker that writes nothing for a while is killed and another one goes on after the case it hung in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from phantora.compute.sweep.groups import groups_of
from phantora.errors import UserError

SILENCE_S = 30.0


def watch(path: Path, seconds: float, families: tuple[str, ...] = (), recording: Path | None = None) -> None:
    """Sweeps `families`, or the operators in `recording`, into `path` (JSON lines) for at most about `seconds`."""
    path.write_text("", encoding="utf-8")
    groups = groups_of(families, seconds) if recording is None else {"recording": seconds}
    source = ",".join(families) if recording is None else str(recording)
    for group, share in groups.items():
        until, start = time.monotonic() + share, 0
        while (left := until - time.monotonic()) > 10:
            command = [sys.executable, "-m", __name__, str(path), str(start), str(left), group, source]
            if _runs_through(subprocess.Popen(command), path, until + 20):
                break
            start = max(start, last_case(path) + 1) + 1  # the one after the case that hung


def _runs_through(worker: subprocess.Popen[bytes], path: Path, until: float) -> bool:
    """False when the worker hung (it is killed then)."""
    size, changed = -1, time.monotonic()
    while worker.poll() is None:
        if path.stat().st_size != size:
            size, changed = path.stat().st_size, time.monotonic()
        if time.monotonic() - changed > SILENCE_S or time.monotonic() > until:
            worker.kill()
            worker.wait()
            return time.monotonic() > until
        time.sleep(0.2)
    return True


def require_gpu() -> None:
    """UserError where nothing can be measured."""
    try:
        import torch
    except ImportError:
        raise UserError("calibrate needs torch with CUDA on a machine with a GPU; torch is not installed") from None
    if not torch.cuda.is_available():
        raise UserError("calibrate needs a GPU: torch.cuda.is_available() is False on this machine")


def last_case(path: Path) -> int:
    """The greatest number of a case whose time was written; -1 when there is none."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))
    return max((row["case"] for row in rows if "op" in row), default=-1)


def main() -> None:
    from phantora.compute.sweep.case import Maker
    from phantora.compute.sweep.measure import provenance, sweep, write
    from phantora.compute.sweep.replay import recorded_cases
    from phantora.compute.sweep.standard import standard_cases

    path, start, seconds, group, source = *sys.argv[1:3], float(sys.argv[3]), *sys.argv[4:6]
    if group == "recording":
        every = [(group, case) for case in recorded_cases(Path(source))]
    else:
        every = standard_cases(Maker(), tuple(source.split(",")))
    chosen = [(number, case) for number, (own, case) in enumerate(every) if own == group and number >= int(start)]
    with open(path, "a", encoding="utf-8") as out:
        write(out, {"provenance": provenance()})
        print(group, sweep(chosen, out, seconds), "of", len(chosen), flush=True)


if __name__ == "__main__":
    main()
