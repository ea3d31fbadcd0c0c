"""The warm parent: imports torch and the simulated device once, then forks the ranks.

A forked rank shares the imported modules with its parent (copy-on-write), so it costs tens of MB and milliseconds instead of
hundreds of MB and seconds. It reports each rank's end to the engine, and ends all of them, and whatever they started, when the
engine says so or is gone.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from phantora.errors import UserError
from phantora.launch import process_tree
from phantora.launch.endpoint import remove_directory
from phantora.launch.options import JobOptions


def main() -> None:
    """`python -m phantora.launch.warm_parent FD`: FD is the control socket; one JSON line says what to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears Ctrl-C, and says what is to end
    control = socket.socket(fileno=int(sys.argv[1]))
    request = read_line(control)
    options = options_of(request)
    process_tree.become_subreaper()
    warm_parent = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: _end_now(request["endpoint"], warm_parent))
    process_tree.die_with_parent(signal.SIGTERM)
    try:
        _warm_up(options)
    except UserError as error:
        report(control, {"error": str(error), "code": 2})
        return
    except BaseException:
        report(control, {"error": "the simulated device could not be set up:\n" + traceback.format_exc(), "code": 1})
        return
    pipes = {(rank, stream): fd for rank, stream, fd in request["pipes"]}
    process_tree.outlive_parent()  # from here on the closed control socket says it, so that the ranks' children end too
    ranks = _fork_ranks(options, request["endpoint"], pipes, control)
    for fd in pipes.values():
        os.close(fd)
    _wait(control, ranks)
    process_tree.kill_descendants()
    if not is_engine_there(control):
        remove_directory(request["endpoint"])


def _end_now(endpoint: str, warm_parent: int) -> None:
    if os.getpid() == warm_parent:  # not in a rank that has just been forked
        process_tree.kill_descendants()
        remove_directory(endpoint)
    os._exit(128 + signal.SIGTERM)


def is_engine_there(control: socket.socket) -> bool:
    try:
        return control.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _warm_up(options: JobOptions) -> None:
    from phantora.launch import outside_groups
    from phantora.launch.rank_setup import arm_interception

    arm_interception(options, (outside_groups.install,))
    import numpy.random  # noqa: F401  # seeded in every rank
    import torch

    if options.world_size > 1:
        # Imported lazily by most distributed scripts; done once here instead of once per rank.
        import torch._dynamo
        import torch.distributed.fsdp
        import torch.distributed.pipelining
        import torch.distributed.tensor.parallel
        import torch.nn.parallel
        import torch.optim  # noqa: F401
    if options.is_module:
        _check_module(options.script)
    for module in options.preload:
        _preload(module)
    gc.collect()
    gc.freeze()  # the collector must not touch (and so copy) what the ranks share


def _preload(name: str) -> None:
    """What it asks for while it is imported (environment, command line, device) it asks here, not in a rank."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UserError(f"--preload {name}: {type(error).__name__}: {error}") from None
    if threading.active_count() > 1:
        raise UserError(f"--preload {name}: it starts threads, which a forked rank would lack; let the ranks import it")


def _check_module(name: str) -> None:
    """Imports nothing: a package may read the command line and the environment, which are those of a rank only in a rank."""
    sys.path.insert(0, os.getcwd())
    first, *parts = name.split(".")
    spec = importlib.util.find_spec(first)
    for part in parts:
        if spec is None:
            break
        first = f"{first}.{part}"
        spec = importlib.machinery.PathFinder.find_spec(first, spec.submodule_search_locations or [])
    if spec is None:
        raise UserError(f"module not found: {name} (searched sys.path of {sys.executable})")


def _fork_ranks(options: JobOptions, endpoint: str, pipes: dict[tuple[int, str], int], control: socket.socket) -> dict[int, int]:
    """pid -> rank."""
    ranks, parent = {}, os.getpid()
    for rank in range(options.world_size):
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_rank(options, rank, endpoint, pipes, parent)
        ranks[pid] = rank
    return ranks


def _become_rank(options: JobOptions, rank: int, endpoint: str, pipes: dict[tuple[int, str], int], parent: int) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)
        process_tree.die_with_parent(signal.SIGKILL, parent)
        process_tree.become_subreaper()  # so that what this rank leaves behind can be told from what another one runs
        from phantora.launch.rank_process import run_rank

        run_rank(options, rank, endpoint, pipes)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # run_rank does not return


def _wait(control: socket.socket, ranks: dict[int, int]) -> None:
    """Reap ranks and report, until none is left or the engine wants an end."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    while True:
        _reap(control, ranks)
        if not ranks:
            return
        for key, _ in selector.select(timeout=1.0):
            if key.fileobj is control:
                return  # 'kill', or the engine is gone
            os.read(wake, 4096)


def _reap(control: socket.socket, ranks: dict[int, int]) -> None:
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid in ranks:
            ended.append((ranks.pop(pid), status))
    if ended:
        process_tree.kill_descendants(without=ranks)  # what they left behind: loader workers, servers
    for rank, status in ended:
        report(control, {"rank": rank, "status": status})


def options_of(request: dict[str, Any]) -> JobOptions:
    return JobOptions.from_json(json.dumps(request["options"]))


def read_line(control: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        chunk = control.recv(1 << 16)
        if not chunk:
            sys.exit(1)
        data += chunk
    return json.loads(data)


def report(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass


if __name__ == "__main__":
    main()
