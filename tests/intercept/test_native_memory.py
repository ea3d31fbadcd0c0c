"""Simulated memory as torch sees it: storages, statistics, out of memory, pinned memory, private pools."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from armed import CONTEXT_BYTES, PROPERTIES, arm, records

from phantora.engine.protocol import Kind

pytestmark = pytest.mark.torch
MIB = 1 << 20
CUDA_FREE_NS = 200_000  # more than a small cudaFree takes


@pytest.fixture
def native() -> Iterator[Any]:
    native = arm()
    gc.collect()
    native.set_device(0)
    native.synchronize_device(0)
    native.empty_cache()
    native.drain()
    yield native
    native.set_memory_limit_bytes(-1)


def memory_records(native: Any) -> list[tuple[Kind, int, int]]:
    """(kind, allocated bytes after, reserved bytes after)."""
    return [(Kind(r.kind), r.b, r.c) for r in records(native.drain()) if r.kind in (Kind.ALLOC, Kind.FREE)]


def test_records_carry_what_is_allocated_and_reserved_afterwards(native: Any) -> None:
    import torch

    base, reserved = torch.cuda.memory_allocated(6), torch.cuda.memory_reserved(6)
    tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:6")
    address = tensor.data_ptr()
    del tensor
    found = records(native.drain())
    assert [Kind(record.kind) for record in found] == [Kind.ALLOC, Kind.FREE]
    assert {record.a for record in found} == {address}
    assert (found[0].b, found[0].c) == (base + 5 * MIB, reserved + 20 * MIB)
    assert (found[1].b, found[1].c) == (base, reserved + 20 * MIB)


def test_torchs_statistics_are_the_allocators(native: Any) -> None:
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    tensors = [torch.empty(1000, device="cuda") for _ in range(3)]
    del tensors
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] == 3
    assert after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"] == 3 * 4096
    assert after["requested_bytes.all.allocated"] - before["requested_bytes.all.allocated"] == 12000
    assert torch.accelerator.memory_stats()["allocated_bytes.all.peak"] == after["allocated_bytes.all.peak"]
    free, total = torch.cuda.mem_get_info()
    assert total == PROPERTIES["total_memory"]
    assert total - free == CONTEXT_BYTES + torch.cuda.memory_reserved()


def test_a_snapshot_lists_segments_and_blocks(native: Any) -> None:
    import torch

    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == 1]
    states = {block["address"]: block["state"] for segment in segments for block in segment["blocks"]}
    assert states[tensor.data_ptr()] == "active_allocated"
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved(1)
    del tensor


def test_out_of_memory_says_what_torch_says(native: Any) -> None:
    import torch

    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 1024\.00 GiB\."):
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    count = torch.cuda.memory_stats()["num_ooms"]
    native.set_memory_limit_bytes(torch.cuda.memory_reserved() + 100 * MIB)
    keep = torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.add(keep, keep)  # through a planned or Python kernel
    assert torch.cuda.memory_stats()["num_ooms"] == count + 1
    del keep
    torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")  # still usable


def test_a_storage_shrinks_grows_and_keeps_what_is_known(native: Any) -> None:
    import torch

    tensor = torch.arange(10, device="cuda")
    storage, before = tensor.untyped_storage(), torch.cuda.memory_allocated()
    storage.resize_(0)
    assert storage.nbytes() == 0 and torch.cuda.memory_allocated() == before - 512
    storage.resize_(80)
    assert storage.nbytes() == 80 and torch.cuda.memory_allocated() == before
    grown = torch.arange(10, device="cuda")
    grown.resize_(20)
    assert grown.tolist()[:10] == list(range(10)) and grown.shape == (20,)


def test_storages_can_be_made_and_set(native: Any) -> None:
    import torch

    storage = torch.UntypedStorage(64, device="cuda")
    assert storage.nbytes() == 64 and storage.device == torch.device("cuda:0")
    assert torch.tensor([], device="cuda").set_(torch.ones(4, device="cuda").untyped_storage()).tolist() == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="different device"):
        torch.tensor([], device="cuda:1").set_(torch.ones(4, device="cuda:0").untyped_storage())


def test_views_share_storage_and_address(native: Any) -> None:
    import torch

    base = torch.empty(4, 6, device="cuda")
    native.drain()
    view = base.t()[1:3].unfold(1, 2, 1)
    assert view.untyped_storage().data_ptr() == base.data_ptr() and native.drain() == b""


def test_freed_memory_in_use_on_another_stream_is_not_reused(native: Any) -> None:
    import torch

    side = torch.cuda.Stream()
    tensor = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    native.set_stream(0, side.stream_id)
    native.launch(native.define_signature(1_000_000, 0, 0), 0)
    native.set_stream(0, 0)
    tensor.record_stream(side)
    del tensor
    other = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    assert other.data_ptr() != address
    side.synchronize()
    again = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() == address
    assert Kind.RECORD_STREAM in [record.kind for record in records(native.drain())]


def test_giving_memory_back_waits_for_streams_that_use_it(native: Any) -> None:
    """The allocator synchronizes before it releases segments; the host's clock shows it."""
    import torch

    side = torch.cuda.Stream(5)
    tensor = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:5")
    native.set_stream(5, side.stream_id)
    native.launch(native.define_signature(1_000_000, 0, 0), 5)
    native.set_stream(5, 0)
    end_ns = native.stream_state(5, side.stream_id)[0]
    tensor.record_stream(side)
    del tensor
    assert torch.cuda.memory_reserved(5) == 30 * MIB and native.now_ns() < end_ns
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(5) == 0 and end_ns < native.now_ns() < end_ns + CUDA_FREE_NS


def test_driver_calls_take_time_that_grows_with_the_size(native: Any) -> None:
    import torch

    def times_ns(num_bytes: int) -> tuple[int, int, int]:
        """Of a new segment, of a block that is there, of giving it back."""
        times = [native.now_ns()]
        for _ in range(2):
            torch.empty(num_bytes, dtype=torch.uint8, device="cuda:6")
            times.append(native.now_ns())
        torch.cuda.empty_cache()
        times.append(native.now_ns())
        return times[1] - times[0], times[2] - times[1], times[3] - times[2]

    torch.cuda.empty_cache()
    small, large = times_ns(20 * MIB), times_ns(1024 * MIB)
    assert small[0] == pytest.approx(36_000, abs=10_000) and large[0] == pytest.approx(86_000, abs=10_000)
    assert small[2] == pytest.approx(36_000, abs=10_000) and large[2] == pytest.approx(306_000, abs=10_000)
    assert small[1] == large[1] < 10_000


def test_giving_memory_back_waits_for_the_device(native: Any) -> None:
    import torch

    tensor = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:5")
    native.launch(native.define_signature(3_000_000, 0, 0), 5)
    end_ns = native.stream_state(5, 0)[0]
    del tensor
    torch.cuda.empty_cache()
    assert end_ns < native.now_ns() < end_ns + CUDA_FREE_NS


def test_memory_of_a_private_pool_is_kept_apart(native: Any) -> None:
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    outside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    pools = {block["address"]: segment["segment_pool_id"] for segment in segments for block in segment["blocks"]}
    assert pools[inside.data_ptr()] == pool.id and pools[outside.data_ptr()] == (0, 0)


def test_a_backward_leaves_nothing_behind(native: Any) -> None:
    import torch

    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    for repeat in range(3):
        if repeat == 1:  # the first product took cuBLAS' workspace
            before = torch.cuda.memory_allocated()
        loss = (weight @ weight).relu().sum()
        loss.backward()
        del loss
        weight.grad = None
    assert torch.cuda.memory_allocated() == before


def test_pinned_memory_is_told_apart(native: Any) -> None:
    import torch

    pinned, pageable = torch.empty(1000, pin_memory=True), torch.empty(1000)
    assert pinned.is_pinned() and pinned[10:].is_pinned() and not pageable.is_pinned()
    assert pageable.pin_memory().is_pinned()
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostRegister(pageable.data_ptr(), pageable.nbytes, 0))
    assert pageable.is_pinned()
    torch.cuda.check_error(runtime.cudaHostUnregister(pageable.data_ptr()))
    assert not pageable.is_pinned()
    address = pinned.data_ptr()
    del pinned
    fresh = torch.empty(1000)
    assert fresh.data_ptr() != address or not fresh.is_pinned()
