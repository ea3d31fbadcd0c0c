"""`python benchmarks/perfetto_speed.py`: CPU time, peak memory and size of a Perfetto trace of one million slices.

One million slices in all: half a million kernels with all their arguments, each with its launch and an arrow. Then one
million kernels without launches. Each is written by a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

import numpy as np
from phantora.exporters.perfetto import write_perfetto

from phantora.trace.model import RankTrace, Run, SignatureInfo

_RANKS, _SIGNATURES, _MARKS = 8, 500, 100


def made_up(num_kernels: int) -> Run:
    """`num_kernels` kernels on eight ranks, with ranges of a hundred kernels each on the host."""
    tensors = (("bfloat16", (4096, 4096)),)
    run = Run(["x"], "none", _RANKS, _RANKS)
    run.signatures = [
        SignatureInfo(f"aten::op{i}", tensors, tensors, 3000, 1, "measured", 10**12, 10**8, "gemm")
        for i in range(_SIGNATURES)
    ]
    count = num_kernels // _RANKS
    for rank in range(_RANKS):
        trace, start = RankTrace(rank), np.arange(count, dtype=np.int64) * 5000 + 10_000
        trace.device, trace.stream = array("h", bytes(2 * count)), array("q", bytes(8 * count))
        trace.thread = array("h", bytes(2 * count))
        trace.signature = array("q", (np.arange(count) % _SIGNATURES).tobytes())
        trace.issue_ns, trace.start_ns = array("q", (start - 5000).tobytes()), array("q", start.tobytes())
        trace.end_ns = array("q", (start + 3000).tobytes())
        for mark in range(0, count - _MARKS, _MARKS):
            for time_ns, depth in ((trace.issue_ns[mark], 1), (trace.issue_ns[mark + _MARKS], -1)):
                trace.mark_ns.append(time_ns)
                trace.mark_name.append("layer")
                trace.mark_depth.append(depth)
        run.ranks.append(trace)
    return run


def measure(num_kernels: int, launches: bool) -> str:
    """'1.02 s CPU, 105 MB beside the run, 61 MB file' of one trace."""
    run = made_up(num_kernels)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = write_perfetto(run, Path(folder) / "trace.pftrace", launches=launches)
        cpu_s, size = time.process_time() - began, path.stat().st_size
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = f"{(after - before) / 1024:.0f} MB more ({after / 1024:.0f} in all)"
    return f"{cpu_s:.2f} s CPU, {memory}, {size / 1e6:.0f} MB file"


def main() -> None:
    """Both cases, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("launches", "kernels"))
    only = parser.parse_args().only
    if only:
        print(measure(500_000, True) if only == "launches" else measure(1_000_000, False))
        return
    for what, text in (
        ("launches", "500,000 kernels with launches and arrows"),
        ("kernels", "1,000,000 kernels alone"),
    ):
        result = subprocess.run([sys.executable, __file__, "--only", what], capture_output=True, text=True, check=True)
        print(f"{text:45} {result.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
