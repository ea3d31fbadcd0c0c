"""The choice among the candidates for one collective by expected time, as NCCL's tuner chooses.

A candidate is an algorithm with its transfers (for one byte of the operation), a latency, and what grows with the size
otherwise (a pipeline to be filled, tails), per protocol. Its bare time is latency + fill + tails + time of the busiest
link. NCCL's tuner has a time of its own for it (judgement.py), which it was given by its authors from measurements. Each
candidate is taken to need the longer of the two, and the least of these is chosen: so the choice follows the tuner's
where that is the more careful, and as both times fall with bandwidth and rise with bytes, so does the least.

To add an algorithm: return one more Candidate from candidates.candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phantora.network.chunks import Fill
from phantora.network.constants import Algorithm, Protocol
from phantora.network.judgement import Judged
from phantora.network.tails import Tail
from phantora.network.transfers import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to carry out a collective of one byte."""

    algorithm: Algorithm
    latency_ns: dict[Protocol, int]
    """Protocols that may be used, and the latency with each."""
    transfers: dict[Protocol, tuple[Transfer, ...]]
    """Flows for one byte of the operation, the protocol's own bytes included."""
    ns_per_byte: dict[Protocol, float]
    """Time of the busiest link for one byte of the operation."""
    fills: dict[Protocol, Fill] = field(default_factory=dict)
    """Pipelines to be filled before the bytes flow."""
    tails: dict[Protocol, tuple[Tail, ...]] = field(default_factory=dict)
    """What else grows with the bytes."""
    judged: dict[Protocol, Judged] = field(default_factory=dict)
    """What NCCL's tuner expects, if it has an opinion."""
    most_bytes: dict[Protocol, int] = field(default_factory=dict)
    """Sizes above which NCCL never takes a protocol."""

    def predicted_ns(self, protocol: Protocol, num_bytes: int) -> float:
        """Time alone in the network."""
        bare_ns = self._fixed_ns(protocol, num_bytes) + self.ns_per_byte[protocol] * num_bytes
        judged = self.judged.get(protocol)
        return bare_ns if judged is None else max(bare_ns, judged.ns(num_bytes))

    def parts(self, protocol: Protocol, num_bytes: int) -> tuple[int, float]:
        """(time before and after the bytes are on the links, how many times as long as bare they are on them). What the
        tuner expects beyond the bare time is on the links as far as it expects more of each byte."""
        fixed_ns = self._fixed_ns(protocol, num_bytes)
        flow_ns = self.ns_per_byte[protocol] * num_bytes
        judged = self.judged.get(protocol)
        excess_ns = 0.0 if judged is None else max(0.0, judged.ns(num_bytes) - fixed_ns - flow_ns)
        if judged is None or not flow_ns:
            return round(fixed_ns + excess_ns), 1.0
        slower_ns = max(0.0, judged.ns_per_byte - self.ns_per_byte[protocol]) * num_bytes
        on_links_ns = min(excess_ns, slower_ns)
        return round(fixed_ns + excess_ns - on_links_ns), 1.0 + on_links_ns / flow_ns

    def _fixed_ns(self, protocol: Protocol, num_bytes: int) -> float:
        latency_ns = float(self.latency_ns[protocol])
        if protocol in self.fills:
            latency_ns += self.fills[protocol].fill_ns(num_bytes)
        return latency_ns + sum(tail.ns(num_bytes) for tail in self.tails.get(protocol, ()))

    def takes(self, protocol: Protocol, num_bytes: int) -> bool:
        """Whether NCCL weighs the protocol for this size."""
        return num_bytes <= self.most_bytes.get(protocol, num_bytes)


Option = tuple[Candidate, Protocol]


def choose(options: Sequence[Option], num_bytes: int) -> Option:
    """The option with the least time for `num_bytes`; the first of equals."""
    fit = [option for option in options if option[0].takes(option[1], num_bytes)] or options
    return min(fit, key=lambda option: option[0].predicted_ns(option[1], num_bytes))
