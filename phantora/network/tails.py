"""Parts of a collective's time that grow with its size and are no bytes on a link: copies that follow the last message,
channels that fall out of step.

Each is a function of the operation's bytes, never falls with them, and is added to the latency. Sources of the laws:
[h200x2] of constants.py (even powers of two), which belong to a protocol and not to a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol as Interface

from phantora.network import constants


class Tail(Interface):
    """One such part."""

    def ns(self, num_bytes: int) -> float:
        """Time for an operation of `num_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReceive:
    """The last step of a ring only receives: it copies its block out of the buffer while nothing is sent.

    The copy takes a share of a step's time that falls as the loops over the buffer become many, because channels fall
    out of step and one copies while another sends: the faster, the more steps a loop has.
    """

    link_bytes_per_byte: float
    """Bytes over the busiest link for one byte of the operation."""
    step_ns_per_byte: float
    """Time of one of the sending steps for one byte of the operation."""
    num_steps: int
    is_ll: bool
    """The share does not fall."""

    def ns(self, num_bytes: int) -> float:
        share = constants.LL_RECEIVE_SHARE if self.is_ll else constants.RECEIVE_SHARE
        loops = self.link_bytes_per_byte * num_bytes / constants.RECEIVE_SHARE_BYTES
        if loops > 1 and not self.is_ll:
            share *= loops ** -(constants.RECEIVE_SHARE_EXPONENT * min(self.num_steps, 2))
        return share * self.step_ns_per_byte * num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplex:
    """GPUs that send and receive point-to-point messages at once lose time that grows with a power of the messages'."""

    ns_per_byte: float
    """Time of the busiest link for one byte of the operation."""

    def ns(self, num_bytes: int) -> float:
        return constants.P2P_DUPLEX_NS * (self.ns_per_byte * num_bytes / 1000) ** constants.P2P_DUPLEX_EXPONENT


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondCache:
    """What bytes over a link beyond the first CACHED_LL_BYTES take longer, as LL's buffers no longer stay in the L2."""

    link_bytes_per_byte: float
    extra_ns_per_byte: float
    """For one byte of the operation."""

    def ns(self, num_bytes: int) -> float:
        begin = constants.CACHED_LL_BYTES / self.link_bytes_per_byte
        return max(0.0, num_bytes - begin) * self.extra_ns_per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """More bytes are given to more warps and channels, which takes longer to begin and end: for each doubling from
    `first_bytes` to `last_bytes`."""

    first_bytes: int
    last_bytes: int
    ns_per_doubling: float

    def ns(self, num_bytes: int) -> float:
        reached = min(max(num_bytes, self.first_bytes), self.last_bytes)
        return self.ns_per_doubling * math.log2(reached / self.first_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDip:
    """Trees of LL and LL128 do not reach their rate at middle sizes: NCCL's treeCorrectionFactor, which was measured,
    interpolated between powers of two."""

    factors: tuple[float, ...]
    ns_per_byte: float

    def ns(self, num_bytes: int) -> float:
        if num_bytes <= 64:
            return 0.0
        place = math.log2(num_bytes / 64)
        low = int(place)
        if low >= len(self.factors):
            return 0.0
        following = self.factors[low + 1] if low + 1 < len(self.factors) else 1.0
        factor = self.factors[low] + (following - self.factors[low]) * (place - low)
        return (1 / factor - 1) * self.ns_per_byte * num_bytes
