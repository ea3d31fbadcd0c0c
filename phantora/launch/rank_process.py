"""What a forked rank does: environment and output as under torchrun, connect, run the script, say how it ended."""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from typing import NoReturn

from phantora.launch.attach import child_environment
from phantora.launch.options import JobOptions
from phantora.launch.rank_setup import seed_generators, set_up_rank
from phantora.launch.texts import shortened

_MAX_THREADS = 4096  # torch.set_num_threads makes them


def run_rank(options: JobOptions, rank: int, endpoint: str, pipes: dict[tuple[int, str], int]) -> NoReturn:
    """Run the script as `rank`; ends the process with the script's exit code."""
    from phantora.intercept import session

    _redirect(options, rank, pipes)
    os.environ.update(rank_environment(options, rank))
    os.environ.update(child_environment(options, endpoint))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(endpoint)
    _configure_torch(rank)
    set_up_rank(options, rank)
    seed_generators(rank)
    session.attach(connection, rank, options.world_size, options.nproc_per_node)
    patch_exit()
    code, error = _run_script(options)
    _leave(code, error)


def rank_environment(options: JobOptions, rank: int) -> dict[str, str]:
    """The variables that torchrun sets. https://pytorch.org/docs/stable/elastic/run.html, 'Environment Variables'."""
    node, local_rank = divmod(rank, options.nproc_per_node)
    values = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": options.world_size,
        "LOCAL_WORLD_SIZE": options.nproc_per_node,
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": options.nnodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": options.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "phantora",
        "PHANTORA_RANK_PID": os.getpid(),
    }
    if options.nproc_per_node > 1:
        values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", 1)
    return {name: str(value) for name, value in values.items()}


def _redirect(options: JobOptions, rank: int, pipes: dict[tuple[int, str], int]) -> None:
    """Output into the rank's pipe to the engine (shown ranks) or its log file; text is written line by line."""
    for number, stream in ((1, "stdout"), (2, "stderr")):
        fd = pipes.get((rank, stream))
        if fd is None:
            fd = os.open(options.rank_log(rank, stream), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        os.dup2(fd, number)
    for fd in pipes.values():
        os.close(fd)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True, write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True, write_through=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    stacks = open(options.rank_log(rank, "stacks"), "w")  # stays open: the handler writes to it
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)


def _configure_torch(rank: int) -> None:
    """As many threads as asked for, which torch took from the environment of the warm parent. OpenMP 5.2, 21.1.2:
    a list of positive numbers; what is none is ignored."""
    import torch

    text = os.environ.get("OMP_NUM_THREADS")
    if text is None:
        return
    first = text.split(",")[0].strip()
    if first.isdecimal() and 0 < int(first) <= _MAX_THREADS:
        torch.set_num_threads(int(first))
    elif rank == 0:
        _say(f"phantora: warning: OMP_NUM_THREADS={shortened(text, 100)} is not a number of threads: ignored")


def _run_script(options: JobOptions) -> tuple[int, str | None]:
    """(exit code, traceback or None)."""
    sys.argv = [options.script, *options.script_args]
    try:
        if options.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as stop:
        return _exit_code(stop.code), None
    except BaseException as error:
        text = _script_traceback()
        _say(text)
        return 130 if isinstance(error, KeyboardInterrupt) else 1, text
    return 0, None


def _exit_code(code: object) -> int:
    """As the interpreter treats the argument of sys.exit."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        _say(str(code))
    except Exception:
        pass  # its __str__ is the script's
    return 1


def _say(text: str) -> None:
    """On stderr: the script's, or, when it closed or replaced that, where it began."""
    try:
        print(text, file=sys.stderr if sys.stderr is not None else sys.__stderr__, flush=True)
    except Exception:
        try:
            os.write(2, text.encode("utf-8", "backslashreplace") + b"\n")
        except OSError:
            pass


def _script_traceback() -> str:
    """The current exception without the frames of this launcher."""
    kind, value, trace = sys.exc_info()
    here = os.path.abspath(__file__)
    while trace is not None and trace.tb_frame.f_code.co_filename in (here, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(kind, value, trace)).rstrip()
    except Exception as error:  # an exception whose own methods fail
        return f"{kind.__name__ if kind else ''} (which cannot be shown: {type(error).__name__})"


def _leave(code: int, error: str | None) -> NoReturn:
    """Run what runs at exit, deliver everything, end without tearing the interpreter down."""
    from phantora.intercept import session

    error = None if error is None else shortened(error)
    if code:
        _flush()
        session.finish(code, error)  # before threads are waited for: they may wait for a partner, for ever
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # joins non-daemon threads, as at interpreter exit
        atexit._run_exitfuncs()
    except BaseException:
        _say(traceback.format_exc().rstrip())
    _flush()
    session.finish(code, error)
    session._real_exit(code)
    raise AssertionError("unreachable")


def patch_exit() -> None:
    """os._exit in the script ends the rank at once, but what was recorded is delivered first."""
    from phantora.intercept import session

    def leave(status: int) -> NoReturn:
        if session.is_rank_process():
            _flush()
            session.finish(status & 0xFF, f"os._exit({status}) was called" if status else None)
        session._real_exit(status)
        raise AssertionError("unreachable")

    leave.__name__ = "_exit"
    os._exit = leave


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # None, closed, or an object of the script's
