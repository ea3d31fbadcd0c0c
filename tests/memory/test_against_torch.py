"""Random use of the real allocator on a GPU, repeated by ours: the same actions, statistics and error texts.

Needs a CUDA build of torch and a GPU (`pytest -m gpu tests/memory`); reserves at most 2 GiB.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from phantora.memory.emulator import AllocatorEmulator, Event, OutOfMemory

MIB = 1 << 20
LIMIT_BYTES = 2048 * MIB
SETTINGS = [
    # expandable_segments keeps its value when the settings change, so each says it
    "expandable_segments:False",
    "expandable_segments:False,max_split_size_mb:40",
    "expandable_segments:False,roundup_power2_divisions:[64:8,256:4,>:1]",
    "expandable_segments:False,garbage_collection_threshold:0.5",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
]
Step = tuple[str, int, int]


def random_steps(seed: int, count: int = 3000) -> list[Step]:
    """(action, bytes or which live allocation, number of the stream).

    Only one stream is ever recorded: in which order torch asks the events of several streams depends on a hash.
    """
    rng = random.Random(seed)
    steps: list[Step] = []
    for _ in range(count):
        action = rng.choices(["malloc", "free", "record", "empty"], [50, 45, 4, 0.3])[0]
        size = rng.choice([rng.randint(1, 4096), rng.randint(1, 2 * MIB), rng.randint(1, 100 * MIB)])
        steps.append((action, size if action == "malloc" else rng.randrange(1 << 20), rng.choice([0, 0, 0, 1, 2])))
    return [(action, value, 1 if action == "record" else stream) for action, value, stream in steps]


@dataclass(kw_only=True)
class Outcome:
    """What an allocator did with some steps."""

    events: list[Event] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)


def tail(message: str) -> str:
    """The part of an error that does not depend on what else uses the device."""
    return message[: message.index(". GPU")] + message[message.index("Of the allocated memory") :]


def on_gpu(steps: list[Step], settings: str) -> tuple[Outcome, list[int]]:
    """What torch did, and the handles of the streams (their order decides in which order segments are released)."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(settings)
    torch.cuda.set_per_process_memory_fraction(fraction())
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)
    outcome, live = Outcome(), []
    for action, value, stream in steps:
        if action == "malloc":
            try:
                with torch.cuda.stream(streams[stream]):
                    live.append(torch.empty(value, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError as error:
                outcome.errors.append(tail(str(error)))
        elif action == "empty":
            torch.cuda.empty_cache()
        elif live and action == "record":
            live[value % len(live)].record_stream(streams[stream])
        elif live:
            live.pop(value % len(live))
            torch.cuda.synchronize()
    history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    outcome.events = [
        Event(entry["action"], entry["addr"], entry["size"], entry["stream"])
        for entry in history
        if entry["action"] not in ("snapshot", "oom")
    ]
    outcome.stats = dict(torch.cuda.memory_stats())
    live.clear()
    torch.cuda.empty_cache()
    return outcome, [stream.cuda_stream for stream in streams]


def emulated(steps: list[Step], settings: str, total_bytes: int, streams: list[int], placed: list[int]) -> Outcome:
    allocator = AllocatorEmulator(total_bytes=total_bytes)
    allocator.apply_settings(settings)
    allocator.set_memory_fraction(LIMIT_BYTES / total_bytes)
    allocator.place_segments(placed)
    allocator.start_trace()
    outcome = Outcome()
    try:
        repeat(steps, allocator, streams, outcome)
    except ValueError as error:  # an allocator that went astray frees what is not there: the events say where it began
        outcome.errors.append(str(error))
    outcome.events = [event for event in allocator.take_trace() if event.action not in ("snapshot", "oom")]
    outcome.stats = allocator.stats()
    return outcome


def repeat(steps: list[Step], allocator: AllocatorEmulator, streams: list[int], outcome: Outcome) -> None:
    live: list[int] = []
    for action, value, stream in steps:
        if action == "malloc":
            try:
                live.append(allocator.malloc(value, streams[stream]))
            except OutOfMemory as error:
                outcome.errors.append(tail(str(error)))
        elif action == "empty":
            allocator.empty_cache()
        elif live and action == "record":
            allocator.record_stream(live[value % len(live)], streams[stream])
        elif live:
            allocator.free(live.pop(value % len(live)))
            allocator.finish_stream(streams[1])


def placements(events: list[Event], total_bytes: int) -> Iterator[int]:
    """Addresses of the segments in the order of their making; an expandable one begins with its first mapped page."""
    mapped: dict[int, int] = {}  # start of an expandable segment -> mapped bytes
    reach = total_bytes + total_bytes // 8
    for event in events:
        if event.action == "segment_alloc":
            yield event.address
        elif event.action in ("segment_map", "segment_unmap"):
            starts = [start for start in mapped if start <= event.address < start + reach]
            start = max(starts, default=event.address)
            if event.action == "segment_map":
                if not starts:
                    yield event.address
                mapped[start] = mapped.get(start, 0) + event.bytes
            else:
                mapped[start] -= event.bytes
                if mapped[start] == 0:
                    del mapped[start]


def total_memory() -> int:
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def fraction() -> float:
    return LIMIT_BYTES / total_memory()


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_same_as_torch(settings, seed):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if "phantora_native" in sys.modules:
        pytest.skip("the GPU of this process is simulated")
    steps, total = random_steps(seed), total_memory()
    theirs, streams = on_gpu(steps, settings)
    ours = emulated(steps, settings, total, streams, list(placements(theirs.events, total)))
    differing = [pair for pair in zip(theirs.events, ours.events) if pair[0] != pair[1]]
    assert not differing, f"first difference (theirs, ours): {differing[0]}"
    assert len(ours.events) == len(theirs.events)
    assert ours.errors == theirs.errors
    common = set(theirs.stats) & set(ours.stats) - {"num_device_alloc", "num_device_free"}
    assert {name: ours.stats[name] for name in common} == {name: theirs.stats[name] for name in common}
    # Nobody may have proved nothing: the limit was met and several kinds of action happened.
    assert theirs.errors and {"alloc", "free_completed"} <= {event.action for event in theirs.events}


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_placements_of_a_trace_repeat_it(settings):
    """Checks this module's bookkeeping without a GPU: our own trace stands for the measured one."""
    steps, total = random_steps(3), 80 << 30
    first = emulated(steps, settings, total, [0, 1, 2], [])
    shifted = [address + (1 << 40) for address in placements(first.events, total)]
    second = emulated(steps, settings, total, [0, 1, 2], shifted)
    assert [e._replace(address=e.address + (1 << 40)) for e in first.events] == second.events
    assert first.stats == second.stats
    assert first.errors and first.errors == second.errors
