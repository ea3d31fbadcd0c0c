"""The key-value store of torch.distributed (rendezvous, barriers, groups), in virtual time.

A key that was set at virtual time t exists for a rank whose clock is t or later; a rank that waits for it wakes at
max(own clock, t). Which of two ranks adds first is decided by their clocks, not by the operating system: the simulation
answers `add`, `check`, `compare_set` and their kind only when no other rank can act earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


Point = tuple[int, int]
"""(rank, entry of its wait columns): where a host set a key."""

# Waiter(latest time at which one of the keys was set, where they were set)
Waiter = Callable[[int, "tuple[Point, ...]"], None]


class Store:
    """Keys and values are bytes-like or str as the ranks send them; times in ns."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._set_ns: dict[str, int] = {}
        self._points: dict[str, Point] = {}  # of the setting that _set_ns tells of
        self._latest: dict[str, Point] = {}
        self._queues: dict[str, deque[tuple[bytes, int, Point]]] = {}
        self._waiting: list[tuple[list[str], Waiter]] = []

    def set(self, key: str, value: bytes, clock_ns: int, point: Point) -> None:
        self._values[key] = value
        if clock_ns < self._set_ns.get(key, clock_ns + 1):
            self._set_ns[key], self._points[key] = clock_ns, point
        self._latest[key] = point
        self._wake()

    def latest(self, key: str) -> tuple[Point, ...]:
        """Where the key was last changed; () when it does not exist."""
        return (self._latest[key],) if key in self._latest else ()

    def add(self, key: str, amount: int, clock_ns: int, point: Point) -> int:
        value = int(self._values.get(key, b"0")) + amount
        self.set(key, str(value).encode(), clock_ns, point)
        return value

    def append(self, key: str, value: bytes, clock_ns: int, point: Point) -> None:
        self.set(key, self._values.get(key, b"") + value, clock_ns, point)

    def compare_set(self, key: str, expected: bytes, desired: bytes, clock_ns: int, point: Point) -> bytes:
        """TCPStore's rule: set when the current value is `expected`, or when the key is absent and `expected` is empty."""
        current = self._values.get(key)
        if current is None and not expected or current == expected:
            self.set(key, desired, clock_ns, point)
            return desired
        return current if current is not None else expected

    def get(self, key: str) -> bytes:
        return self._values[key]

    def present(self, keys: list[str], clock_ns: int) -> bool:
        return all(self._set_ns.get(key, clock_ns + 1) <= clock_ns for key in keys)

    def delete(self, key: str) -> bool:
        for known in (self._set_ns, self._points, self._latest):
            known.pop(key, None)
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._values if key.startswith(prefix))

    def push(self, key: str, value: bytes, clock_ns: int, point: Point) -> None:
        self._queues.setdefault(key, deque()).append((value, clock_ns, point))
        self.set(f"\0queue/{key}", b"", clock_ns, point)

    def pop(self, key: str) -> tuple[bytes, int, Point] | None:
        """The oldest value of queue `key`, when and where it was pushed."""
        queue = self._queues.get(key)
        if not queue:
            return None
        value = queue.popleft()
        if not queue:
            self.delete(f"\0queue/{key}")
        return value

    def queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def when_present(self, keys: list[str], waiter: Waiter) -> None:
        """Call `waiter` once all keys exist."""
        self._waiting.append((keys, waiter))
        self._wake()

    def _wake(self) -> None:
        ready = [entry for entry in self._waiting if all(key in self._values for key in entry[0])]
        if not ready:
            return
        self._waiting = [entry for entry in self._waiting if entry not in ready]
        for keys, waiter in ready:
            waiter(max((self._set_ns[key] for key in keys), default=0), tuple(self._points[key] for key in dict.fromkeys(keys)))
