"""Stores of torch.distributed, kept by the engine: a rank that waits for a key is seen to wait.

C++ code (PrefixStore, DDP, control collectives) reaches these Python stores through torch's own trampoline.
"""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

from torch._C import _distributed_c10d as _c10d

from phantora.intercept import session

_RealTCPStore: Any = _c10d.TCPStore
_RealFileStore: Any = _c10d.FileStore
_DEFAULT_TIMEOUT = datetime.timedelta(seconds=300)  # torch/csrc/distributed/c10d/Store.hpp, kDefaultTimeout

# C++ holds only the C++ half of a store; without its Python half, calls would find no implementation.
_stores: dict[str, "EngineStore"] = {}


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class EngineStore(_c10d.Store):
    """A view of the engine's key-value store; stores of one namespace share their keys."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._prefix = f"{namespace}/"
        self._timeout = _DEFAULT_TIMEOUT

    def _call(self, method: str, **fields: Any) -> dict[str, Any]:
        reply = session.call(f"store_{method}", **fields)
        if "ns" in reply:
            sys.modules["phantora_native"].wait_until_ns(reply["ns"])
        return reply

    def _key(self, key: str) -> str:
        return self._prefix + key

    def set(self, key: str, value: str | bytes) -> None:
        session.note("store_set", key=self._key(key), value=_as_bytes(value))

    def get(self, key: str) -> bytes:
        return self._call("get", key=self._key(key))["value"]

    def add(self, key: str, amount: int) -> int:
        return self._call("add", key=self._key(key), amount=int(amount))["value"]

    def append(self, key: str, value: str | bytes) -> None:
        self._call("append", key=self._key(key), value=_as_bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        fields = {"expected": _as_bytes(expected), "desired": _as_bytes(desired)}
        return self._call("compare_set", key=self._key(key), **fields)["value"]

    def check(self, keys: list[str]) -> bool:
        return self._call("check", keys=[self._key(key) for key in keys])["present"]

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Returns when all keys exist. Time limits are not kept: what can never come is found by the engine."""
        seconds = (timeout or self._timeout).total_seconds()
        self._call("wait", keys=[self._key(key) for key in keys], timeout_s=seconds)

    def delete_key(self, key: str) -> bool:
        return self._call("delete", key=self._key(key))["deleted"]

    def num_keys(self) -> int:
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        found = self._call("list", prefix=self._prefix)["keys"]
        return [key[len(self._prefix) :] for key in found]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._call("queue_push", key=self._key(key), value=_as_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        value = self._call("queue_pop", key=self._key(key), block=bool(block))["value"]
        if value is None:
            raise _queue_empty_error()(f"queue is empty: {key}")
        return value

    def queue_len(self, key: str) -> int:
        return self._call("queue_len", key=self._key(key))["n"]

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    def clone(self) -> "EngineStore":
        return self

    # The trampoline asks for some methods by their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys


def _queue_empty_error() -> Any:
    import torch

    return torch._C._DistQueueEmptyError  # type: ignore[attr-defined]


def engine_store(cls: Any, namespace: str) -> EngineStore:
    """The store of a namespace; one object per process."""
    store = _stores.get(namespace)
    if store is None:
        store = _stores[namespace] = type.__call__(cls, namespace)
    return store


class _StoreClass(type(_c10d.Store)):  # type: ignore[misc]
    """Makes the real store outside of ranks (torchrun's agent), and counts it as an instance."""

    real: Any = None

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real) or type.__instancecheck__(cls, instance)


class _TCPStoreClass(_StoreClass):
    def __call__(  # noqa: PLR0913 (torch's own signature)
        cls,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: datetime.timedelta = _DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> Any:
        if not session.is_rank_process():
            if _is_lonely_rank():
                return _lonely_store(f"tcp://{host_name}:{port}")
            rest = (timeout, wait_for_workers, multi_tenant, master_listen_fd, use_libuv)
            return _RealTCPStore(host_name, port, world_size, is_master, *rest)
        if port == 0:
            port = _free_port()
        store: Any = engine_store(cls, f"tcp://{host_name}:{port}")
        store.host, store.port = host_name, port
        store.set_timeout(timeout)
        return store


class TCPStore(EngineStore, metaclass=_TCPStoreClass):
    """Stands where torch.distributed.TCPStore stands. In a rank, a host and port name a part of the engine's store."""

    real = _RealTCPStore
    host: str
    port: int
    libuvBackend = True


class _FileStoreClass(_StoreClass):
    def __call__(cls, file_name: str, world_size: int = -1) -> Any:
        if not session.is_rank_process():
            return _RealFileStore(file_name, world_size)
        store: Any = engine_store(cls, f"file://{os.path.abspath(file_name)}")
        store.path = file_name
        return store


class FileStore(EngineStore, metaclass=_FileStoreClass):
    """Stands where torch.distributed.FileStore stands; no file is written."""

    real = _RealFileStore
    path: str


_num_free_ports = 0


def _free_port() -> int:
    """A port as the system would choose it for port 0, another one on every rank; ports are only names here."""
    global _num_free_ports
    _num_free_ports += 1
    return 20_000 + (session.rank() * 64 + _num_free_ports) % 40_000


def _is_lonely_rank() -> bool:
    """A script run by itself as the only rank, without an engine."""
    return os.environ.get("WORLD_SIZE") == "1" and "RANK" in os.environ


_lonely: dict[str, Any] = {}


def _lonely_store(namespace: str) -> Any:
    store = _lonely.get(namespace)
    if store is None:
        store = _lonely[namespace] = _c10d.HashStore()
    return store


def install() -> None:
    """Put the stores where torch.distributed looks for them."""
    package: Any = sys.modules.get("torch.distributed")
    for store in (TCPStore, FileStore):
        store.__module__ = "torch.distributed"
        setattr(_c10d, store.__name__, store)
        if package is not None:
            setattr(package, store.__name__, store)
