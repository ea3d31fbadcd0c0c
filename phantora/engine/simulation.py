"""The simulation of a whole job: ranks, their collectives on the network, and the rule by which virtual time advances.

The rule is conservative: an event at time T is processed only when no rank can still cause anything before T. A running
rank can act from its last known host clock on; a rank blocked in a call cannot act until it is answered. Nothing is ever
rolled back, and the result does not depend on which message arrived first.

`Simulation` knows nothing of sockets and processes: `server` feeds it frames and delivers its replies.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from phantora.engine.collectives import Collective, Matcher, describe
from phantora.engine.contended_timeline import ContendedTimeline
from phantora.engine.host_collectives import HostCollectives
from phantora.engine.queue import BEGIN, NETWORK, EventQueue
from phantora.engine.store import Store
from phantora.engine.timeline import CollectiveKernel, RankTimeline, Stream
from phantora.errors import SimulationError
from phantora.network.contention import ContentionModel
from phantora.network.operation import Network
from phantora.trace.model import SignatureInfo

_MAX_KEPT_PAYLOADS = 4096  # per rank: contents of collectives that nobody has read; older ones were overwritten unread


class State(enum.Enum):
    """What a rank is doing, as far as the engine knows."""

    ABSENT = "has not started"
    RUNNING = "is running"
    BLOCKED = "waits for the simulation"
    PAYLOAD = "waits for the contents of a collective"
    ORDERED = "waits for its turn"  # answered when no other rank can act before its clock
    FINISHED = "has finished"


class Rank:
    """One rank: its timeline, and what it waits for."""

    def __init__(self, number: int, timeline: RankTimeline) -> None:
        self.number = number
        self.timeline = timeline
        self.state = State.ABSENT
        self.call: dict[str, Any] = {}  # the call that blocks its main thread
        self.answer: Callable[[], None] | None = None  # of an ORDERED call
        self.stacks: dict[int, str] = {-1: ""}
        self.payloads: OrderedDict[tuple[int, int], Collective] = OrderedDict()
        self.unseen_wait = False  # waits for something that the engine cannot see (found by the watchdog)
        self.stand_ins: dict[str, int] = {}
        self.remarks: list[str] = []
        self.error: str | None = None

    @property
    def bound_ns(self) -> int | None:
        """Nothing this rank does from now on can happen earlier; None: it cannot act until it is answered."""
        if self.state in (State.BLOCKED, State.FINISHED) or self.unseen_wait:
            return None
        return self.timeline.clock_ns


class Simulation:
    """Owner of the event queue.

    reply(rank number, message) delivers an answer to a rank. contention: None when kernels and collectives of one GPU
    leave each other alone.
    """

    def __init__(
        self, world_size: int, network: Network, reply: Callable[[int, dict[str, Any]], None], contention: ContentionModel | None = None
    ) -> None:
        self.queue = EventQueue()
        self.contention = contention
        self.ranks = [Rank(number, self._timeline(number)) for number in range(world_size)]
        self.network = network
        self.matcher = Matcher()
        self.store = Store()
        self.host_collectives = HostCollectives()
        self.signatures: list[SignatureInfo] = []
        self.finished: list[Collective] = []
        self.relaxed = 0  # events processed although a rank that waits for contents stood at an earlier time
        self._reply = reply
        self._signature_numbers: dict[tuple[Any, ...], int] = {}
        self._in_flight: dict[int, Collective] = {}
        self._network_entry: Any = None
        self._next_key = 0

    def _timeline(self, number: int) -> RankTimeline:
        if self.contention is None:
            return RankTimeline(number, self._arrive)
        return ContendedTimeline(number, self._arrive, self.queue, self.contention.compute_factor)

    # -------------------------------------------------------------- frames from a rank

    def hello(self, number: int) -> None:
        self.ranks[number].state = State.RUNNING

    def records(self, number: int, data: bytes) -> None:
        rank = self.ranks[number]
        rank.unseen_wait = False
        rank.timeline.process(data)

    def signature(self, number: int, fields: dict[str, Any]) -> None:
        """A priced operator signature; equal ones of different ranks become one."""
        inputs = tuple((dtype, tuple(shape)) for dtype, shape in fields["inputs"])
        outputs = tuple((dtype, tuple(shape)) for dtype, shape in fields["outputs"])
        duration_ns, kernels, source = fields["duration_ns"], fields["num_kernels"], fields["source"]
        key = (fields["name"], inputs, outputs, duration_ns, kernels, source, fields["flops"], fields["bytes"], fields["family"])
        known = self._signature_numbers.get(key)
        if known is None:
            known = self._signature_numbers[key] = len(self.signatures)
            self.signatures.append(SignatureInfo(*key))
        timeline = self.ranks[number].timeline
        assert fields["id"] == len(timeline.signatures), "signatures are numbered in the order of their definition"
        timeline.signatures.append(known)
        timeline.durations.append(duration_ns)

    def string(self, number: int, fields: dict[str, Any]) -> None:
        self.ranks[number].timeline.strings[fields["id"]] = fields["text"]

    def stack(self, number: int, fields: dict[str, Any]) -> None:
        self.ranks[number].stacks[fields["id"]] = fields["text"]

    def collective(self, number: int, fields: dict[str, Any]) -> None:
        """A rank announces one launch of communication; its record follows."""
        rank = self.ranks[number]
        stack = rank.stacks.get(fields.get("stack", -1), "")
        ranks = tuple(fields["ranks"])
        parts = []
        for index, part in enumerate(fields["parts"]):
            handle = self.matcher.announce(number, fields["group"], ranks, part, stack)
            parts.append(handle)
            if "payload" in part:
                rank.payloads[fields["id"], index] = handle.collective
                if len(rank.payloads) > _MAX_KEPT_PAYLOADS:
                    rank.payloads.popitem(last=False)
        rank.timeline.collective_calls[fields["id"]] = parts

    # -------------------------------------------------------------- collectives on the network

    def _arrive(self, kernel: CollectiveKernel, ready_ns: int) -> None:
        """A communication kernel is at the head of its stream; when its last partner is there too, the operation begins."""
        for part in kernel.parts:
            collective, part.member.ready_ns = part.collective, ready_ns
            if collective.announced and all(member.ready_ns >= 0 for member in collective.members.values()):
                collective.start_ns = max(member.ready_ns for member in collective.members.values())
                self.queue.schedule(
                    max(collective.start_ns, self.queue.now_ns), BEGIN, collective.key, lambda now_ns, c=collective: self._begin(c, now_ns)
                )

    def _begin(self, collective: Collective, now_ns: int) -> None:
        collective.start_ns = now_ns
        collective.begun = True
        key, self._next_key = self._next_key, self._next_key + 1
        self._in_flight[key] = collective
        if self.contention is None:
            self.network.begin(key, collective.operation(), now_ns)
        else:
            self.network.begin(key, collective.operation(), now_ns, self._share_gpus(collective, self.contention))
        algorithm = getattr(self.network, "algorithm", None)
        collective.algorithm = algorithm(key) if algorithm else ""
        self._reschedule_network()

    def _share_gpus(self, collective: Collective, contention: ContentionModel) -> float:
        """The collective begins: compute beside it gets slower. How much slower the collective itself is."""
        places = [self._place(collective, number) for number in collective.ranks]
        is_busy = all(timeline.is_computing(stream) for timeline, stream in places)
        for timeline, stream in places:
            timeline.begin_sharing(stream)
        return contention.collective_bytes_factor(is_busy)

    def _place(self, collective: Collective, number: int) -> tuple[ContendedTimeline, Stream]:
        timeline = self.ranks[number].timeline
        assert isinstance(timeline, ContendedTimeline)
        return timeline, collective.members[number].kernel.stream

    def _reschedule_network(self) -> None:
        next_ns = self.network.next_ns()
        if self._network_entry is not None:
            if self._network_entry[0] == next_ns:
                return
            self.queue.cancel(self._network_entry)
            self._network_entry = None
        if next_ns is not None:
            self._network_entry = self.queue.schedule(next_ns, NETWORK, 0, self._network_event)

    def _network_event(self, now_ns: int) -> None:
        self._network_entry = None
        for key in self.network.advance(now_ns):
            self._end(self._in_flight.pop(key), now_ns)
        self._reschedule_network()

    def _end(self, collective: Collective, now_ns: int) -> None:
        collective.end_ns = now_ns
        self.matcher.finished(collective)
        self.finished.append(collective)
        if self.contention is not None:
            for number in collective.ranks:
                timeline, stream = self._place(collective, number)
                timeline.end_sharing(stream)
        for number in collective.ranks:
            kernel = collective.members[number].kernel
            kernel.unfinished -= 1
            if kernel.unfinished == 0:
                self.ranks[number].timeline.finish_collective(kernel, now_ns)

    # -------------------------------------------------------------- calls

    def note(self, number: int, fields: dict[str, Any]) -> None:
        rank = self.ranks[number]
        rank.timeline.clock_ns = max(rank.timeline.clock_ns, fields["clock_ns"])
        if fields["method"] == "host_post":
            ranks = tuple(fields["ranks"])
            stack = rank.stacks.get(fields.get("stack", -1), "")
            self.host_collectives.post(number, fields["group"], ranks, fields, stack)
        elif fields["method"] == "finish":
            rank.stand_ins, rank.remarks = fields["stand_ins"], fields["remarks"]
            rank.timeline.trace.exit_code, rank.error = fields["exit_code"], fields["error"]
        elif fields["method"] == "store_set":
            self.store.set(fields["key"], fields["value"], fields["clock_ns"])
        elif fields["method"] != "clock":
            raise ValueError(f"rank {number}: unknown note {fields['method']!r}")

    def ended(self, number: int) -> None:
        """The process of a rank has ended, and all that it sent has been taken in."""
        rank = self.ranks[number]
        rank.state = State.FINISHED
        rank.timeline.trace.host_end_ns = rank.timeline.clock_ns

    def call(self, number: int, fields: dict[str, Any]) -> None:
        """A blocking call. Calls of background threads do not block the rank itself."""
        rank = self.ranks[number]
        if fields["main"]:
            rank.timeline.clock_ns = max(rank.timeline.clock_ns, fields["clock_ns"])
            rank.call, rank.state, rank.unseen_wait = fields, State.BLOCKED, False
        handler = getattr(self, "_call_" + fields["method"], None)
        if handler is None:
            raise ValueError(f"rank {number}: unknown call {fields['method']!r}")
        handler(rank, fields)

    def answer(self, rank: Rank, fields: dict[str, Any], wake_ns: int = 0, **reply: Any) -> None:
        """Answer a call; the rank runs on, not earlier than wake_ns."""
        if fields["main"]:
            rank.state, rank.call, rank.answer = State.RUNNING, {}, None
            rank.timeline.clock_ns = max(rank.timeline.clock_ns, wake_ns)
        self._reply(rank.number, {"id": fields["id"], **reply})

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
                self.answer(rank, fields, ns=fields["clock_ns"], streams=[])
            else:
                event.when_known(lambda time_ns: self.answer(rank, fields, time_ns, ns=time_ns, streams=[]))
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
                self.answer(rank, fields, wake_ns, ns=wake_ns, streams=rows)

        if not streams:
            self.answer(rank, fields, ns=fields["clock_ns"], streams=[])
        for index, stream in enumerate(streams):
            timeline.when_done(stream, lambda end_ns, i=index: done(i, end_ns))

    def _call_query(self, rank: Rank, fields: dict[str, Any]) -> None:
        """Whether the work before an event (or on a stream) is done at the caller's clock."""
        timeline, clock_ns = rank.timeline, fields["clock_ns"]
        answered = []

        def decide(time_ns: int | None) -> None:
            if not answered:
                answered.append(True)
                self.answer(rank, fields, done=time_ns is not None and time_ns <= clock_ns)

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
        self._in_order(rank, fields, lambda: self.answer(rank, fields))

    def _call_event_time(self, rank: Rank, fields: dict[str, Any]) -> None:
        event = rank.timeline.event(fields["event"])
        if event is None:
            self.answer(rank, fields, ns=0)
        else:
            event.when_known(lambda time_ns: self.answer(rank, fields, ns=time_ns))

    def _call_payload(self, rank: Rank, fields: dict[str, Any]) -> None:
        collective = rank.payloads.get(tuple(fields["token"]))
        if collective is None:
            self.answer(rank, fields, payloads=None)
        elif collective.announced:
            self.answer(rank, fields, payloads=collective.payloads())
        else:
            if fields["main"]:
                rank.state = State.PAYLOAD
            collective.payload_waiters.append(lambda: self.answer(rank, fields, payloads=collective.payloads()))

    def _call_host_fetch(self, rank: Rank, fields: dict[str, Any]) -> None:
        def ready(wake_ns: int, payloads: list[bytes | None]) -> None:
            self.answer(rank, fields, wake_ns, ns=max(wake_ns, fields["clock_ns"]), payloads=payloads)

        self.host_collectives.when_complete(fields["group"], tuple(fields["ranks"]), fields["seq"], ready)

    def _call_store_get(self, rank: Rank, fields: dict[str, Any]) -> None:
        def present(set_ns: int) -> None:
            self.answer(rank, fields, set_ns, ns=max(set_ns, fields["clock_ns"]), value=self.store.get(fields["key"]))

        self.store.when_present([fields["key"]], present)

    def _call_store_wait(self, rank: Rank, fields: dict[str, Any]) -> None:
        self.store.when_present(fields["keys"], lambda set_ns: self.answer(rank, fields, set_ns, ns=max(set_ns, fields["clock_ns"])))

    def _call_store_set(self, rank: Rank, fields: dict[str, Any]) -> None:
        self.store.set(fields["key"], fields["value"], fields["clock_ns"])
        self.answer(rank, fields)

    def _call_store_add(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(
            rank, fields, lambda: self.answer(rank, fields, value=self.store.add(fields["key"], fields["amount"], fields["clock_ns"]))
        )

    def _call_store_check(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self.answer(rank, fields, present=self.store.present(fields["keys"], fields["clock_ns"])))

    def _call_store_compare_set(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            value = self.store.compare_set(fields["key"], fields["expected"], fields["desired"], fields["clock_ns"])
            self.answer(rank, fields, value=value)

        self._in_order(rank, fields, act)

    def _call_store_append(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            self.store.append(fields["key"], fields["value"], fields["clock_ns"])
            self.answer(rank, fields)

        self._in_order(rank, fields, act)

    def _call_store_delete(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self.answer(rank, fields, deleted=self.store.delete(fields["key"])))

    def _call_store_num_keys(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self.answer(rank, fields, n=self.store.num_keys()))

    def _call_store_list(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self.answer(rank, fields, keys=self.store.keys(fields.get("prefix", ""))))

    def _call_store_queue_push(self, rank: Rank, fields: dict[str, Any]) -> None:
        def act() -> None:
            self.store.push(fields["key"], fields["value"], fields["clock_ns"])
            self.answer(rank, fields)

        self._in_order(rank, fields, act)

    def _call_store_queue_pop(self, rank: Rank, fields: dict[str, Any]) -> None:
        def present(_: int) -> None:
            value = self.store.pop(fields["key"])
            assert value is not None
            self.answer(rank, fields, value[1], ns=max(value[1], fields["clock_ns"]), value=value[0])

        if fields.get("block", True):
            self.store.when_present([f"\0queue/{fields['key']}"], present)
            return

        def act() -> None:
            value = self.store.pop(fields["key"])
            self.answer(rank, fields, value=None if value is None else value[0])

        self._in_order(rank, fields, act)

    def _call_store_queue_len(self, rank: Rank, fields: dict[str, Any]) -> None:
        self._in_order(rank, fields, lambda: self.answer(rank, fields, n=self.store.queue_len(fields["key"])))

    # -------------------------------------------------------------- advancing

    def advance(self) -> None:
        """Process everything that is certain. SimulationError when nothing can ever move again."""
        while True:
            head_ns = self.queue.peek_ns()
            holder = self._holder()
            if head_ns is not None and (holder is None or head_ns <= holder[0]):
                self.queue.step()
            elif holder is None:
                if any(rank.state is State.BLOCKED for rank in self.ranks) and not self._anyone_running():
                    raise SimulationError(self.deadlock())
                return
            elif holder[1].state is State.ORDERED:
                assert holder[1].answer is not None
                holder[1].answer()
            elif holder[1].state is State.PAYLOAD and not self._anyone_running():
                if not self._relax():
                    raise SimulationError(self.deadlock())
            else:
                return

    def _holder(self) -> tuple[int, Rank] | None:
        """The rank that can act earliest; of several at one time, one that waits for its turn comes last."""
        best: tuple[int, int, int] | None = None
        for rank in self.ranks:
            bound_ns = rank.bound_ns
            if bound_ns is not None:
                key = (bound_ns, rank.state is State.ORDERED, rank.number)
                if best is None or key < best:
                    best = key
        return None if best is None else (best[0], self.ranks[best[2]])

    def _anyone_running(self) -> bool:
        return any(rank.state in (State.RUNNING, State.ABSENT) for rank in self.ranks)

    def _relax(self) -> bool:
        """All ranks wait, some for contents that a partner sends only after a later event: let that event happen.

        On real hardware the rank would not wait here (it waits when it reads), so its clock does not move. The state in
        which this happens does not depend on real time, so neither does the result.
        """
        ordered = [rank for rank in self.ranks if rank.state is State.ORDERED]
        if ordered:
            rank = min(ordered, key=lambda r: (r.timeline.clock_ns, r.number))
            assert rank.answer is not None
            rank.answer()
        elif len(self.queue):
            self.queue.step()
        else:
            return False
        self.relaxed += 1
        return True

    @property
    def all_finished(self) -> bool:
        return all(rank.state is State.FINISHED for rank in self.ranks)

    def finish(self) -> None:
        """After the last rank has ended: play what is left; SimulationError when a collective was left unjoined."""
        self.advance()
        if any(not collective.end_ns >= 0 for collective in self.matcher.open.values()):
            raise SimulationError(self.deadlock())

    def close(self) -> None:
        """Nothing more will happen (also in a run that was ended): work that nobody waits for gets its times."""
        for rank in self.ranks:
            rank.timeline.close()

    # -------------------------------------------------------------- what went wrong

    def deadlock(self) -> str:
        """Who waits for whom, with the calls and Python stacks."""
        lines = ["no rank can go on: a collective was not joined by all of its ranks"]
        for collective in sorted(self.matcher.open.values(), key=lambda c: c.key):
            if collective.begun or not collective.members:
                continue
            missing = collective.missing()
            if missing:
                first = collective.members[min(collective.members)]
                lines.append(f"{describe(collective, first)}: joined by ranks {sorted(collective.members)}, not by ranks {missing}")
                lines.append(f"rank {first.rank} called it from\n{first.stack}")
        lines += self.host_collectives.incomplete()
        for rank in self.ranks:
            if rank.call:
                stack = rank.stacks.get(rank.call.get("stack", -1), "")
                lines.append(f"rank {rank.number} {rank.state.value} ({_call_text(rank.call)}) at\n{stack}")
            else:
                lines.append(f"rank {rank.number} {rank.state.value}")
        if len(lines) == 1 + len(self.ranks):
            lines[0] = "no rank can go on: their calls wait for one another"
        return "\n".join(lines)


def _call_text(call: dict[str, Any]) -> str:
    method = call["method"]
    if method == "sync":
        return f"{call['what']} synchronize"
    if method in ("store_get", "store_wait"):
        return f"{method.replace('_', '.')} {call.get('key') or call.get('keys')}"
    return method
