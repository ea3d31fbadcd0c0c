"""Processes, threads and signals of a job that do what they should not: the run ends, says why, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

START = """
import os, sys, signal, subprocess, threading, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
"""


def living(words: str) -> list[str]:
    """Processes (no zombies) whose command line contains `words`."""
    return subprocess.run(["pgrep", "-r", "R,S,D,T", "-f", words], capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '{}'], start_new_session=True)",
        "os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execvp('sleep', ['sleep', '{}']))",
        "subprocess.Popen(['sleep', '{}'], start_new_session=True, close_fds=False)",
    ],
)
@pytest.mark.parametrize("end", ["", "raise ValueError('x')"])
def test_detached_children_end_with_their_rank(simulate, start: str, end: str) -> None:
    seconds = f"98{os.getpid()}"
    done = simulate(f"import os, subprocess\n{start.format(seconds)}\nprint('done')\n{end}", timeout=30)
    assert done.code == (1 if end else 0) and "done" in done.stdout, done.stderr
    assert living(f"sleep {seconds}") == []


def test_failure_with_a_thread_that_goes_on(simulate) -> None:
    script = START + """
if rank == 1:
    threading.Thread(target=threading.Event().wait).start()
    print("at", time.monotonic(), flush=True)
    raise ValueError("lost")
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    done = simulate(script, 2, timeout=30)
    assert done.code == 1 and "rank 1 failed" in done.stderr and "ValueError: lost" in done.stderr
    assert time.monotonic() - float(done.log(1).split()[1]) < 5 + 1


def test_stopped_rank(simulate) -> None:
    script = START + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    done = simulate(script, 2, timeout=45)
    assert done.code == 1 and "rank 1 is stopped" in done.stderr and "rank 1 stopped by a signal" in done.stderr, done.stderr
    assert done.summary["complete"] is False


def test_stopped_rank_that_goes_on(simulate) -> None:
    script = START + """
if rank == 1:
    subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    done = simulate(script, 2, timeout=45)
    assert done.code == 0 and "rank 1 is stopped" in done.stderr and "outside" not in done.stderr, done.stderr


@pytest.mark.parametrize("signals", [["INT"], ["INT", "INT"], ["TERM"], ["HUP"]])
def test_signals_end_the_run_in_order(signals: list[str], tmp_path: Path) -> None:
    script, out, seconds = tmp_path / "train.py", tmp_path / "run", f"97{os.getpid()}"
    script.write_text(START + f"""
subprocess.Popen(["sleep", "{seconds}"], start_new_session=True)
while True:
    dist.all_reduce(x)
    torch.cuda.synchronize()
    print("ready", flush=True)
""")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", "2", "--out", str(out), str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline().strip() == "ready"
    for name in signals:
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(0.1)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + getattr(signal, f"SIG{signals[0]}") and "Traceback" not in stderr, stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"] is False and summary["ranks"][0]["num_communications"] > 0
    assert living(str(script)) == [] and living(f"sleep {seconds}") == []
    assert list((tmp_path / "tmp").glob("phantora-*")) == []


@pytest.mark.parametrize("delay_s", [0.3, 0.8])
def test_early_interrupt(delay_s: float, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time, threading\nthreading.Event().wait(60)\n")
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--out", str(tmp_path / "run"), str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode in (130, -signal.SIGINT)  # the latter: before a line of ours was read
    assert living(str(script)) == []


def test_interrupt_of_the_ranks_alone(simulate) -> None:
    """SIGINT to the process that starts the ranks does nothing; a script's own KeyboardInterrupt is exit code 130."""
    done = simulate("import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nraise KeyboardInterrupt")
    assert done.code == 130 and done.stderr.count("Traceback") == 1, done.stderr


def test_internal_error_of_the_engine(simulate) -> None:
    script = START + """
if rank == 1:
    from phantora.intercept import session
    session.note("of an unknown kind")
while True:
    dist.all_reduce(x)
"""
    done = simulate(script, 2, timeout=30)
    assert done.code == 70 and "internal error" in done.stderr and "of an unknown kind" in done.stderr, done.stderr
    assert done.summary["complete"] is False and done.summary["ranks"][0]["num_communications"] > 0


@pytest.mark.parametrize(
    "code",
    ["sys.stdout = None", "sys.stderr = None", "sys.stdout.close()", "sys.stderr.close()", "sys.stdout = sys.stderr = object()"],
)
def test_streams_that_are_gone(simulate, code: str) -> None:
    assert simulate(f"import sys\n{code}").code == 0
    done = simulate(f"import sys\n{code}\nraise ValueError('lost')")
    assert done.code == 1 and "ValueError: lost" in done.stderr, done.stderr


def test_texts_that_cannot_be_sent(simulate) -> None:
    done = simulate("raise ValueError('\\udc80 is no character' + 'x' * 1000000)")
    assert done.code == 1 and "is no character" in done.summary["error"]
    assert len(done.summary["error"]) < 21_000 and done.summary["error"].endswith("xxx")


def test_job_that_starts_its_ranks_itself(simulate) -> None:
    done = simulate(
        """
import os, torch, torch.multiprocessing as mp, torch.distributed as dist
def work(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("nccl", rank=rank, world_size=2)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
""",
        timeout=60,
    )
    assert "is not part of the run" in done.stderr and any("is not part of the run" in note for note in done.summary["notes"])


def test_unseeded_generators_repeat(simulate) -> None:
    script = """
import os, random, numpy, torch
print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), list({"a", "b", "c", "d"}))
"""
    first, second = simulate(script, 2), simulate(script, 2)
    for rank in range(2):
        assert first.log(rank) == second.log(rank) != ""
    assert first.log(0).split()[:2] != first.log(1).split()[:2]


def test_main_thread_that_waits_for_a_thread_of_its_own(simulate) -> None:
    """Not a wait for something outside: the thread waits for the engine."""
    script = START + """
from concurrent.futures import ThreadPoolExecutor
torch.cuda._sleep(1)
def work():
    torch.cuda.set_device(rank)
    dist.all_reduce(x)
    torch.cuda.synchronize()
if rank == 0:
    time.sleep(1)
with ThreadPoolExecutor(1) as pool:
    for _ in range(3):
        pool.submit(work).result()
"""
    done = simulate(script, 2, timeout=40)
    assert done.code == 0 and "outside the simulation" not in done.stderr, done.stderr
