"""torch.distributed on the simulated cluster.

A process group stays torch's own C++ ProcessGroup; its backends (`nccl`, `gloo`) are C++ FakeProcessGroup objects that
do nothing. All communication (the Python API, functional collectives, DDP's Reducer) passes the dispatcher as `c10d::*`
operators, and is intercepted there: at the CUDA key as NCCL kernels on streams, at the CPU key as Gloo calls whose data
travel through the engine. Stores are kept by the engine, so that every wait between ranks is seen by it.

`before` and `after` enclose the import of torch.distributed.distributed_c10d; `install_ops` comes when torch is
complete.
"""

from __future__ import annotations

from typing import Any


def before() -> None:
    """distributed_c10d is about to run: it takes ProcessGroupNCCL, ProcessGroupGloo and TCPStore by name."""
    from phantora.intercept.distributed import process_group, store

    process_group.install()
    store.install()


def after(c10d: Any) -> None:
    """`c10d` (torch.distributed.distributed_c10d) has run and nobody has imported its functions by name yet."""
    from phantora.intercept.distributed import groups, split

    groups.patch(c10d)
    split.patch(c10d)


def install_ops() -> None:
    """Kernels of the c10d operators; needs the native module and a complete `torch`."""
    from phantora.intercept import session
    from phantora.intercept.distributed import coalescing, contents, device_collectives, host_collectives, launches
    from phantora.intercept.distributed import device_exchange, device_p2p, host_exchange  # noqa: F401  (more kernels)

    session.set_fetch(contents.fetch)
    launches.install_graph_replay()
    device_collectives.install()
    host_collectives.install()
    coalescing.install()
