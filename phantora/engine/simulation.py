"""The simulation of a whole job: ranks, their collectives on the network, and the rule by which virtual time advances.

The rule is conservative: an event at time T is processed only when no rank can still cause anything before T. A running
rank can act from its last known host clock on; a rank blocked in a call cannot act until it is answered. Nothing is ever
rolled back, and the result does not depend on which message arrived first.

`Simulation` knows nothing of sockets and processes: `server` feeds it frames and delivers its replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from phantora.compute.power import GpuPower
from phantora.engine.calls import Calls
from phantora.engine.collectives import Collective, Matcher
from phantora.engine.contended_timeline import ContendedTimeline
from phantora.engine.deadlock import deadlock_text
from phantora.engine.host_collectives import HostCollectives
from phantora.engine.queue import BEGIN, NETWORK, EventQueue
from phantora.engine.rank import Rank, State
from phantora.engine.store import Store
from phantora.engine.timeline import CollectiveKernel, RankTimeline, Stream
from phantora.errors import SimulationError
from phantora.network.contention import ContentionModel
from phantora.network.operation import Network
from phantora.trace.model import SignatureInfo

_MAX_KEPT_PAYLOADS = 4096  # per rank: contents of collectives that nobody has read; older ones were overwritten unread


class Simulation:
    """Owner of the event queue.

    reply(rank number, message) delivers an answer to a rank. contention: None when kernels and collectives of one GPU
    leave each other alone. power: None when no limit lowers the clocks.
    """

    def __init__(
        self,
        world_size: int,
        network: Network,
        reply: Callable[[int, dict[str, Any]], None],
        contention: ContentionModel | None = None,
        power: GpuPower | None = None,
    ) -> None:
        self.queue = EventQueue()
        self.contention = contention
        self.power = power
        self.ranks = [Rank(number, self._timeline(number)) for number in range(world_size)]
        self.network = network
        self.matcher = Matcher()
        self.store = Store()
        self.host_collectives = HostCollectives()
        self._calls = Calls(self.store, self.host_collectives, self.answer)
        self.signatures: list[SignatureInfo] = []
        self.finished: list[Collective] = []
        self.relaxed = 0  # events processed although a rank that waits for contents stood at an earlier time
        self._reply = reply
        self._signature_numbers: dict[tuple[Any, ...], int] = {}
        self._in_flight: dict[int, Collective] = {}
        self._network_entry: Any = None
        self._next_key = 0
        self._has_answered = False

    def _timeline(self, number: int) -> RankTimeline:
        if self.contention is None:
            return RankTimeline(number, self._arrive, self.power)
        return ContendedTimeline(number, self._arrive, self.queue, self.contention.compute_factor, self.power)

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
        draw = tuple(fields.get("draw", ()))
        known, call = self._signature_numbers.get((key, draw)), fields.get("call", "")
        if known is None:
            known = self._signature_numbers[key, draw] = len(self.signatures)
            self.signatures.append(SignatureInfo(*key, call=call, draw=draw))
        else:  # calls that differ in what no price depends on: one of them, whoever was first
            self.signatures[known].call = min(self.signatures[known].call, call)
        timeline = self.ranks[number].timeline
        assert fields["id"] == len(timeline.signatures), "signatures are numbered in the order of their definition"
        timeline.signatures.append(known)
        timeline.durations.append(duration_ns)
        timeline.draws.append(draw)

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
        self._check_abandoned([handle.collective for handle in parts])

    def _check_abandoned(self, collectives: Iterable[Collective]) -> None:
        """A collective that a rank left the job without joining will never run: said at once, because a rank that polls
        for it would poll for ever."""
        left = [number for number, rank in enumerate(self.ranks) if rank.ended_well]
        if left and any(number in collective.missing() for collective in collectives for number in left):
            raise SimulationError(self.deadlock())

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
        if fields["method"] in ("thread_start", "thread_end", "thread_join"):
            self._thread(rank, fields)
            return
        rank.timeline.clock_ns = max(rank.timeline.clock_ns, fields["clock_ns"])
        if fields["method"] == "host_post":
            ranks = tuple(fields["ranks"])
            stack = rank.stacks.get(fields.get("stack", -1), "")
            self.host_collectives.post(number, fields["group"], ranks, fields, stack, rank.point(fields))
        elif fields["method"] == "finish":
            rank.stand_ins, rank.remarks = fields["stand_ins"], fields["remarks"]
            rank.timeline.trace.exit_code, rank.error = fields["exit_code"], fields["error"]
        elif fields["method"] == "store_set":
            self.store.set(fields["key"], fields["value"], fields["clock_ns"], rank.point(fields))
        elif fields["method"] != "clock":
            raise ValueError(f"rank {number}: unknown note {fields['method']!r}")

    def _thread(self, rank: Rank, fields: dict[str, Any]) -> None:
        """A host thread of the script's own starts (told by the starter), ends (by itself), or was joined."""
        number = fields["number"]
        if fields["method"] == "thread_start":
            rank.waited({**fields, "thread": number}, fields["clock_ns"], "thread start", (rank.point(fields),))
        elif fields["method"] == "thread_end":
            rank.thread_ends[number] = rank.point(fields)
        elif number in rank.thread_ends:
            rank.waited({**fields, "clock_ns": fields["begin_ns"]}, fields["clock_ns"], "thread join", (rank.thread_ends[number],))

    def ended(self, number: int) -> None:
        """The process of a rank has ended, and all that it sent has been taken in."""
        rank = self.ranks[number]
        rank.state = State.FINISHED
        rank.timeline.trace.host_end_ns = rank.timeline.clock_ns
        self._check_abandoned(list(self.matcher.open.values()))

    def call(self, number: int, fields: dict[str, Any]) -> None:
        """A blocking call. Calls of background threads do not block the rank itself."""
        rank = self.ranks[number]
        if fields["main"]:
            rank.timeline.clock_ns = max(rank.timeline.clock_ns, fields["clock_ns"])
            rank.call, rank.state, rank.unseen_wait = fields, State.BLOCKED, False
        self._calls.take(rank, fields)

    def answer(self, rank: Rank, fields: dict[str, Any], wake_ns: int = 0, **reply: Any) -> None:
        """Answer a call; the rank runs on, not earlier than wake_ns."""
        self._has_answered = True
        if fields["main"]:
            rank.state, rank.call, rank.answer = State.RUNNING, {}, None
            rank.timeline.clock_ns = max(rank.timeline.clock_ns, wake_ns)
        self._reply(rank.number, {"id": fields["id"], **reply})

    # -------------------------------------------------------------- advancing

    def advance(self) -> None:
        """Process everything that is certain. SimulationError when nothing can ever move again."""
        holder, self._has_answered = self._holder(), False
        while True:
            head_ns = self.queue.peek_ns()
            if self._has_answered:  # nothing else moves a rank while events are processed
                holder, self._has_answered = self._holder(), False
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

    def deadlock(self) -> str:
        """Who waits for whom, with the calls and Python stacks."""
        return deadlock_text(self.matcher, self.host_collectives, self.ranks)
