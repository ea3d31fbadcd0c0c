"""The ranks' output on the terminal and in the logs, whatever the terminal is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phantora.launch.options import JobOptions
from phantora.launch.output import OutputPipes


class Shown:
    """OutputPipes of two ranks (or one), and what they put on the terminal."""

    def __init__(self, folder: Path, ranks: str = "all") -> None:
        self.texts: list[str] = []
        options = JobOptions(script="x", nproc_per_node=2, out=str(folder), log_dir=str(folder), ranks_on_terminal=ranks)
        for rank in (0, 1):
            options.rank_log(rank, "stdout").parent.mkdir()
        self.pipes = OutputPipes(options, lambda text, stream: self.texts.append(text))
        self._readers = dict(zip(self.pipes.write_ends, (reader for _, reader in self.pipes.readers)))

    def write(self, rank: int, data: bytes, stream: str = "stdout") -> None:
        os.write(self.pipes.write_ends[rank, stream], data)
        self._readers[rank, stream]()

    def wait(self) -> None:
        time.sleep(0.12)
        self.pipes.show_held()

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_lines_of_several_ranks_have_prefixes(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(0, b"one\ntwo\n\nth")
    shown.write(1, b"a\x0cb\n")
    shown.write(0, b"ree\n")
    assert shown.text == "[rank 0] one\n[rank 0] two\n[rank 0] \n[rank 1] a\x0cb\n[rank 0] three\n"
    assert (tmp_path / "rank_0" / "stdout.log").read_bytes() == b"one\ntwo\n\nthree\n"


def test_beginning_of_a_line_is_shown_soon(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(0, b"step 1")
    assert shown.text == ""
    shown.wait()
    assert shown.text == "[rank 0] step 1"
    shown.write(1, b"other\n")
    shown.write(0, b" goes on\n")
    assert shown.text == "[rank 0] step 1\n[rank 1] other\n[rank 0]  goes on\n"


def test_progress_bars(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.write(0, b"\r10%")
    shown.wait()
    shown.write(0, b"\r20%\r")
    shown.wait()
    shown.write(0, b"\n")
    assert shown.text == "[rank 0] \r[rank 0] 10%\r[rank 0] 20%\r\n"


def test_characters_that_are_cut(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "0")
    shown.write(0, "ä".encode()[:1])
    shown.wait()
    shown.write(0, "ä".encode()[1:] + b"\xff\n")
    assert shown.text == "ä�\n"


def test_a_very_long_line_costs_linear_time(tmp_path: Path) -> None:
    shown = Shown(tmp_path, "0")
    began = time.process_time()
    for _ in range(1000):
        shown.write(0, b"x" * 50_000)
    shown.pipes.close()
    assert len(shown.text) == 50_000_000 and time.process_time() - began < 5


def run(folder: Path, redirect: str, code: str = "print('x\\n' * 3, flush=True)") -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(code)
    command = f"{sys.executable} -m phantora.cli record-and-simulate --out {folder}/run {script} {redirect}"
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)


@pytest.mark.torch
@pytest.mark.parametrize("redirect", ["| head -1", "> /dev/full", ">&-", "2>&-", "> /dev/full 2> /dev/full", ">&- 2>&- <&-"])
def test_terminals_that_cannot_be_written(redirect: str, tmp_path: Path) -> None:
    done = run(tmp_path, redirect)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    assert (tmp_path / "run" / "logs" / "rank_0" / "stdout.log").read_text() == "x\nx\nx\n\n"
    assert (tmp_path / "run" / "trace.pftrace").exists()


@pytest.mark.torch
def test_exit_code_of_a_run_whose_terminal_is_gone(tmp_path: Path) -> None:
    assert run(tmp_path, "> /dev/full", "print('x', flush=True); raise SystemExit(3)").returncode == 3


@pytest.mark.torch
def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    """The disk fills up (here: a folder takes a file's place) while the job runs: the other results are written."""
    code = f"import os\nos.makedirs({str(tmp_path / 'run' / 'summary.json')!r})"
    done = run(tmp_path, "", code)
    assert done.returncode == 1 and "summary.json: Is a directory" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "run" / "trace.pftrace").exists()


def test_stream_without_descriptor() -> None:
    from phantora.launch import terminal

    stream = io.StringIO()
    terminal.write("text", stream)
    assert stream.getvalue() == "text"
