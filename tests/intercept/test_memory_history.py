"""torch.cuda.memory._record_memory_history, _snapshot and _dump_snapshot on simulated devices."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from armed import arm

pytestmark = pytest.mark.torch
MIB = 1 << 20
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}
SEGMENT_KEYS = {
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable", "frames", "blocks",
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[Any]:
    native = arm()
    import torch

    gc.collect()
    native.set_device(7)  # no other test allocates there
    torch.cuda.empty_cache()
    yield torch.cuda.memory
    torch.cuda.memory._record_memory_history(None)
    native.set_memory_limit_bytes(-1)
    native.set_device(0)


def new(num_bytes: int) -> Any:
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda:7")


def traces(memory: Any) -> list[dict[str, Any]]:
    return [entry for entry in memory._snapshot()["device_traces"][7] if entry["action"] != "snapshot"]


def here(entry: dict[str, Any]) -> list[str]:
    return [frame["name"] for frame in entry["frames"] if frame["filename"] == __file__]


def test_history_of_a_tensor(memory: Any) -> None:
    memory._record_memory_history()
    tensor = new(30 * MIB)
    address = tensor.data_ptr()
    del tensor
    import torch

    torch.cuda.empty_cache()
    found = traces(memory)
    actions = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert [entry["action"] for entry in found] == actions
    assert {entry["addr"] for entry in found} == {address} and {entry["size"] for entry in found} == {30 * MIB}
    assert [here(entry)[0] for entry in found] == ["new", "new", *["test_history_of_a_tensor"] * 3]
    assert not [frame for entry in found for frame in entry["frames"] if "/phantora/" in frame["filename"]]
    times = [entry["time_us"] for entry in found]
    assert times == sorted(times) and times[0] >= 1_767_225_600_000_000
    assert {entry["pool_id"] for entry in found} == {(0, 0)}


def test_segments_and_blocks_name_who_made_them(memory: Any) -> None:
    memory._record_memory_history()
    kept, freed = new(5 * MIB), new(3 * MIB)
    del freed
    (segment,) = (s for s in memory._snapshot()["segments"] if s["device"] == 7 and s["segment_type"] == "large")
    assert set(segment) == SEGMENT_KEYS and all(set(block) == BLOCK_KEYS for block in segment["blocks"])
    assert [(block["state"], block["size"]) for block in segment["blocks"]] == [
        ("active_allocated", 5 * MIB),
        ("inactive", 15 * MIB),
    ]
    assert here(segment)[:2] == here(segment["blocks"][0])[:2] == ["new", "test_segments_and_blocks_name_who_made_them"]
    assert segment["blocks"][1]["frames"] == []
    del kept


def test_what_is_recorded(memory: Any) -> None:
    memory._record_memory_history(context=None, skip_actions=["free_requested"])
    del_me = new(MIB)
    del del_me
    found = traces(memory)
    assert [entry["action"] for entry in found] == ["segment_alloc", "alloc", "free_completed"]
    assert not any("frames" in entry for entry in found)
    memory._record_memory_history(context="alloc", clear_history=True)
    new(MIB)
    assert [here(entry)[:1] for entry in traces(memory)] == [["new"]] * 3  # the free shows where it was allocated
    memory._record_memory_history(max_entries=2, clear_history=True)
    for _ in range(5):
        new(MIB)
    assert [entry["action"] for entry in memory._snapshot()["device_traces"][7]][-1:] == ["snapshot"]
    assert len(memory._snapshot()["device_traces"][7]) == 2
    memory._record_memory_history(None)
    assert memory._snapshot()["device_traces"][7] == []


def test_wrong_options(memory: Any) -> None:
    with pytest.raises(ValueError, match="expected context to be"):
        memory._record_memory_history(context="some")
    with pytest.raises(ValueError, match="expected state to be"):
        memory._record_memory_history("some")
    with pytest.raises(ValueError, match="unknown action 'alloca'"):
        memory._record_memory_history(skip_actions=["alloca"])


def test_out_of_memory_is_recorded_and_observed(memory: Any) -> None:
    import torch

    native = arm()
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    native.set_memory_limit_bytes(100 * MIB)
    memory._record_memory_history()
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 200.00 MiB. GPU 7"):
        new(200 * MIB)
    entry = next(entry for entry in traces(memory) if entry["action"] == "oom")
    assert entry["size"] == 200 * MIB and "addr" not in entry and entry["device_free"] > 0
    assert here(entry)[0] == "new"
    ((device, wanted, allowed, free),) = seen
    assert (device, wanted, allowed, free) == (7, 200 * MIB, 100 * MIB, entry["device_free"])


def test_torchs_own_tools_read_it(memory: Any, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    memory._record_memory_history()
    kept = [new(size) for size in (MIB, 5 * MIB, 40 * MIB)]
    path = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(path))
    snapshot = pickle.loads(path.read_bytes())
    ours = [segment for segment in snapshot["segments"] if segment["device"] == 7]
    assert "segments: 3" in _memory_viz.segsum(snapshot | {"segments": ours})
    text = _memory_viz.trace(snapshot)
    assert "cudaMalloc" in text[text.index("Device 7") :]
    assert "<script" in _memory_viz.trace_plot(snapshot) and "<script" in _memory_viz.segment_plot(snapshot)
    assert snapshot["allocator_settings"]["expandable_segments"] is False
    del kept


def test_a_snapshot_of_one_pool_and_without_traces(memory: Any) -> None:
    import torch

    memory._record_memory_history()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = new(3 * MIB)
    outside = new(3 * MIB)
    segments = memory.memory_snapshot(pool.id)
    assert [segment["segment_pool_id"] for segment in segments] == [pool.id]
    assert segments[0]["blocks"][0]["address"] == inside.data_ptr() != outside.data_ptr()
    assert torch._C._cuda_memorySnapshot((0, 0, False))["device_traces"] == []
    del inside, outside


def test_raw_allocations(memory: Any) -> None:
    import torch

    before = torch.cuda.memory_allocated()
    address = memory.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == before + 3 * MIB
    memory.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(ValueError, match="invalid device pointer"):
        memory.caching_allocator_delete(address)
