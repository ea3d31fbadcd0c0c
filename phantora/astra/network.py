"""ASTRA-sim's analytical networks: how long a message travels, and which receive takes it.

Congestion-unaware: hops x latency + bytes / bandwidth of the first dimension in which the ranks differ.
Congestion-aware: store and forward over links that serve one message at a time, first come, first served. Source:
astra-network-analytical, congestion_unaware/ and congestion_aware/; astra-sim, network_frontend/analytical/common.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from phantora.astra.clock import Action, Clock
from phantora.astra.config import Dimension
from phantora.errors import UserError

RENDEZVOUS_BYTES = 8192
RENDEZVOUS_TAG = 1_000_000_000


def num_hops(topology: str, size: int, distance: int) -> int:
    """Hops between two NPUs of one dimension whose coordinates differ by `distance`."""
    if topology == "Ring":
        return min(distance % size, -distance % size)
    return 1 if topology == "FullyConnected" else 2


class Shape:
    """Coordinates of ranks, dimension 0 varying fastest, and distances between them."""

    __slots__ = ("dims", "strides", "num_npus")

    def __init__(self, dims: tuple[Dimension, ...]) -> None:
        self.dims = dims
        self.strides: list[int] = []
        stride = 1
        for dim in dims:
            self.strides.append(stride)
            stride *= dim.size
        self.num_npus = stride

    def hop_class(self, source: int, target: int) -> tuple[int, int]:
        """(first dimension in which two ranks differ, hops there): what the unaware network charges."""
        for number, (dim, stride) in enumerate(zip(self.dims, self.strides)):
            distance = target // stride % dim.size - source // stride % dim.size
            if distance:
                return number, num_hops(dim.topology, dim.size, distance)
        raise AssertionError((source, target))


class Channel:
    """Messages of one tag, source, target and size: the k-th that arrives goes to the k-th receive."""

    __slots__ = ("key", "receives", "num_arrived")

    def __init__(self, key: tuple[int, ...]) -> None:
        self.key = key
        self.receives: deque[tuple[Action, Any]] = deque()
        self.num_arrived = 0


class Network:
    """Sends, receives and their matching; how a message travels is for the subclasses."""

    def __init__(self, clock: Clock, shape: Shape, rendezvous: bool = False) -> None:
        self.clock = clock
        self.shape = shape
        self.rendezvous = rendezvous
        self._channels: dict[tuple[int, ...], Channel] = {}

    def send(self, source: int, target: int, size: int, tag: int, done: Action | None, argument: Any) -> None:
        """A message of `size` bytes; done(argument) when it has arrived."""
        if not self.rendezvous:
            self._send(source, target, size, tag, done, argument)
            return

        def ready(_: Any) -> None:
            self._send(source, target, size, tag, done, argument)

        self._receive(source, target, RENDEZVOUS_BYTES, tag + RENDEZVOUS_TAG, ready, None)

    def receive(self, target: int, source: int, size: int, tag: int, done: Action, argument: Any) -> None:
        """done(argument) when the message has arrived, or at once if it has."""
        if not self.rendezvous:
            self._receive(target, source, size, tag, done, argument)
            return

        def ready(_: Any) -> None:
            self._receive(target, source, size, tag, done, argument)

        self._send(target, source, RENDEZVOUS_BYTES, tag + RENDEZVOUS_TAG, ready, None)

    def _send(self, source: int, target: int, size: int, tag: int, done: Action | None, argument: Any) -> None:
        if size <= 0:
            raise UserError(
                f"a message of {size} bytes from rank {source} to rank {target}, which ASTRA-sim cannot send"
            )
        self._travel(source, target, size, (self._channel(self._sent(source, target, size, tag)), done, argument))

    def _receive(self, target: int, source: int, size: int, tag: int, done: Action, argument: Any) -> None:
        channel = self._channel(self._received(source, target, size, tag))
        if channel.num_arrived:
            channel.num_arrived -= 1
            self.clock.at(self.clock.now_ns, done, argument)
        else:
            channel.receives.append((done, argument))

    def _sent(self, source: int, target: int, size: int, tag: int) -> tuple[int, ...]:
        """The channel into which a message is sent."""
        return tag, source, target, size

    def _received(self, source: int, target: int, size: int, tag: int) -> tuple[int, ...]:
        """The channel from which a message is received."""
        return tag, source, target, size

    def _channel(self, key: tuple[int, ...]) -> Channel:
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(key)
        return channel

    def _arrived(self, message: tuple[Channel, Action | None, Any]) -> None:
        channel, done, argument = message
        if done is not None:
            done(argument)
        if channel.receives:
            received, argument = channel.receives.popleft()
            received(argument)
        else:
            channel.num_arrived += 1

    def _travel(self, source: int, target: int, size: int, message: tuple[Channel, Action | None, Any]) -> None:
        raise NotImplementedError


class UnawareNetwork(Network):
    """No message waits for another."""

    def __init__(self, clock: Clock, shape: Shape, rendezvous: bool = False) -> None:
        super().__init__(clock, shape, rendezvous)
        self._costs: dict[tuple[int, int], tuple[float, float]] = {}

    def delay_ns(self, source: int, target: int, size: int) -> int:
        """Source: congestion_unaware BasicTopology::compute_communication_delay."""
        cost = self._costs.get((source, target))
        if cost is None:
            number, hops = self.shape.hop_class(source, target)
            dim = self.shape.dims[number]
            cost = self._costs[source, target] = (hops * dim.latency_ns, dim.bytes_per_ns)
        return int(cost[0] + size / cost[1])

    def _travel(self, source: int, target: int, size: int, message: tuple[Channel, Action | None, Any]) -> None:
        self.clock.at(self.clock.now_ns + self.delay_ns(source, target, size), self._arrived, message)


class Link:
    """One direction of a link. Source: congestion_aware Link::schedule_chunk_transmission."""

    __slots__ = ("clock", "bytes_per_ns", "latency_ns", "busy", "pending")

    def __init__(self, clock: Clock, dim: Dimension) -> None:
        self.clock = clock
        self.bytes_per_ns = dim.bytes_per_ns
        self.latency_ns = dim.latency_ns
        self.busy = False
        self.pending: deque[tuple[int, Action, Any]] = deque()

    def send(self, size: int, arrived: Action, argument: Any) -> None:
        """arrived(argument) when the message is at the other end."""
        if self.busy:
            self.pending.append((size, arrived, argument))
        else:
            self._transmit(size, arrived, argument)

    def _transmit(self, size: int, arrived: Action, argument: Any) -> None:
        self.busy = True
        now_ns, serialization_ns = self.clock.now_ns, size / self.bytes_per_ns
        self.clock.at(now_ns + int(self.latency_ns + serialization_ns), arrived, argument)
        self.clock.at(now_ns + int(serialization_ns), self._free, None)

    def _free(self, _: None) -> None:
        self.busy = False
        if self.pending:
            self._transmit(*self.pending.popleft())


class AwareNetwork(Network):
    """Messages queue at links. One dimension only, as in ASTRA-sim."""

    def __init__(self, clock: Clock, shape: Shape, rendezvous: bool = False) -> None:
        super().__init__(clock, shape, rendezvous)
        check_aware(shape.dims)
        self._links: dict[tuple[int, int], Link] = {}
        self._ways: dict[tuple[int, int], list[Link]] = {}

    def route(self, source: int, target: int) -> list[tuple[int, int]]:
        """The links on the way, as (device, next device); the switch is device `num_npus`."""
        dim = self.shape.dims[0]
        if dim.topology == "FullyConnected":
            return [(source, target)]
        if dim.topology == "Switch":
            return [(source, dim.size), (dim.size, target)]
        clockwise = (target - source) % dim.size
        step = -1 if dim.size - clockwise < clockwise else 1
        devices = [(source + step * i) % dim.size for i in range(num_hops("Ring", dim.size, clockwise) + 1)]
        return list(zip(devices, devices[1:]))

    def _link(self, key: tuple[int, int]) -> Link:
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self.clock, self.shape.dims[0])
        return link

    def _travel(self, source: int, target: int, size: int, message: tuple[Channel, Action | None, Any]) -> None:
        links = self._ways.get((source, target))
        if links is None:
            links = self._ways[source, target] = [self._link(key) for key in self.route(source, target)]
        links[0].send(size, self._at_device, (size, links, 1, message))

    def _at_device(self, state: tuple[int, list[Link], int, tuple[Channel, Action | None, Any]]) -> None:
        size, links, hop, message = state
        if hop == len(links):
            self._arrived(message)
        else:
            links[hop].send(size, self._at_device, (size, links, hop + 1, message))


def check_aware(dims: tuple[Dimension, ...]) -> None:
    """UserError for networks on which the congestion-aware backend aborts."""
    if len(dims) != 1:
        raise UserError(f"the congestion-aware backend knows networks of one dimension, not {len(dims)}")
    if dims[0].topology == "Ring" and dims[0].size == 2:
        raise UserError("the congestion-aware backend cannot build a Ring of 2 NPUs")
