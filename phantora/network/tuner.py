"""The choice among the candidates for one collective by predicted time, as NCCL's tuner chooses.

A candidate is an algorithm with its transfers (for one byte of the operation), a latency and a pipeline to be filled
per protocol. Its predicted time is latency + fill + time of the busiest link, protocol overheads included; alone in the
network that is also the time it takes (but for LL, which the tuner takes for slower than it is on some GPUs). To add an
algorithm: return one more Candidate from candidates.candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from phantora.network.chunks import Fill
from phantora.network.constants import Algorithm, Protocol
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
    ll_misjudged: float = 1.0
    """NCCL's tuner takes a byte with LL for that many times as long as it is."""
    plateau: tuple[float, float] = (float("inf"), 1.0)
    """(bytes, factor): Simple's latency is that many times longer from these bytes on."""

    def fixed_ns(self, protocol: Protocol, num_bytes: int) -> int:
        """Time that passes for an operation of `num_bytes` before and after its bytes are on the links."""
        latency_ns = float(self.latency_ns[protocol])
        if protocol == "Simple" and num_bytes >= self.plateau[0]:
            latency_ns *= self.plateau[1]
        if protocol in self.fills:
            latency_ns += self.fills[protocol].fill_ns(num_bytes)
        return round(latency_ns)

    def predicted_ns(self, protocol: Protocol, num_bytes: int) -> float:
        """Time alone in the network, as the tuner judges it."""
        per_byte = self.ns_per_byte[protocol] * (self.ll_misjudged if protocol == "LL" else 1.0)
        return self.fixed_ns(protocol, num_bytes) + per_byte * num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, kept for reports."""

    algorithm: Algorithm
    protocol: Protocol
    predicted_ns: float


def choose_algorithm(
    found: list[Candidate], num_bytes: int, allows: Callable[[Algorithm, Protocol], bool] = lambda *_: True
) -> tuple[Candidate, Choice]:
    """The candidate and protocol with the least predicted time for `num_bytes` among those allowed; the first of
    equals. When nothing is allowed, among all."""
    best: tuple[Candidate, Choice] | None = None
    for candidate in found:
        for protocol in candidate.latency_ns:
            if not allows(candidate.algorithm, protocol):
                continue
            predicted = candidate.predicted_ns(protocol, num_bytes)
            if best is None or predicted < best[1].predicted_ns:
                choice = Choice(algorithm=candidate.algorithm, protocol=protocol, predicted_ns=predicted)
                best = candidate, choice
    if best is None:
        return choose_algorithm(found, num_bytes)
    return best
