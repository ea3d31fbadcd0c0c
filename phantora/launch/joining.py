"""How a process that a launcher started becomes a rank of the run (`record-and-simulate -- COMMAND...`).

* RANK and WORLD_SIZE in its environment (torchrun, deepspeed, accelerate, Lightning's children): when torch is imported;
* none there: when it calls init_process_group (torch.multiprocessing.spawn, Lightning's first process), with the rank and
  world size of that call; what it did on its device before is delivered then;
* neither, though it has worked on the device (`-- python train.py`): when it ends, as the only rank of the run.

Processes below a rank (loader workers, tools) never join.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from phantora.errors import UserError
from phantora.launch.group_hook import before_init_process_group
from phantora.launch.options import JobOptions

RANK_PID = "PHANTORA_RANK_PID"


class _Leaving:
    """What this process knows of its own end."""

    code = 0
    error: str | None = None


def is_below_a_rank(environment: Mapping[str, str]) -> bool:
    """Whether a rank of the run is among the ancestors."""
    return RANK_PID in environment


def seed_before_the_script(environment: Mapping[str, str]) -> None:
    """What a script that seeds nothing draws: different on each rank, the same in every run. Imports no numpy."""
    from phantora.intercept.boot import Hook, HookFinder

    rank = _number(environment, "RANK") or _number(environment, "LOCAL_RANK") or 0
    random.seed(rank)
    sys.meta_path.insert(0, HookFinder({"numpy.random": Hook(None, lambda module: module.seed(rank))}))


def install(options: JobOptions, endpoint: str) -> None:
    """At the end of `import torch`: join now, or be ready to."""
    import torch

    rank, world_size = _number(os.environ, "RANK"), _number(os.environ, "WORLD_SIZE")
    torch.default_generator.manual_seed(rank or _number(os.environ, "LOCAL_RANK") or 0)
    if rank is not None and world_size is not None:
        join(options, endpoint, rank, world_size)
        return
    _join_with_the_group(options, endpoint)
    atexit.register(_join_late, options, endpoint)


def join(options: JobOptions, endpoint: str, rank: int, world_size: int) -> None:
    """Connect this process to the engine. It ends with one line when it cannot be a rank of the run."""
    from phantora.intercept import session
    from phantora.launch.rank_process import patch_exit
    from phantora.launch.rank_setup import set_up_rank

    local_size = _number(os.environ, "LOCAL_WORLD_SIZE") or _ranks_per_node(options, world_size)
    shaped = options.with_world(world_size, local_size)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(endpoint)
        set_up_rank(shaped, rank)
    except (OSError, UserError) as error:
        print(f"phantora: rank {rank} cannot join the run: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    os.environ[RANK_PID] = str(os.getpid())
    _dump_stacks_on_request(shaped, rank)
    session.attach(connection, rank, world_size, local_size)
    patch_exit()
    _watch_the_end()


def _ranks_per_node(options: JobOptions, world_size: int) -> int:
    from phantora.cluster import load_cluster

    return min(world_size, load_cluster(options.cluster).gpus_per_node)


def _join_with_the_group(options: JobOptions, endpoint: str) -> None:
    """Make init_process_group join first."""

    def join_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from phantora.intercept import session

        world_size, rank = _world_of(args, kwargs)
        if not session.is_rank_process() and not is_below_a_rank(os.environ) and rank is not None and world_size is not None:
            join(options, endpoint, rank, world_size)

    before_init_process_group(join_first)


def _world_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(world_size, rank) of a call init_process_group(backend, init_method, timeout, world_size, rank, ...)."""
    world_size = args[3] if len(args) > 3 else kwargs.get("world_size", -1)
    rank = args[4] if len(args) > 4 else kwargs.get("rank", -1)
    if world_size is None or world_size < 0:
        world_size = _number(os.environ, "WORLD_SIZE")
    if rank is None or rank < 0:
        rank = _number(os.environ, "RANK")
    return world_size, rank


def _join_late(options: JobOptions, endpoint: str) -> None:
    """The only rank of a run without process group, told at its end."""
    from phantora.intercept import session

    native = sys.modules.get("phantora_native")
    is_forked = native is None or session.is_rank_process() or is_below_a_rank(os.environ)
    if not is_forked and native.num_records():  # type: ignore[union-attr]
        join(options, endpoint, 0, 1)
        session.finish(_Leaving.code, _Leaving.error)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def _dump_stacks_on_request(options: JobOptions, rank: int) -> None:
    path = options.rank_log(rank, "stacks")
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR2, file=open(path, "w"), all_threads=True)  # stays open: the handler writes to it


def _watch_the_end() -> None:
    """Tell the engine how this process ends: by an exception, by sys.exit, or well."""
    from phantora.intercept import session

    hook, leave = sys.excepthook, sys.exit

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        _Leaving.code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        _Leaving.error = "".join(traceback.format_exception(kind, value, trace)).rstrip()
        if session.is_rank_process():
            session.finish(_Leaving.code, _Leaving.error)  # threads waited for may wait for a partner, for ever
        hook(kind, value, trace)

    def exit(status: Any = None) -> Any:
        if session.is_rank_process():
            _Leaving.code = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
        leave(status)

    sys.excepthook, sys.exit = excepthook, exit
    atexit.register(lambda: session.finish(_Leaving.code, _Leaving.error))
