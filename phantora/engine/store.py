"""The key-value store of torch.distributed (rendezvous, barriers, groups), in virtual time.

A key that was set at virtual time t exists for a rank whose clock is t or later; a rank that waits for it wakes at
max(own clock, t). Which of two ranks adds first is decided by their clocks, not by the operating system: the simulation
answers `add`, `check`, `compare_set` and their kind only when no other rank can act earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Store:
    """Keys and values are bytes-like or str as the ranks send them; times in ns."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._set_ns: dict[str, int] = {}
        self._queues: dict[str, deque[tuple[bytes, int]]] = {}
        self._waiting: list[tuple[list[str], Callable[[int], None]]] = []

    def set(self, key: str, value: bytes, clock_ns: int) -> None:
        self._values[key] = value
        self._set_ns[key] = min(self._set_ns.get(key, clock_ns), clock_ns)
        self._wake()

    def add(self, key: str, amount: int, clock_ns: int) -> int:
        value = int(self._values.get(key, b"0")) + amount
        self.set(key, str(value).encode(), clock_ns)
        return value

    def append(self, key: str, value: bytes, clock_ns: int) -> None:
        self.set(key, self._values.get(key, b"") + value, clock_ns)

    def compare_set(self, key: str, expected: bytes, desired: bytes, clock_ns: int) -> bytes:
        """TCPStore's rule: set when the current value is `expected`, or when the key is absent and `expected` is empty."""
        current = self._values.get(key)
        if current is None and not expected or current == expected:
            self.set(key, desired, clock_ns)
            return desired
        return current if current is not None else expected

    def get(self, key: str) -> bytes:
        return self._values[key]

    def present(self, keys: list[str], clock_ns: int) -> bool:
        return all(self._set_ns.get(key, clock_ns + 1) <= clock_ns for key in keys)

    def delete(self, key: str) -> bool:
        self._set_ns.pop(key, None)
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._values if key.startswith(prefix))

    def push(self, key: str, value: bytes, clock_ns: int) -> None:
        self._queues.setdefault(key, deque()).append((value, clock_ns))
        self.set(f"\0queue/{key}", b"", clock_ns)

    def pop(self, key: str) -> tuple[bytes, int] | None:
        """The oldest value of queue `key` and when it was pushed."""
        queue = self._queues.get(key)
        if not queue:
            return None
        value = queue.popleft()
        if not queue:
            self.delete(f"\0queue/{key}")
        return value

    def queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def when_present(self, keys: list[str], waiter: Callable[[int], None]) -> None:
        """Call `waiter(latest time at which one of the keys was set)` once all exist."""
        self._waiting.append((keys, waiter))
        self._wake()

    def _wake(self) -> None:
        ready = [entry for entry in self._waiting if all(key in self._values for key in entry[0])]
        if not ready:
            return
        self._waiting = [entry for entry in self._waiting if entry not in ready]
        for keys, waiter in ready:
            waiter(max((self._set_ns[key] for key in keys), default=0))
