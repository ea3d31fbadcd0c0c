"""Blocking calls of the ranks, one method for each: waits, queries, contents of collectives, the c10d store.

An answer that depends on nothing but the caller's own work is given when virtual time has it; one that depends on what
others do first (an `add`, "is it done yet?") when no other rank can act before the caller's clock, so that the outcome is a
fact of virtual time and not of who came first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora.engine.host_collectives import HostCollectives
from phantora.engine.rank import Rank, State
from phantora.engine.store import Point, Store


class Calls:
    """answer(rank, fields, wake_ns=0, **reply) answers the call `fields`; the rank runs on, not earlier than wake_ns."""

    def __init__(self, store: Store, host_collectives: HostCollectives, answer: Callable[..., None]) -> None:
        self._store, self._host_collectives, self._answer = store, host_collectives, answer

    def take(self, rank: Rank, fields: dict[str, Any]) -> None:
        """A call has come: answer it, now or later."""
        handler = getattr(self, "_call_" + fields["method"], None)
        if handler is None:
            raise ValueError(f"rank {rank.number}: unknown call {fields['method']!r}")
        handler(rank, fields)

    def _in_order(self, rank: Rank, fields: dict[str, Any], answer: Callable[[], None]) -> None:
        """Answer when no other rank can act before this one's clock, so that the outcome is a fact of virtual time."""
        if fields["main"]:
            rank.state, rank.answer = State.ORDERED, answer
        else:
            answer()

    def _call_sync(self, rank: Rank, fields: dict[str, Any]) -> None:
        timeline, what = rank.timeline, fields["what"]
        if what == "event":
            event = timeline.event(fields["event"])
            if event is None:
                self._answer(rank, fields, ns=fields["clock_ns"], streams=[])
            else:
                event.when_known(lambda time_ns: self._answer(rank, fields, time_ns, ns=time_ns, streams=[]))
            return
        device = fields["device"]
        if what == "stream":
            streams = [timeline.stream(device, fields["stream"])]
        else:
            streams = [stream for stream in timeline.streams.values() if stream.device == device]
        ends: dict[int, int] = {}

        def done(index: int, end_ns: int) -> None:
            ends[index] = end_ns
            if len(ends) == len(streams):
                wake_ns = max(ends.values(), default=0)
                rows = [[s.device, s.number, ends[i]] for i, s in enumerate(streams)]
                self._answer(rank, fields, wake_ns, ns=wake_ns, streams=rows)

        if not streams:
            self._answer(rank, fields, ns=fields["clock_ns"], streams=[])
        for index, stream in enumerate(streams):
            timeline.when_done(stream, lambda end_ns, i=index: done(i, end_ns))

    def _call_query(self, rank: Rank, fields: dict[str, Any]) -> None:
        """Whether the work before an event (or on a stream) is done at the caller's clock."""
        timeline, clock_ns = rank.timeline, fields["clock_ns"]
        answered = []

        def decide(time_ns: int | None) -> None:
            if not answered:
                answered.append(True)
                self._answer(rank, fields, done=time_ns is not None and time_ns <= clock_ns)

        if fields["what"] == "stream":
            timeline.when_done(timeline.stream(fields["device"], fields["stream"]), decide)
        else:
            event = timeline.event(fields["event"])
            if event is None:
                decide(0)
            else:
                event.when_known(decide)
        if not answered:  # not done, for certain, once nothing can happen before the caller's clock
            self._in_order(rank, fields, lambda: decide(None))

    def _call_sleep(self, rank: Rank, fields: dict[str, Any]) -> None:
        """The rank wakes when all others have got to its clock."""
        self._in_order(rank, fields, lambda: self._answer(rank, fields))

    def _call_event_time(self, rank: Rank, fields: dict[str, Any]) -> None:
        event = rank.timeline.event(fields["event"])
        if event is None:
            self._answer(rank, fields, ns=0)
        else:
            event.when_known(lambda time_ns: self._answer(rank, fields, ns=time_ns))

    def _call_payload(self, rank: Rank, fields: dict[str, Any]) -> None:
        collective = rank.payloads.get(tuple(fields["token"]))
        if collective is None:
            self._answer(rank, fields, payloads=None)
        elif collective.announced:
            self._answer(rank, fields, payloads=collective.payloads())
        else:
            if fields["main"]:
                rank.state = State.PAYLOAD
            collective.payload_waiters.append(lambda: self._answer(rank, fields, payloads=collective.payloads()))

    def _call_host_fetch(self, rank: Rank, fields: dict[str, Any]) -> None:
        def ready(wake_ns: int, payloads: list[bytes | None], posts: tuple[Point, ...], delay_ns: int) -> None:
            rank.waited(fields, wake_ns, "host collective", posts, delay_ns)
            self._answer(rank, fields, wake_ns, ns=max(wake_ns, fields["clock_ns"]), payloads=payloads)

        self._host_collectives.when_complete(fields["group"], tuple(fields["ranks"]), fields["seq"], ready)

    def _call_store_get(self, rank: Rank, fields: dict[str, Any]) -> None:
        def present(set_ns: int, points: tuple[Point, ...]) -> None:
            rank.waited(fields, set_ns, "store", points)
            self._answer(rank, fields, set_ns, ns=max(set_ns, fields["clock_ns"]), value=self._store.get(fields["key"]))

        self._store.when_present([fields["key"]], present)

    def _call_store_wait(self, rank: Rank, fields: dict[str, Any]) -> None:
        def present(set_ns: int, points: tuple[Point, ...]) -> None:
            rank.waited(fields, set_ns, "store", points)
            self._answer(rank, fields, set_ns, ns=max(set_ns, fields["clock_ns"]))

        self._store.when_present(fields["keys"], present)

    def _call_store_set(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._store.set(fields["key"], fields["value"], fields["clock_ns"], rank.point(fields))
        self._answer(rank, fields)

    def _call_store_add(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            # Whoever sees the last number knows that all others have added, so an addition comes after those before it.
            point = rank.point(fields, self._store.latest(fields["key"]))
            self._answer(rank, fields, value=self._store.add(fields["key"], fields["amount"], fields["clock_ns"], point))

        self._in_order(rank, fields, act)

    def _call_store_check(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self._answer(rank, fields, present=self._store.present(fields["keys"], fields["clock_ns"])))

    def _call_store_compare_set(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            point = rank.point(fields, self._store.latest(fields["key"]))
            value = self._store.compare_set(fields["key"], fields["expected"], fields["desired"], fields["clock_ns"], point)
            self._answer(rank, fields, value=value)

        self._in_order(rank, fields, act)

    def _call_store_append(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            point = rank.point(fields, self._store.latest(fields["key"]))
            self._store.append(fields["key"], fields["value"], fields["clock_ns"], point)
            self._answer(rank, fields)

        self._in_order(rank, fields, act)

    def _call_store_delete(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self._answer(rank, fields, deleted=self._store.delete(fields["key"])))

    def _call_store_num_keys(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self._answer(rank, fields, n=self._store.num_keys()))

    def _call_store_list(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self._answer(rank, fields, keys=self._store.keys(fields.get("prefix", ""))))

    def _call_store_queue_push(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            self._store.push(fields["key"], fields["value"], fields["clock_ns"], rank.point(fields))
            self._answer(rank, fields)

        self._in_order(rank, fields, act)

    def _call_store_queue_pop(self, rank: Rank, fields: dict[str, Any]) -> None:
        def present(_: int, __: tuple[Point, ...]) -> None:
            value = self._store.pop(fields["key"])
            assert value is not None
            rank.waited(fields, value[1], "store", (value[2],))
            self._answer(rank, fields, value[1], ns=max(value[1], fields["clock_ns"]), value=value[0])

        if fields.get("block", True):
            self._store.when_present([f"\0queue/{fields['key']}"], present)
            return

        def act() -> None:
            value = self._store.pop(fields["key"])
            self._answer(rank, fields, value=None if value is None else value[0])

        self._in_order(rank, fields, act)

    def _call_store_queue_len(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self._answer(rank, fields, n=self._store.queue_len(fields["key"])))
