"""Flows in time: remaining bytes drain at max-min fair rates, re-rated whenever a flow arrives or leaves.

Flows with the same path and usages are one class: they get the same rate, so a class keeps one running total of bytes
served per flow and an ordered list of the totals at which its flows end. Times are integer nanoseconds; an end is
rounded up to the next one, so a flow never ends before its last byte. Everything is kept in order of arrival: equal
calls give equal answers.

Rates are recomputed lazily (all arrivals and departures of one instant together), and only where they can change: among
the classes connected through links to those that came or went (components.py), and where these are many, among those
that feel it (local_rates.py). Capacities may change in time (faults).
"""

from __future__ import annotations

import math
import numpy as np
from sortedcontainers import SortedList

from phantora.network.components import Components
from phantora.network.fair_share import Floats, Indices, bottlenecks, make_rows, solve
from phantora.network.local_rates import LocalRates

NS_PER_S = 1_000_000_000
NEVER_NS = 1 << 62  # a flow that waits for a broken link
MANY_CLASSES = 256  # a connected group of more is not solved as a whole for each flow that comes or goes
SHORT_PATH = 64  # links of a class that may come or go without solving the whole group
SAME_RATE = 1e-12  # relative: smaller differences come from another order of additions


class _FlowClass:
    """Flows on one path. `served_bytes` (per flow) is true at `since_ns`; `ends`: (served_bytes at the end, flow)."""

    __slots__ = (
        "key", "number", "links", "usages", "link_list", "rate", "served_bytes", "since_ns", "ends", "finish_ns",
        "is_changed",
    )  # fmt: skip

    def __init__(self, key: bytes, number: int, links: Indices, usages: Floats, now_ns: int) -> None:
        self.key = key
        self.number = number
        self.links = links
        self.usages = usages
        self.link_list: list[int] = links.tolist()
        self.rate = 0.0
        self.served_bytes = 0.0
        self.since_ns = now_ns
        self.ends: SortedList = SortedList()
        self.finish_ns = -1  # when its first flow ends; -1: not known yet
        self.is_changed = True  # a flow came or went since finish_ns was computed

    def serve_until(self, now_ns: int) -> None:
        """Account for the bytes that flowed since `since_ns`."""
        self.served_bytes += self.rate * (now_ns - self.since_ns) / NS_PER_S
        self.since_ns = now_ns

    def weighted_usages(self) -> Floats:
        """Usages of all its flows together."""
        return self.usages if len(self.ends) == 1 else self.usages * len(self.ends)

    def weights(self) -> dict[int, float]:
        """Usages of all its flows together, by link."""
        return dict(zip(self.link_list, self.weighted_usages().tolist()))

    def expected_finish_ns(self) -> int:
        """When the flow that ends first will end at the present rate, rounded up; NEVER_NS while it does not move."""
        left_bytes = max(0.0, self.ends[0][0] - self.served_bytes)
        if self.rate <= 0:
            return self.since_ns if left_bytes == 0 else NEVER_NS
        return self.since_ns + math.ceil(left_bytes / self.rate * NS_PER_S)


class FluidNetwork:
    """Flows on links of given capacities (bytes/s, one per link)."""

    def __init__(self, bytes_per_s: Floats) -> None:
        self._capacities = bytes_per_s.copy()
        self._local: LocalRates | None = None  # while many classes are connected
        self._changed: dict[int, None] = {}  # numbers of classes that came or changed since rates were computed
        self._classes: dict[bytes, _FlowClass] = {}
        self._components = Components()
        self._queue: SortedList = SortedList()  # (finish_ns, class number)
        self._by_number: dict[int, _FlowClass] = {}
        self._next_number = 0
        self._dirty_links: dict[int, None] = {}
        self._now_ns = 0

    def begin(self, flow: int, links: Indices, usages: Floats, num_bytes: float, now_ns: int) -> None:
        """Start `flow` (the caller's number): `num_bytes`, of which link links[i] carries usages[i] times as much."""
        assert now_ns >= self._now_ns and num_bytes > 0 and len(links) > 0
        self._now_ns = now_ns
        key = links.tobytes() + usages.tobytes()
        flow_class = self._classes.get(key)
        if flow_class is None:
            flow_class = self._make_class(key, links, usages)
        flow_class.serve_until(now_ns)
        flow_class.ends.add((flow_class.served_bytes + num_bytes, flow))
        self._touch(flow_class)

    def set_capacity(self, link: int, bytes_per_s: float, now_ns: int) -> None:
        """From now on a link has another capacity; 0: what crosses it waits."""
        if self._classes:
            self._refresh()
        self._now_ns = now_ns
        self._capacities[link] = bytes_per_s
        self._local = None
        self._dirty_links[link] = None

    def next_ns(self) -> int | None:
        """When the next flow ends if none begins; None when there is none."""
        self._refresh()
        return self._queue[0][0] if self._queue and self._queue[0][0] != NEVER_NS else None

    def advance(self, now_ns: int) -> list[int]:
        """Move to `now_ns`, not beyond next_ns(): the flows that have ended, lowest number first."""
        self._refresh()
        self._now_ns = now_ns
        ended: list[int] = []
        while self._queue and self._queue[0][0] <= now_ns:
            assert self._queue[0][0] == now_ns, "advanced past the end of a flow"
            flow_class = self._by_number[self._queue.pop(0)[1]]
            flow_class.finish_ns = -1
            ended.extend(self._end_flows(flow_class))
        return sorted(ended)

    def rate(self, links: Indices, usages: Floats) -> float:
        """Present rate, in bytes/s, of each flow with that path and those usages."""
        self._refresh()
        return self._classes[links.tobytes() + usages.tobytes()].rate

    def link_bytes_per_s(self) -> Floats:
        """Bytes per second that now cross each link."""
        self._refresh()
        load = np.zeros(len(self._capacities))
        for flow_class in self._classes.values():
            np.add.at(load, flow_class.links, flow_class.usages * (flow_class.rate * len(flow_class.ends)))
        return load

    def _make_class(self, key: bytes, links: Indices, usages: Floats) -> _FlowClass:
        flow_class = _FlowClass(key, self._next_number, links, usages, self._now_ns)
        self._next_number += 1
        self._classes[key] = self._by_number[flow_class.number] = flow_class
        self._components.add(flow_class.number, flow_class.link_list)
        return flow_class

    def _touch(self, flow_class: _FlowClass) -> None:
        """A flow of the class came or went."""
        flow_class.is_changed = True
        self._changed[flow_class.number] = None
        self._dirty_links[flow_class.link_list[0]] = None

    def _drop_class(self, flow_class: _FlowClass) -> None:
        del self._classes[flow_class.key], self._by_number[flow_class.number]
        self._changed.pop(flow_class.number, None)
        if self._local is not None and flow_class.number in self._local.rates:
            self._local.remove(flow_class.number)
        self._components.remove(flow_class.number, flow_class.link_list)

    def _end_flows(self, flow_class: _FlowClass) -> list[int]:
        """Remove the flows of a class that are served by now; the first of its list is one by definition."""
        flow_class.serve_until(self._now_ns)
        ended = [flow_class.ends.pop(0)[1]]
        while flow_class.ends and flow_class.expected_finish_ns() <= self._now_ns:
            ended.append(flow_class.ends.pop(0)[1])
        if flow_class.ends:
            self._touch(flow_class)
        else:
            self._drop_class(flow_class)
            self._dirty_links.update(dict.fromkeys(flow_class.link_list))
        return ended

    def _refresh(self) -> None:
        """Recompute rates of everything connected to the links touched since the last time."""
        if not self._dirty_links:
            return
        changed, links = self._changed, self._dirty_links
        self._changed, self._dirty_links = {}, {}
        if self._local is not None and self._refresh_locally(changed, links):
            return
        touched = [self._by_number[number] for number in self._components.of(links)]
        if not touched:
            return
        rows = make_rows([c.links for c in touched], [c.weighted_usages() for c in touched])
        rates = solve(rows, self._capacities)
        for flow_class, rate in zip(touched, rates.tolist()):
            if rate != flow_class.rate or flow_class.is_changed:
                self._set_rate(flow_class, rate)
        if len(touched) > MANY_CLASSES and len(touched) == len(self._by_number):
            self._keep_locally(touched, bottlenecks(rows, self._capacities, rates).tolist())
        else:
            self._local = None

    def _keep_locally(self, classes: list[_FlowClass], links: list[int]) -> None:
        """Go on from these rates with LocalRates, which holds the same classes already if it is there."""
        if self._local is None:
            if any(len(flow_class.link_list) > SHORT_PATH for flow_class in classes):
                return
            self._local = LocalRates(self._capacities.tolist())
            for flow_class in classes:
                self._local.put(flow_class.number, flow_class.weights(), flow_class.rate)
        numbers = [flow_class.number for flow_class in classes]
        rates = [flow_class.rate for flow_class in classes]
        self._local.settle(dict(zip(numbers, rates)), dict(zip(numbers, links)))

    def _refresh_locally(self, changed: dict[int, None], links: dict[int, None]) -> bool:
        """Rate what feels the change, if that is little; False: the whole must be solved."""
        assert self._local is not None
        classes = [self._by_number[number] for number in changed]
        if len(self._by_number) <= MANY_CLASSES or any(len(c.link_list) > SHORT_PATH for c in classes):
            self._local = None
            return False
        for flow_class in classes:
            self._local.put(flow_class.number, flow_class.weights(), flow_class.rate)
        rates = self._local.update(changed, links)
        if rates is None:
            return False
        for number in dict.fromkeys([*changed, *rates]):
            self._set_rate(self._by_number[number], self._local.rates[number])
        return True

    def _set_rate(self, flow_class: _FlowClass, rate: float) -> None:
        """Give the class its new rate from now on and put its next end in the queue."""
        is_same = abs(rate - flow_class.rate) <= SAME_RATE * max(rate, flow_class.rate)
        if is_same and not flow_class.is_changed:
            return
        flow_class.is_changed = False
        if not is_same:
            flow_class.serve_until(self._now_ns)
            flow_class.rate = rate
        finish_ns = max(self._now_ns, flow_class.expected_finish_ns())
        if finish_ns == flow_class.finish_ns:
            return
        if flow_class.finish_ns >= 0:
            self._queue.remove((flow_class.finish_ns, flow_class.number))
        flow_class.finish_ns = finish_ns
        self._queue.add((finish_ns, flow_class.number))
