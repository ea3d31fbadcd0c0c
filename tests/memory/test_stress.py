"""Random use: whatever happens, blocks tile their segments, the statistics add up and everything merges back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.memory.emulator import AllocatorEmulator, OutOfMemory

MIB = 1 << 20
TOTAL = 300 * MIB
POOL = (0, 1)

OPTIONS = st.sampled_from(
    [
        "",
        "max_split_size_mb:40",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8",
        "expandable_segments:True",
        "expandable_segments:True,roundup_power2_divisions:8",
    ]
)
SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(1, 60 * MIB))
STREAMS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, STREAMS),
        st.tuples(st.just("free"), st.integers(0, 1000), STREAMS),
        st.tuples(st.just("record"), st.integers(0, 1000), STREAMS),
        st.tuples(st.just("finish"), st.just(0), STREAMS),
        st.tuples(st.sampled_from(["empty", "begin", "end"]), st.just(0), STREAMS),
    ),
    max_size=80,
)


class Run:
    """An allocator in random use, with what is known of it from outside."""

    def __init__(self, options: str) -> None:
        self.allocator = AllocatorEmulator(settings=options, total_bytes=TOTAL)
        self.live: dict[int, int] = {}
        self.capturing = False
        self.pool_users = 0

    def step(self, action: str, value: int, stream: int) -> None:
        if action == "malloc":
            self.malloc(value, stream)
        elif action in ("free", "record") and self.live:
            address = sorted(self.live)[value % len(self.live)]
            if action == "record":
                self.allocator.record_stream(address, stream)
            else:
                self.allocator.free(address)
                del self.live[address]
        elif action == "finish":
            self.allocator.finish_stream(stream)
        elif action == "empty":
            self.allocator.empty_cache()
        elif action in ("begin", "end"):
            self.capture(action == "begin", stream)

    def malloc(self, num_bytes: int, stream: int) -> None:
        try:
            address = self.allocator.malloc(num_bytes, stream)
        except OutOfMemory:
            return
        assert address not in self.live
        self.live[address] = num_bytes

    def capture(self, on: bool, stream: int) -> None:
        if on and not self.capturing:
            self.allocator.begin_allocate_to_pool(POOL, stream)
            self.pool_users += 1
        elif self.capturing and not on:
            self.allocator.end_allocate_to_pool(POOL)
        self.capturing = on


def check(run: Run) -> None:
    stats = run.allocator.stats()
    segments = run.allocator.snapshot()
    end = 0
    active = allocated = reserved = 0
    seen: dict[int, int] = {}
    for segment in segments:
        assert segment["address"] >= end
        address = segment["address"]
        previous = "active"
        for block in segment["blocks"]:
            assert block["address"] == address and block["size"] % 512 == 0 and block["size"] > 0
            assert not (previous == block["state"] == "inactive"), "free neighbours must have merged"
            previous = block["state"]
            address += block["size"]
            active += block["size"] * (block["state"] != "inactive")
            if block["state"] == "active_allocated":
                seen[block["address"]] = block["requested_size"]
                assert block["size"] >= block["requested_size"]
                allocated += block["size"]
        end = address
        assert address - segment["address"] == segment["total_size"]
        reserved += segment["total_size"]
    assert seen == run.live
    assert stats["allocation.all.current"] == len(run.live)
    assert stats["allocated_bytes.all.current"] == allocated
    assert stats["active_bytes.all.current"] == active
    assert stats["reserved_bytes.all.current"] == reserved == TOTAL - run.allocator.free_bytes()
    for name, value in stats.items():
        if name.endswith(".all.current"):
            parts = (name.replace(".all.", f".{pool}.") for pool in ("small_pool", "large_pool"))
            assert value == sum(stats[part] for part in parts)
            assert value == stats[name[:-7] + "allocated"] - stats[name[:-7] + "freed"]
            assert 0 <= value <= stats[name[:-7] + "peak"]


@settings(max_examples=150, deadline=None)
@given(options=OPTIONS, steps=STEPS)
def test_random_use(options, steps):
    run = Run(options)
    for step in steps:
        run.step(*step)
        check(run)
    run.capture(False, 0)
    for address in list(run.live):
        run.allocator.free(address)
    for _ in range(run.pool_users):
        run.allocator.release_pool(POOL)
    run.allocator.empty_cache()
    stats = run.allocator.stats()
    left = {name: value for name, value in stats.items() if name.endswith(".current") and value != 0}
    assert left == {}
    assert run.allocator.snapshot() == []
    assert run.allocator.free_bytes() == TOTAL


@settings(max_examples=30, deadline=None)
@given(options=OPTIONS, steps=STEPS)
def test_the_same_use_gives_the_same_addresses(options, steps):
    traces = []
    for _ in range(2):
        run = Run(options)
        run.allocator.start_trace()
        for step in steps:
            run.step(*step)
        traces.append(run.allocator.take_trace())
    assert traces[0] == traces[1]
