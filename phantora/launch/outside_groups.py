"""Says so when a process that is no rank of the run makes an NCCL process group: what it does there is not simulated.

Such processes come from jobs that start their ranks themselves (torch.multiprocessing.spawn, subprocess): they have the
simulated device, but no connection to the engine.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from typing import Any

from phantora.launch.group_hook import before_init_process_group

_TEXT = (
    "a process that the script started itself (torch.multiprocessing.spawn, subprocess) called init_process_group with nccl: "
    "it is not part of the run, and its collectives are not simulated; let phantora start the ranks (--nproc-per-node N), as torchrun does"
)


def install() -> None:
    """Once torch is imported, in a rank (for its forked children) or in a process of its own."""
    before_init_process_group(_warn_if_outside)


def _warn_if_outside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from phantora.intercept import session

    backend = args[0] if args else kwargs.get("backend")
    if not session.is_rank_process() and (backend is None or "nccl" in str(backend).lower()):
        _warn()


@functools.cache
def _warn() -> None:
    print(f"phantora: warning: {_TEXT}", file=sys.stderr, flush=True)
    _tell_the_engine(os.environ.get("PHANTORA_ENDPOINT", ""))


def _tell_the_engine(endpoint: str) -> None:
    """So that it stands in the notes of the run, too."""
    import msgpack

    from phantora.engine.protocol import HEADER, Frame

    data = msgpack.packb({"remark": _TEXT})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            sock.connect(endpoint)
            sock.sendall(HEADER.pack(len(data) + 1, Frame.NOTE) + data)
    except OSError:
        pass  # the run has ended
