"""The clock of one GPU under its power limit.

Every 25 ms of GPU time the governor looks at what ran since, and at half of what it looked at before, and chooses the
highest clock at which this would keep the limit on average: an H200 that starts to multiply is throttled after 40 ms
and settled after 80. What is launched from then on takes its time at that clock.

It follows the order of launches of one host thread, which is known when records arrive: so it does not matter when the
engine evaluates them, and a replay of the same launches sees the same clocks. Each thread's launches are judged by
themselves. How long the GPU was idle is judged from the host times of launches: a wait for other ranks counts as idle when
the host waits, too, and not at all when launches run ahead of it. Work of unknown power (copies to the host, NCCL's
kernels) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from phantora.compute.power import GpuPower

_WINDOW_NS = 25_000_000
_KEPT = 0.5
_LONGEST_REST_NS = 2 * _WINDOW_NS  # a longer one gives no more: an H200 multiplies at full speed for 40 ms after any rest
_LOWEST = 0.17  # of the full clock: an H200 goes down to 345 of 1,980 MHz
_HALVINGS = 30

DrawFields = Sequence[float]  # the fields of compute.call.Draw: memory_w, core_w, clocked, priced_at


class ClockGovernor:
    """Says how long each launch takes. Times in ns, powers in W, clocks as shares of the full clock."""

    __slots__ = (
        "clock", "busy_ns", "is_short", "_power", "_end_ns", "_begin_ns", "_idle_ns", "_fixed_ns", "_clocked_ns", "_memory",
        "_fixed_core", "_clocked_core", "_clock_ns",
    )  # fmt: skip

    def __init__(self, power: GpuPower) -> None:
        self.clock = 1.0
        self.is_short = False  # whether even the lowest clock once did not keep the limit
        self._power = power
        self._end_ns = 0  # of what was launched, as if on one stream
        self._begin_ns = 0  # of what has not been looked at
        self._idle_ns = 0.0
        self._fixed_ns = 0.0  # time that no clock changes
        self._clocked_ns = 0.0  # time at the full clock of the rest
        self._memory = self._fixed_core = self._clocked_core = 0.0  # W x ns; of cores at the full clock
        self.busy_ns = 0
        self._clock_ns = 0.0  # busy time x clock

    def duration_ns(self, draw: DrawFields, price_ns: int, host_ns: int) -> int:
        """Time of a kernel with this price that is launched at `host_ns`. draw: () when nothing is known of it."""
        if not draw:
            return price_ns
        if host_ns > self._end_ns:
            self._idle_ns += min(host_ns - self._end_ns, _LONGEST_REST_NS)
            self._begin_ns += max(host_ns - self._end_ns - _LONGEST_REST_NS, 0)
            self._end_ns = host_ns
        if self._end_ns - self._begin_ns >= _WINDOW_NS:
            self._choose_clock()
        memory_w, core_w, clocked, priced_at = draw
        fixed_ns, clocked_ns = price_ns * (1.0 - clocked), price_ns * clocked * priced_at
        self._fixed_ns += fixed_ns
        self._clocked_ns += clocked_ns
        self._memory += price_ns * memory_w
        self._fixed_core += fixed_ns * core_w
        self._clocked_core += clocked_ns * core_w
        taken_ns = price_ns
        if clocked and self.clock < priced_at:
            taken_ns = round(fixed_ns + clocked_ns / self.clock)
        self._end_ns += taken_ns
        self.busy_ns += taken_ns
        self._clock_ns += taken_ns * self.clock
        return taken_ns

    @property
    def mean_clock(self) -> float:
        """Over the busy time."""
        return self._clock_ns / self.busy_ns if self.busy_ns else 1.0

    def _choose_clock(self) -> None:
        self.clock = self._highest_clock()
        self._begin_ns = self._end_ns
        self._idle_ns *= _KEPT
        self._fixed_ns *= _KEPT
        self._clocked_ns *= _KEPT
        self._memory *= _KEPT
        self._fixed_core *= _KEPT
        self._clocked_core *= _KEPT

    def _highest_clock(self) -> float:
        if self._board_w(1.0) <= self._power.held_w:
            return 1.0
        low, high = _LOWEST, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._board_w(middle) <= self._power.held_w else (low, middle)
        self.is_short = self.is_short or low == _LOWEST
        return low

    def _board_w(self, clock: float) -> float:
        """Mean power of what ran, had it run at `clock`."""
        core = (self._fixed_core + self._clocked_core / clock) * clock**self._power.exponent
        total_ns = self._fixed_ns + self._clocked_ns / clock + self._idle_ns
        return self._power.idle_w + (self._memory + core) / max(total_ns, 1.0)
