"""Run every measurement on a machine with at least two GPUs, each as its own process with its own time limit.

usage: python run_all.py --out DIR [PART ...]      (all parts by default; --list names them)

Results go to DIR as each part ends, so that a run cut short keeps what it had; training records to DIR/training.json,
their timelines to DIR/timelines/. DIR/log.txt holds what the parts printed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cases import TRAINING
from ranks import SAFE_ENVIRONMENT

HERE = Path(__file__).resolve().parent

BENCHES = {
    "machine": (["machine.py"], 40),
    "nccl": (["nccl_bench.py"], 300),
    "overlap": (["overlap_bench.py"], 90),
    "host": (["host_bench.py"], 120),
}
ORDER = [*BENCHES, *TRAINING]


def command(part: str, out: Path) -> tuple[list[str], float]:
    if part in BENCHES:
        (script, *options), seconds = BENCHES[part]
        return [sys.executable, str(HERE / script), *options, "--out", str(out)], seconds
    ranks, (script, *options), seconds = TRAINING[part]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", "29511"]
    return [*launcher, str(HERE / script), "--case", part, *options, "--profile", str(out / "timelines")], seconds


def run(part: str, out: Path, log: Path) -> str:
    """The part's standard output and error; a part that runs late is ended, with its children."""
    arguments, seconds = command(part, out)
    environment = os.environ | SAFE_ENVIRONMENT | {"OMP_NUM_THREADS": "8", "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output = end(process) + f"\nended after {seconds} s"
    with log.open("a") as file:
        file.write(f"== {part}: exit {process.returncode}, {time.monotonic() - start:.1f} s\n{output}\n")
    print(f"== {part}: exit {process.returncode}, {time.monotonic() - start:.1f} s", flush=True)
    return output


def end(process: subprocess.Popen) -> str:
    """End a part: first politely, so that torchrun ends its workers, which are sessions of their own."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=15)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    if options.list or options.out is None:
        print("\n".join(ORDER))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    records = []
    for part in options.parts or ORDER:
        output = run(part, options.out, options.out / "log.txt")
        found = [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]
        records += found
        if found:
            (options.out / "training.json").write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
            print({key: value for key, value in found[0].items() if key not in ("ranks", "all_ms")}, flush=True)
        else:
            print(output[-2500:], flush=True)


if __name__ == "__main__":
    main()
