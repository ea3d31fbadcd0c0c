"""Max-min fair rates kept up to date: when one flow comes or goes among thousands, only the few that feel it are rated
again.

A set of flows is rated anew with all others held fast (progressive filling of what those leave of each link). The
result is the max-min solution of the whole network if every flow still has a bottleneck: a full link on which no flow
has a higher rate (fair_share.py). Flows that lost theirs, and faster flows on a bottleneck of the set, join the set,
and it is rated again.

What a flow does is felt only by flows of a higher rate that share a link, directly or through others, so the set stays
small: some dozens among 1,000. Past MAX_FLOWS the caller solves the whole component instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

MAX_FLOWS = 100
TOLERANCE = 1e-9  # relative: rates that differ by less are equal, and a link so nearly full is full


class LocalRates:
    """Rates of flows on links of given capacities. Flows are numbers; a weight is what a flow uses of a link per unit
    of its rate."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = capacities
        self._on_link: dict[int, dict[int, float]] = {}
        self._links_of: dict[int, dict[int, float]] = {}
        self._bottleneck: dict[int, int] = {}
        self.rates: dict[int, float] = {}

    def put(self, flow: int, weights: dict[int, float], rate: float) -> None:
        """Add `flow`, or give it other weights or another rate. Nothing is rated."""
        if flow in self._links_of:
            self.remove(flow)
        self._links_of[flow] = weights
        self.rates[flow] = rate
        for link, weight in weights.items():
            self._on_link.setdefault(link, {})[flow] = weight

    def remove(self, flow: int) -> None:
        """Take `flow` away. Nothing is rated."""
        del self.rates[flow]
        for link in self._links_of.pop(flow):
            del self._on_link[link][flow]
        self._bottleneck.pop(flow, None)

    def settle(self, rates: dict[int, float], bottlenecks: dict[int, int]) -> None:
        """Take over rates that were computed for all flows elsewhere."""
        self.rates, self._bottleneck = rates, bottlenecks

    def update(self, changed: Iterable[int], links: Iterable[int]) -> dict[int, float] | None:
        """Rates that differ after `changed` flows came (or changed weight) and others left `links`; None when too many
        flows feel it, and then nothing is changed."""
        chosen = dict.fromkeys(changed)
        seeds = dict.fromkeys(links)
        for flow in chosen:
            seeds.update(dict.fromkeys(self._links_of[flow]))
        for link in seeds:
            for flow in self._on_link.get(link, ()):
                if self._bottleneck_of(flow) in (link, -1):
                    chosen[flow] = None
        while len(chosen) <= MAX_FLOWS:
            rates, bottlenecks = self._fill(chosen)
            more = self._unsettled(rates, bottlenecks)
            if not more:
                return self._commit(rates, bottlenecks)
            chosen.update(more)
        return None

    def _bottleneck_of(self, flow: int) -> int:
        """The link that holds the flow back, as far as known; -1: none."""
        known = self._bottleneck.get(flow)
        if known is None:
            known = self._bottleneck[flow] = self._find_bottleneck(flow, self.rates)
        return known

    def _find_bottleneck(self, flow: int, rates: dict[int, float], changed: dict[int, float] | None = None) -> int:
        changed = changed or {}
        rate = changed.get(flow, rates[flow])
        for link in self._links_of[flow]:
            total, highest = self._load(link, changed)
            if total >= self._capacities[link] * (1 - TOLERANCE) and rate >= highest * (1 - TOLERANCE):
                return link
        return -1

    def _load(self, link: int, changed: dict[int, float]) -> tuple[float, float]:
        """(use, highest rate) of a link with some rates replaced."""
        rates, total, highest = self.rates, 0.0, 0.0
        for flow, weight in self._on_link[link].items():
            rate = changed[flow] if flow in changed else rates[flow]
            total += weight * rate
            if rate > highest:
                highest = rate
        return total, highest

    def _fill(self, chosen: dict[int, None]) -> tuple[dict[int, float], dict[int, int]]:
        """Progressive filling of `chosen` with all other flows held fast: (rate, bottleneck) of each."""
        left: dict[int, float] = {}
        load: dict[int, float] = {}
        old = self.rates
        for flow in chosen:
            for link in self._links_of[flow]:
                if link not in left:
                    taken, wanted = 0.0, 0.0
                    for other, weight in self._on_link[link].items():
                        if other in chosen:
                            wanted += weight
                        else:
                            taken += weight * old[other]
                    left[link], load[link] = self._capacities[link] - taken, wanted
        heap = [(max(0.0, left[link]) / load[link], link) for link in left]
        heapq.heapify(heap)
        rates: dict[int, float] = {}
        bottlenecks: dict[int, int] = {}
        while len(rates) < len(chosen):
            share, link = heapq.heappop(heap)
            if load[link] <= 0 or share < max(0.0, left[link]) / load[link] * (1 - 1e-15):
                if load[link] > 0:
                    heapq.heappush(heap, (max(0.0, left[link]) / load[link], link))
                continue
            for flow in self._on_link[link]:
                if flow in chosen and flow not in rates:
                    rates[flow], bottlenecks[flow] = share, link
                    for other, weight in self._links_of[flow].items():
                        left[other] -= weight * share
                        load[other] -= weight
                        if load[other] < 1e-12 * weight:
                            load[other] = 0.0
        return rates, bottlenecks

    def _unsettled(self, rates: dict[int, float], bottlenecks: dict[int, int]) -> dict[int, None]:
        """Flows outside the set that lost their bottleneck, or are faster than one of the set on its bottleneck."""
        touched = dict.fromkeys(
            link for flow, rate in rates.items() if abs(rate - self.rates[flow]) > TOLERANCE * rate
            for link in self._links_of[flow]
        )  # fmt: skip
        more: dict[int, None] = {}
        loads = {link: self._load(link, rates) for link in dict.fromkeys(bottlenecks.values())}
        for flow, link in bottlenecks.items():
            if loads[link][1] * (1 - TOLERANCE) > rates[flow]:
                for other in self._on_link[link]:
                    if other not in rates and self.rates[other] * (1 - TOLERANCE) > rates[flow]:
                        more[other] = None
        for link in touched:
            outside = [f for f in self._on_link[link] if f not in rates and self._bottleneck_of(f) in (link, -1)]
            if outside:
                total, highest = loads.get(link) or self._load(link, rates)
                is_full = total >= self._capacities[link] * (1 - TOLERANCE)
                for flow in outside:
                    if not (is_full and self.rates[flow] >= highest * (1 - TOLERANCE)):
                        more[flow] = None
        return more

    def _commit(self, rates: dict[int, float], bottlenecks: dict[int, int]) -> dict[int, float]:
        differing = {flow: rate for flow, rate in rates.items() if rate != self.rates[flow]}
        self._bottleneck.update(bottlenecks)
        self.rates.update(differing)
        return differing
