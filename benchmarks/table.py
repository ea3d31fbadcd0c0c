"""`python benchmarks/table.py`: the speed targets and what this machine reaches, as one table.

Machines are noisy: CPU seconds where possible, differences between a long and a short run of the same command (so that
start-up cancels), medians inside.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import astra_speed

HERE = Path(__file__).parent


def memory_of_tree(pid: int) -> int:
    """Proportional set size in bytes of a process and its descendants (shared pages counted once)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    total, stack = 0, [pid]
    while stack:
        one = stack.pop()
        stack += children.get(one, [])
        try:
            found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text(), re.M)
        except OSError:
            continue
        total += int(found.group(1)) * 1024 if found else 0
    return total


def simulate(script: str, *args: str, nproc: int = 1, nnodes: int = 1, cluster: str = "dgx-h100") -> tuple[str, float, float, int]:
    """(output, wall s, CPU s of all processes, peak memory in bytes)."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", str(nproc), "--nnodes", str(nnodes)]
        command += ["--cluster", cluster, "--out", out, str(HERE / script), *args]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        peak = 0
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()
        while process.poll() is None:
            peak = max(peak, memory_of_tree(process.pid))
            time.sleep(0.5)
        reader.join()
        wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"{script} failed:\n{output[0]}")
    return output[0], wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak


def row(what: str, target: str, value: str) -> None:
    print(f"{what:68} {target:>18} {value:>26}", flush=True)


def main() -> None:
    row("what", "target", "here")
    short, _, cpu_short, _ = simulate("llama_step.py", "6")
    long, _, cpu_long, _ = simulate("llama_step.py", "26")
    rank_cpu = float(re.search(r"median ([\d.]+)", long).group(1))  # type: ignore[union-attr]
    row("Llama-2-7B step, 1 rank, engine + recording + traces, CPU s", "<= 0.1", f"{(cpu_long - cpu_short) / 20:.4f}")
    fake = subprocess.run([sys.executable, str(HERE / "fake_tensor_step.py")], capture_output=True, text=True, check=True).stdout
    fake_cpu = float(re.search(r"median ([\d.]+)", fake).group(1))  # type: ignore[union-attr]
    row("the same step: rank process / FakeTensorMode, CPU s", ">= 30x", f"{rank_cpu:.4f} / {fake_cpu:.3f} = {fake_cpu / rank_cpu:.0f}x")
    _, wall, cpu, peak = simulate("llama_fsdp2.py", nproc=8)
    row("Llama-2-7B (transformers) FSDP2, 8 ranks, one step: wall s, GB", "< 60 s, < 4 GB", f"{wall:.1f} s ({cpu:.1f} CPU), {peak / 1e9:.2f} GB")
    _, wall, cpu, peak = simulate("ddp_small.py", nproc=8, nnodes=8)
    row("small DDP script, 64 ranks: wall s, GB", "< 60 s, < 6 GB", f"{wall:.1f} s ({cpu:.1f} CPU), {peak / 1e9:.2f} GB")
    traces = subprocess.run([sys.executable, str(HERE / "perfetto_speed.py")], capture_output=True, text=True, check=True).stdout
    for what, line in zip(("half of them launches", "kernels alone"), traces.splitlines()):
        row(f"Perfetto trace of 1,000,000 slices, {what}: CPU s, memory", "<= 1.5 s, 150 MB", line[45:].strip().rpartition(", ")[0])
    for what, target, value in astra_speed.rows():
        row(what, target, value)
    print()
    subprocess.run([sys.executable, str(HERE / "interception.py")], check=True)


if __name__ == "__main__":
    main()
