"""torch.distributed._symmetric_memory: buffers that the GPUs of a group read and write directly (asynchronous TP).

The algorithms are torch's own Python (fused_all_gather_matmul, fused_matmul_reduce_scatter, low-contention
collectives): two streams, products of chunks, copies from peers and barriers between them. Supplied is what
libtorch_cuda has in C++: the class `_SymmetricMemory` (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu) and
the reductions of the namespace symm_mem that are single kernels.

| what | model |
|---|---|
| copy from or to a peer | bytes over one GPU's links plus 1.7 us; other traffic on the links does not slow it |
| barrier | NCCL's barrier of the same ranks, a communicator for each channel; the real kernel is shorter |
| one_shot_all_reduce and the like | NCCL's all-reduce (all-gather, reduce-scatter) of the same bytes |
| allocation | from the caching allocator, not rounded up to the driver's 2 MiB; peers' buffers take no room |

Signals by themselves (put_signal, wait_signal, stream_write_value32), device pointers and multicast raise: kernels that
use them run on the GPU alone, unseen by torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from phantora.intercept import session
from phantora.intercept.distributed import groups, launches
from phantora.intercept.distributed.groups import Communicator, Group
from phantora.intercept.distributed.launches import Part
from phantora.intercept.frameworks import symmetric_reductions
from phantora.intercept.frameworks.peer_tensors import PeerTensor

native: Any = sys.modules["phantora_native"]


def before() -> None:
    """torch.distributed._symmetric_memory is about to take the class by name."""
    setattr(_c10d, "_SymmetricMemory", SymmetricMemory)


def after(module: ModuleType) -> None:
    symmetric_reductions.install()


class SymmetricMemory:
    """What rendezvous() returns: one buffer of each rank of a group, of equal shape."""

    signal_pad_size = 2048  # bytes; c10d::symmetric_memory's default
    _allocations: dict[int, _Allocation] = {}
    _backend = "CUDA"

    def __init__(self, allocation: _Allocation, group: Group) -> None:
        self._allocation, self._group = allocation, group
        self.rank, self.world_size = group.rank, group.size
        self.device, self.buffer_size, self.offset = allocation.device, allocation.num_bytes, 0

    # ------------------------------------------------------------------ as static methods of the C++ class

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: Any) -> None:
        """Groups are known by name already."""

    @staticmethod
    def empty_strided_p2p(
        size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device,
        group_name: str | None = None, alloc_id: int | None = None,
    ) -> Tensor:  # fmt: skip
        tensor = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=device)
        allocation = _Allocation(tensor, group_name)
        SymmetricMemory._allocations[tensor.untyped_storage().data_ptr()] = allocation
        return tensor

    @staticmethod
    def rendezvous(tensor: Tensor, group_name: str | None = None) -> SymmetricMemory | None:
        """None for a tensor that is not in symmetric memory. Waits, the first time, for all ranks of the group."""
        allocation = SymmetricMemory._find(tensor)
        if allocation is None:
            return None
        name = group_name or allocation.group_name
        if name is None:
            raise RuntimeError("rendezvous of a tensor that was allocated without a group needs a group")
        if name not in allocation.handles:
            allocation.handles[name] = SymmetricMemory(allocation, _group_named(name))
        return allocation.handles[name]

    @staticmethod
    def _find(tensor: Tensor) -> _Allocation | None:
        known, address = SymmetricMemory._allocations, tensor.untyped_storage().data_ptr()
        found = known.get(address)
        if found is not None and found.is_freed():  # the address may belong to somebody else by now
            del known[address]
            return None
        return found

    @staticmethod
    def is_symm_mem_tensor(tensor: Tensor) -> bool:
        return SymmetricMemory._find(tensor) is not None

    @staticmethod
    def has_multicast_support(device_type: Any, device_index: int) -> bool:
        return False

    @staticmethod
    def get_backend(device: Any) -> str | None:
        return SymmetricMemory._backend if torch.device(device).type == "cuda" else None

    @staticmethod
    def set_backend(name: str) -> None:
        SymmetricMemory._backend = name

    @staticmethod
    def get_mempool_allocator(device: Any) -> None:
        """The pool allocates as any other does."""

    # ------------------------------------------------------------------ buffers and barriers

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> Tensor:
        """Part of the buffer of group rank `rank`; storage_offset in elements of `dtype`."""
        if not 0 <= rank < self.world_size:
            raise RuntimeError(f"get_buffer: rank {rank} of a group of {self.world_size}")
        part = self._allocation.part(tuple(sizes), dtype, storage_offset)
        return part if rank == self.rank else PeerTensor(part)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.get_buffer(peer, sizes, dtype)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """On the current stream: what follows waits until all ranks have got there."""
        communicator = communicator_of(self._group, f"channel {channel}")
        device = self.device.index
        part = Part(kind="barrier", num_bytes=0, dtype="float32", count=1)
        launches.launch(communicator, device, native.stream(device), [part])

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"symmetric memory: {name} is not simulated")


class _Allocation:
    """One buffer in symmetric memory of this rank. Does not keep it alive."""

    def __init__(self, tensor: Tensor, group_name: str | None) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        self.storage, self.num_bytes, self.device = StorageWeakRef(storage), storage.nbytes(), tensor.device
        self.address, self.group_name = storage.data_ptr(), group_name
        self.handles: dict[str, SymmetricMemory] = {}

    def is_freed(self) -> bool:
        return self.storage.expired()

    def part(self, sizes: tuple[int, ...], dtype: torch.dtype, offset: int) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError("symmetric memory was freed while its handle was used")
        bytes_needed = (offset + torch.Size(sizes).numel()) * dtype.itemsize
        if bytes_needed > self.num_bytes:
            raise RuntimeError(f"get_buffer: {bytes_needed} bytes of a buffer of {self.num_bytes}")
        whole = torch.empty(0, dtype=dtype, device=self.device)
        return whole.set_(storage, offset, sizes)  # type: ignore[call-overload]


def _group_named(name: str) -> Group:
    """The group, all of whose GPUs must reach each other; waits for its ranks, which exchange their addresses."""
    import torch.distributed.distributed_c10d as c10d

    group = groups.of_process_group(c10d._resolve_process_group(name))  # type: ignore[arg-type]
    links = session.intra_node()
    domain_ranks = native.num_devices() * (links.num_domain_nodes if links is not None else 1)
    if len({rank // domain_ranks for rank in group.ranks}) > 1:
        raise RuntimeError(f"symmetric memory: ranks {list(group.ranks)} do not reach each other's GPUs directly")
    number = group.main.next_message("rendezvous")
    store = c10d.PrefixStore(f"symmetric_memory/{name}/{number}", c10d._get_default_store())
    store.set(str(group.ranks[group.rank]), "")
    store.wait([str(rank) for rank in group.ranks])
    return group


def communicator_of(group: Group, purpose: str) -> Communicator:
    """The members of `group` as they count calls for one purpose: kernels of two purposes need not wait in a line."""
    return groups._communicator(f"{group.name}: symmetric memory, {purpose}", group.ranks, group.rank)
