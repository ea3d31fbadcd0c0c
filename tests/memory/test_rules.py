"""Each rule of the allocator in a scenario of a few lines, with numbers worked out by hand from the rule."""

import pytest

from phantora.errors import UserError
from phantora.memory.emulator import AllocatorEmulator, OutOfMemory, format_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
POOL = (0, 1)


@pytest.fixture
def allocator() -> AllocatorEmulator:
    return AllocatorEmulator()


def reserved(allocator: AllocatorEmulator) -> int:
    return allocator.stats()["reserved_bytes.all.current"]


def states(allocator: AllocatorEmulator) -> list[list[tuple[int, str]]]:
    """(bytes, state) of the blocks of each segment."""
    return [[(block["size"], block["state"]) for block in segment["blocks"]] for segment in allocator.snapshot()]


@pytest.mark.parametrize("asked, got", [(1, 512), (512, 512), (513, 1024), (1000, 1024), (MIB, MIB)])
def test_sizes_are_rounded_to_512_bytes(allocator, asked, got):
    address = allocator.malloc(asked)
    assert allocator.block_bytes(address) == got
    assert allocator.stats()["requested_bytes.all.current"] == asked
    assert allocator.stats()["allocated_bytes.all.current"] == got


@pytest.mark.parametrize(
    "asked, segment",
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_by_size_of_the_request(allocator, asked, segment):
    address = allocator.malloc(asked)
    assert allocator.segment_of(address)[1] == segment
    pool = "small_pool" if asked <= MIB else "large_pool"
    assert allocator.stats()[f"reserved_bytes.{pool}.current"] == segment


def test_nothing_is_allocated_for_zero_bytes(allocator):
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert reserved(allocator) == 0


def test_small_blocks_are_cut_when_512_bytes_remain(allocator):
    first = allocator.malloc(MIB)
    second = allocator.malloc(MIB - 512)
    assert second == first + MIB
    assert states(allocator) == [[(MIB, "active_allocated"), (MIB - 512, "active_allocated"), (512, "inactive")]]
    assert allocator.stats()["inactive_split_bytes.all.current"] == 512


def test_large_blocks_are_cut_only_when_more_than_1_mib_remains(allocator):
    whole = allocator.malloc(11 * MIB)  # segment of 12 MiB: 1 MiB would remain, so all of it is handed out
    assert allocator.block_bytes(whole) == 12 * MIB
    allocator.malloc(5 * MIB)  # of 20 MiB
    assert sorted(states(allocator)) == [
        [(5 * MIB, "active_allocated"), (15 * MIB, "inactive")],
        [(12 * MIB, "active_allocated")],
    ]


def test_best_fit_takes_the_smallest_block_then_the_lowest_address(allocator):
    addresses = [allocator.malloc(size * KIB) for size in (8, 1, 4, 1, 4, 1)]
    for index in (0, 2, 4):
        allocator.free(addresses[index])
    assert allocator.malloc(3 * KIB) == addresses[2]
    assert allocator.malloc(4 * KIB) == addresses[4]
    assert allocator.malloc(4 * KIB) == addresses[0]


def test_freed_blocks_merge_with_both_neighbours(allocator):
    a, b, c = (allocator.malloc(512 * KIB) for _ in range(3))
    allocator.free(a)
    allocator.free(c)
    assert [size for size, _ in states(allocator)[0]] == [512 * KIB, 512 * KIB, MIB]
    allocator.free(b)
    assert states(allocator) == [[(2 * MIB, "inactive")]]
    stats = allocator.stats()
    assert stats["inactive_split.all.current"] == stats["inactive_split_bytes.all.current"] == 0
    assert stats["inactive_split.all.peak"] == 2


def test_streams_do_not_share_blocks(allocator):
    address = allocator.malloc(512, stream=0)
    allocator.free(address)
    assert allocator.malloc(512, stream=7) != address
    assert allocator.malloc(512, stream=0) == address
    assert reserved(allocator) == 4 * MIB


def test_a_block_used_by_another_stream_waits_for_it(allocator):
    address = allocator.malloc(512)
    allocator.record_stream(address, 5)
    allocator.free(address)
    assert allocator.stats()["allocated_bytes.all.current"] == 0
    assert allocator.stats()["active_bytes.all.current"] == 512
    assert states(allocator)[0][0] == (512, "active_pending_free")
    assert allocator.malloc(512) == address + 512
    allocator.finish_stream(5)
    assert allocator.malloc(512) == address


def test_use_on_the_own_stream_needs_no_wait(allocator):
    address = allocator.malloc(512)
    allocator.record_stream(address, 0)
    allocator.free(address)
    assert allocator.malloc(512) == address


def test_free_is_requested_first_and_completed_later(allocator):
    allocator.start_trace()
    address = allocator.malloc(1000)
    allocator.record_stream(address, 5)
    allocator.free(address)
    allocator.finish_stream(5)
    allocator.malloc(2 * KIB)
    assert [(event.action, event.bytes) for event in allocator.take_trace()] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 1000),
        ("free_requested", 1000),
        ("free_completed", 1000),
        ("alloc", 2 * KIB),
    ]


def test_empty_cache_releases_whole_free_segments_and_waits_for_streams(allocator):
    kept, freed = allocator.malloc(512), allocator.malloc(30 * MIB)
    allocator.record_stream(freed, 5)
    allocator.free(freed)
    allocator.empty_cache()
    assert reserved(allocator) == 2 * MIB
    stats = allocator.stats()
    assert (stats["num_device_alloc"], stats["num_device_free"], stats["num_sync_all_streams"]) == (2, 1, 1)
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.snapshot() == []


def test_a_failed_cuda_malloc_frees_the_cache_and_tries_again():
    allocator = AllocatorEmulator(total_bytes=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["reserved_bytes.all.current"]) == (1, 0, 80 * MIB)


def test_out_of_memory_says_what_torch_says():
    allocator = AllocatorEmulator(device=1, total_bytes=81920 * MIB, context_bytes=500 * MIB)
    allocator.malloc(60 * GIB)
    allocator.malloc(5 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(20 * GIB)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 19.49 GiB "
        "is free. Including non-PyTorch memory, this process has 60.51 GiB memory in use. Of the allocated memory "
        "60.00 GiB is allocated by PyTorch, and 15.00 MiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    assert allocator.stats()["num_ooms"] == 1
    allocator.malloc(19 * GIB)  # the allocator goes on


def test_more_than_an_exbibyte_has_its_own_message(allocator):
    with pytest.raises(OutOfMemory, match="Tried to allocate more than 1EB memory"):
        allocator.malloc(1 << 60)


@pytest.mark.parametrize(
    "size, text",
    [
        (512, "512 bytes"),
        (1536, "1.50 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (3 * GIB, "3.00 GiB"),
    ],
)
def test_sizes_in_messages(size, text):
    assert format_size(size) == text


def test_memory_fraction_limits_what_is_reserved():
    allocator = AllocatorEmulator(total_bytes=100 * MIB)
    allocator.set_memory_fraction(0.5)
    allocator.malloc(40 * MIB)
    with pytest.raises(OutOfMemory, match="50.00 MiB allowed; Of the allocated memory 40.00 MiB"):
        allocator.malloc(12 * MIB)
    allocator.set_memory_fraction(1.0)
    allocator.malloc(12 * MIB)
    with pytest.raises(ValueError, match="invalid fraction"):
        allocator.set_memory_fraction(1.5)


def test_other_memory_of_the_device_counts():
    allocator = AllocatorEmulator(total_bytes=100 * MIB, context_bytes=10 * MIB)
    allocator.set_other_bytes(30 * MIB)
    assert allocator.free_bytes() == 60 * MIB
    with pytest.raises(OutOfMemory):
        allocator.malloc(62 * MIB)
    allocator.malloc(60 * MIB)
    assert allocator.free_bytes() == 0


def test_peaks_and_sums_can_be_reset(allocator):
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(1000)
    assert allocator.stats()["allocated_bytes.all.peak"] == 30 * MIB
    allocator.reset_peak()
    allocator.reset_accumulated()
    stats = allocator.stats()
    assert stats["allocated_bytes.all.peak"] == 1024
    assert stats["allocated_bytes.all.allocated"] == stats["num_device_alloc"] == 0
    assert stats["allocated_bytes.all.current"] == 1024


def test_what_is_not_allocated_cannot_be_freed(allocator):
    address = allocator.malloc(512)
    allocator.free(address)
    with pytest.raises(ValueError, match="invalid device pointer"):
        allocator.free(address)
    with pytest.raises(ValueError, match="invalid device pointer"):
        allocator.record_stream(12345, 1)


def test_addresses_tell_the_device():
    addresses = [AllocatorEmulator(device=device).malloc(512) for device in (0, 1, 7)]
    assert [(address >> 54) - 1 for address in addresses] == [0, 1, 7]


def test_segments_fill_ranges_of_32_mib_downwards(allocator):
    first = allocator.malloc(48 * MIB)  # range of 64 MiB
    second = allocator.malloc(96 * MIB)  # range of 96 MiB below it
    third = allocator.malloc(12 * MIB)  # in the hole behind the first
    assert (second - first, third - first) == (-96 * MIB, 48 * MIB)


class TestOptions:
    @pytest.mark.parametrize(
        "asked, got",
        [(1200, 1536), (5000, 5120), (9 * MIB, 10 * MIB), (300 * MIB, 320 * MIB), (4 * MIB, 4 * MIB)],
    )
    def test_roundup_power2_divisions(self, asked, got):
        allocator = AllocatorEmulator(settings="roundup_power2_divisions:4")
        # 1200 is below 512 * 4, so it is rounded to 512 bytes; 5000 lies between 4096 and 8192: steps of 1024.
        assert allocator.block_bytes(allocator.malloc(asked)) == got

    def test_roundup_by_interval(self):
        allocator = AllocatorEmulator(settings="roundup_power2_divisions:[64:8,256:4,>:1]")
        assert allocator.block_bytes(allocator.malloc(65 * MIB)) == 72 * MIB
        assert allocator.block_bytes(allocator.malloc(257 * MIB)) == 320 * MIB
        assert allocator.block_bytes(allocator.malloc(513 * MIB)) == 514 * MIB

    def test_oversize_blocks_are_neither_split_nor_given_to_smaller_requests(self):
        allocator = AllocatorEmulator(settings="max_split_size_mb:40")
        big = allocator.malloc(60 * MIB)
        allocator.free(big)
        assert allocator.malloc(5 * MIB) != big
        assert allocator.malloc(50 * MIB) == big
        assert allocator.block_bytes(big) == 60 * MIB
        stats = allocator.stats()
        assert (stats["oversize_allocations.current"], stats["oversize_segments.current"]) == (1, 1)
        assert stats["max_split_size"] == 40 * MIB

    def test_oversize_blocks_serve_requests_within_20_mib(self):
        allocator = AllocatorEmulator(settings="max_split_size_mb:40")
        big = allocator.malloc(70 * MIB)
        allocator.free(big)
        assert allocator.malloc(50 * MIB) != big
        assert allocator.malloc(52 * MIB) == big

    def test_a_large_enough_oversize_block_is_released_first(self):
        allocator = AllocatorEmulator(settings="max_split_size_mb:40", total_bytes=100 * MIB)
        allocator.free(allocator.malloc(70 * MIB))
        allocator.free(allocator.malloc(12 * MIB))
        allocator.malloc(46 * MIB)
        stats = allocator.stats()
        assert (stats["num_alloc_retries"], stats["num_sync_all_streams"], stats["num_device_free"]) == (0, 0, 1)
        assert stats["reserved_bytes.all.current"] == 58 * MIB

    def test_garbage_collection_releases_the_longest_unused(self):
        settings = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
        allocator = AllocatorEmulator(settings=settings, total_bytes=400 * MIB)
        allocator.free(allocator.malloc(60 * MIB))
        allocator.free(allocator.malloc(64 * MIB))
        # Ages 2 and 1 searches; 124 of 200 MiB are reserved, the threshold is 100: the older one goes.
        allocator.malloc(70 * MIB)
        assert sorted(sum(size for size, _ in segment) for segment in states(allocator)) == [64 * MIB, 70 * MIB]
        assert allocator.stats()["num_alloc_retries"] == 0

    def test_large_segment_size(self):
        allocator = AllocatorEmulator(settings="large_segment_size_mb:40,max_non_split_rounding_mb:40")
        allocator.malloc(2 * MIB)
        assert reserved(allocator) == 40 * MIB

    def test_settings_can_change_later(self):
        allocator = AllocatorEmulator()
        allocator.apply_settings("max_split_size_mb:40")
        big = allocator.malloc(60 * MIB)
        allocator.free(big)
        assert allocator.malloc(5 * MIB) != big
        with pytest.raises(ValueError, match="Unrecognized key"):
            allocator.apply_settings("no_such_option:1")

    def test_wrong_settings_are_the_users_mistake(self):
        with pytest.raises(UserError, match="too small, must be >= 20"):
            AllocatorEmulator(settings="max_split_size_mb:10")


class TestExpandableSegments:
    @pytest.fixture
    def allocator(self) -> AllocatorEmulator:
        return AllocatorEmulator(settings="expandable_segments:True")

    def test_one_segment_grows_by_pages_of_20_mib(self, allocator):
        first = allocator.malloc(5 * MIB)
        assert reserved(allocator) == 20 * MIB
        second = allocator.malloc(30 * MIB)
        assert second == first + 5 * MIB
        assert reserved(allocator) == 40 * MIB
        assert states(allocator) == [
            [(5 * MIB, "active_allocated"), (30 * MIB, "active_allocated"), (5 * MIB, "inactive")]
        ]
        stats = allocator.stats()
        assert stats["segment.all.current"] == stats["inactive_split.all.current"] == 0
        assert stats["num_device_alloc"] == 2
        assert allocator.snapshot()[0]["is_expandable"]

    def test_small_pages_are_2_mib(self, allocator):
        for _ in range(3):
            allocator.malloc(MIB)
        assert reserved(allocator) == 4 * MIB

    def test_empty_cache_unmaps_whole_free_pages(self, allocator):
        a, b, c = (allocator.malloc(20 * MIB) for _ in range(3))
        allocator.free(b)
        allocator.empty_cache()
        assert reserved(allocator) == 40 * MIB
        assert [segment["address"] for segment in allocator.snapshot()] == [a, c]
        assert allocator.malloc(18 * MIB) == b  # the gap is filled again
        for address in (a, b, c):
            allocator.free(address)
        allocator.empty_cache()
        assert allocator.snapshot() == []

    def test_pages_that_are_partly_used_stay(self, allocator):
        allocator.malloc(5 * MIB)
        allocator.free(allocator.malloc(40 * MIB))
        allocator.empty_cache()
        assert states(allocator) == [[(5 * MIB, "active_allocated"), (15 * MIB, "inactive")]]

    def test_fragments_that_stop_plain_segments_do_not_stop_it(self):
        def fits(settings: str) -> bool:
            allocator = AllocatorEmulator(settings=settings, total_bytes=200 * MIB)
            blocks = [allocator.malloc(20 * MIB) for _ in range(10)]
            for block in blocks[:6]:
                allocator.free(block)
            small = [allocator.malloc(2 * MIB) for _ in range(2)]
            allocator.free(small[0])
            try:
                allocator.malloc(110 * MIB)
            except OutOfMemory:
                return False
            return True

        assert fits("expandable_segments:True")
        assert not fits("")

    def test_growth_stops_at_the_end_of_memory(self):
        allocator = AllocatorEmulator(settings="expandable_segments:True", total_bytes=50 * MIB)
        allocator.malloc(30 * MIB)
        with pytest.raises(OutOfMemory):
            allocator.malloc(20 * MIB)
        allocator.malloc(10 * MIB)


class TestPrivatePools:
    def test_a_pool_has_segments_of_its_own(self, allocator):
        allocator.free(allocator.malloc(512))
        allocator.begin_allocate_to_pool(POOL)
        inside = allocator.malloc(512)
        allocator.end_allocate_to_pool(POOL)
        assert reserved(allocator) == 4 * MIB
        assert allocator.stats()["reserved_bytes_by_private_pools.0_1.all.current"] == 2 * MIB
        assert allocator.segment_of(allocator.malloc(512)) != allocator.segment_of(inside)
        assert [segment["segment_pool_id"] for segment in allocator.snapshot(POOL)] == [[0, 1]]

    def test_memory_stays_until_the_pool_is_released(self, allocator):
        allocator.begin_allocate_to_pool(POOL)
        address = allocator.malloc(30 * MIB)
        allocator.end_allocate_to_pool(POOL)
        allocator.free(address)
        allocator.empty_cache()
        assert reserved(allocator) == 30 * MIB
        allocator.release_pool(POOL)
        allocator.empty_cache()
        assert reserved(allocator) == 0
        with pytest.raises(ValueError, match="unknown memory pool"):
            allocator.release_pool(POOL)

    def test_only_the_stream_of_the_capture_is_diverted(self, allocator):
        allocator.begin_allocate_to_pool(POOL, stream=3)
        allocator.malloc(512, stream=0)
        allocator.malloc(512, stream=3)
        assert [tuple(segment["segment_pool_id"]) for segment in allocator.snapshot()] == [(0, 0), (0, 1)]

    def test_frees_across_streams_wait_for_the_end_of_a_capture(self, allocator):
        address = allocator.malloc(512)
        allocator.begin_allocate_to_pool(POOL, stream=3)
        allocator.record_stream(address, 5)
        allocator.free(address)
        assert allocator.malloc(512) != address
        allocator.end_allocate_to_pool(POOL)
        assert allocator.malloc(512) == address  # the use lay in the capture: no event to wait for

    def test_memory_of_pools_is_named_when_it_runs_out(self):
        allocator = AllocatorEmulator(total_bytes=100 * MIB)
        allocator.begin_allocate_to_pool(POOL)
        allocator.free(allocator.malloc(60 * MIB))
        allocator.end_allocate_to_pool(POOL)
        text = r"with 60.00 MiB allocated in private pools \(e.g., CUDA Graphs\), and 0 bytes"
        with pytest.raises(OutOfMemory, match=text):
            allocator.malloc(50 * MIB)
        allocator.use_pool_on_oom(POOL)
        allocator.malloc(50 * MIB)
        assert allocator.stats()["num_alloc_retries"] == 1  # of the first attempt

    def test_a_pool_that_is_never_split(self, allocator):
        allocator.create_pool(POOL)
        allocator.never_split_pool(POOL)
        allocator.begin_allocate_to_pool(POOL)
        assert allocator.block_bytes(allocator.malloc(5 * MIB)) == 20 * MIB

    def test_a_pool_with_its_own_allocator_has_plain_segments(self):
        allocator = AllocatorEmulator(settings="expandable_segments:True")
        allocator.create_pool(POOL, own_allocator=True)
        allocator.begin_allocate_to_pool(POOL)
        allocator.malloc(5 * MIB)
        assert not allocator.snapshot()[0]["is_expandable"]

    def test_a_pool_serves_one_capture_at_a_time(self, allocator):
        allocator.begin_allocate_to_pool(POOL)
        with pytest.raises(ValueError, match="already recording"):
            allocator.begin_allocate_to_pool(POOL)
        allocator.end_allocate_to_pool(POOL)
        with pytest.raises(ValueError, match="not currently recording"):
            allocator.end_allocate_to_pool(POOL)
