"""The description of a cluster: frozen dataclasses that the loader fills from TOML.

Units are in the names: _bytes, _bytes_per_s (1 GB/s = 1e9), _hz, _ns (integer nanoseconds), flops in FLOP/s. Rates of
links are per direction. A wrong value raises ValueError whose message begins with the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from phantora.cluster.bounds import MAX_GPUS, MAX_MESH_GPUS, check_bounds

PEAK_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
LAUNCH_CLASSES = (
    "kernel", "gemm", "attention", "reduction", "copy", "foreach", "optimizer", "collective", "event", "sync", "alloc",
)  # fmt: skip
UNITS = MappingProxyType({
    "view": (3_300, 3_000),
    "gradient": (2_600, 3_500),
    "module": (8_700, 8_700),
    "parameter": (8_700, 8_700),
    "subclass": (18_700, 18_700),
    "placement": (350_000, 350_000),
    "cpu_random": (3_800, 3_800),
})
"""Units of host time beside calls of the device -> (ns from Python, ns from the autograd engine) where a cluster does not
say; estimates for a bare-metal core, as in the preset dgx-h100. docs/host_time.md"""


CABLE_NS = {"rack": 0, "row": 100, "hall": 500}  # beyond latency_ns; light in glass takes 5 ns a metre


def _require(condition: bool, name: str, message: str) -> None:
    """ValueError '<name> <message>' unless `condition`."""
    if not condition:
        raise ValueError(f"{name} {message}")


def _require_positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(value > 0, name, f"must be greater than 0, not {value}")


def _require_not_negative(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(value >= 0, name, f"must not be negative, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU as the driver and torch.cuda.get_device_properties report it, and the roofs of its performance."""

    name: str
    """What torch.cuda.get_device_name() says, such as 'NVIDIA H200'."""
    compute_capability: tuple[int, int]
    """(major, minor), such as (9, 0)."""
    num_sms: int
    """Streaming multiprocessors (multi_processor_count)."""
    memory_bytes: int
    """Total memory as nvidia-smi shows it (MiB x 2^20), less than the sticker says."""
    memory_bytes_per_s: float
    """Peak device-memory bandwidth of the data sheet."""
    l2_bytes: int
    """L2 cache."""
    peak_flops: Mapping[str, float]
    """dtype -> dense FLOP/s of the data sheet (no sparsity), for every dtype of PEAK_DTYPES; 0 where the hardware
    has no such path."""
    clock_hz: float
    """Maximum SM clock."""
    context_bytes: int
    """Memory that the CUDA context and loaded libraries take, outside PyTorch's allocator."""
    memory_clock_hz: float
    """Memory clock as the driver reports it."""
    memory_bus_bits: int
    """Width of the memory bus."""
    shared_memory_per_sm_bytes: int
    """Shared memory of one SM (CUDA programming guide, table of compute capabilities)."""
    shared_memory_per_block_bytes: int = 49152
    """Static limit of one block."""
    shared_memory_per_block_optin_bytes: int = 0
    """Limit of one block after opting in; 0: shared_memory_per_sm_bytes less the 1 KiB that the system reserves."""
    registers_per_sm: int = 65536
    """32-bit registers of one SM."""
    max_threads_per_sm: int = 2048
    """Resident threads of one SM."""
    max_threads_per_block: int = 1024
    """Threads of one block."""
    max_blocks_per_sm: int = 32
    """Resident blocks of one SM."""
    warp_size: int = 32
    """Threads of a warp."""
    driver_reserved_bytes: int = 0
    """What of memory_bytes programs never see: nvidia-smi's total less cudaDeviceProp.totalGlobalMem."""
    power_w: float = 0.0
    """Board power limit in watts; 0: not known."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _require(bool(self.name), "name", "must not be empty")
        _require(
            len(self.compute_capability) == 2 and self.compute_capability[0] >= 5,
            "compute_capability", f"must be [major, minor] of 5.0 or later, not {list(self.compute_capability)}",
        )  # fmt: skip
        _require_positive(
            self, "num_sms", "memory_bytes", "memory_bytes_per_s", "l2_bytes", "clock_hz", "memory_clock_hz",
            "memory_bus_bits", "shared_memory_per_sm_bytes", "shared_memory_per_block_bytes", "registers_per_sm",
            "max_threads_per_sm", "max_threads_per_block", "max_blocks_per_sm", "warp_size",
        )  # fmt: skip
        _require_not_negative(self, "context_bytes", "driver_reserved_bytes", "shared_memory_per_block_optin_bytes", "power_w")
        _require(self.context_bytes < self.memory_bytes, "context_bytes", "must be less than memory_bytes")
        self._check_peaks()
        if not self.shared_memory_per_block_optin_bytes:
            object.__setattr__(self, "shared_memory_per_block_optin_bytes", self.shared_memory_per_sm_bytes - 1024)

    @property
    def visible_memory_bytes(self) -> int:
        """What torch.cuda.get_device_properties().total_memory says."""
        return self.memory_bytes - self.driver_reserved_bytes

    def _check_peaks(self) -> None:
        for dtype in PEAK_DTYPES:
            _require(dtype in self.peak_flops, "peak_flops", f"lacks {dtype} (0 where the hardware has no such path)")
        for dtype, flops in self.peak_flops.items():
            _require(dtype in PEAK_DTYPES, "peak_flops", f"has unknown dtype {dtype} (known: {', '.join(PEAK_DTYPES)})")
            _require(flops >= 0, "peak_flops", f"of {dtype} must not be negative, not {flops}")
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """The host side of one node: what an intercepted call costs the launching thread, and copies over PCIe."""

    pcie_h2d_bytes_per_s: float
    """Pinned host memory to one GPU, as reached in practice."""
    pcie_d2h_bytes_per_s: float
    """One GPU to pinned host memory, as reached in practice."""
    pageable_bytes_per_s: float
    """Copies from or to pageable memory (through the driver's staging buffer)."""
    launch_ns: Mapping[str, tuple[int, int]]
    """Class of call -> (host ns when called from Python, host ns when called by the autograd engine). Every class of
    LAUNCH_CLASSES is present."""
    unit_ns: Mapping[str, tuple[int, int]] = field(default_factory=lambda: UNITS)
    """Unit of host time -> (host ns from Python, from the autograd engine): a view, a kept gradient, a call of a module, a
    parameter in an optimizer's step, a launch or view inside __torch_dispatch__, a functional
    collective with the change of a DTensor's placements round it, 1024 random numbers made by the CPU. What a cluster does not state is taken from UNITS."""
    cpu_speed: float = 1.0
    """Host of the cluster relative to the machine that records: measured host time is divided by it."""
    cpu: Literal["intel", "amd", "arm"] = "intel"
    """Make of the CPU: NCCL expects less of LL between nodes, and slower proxy threads, on AMD."""
    nccl_launch_ns: int = 4_500
    """Host time of one NCCL collective on one GPU called from C++, as nccl-tests does (launch_ns has the same call
    from PyTorch)."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _require_positive(self, "pcie_h2d_bytes_per_s", "pcie_d2h_bytes_per_s", "pageable_bytes_per_s", "cpu_speed")
        _require_not_negative(self, "nccl_launch_ns")
        _require(self.cpu in ("intel", "amd", "arm"), "cpu", f"must be intel, amd or arm, not {self.cpu}")
        for name in LAUNCH_CLASSES:
            _require(name in self.launch_ns, "launch_ns", f"lacks the class {name}")
        self._check_costs("launch_ns", "class", LAUNCH_CLASSES)
        object.__setattr__(self, "unit_ns", {**UNITS, **self.unit_ns})
        self._check_costs("unit_ns", "unit", tuple(UNITS))

    def _check_costs(self, field_name: str, noun: str, known: tuple[str, ...]) -> None:
        costs_by_name: Mapping[str, tuple[int, int]] = getattr(self, field_name)
        for name, costs in costs_by_name.items():
            _require(name in known, field_name, f"has unknown {noun} {name} (known: {', '.join(known)})")
            is_pair = len(costs) == 2 and min(costs) >= 0
            _require(is_pair, field_name, f"of {name} must be [forward_ns, backward_ns], neither negative")
        object.__setattr__(self, field_name, MappingProxyType({k: tuple(v) for k, v in costs_by_name.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class IntraNodeSpec:
    """How the GPUs of one node (or of one NVLink domain of several nodes) reach each other."""

    kind: Literal["nvswitch", "mesh", "pcie", "none"]
    """nvswitch: every GPU on a non-blocking switch; mesh: direct NVLinks between all pairs (bridges); pcie: peer
    traffic over each GPU's PCIe lanes, which its NIC traffic shares; none: one GPU per node."""
    bytes_per_s: float = 0.0
    """Rate of one GPU per direction, all its links together, from the data sheet (H100: 450e9)."""
    efficiency: float = 1.0
    """Share of bytes_per_s that large transfers reach (packet headers, flow control)."""
    latency_ns: int = 0
    """Time of a small message from GPU to GPU without software (its share is in network/constants.py)."""
    nvls: bool = False
    """The switch can reduce and multicast (NVLink SHARP), and NCCL uses it."""
    num_domain_nodes: int = 1
    """Nodes joined in one NVLink domain (18 in a GB200 NVL72 rack)."""

    def __post_init__(self) -> None:
        check_bounds(self)
        known = ("nvswitch", "mesh", "pcie", "none")
        _require(self.kind in known, "kind", f"must be nvswitch, mesh, pcie or none, not {self.kind}")
        if self.kind != "none":
            _require_positive(self, "bytes_per_s")
        _require(0 < self.efficiency <= 1, "efficiency", f"must be in (0, 1], not {self.efficiency}")
        _require_not_negative(self, "latency_ns")
        _require_positive(self, "num_domain_nodes")
        _require(self.kind == "nvswitch" or not self.nvls, "nvls", "needs kind = \"nvswitch\"")
        is_switched = self.kind == "nvswitch"
        _require(is_switched or self.num_domain_nodes == 1, "num_domain_nodes", "needs kind = \"nvswitch\"")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSpec:
    """The network cards of one node that carry GPU traffic (not the management port)."""

    count: int = 0
    """Cards per node; 0: the node has no network. Fewer than GPUs: neighbours share; more: each GPU has several."""
    bytes_per_s: float = 0.0
    """Rate of one card per direction (400 Gb/s: 50e9)."""
    efficiency: float = 1.0
    """Share of bytes_per_s that large messages reach (headers of the transport)."""
    latency_ns: int = 0
    """Time that the transport adds to each message, one way, beyond NCCL's own constants (0 for InfiniBand)."""
    ordered_writes: bool = True
    """The transport keeps the order of the writes of one message, so that NCCL may use LL and LL128 over it; without
    it, Simple only."""
    pxn: bool = False
    """Messages to another rail first cross NVLink to the local GPU of that rail, whose card sends them (NCCL's PXN);
    without it they leave by the sender's own card and cross the spines."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _require_not_negative(self, "count", "latency_ns")
        if self.count:
            _require_positive(self, "bytes_per_s")
        _require(0 < self.efficiency <= 1, "efficiency", f"must be in (0, 1], not {self.efficiency}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """The network between nodes: leaves, and spines that join them."""

    kind: Literal["rail-optimised", "fat-tree", "none"]
    """rail-optimised: card i of every node on the leaf of rail i; fat-tree: all cards of a node on one leaf; none: one
    node, or several on one ideal switch."""
    hosts_per_leaf: int = 1
    """Nodes below one leaf (one group of rail leaves)."""
    num_spines: int = 1
    """Spine switches; the cables of a leaf are divided among them."""
    routing: Literal["adaptive", "ecmp"] = "adaptive"
    """adaptive: a message is spread evenly over all cables of its leaf (adaptive routing of InfiniBand and of newer
    Ethernet, EFA's SRD): without oversubscription none waits. ecmp: it keeps to one cable chosen by a fixed hash, and
    two may meet on one."""
    oversubscription: float = 1.0
    """Rate of a leaf's ports to nodes over the rate of its ports to spines."""
    latency_ns: int = 0
    """Time of one hop (switch, and a cable within the rack)."""
    spine_cable: Literal["rack", "row", "hall"] = "rack"
    """Length of the cables between leaves and spines: a few metres, some 20, some 100, at 5 ns a metre."""

    def __post_init__(self) -> None:
        check_bounds(self)
        known = ("rail-optimised", "fat-tree", "none")
        _require(self.kind in known, "kind", f"must be {', '.join(known[:2])} or none, not {self.kind}")
        lengths = ", ".join(CABLE_NS)
        _require(self.spine_cable in CABLE_NS, "spine_cable", f"must be one of {lengths}, not {self.spine_cable}")
        _require(self.routing in ("adaptive", "ecmp"), "routing", f"must be adaptive or ecmp, not {self.routing}")
        _require_positive(self, "hosts_per_leaf", "num_spines")
        _require(self.oversubscription >= 1, "oversubscription", f"must be at least 1, not {self.oversubscription}")
        _require_not_negative(self, "latency_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A slow or broken link: [[fault]] in a cluster file."""

    link: str
    """Name of a directed link as `phantora clusters show --links` prints it ('node0.nic1->fabric'); * and ? stand for
    any characters ('node3.nic*', 'leaf0->spine*')."""
    factor: float
    """The link's rate is multiplied by it: 0.5 for half the rate, 0 for a broken link."""
    from_s: float = 0.0
    """From this virtual time on, in seconds."""
    until_s: float = math.inf
    """Until this virtual time, in seconds; by default to the end. A broken link must come back: traffic on it waits."""

    def __post_init__(self) -> None:
        check_bounds(self, "fault")
        _require(bool(self.link), "link", "must name a link")
        _require(0 <= self.factor <= 1, "factor", f"must be between 0 and 1, not {self.factor}")
        _require_not_negative(self, "from_s")
        is_later = self.until_s > self.from_s
        _require(is_later, "until_s", f"must be later than from_s ({self.from_s}), not {self.until_s}")
        endless = self.factor == 0 and math.isinf(self.until_s)
        _require(not endless, "until_s", "must be given when factor is 0: nothing could ever pass the link")


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerSpec:
    """A slow rank or node: [[straggler]] in a cluster file."""

    factor: float
    """Times are multiplied by it: 1.2 for 20 % slower."""
    rank: int = -1
    """Global rank, or -1 when a node is meant."""
    node: int = -1
    """Node, with all its ranks, or -1 when a rank is meant."""
    what: Literal["gpu", "host", "both"] = "gpu"
    """gpu: kernels take longer; host: host time is longer; both."""

    def __post_init__(self) -> None:
        check_bounds(self, "straggler")
        _require_positive(self, "factor")
        _require((self.rank >= 0) != (self.node >= 0), "rank", "or node must be given, one of the two")
        _require(self.what in ("gpu", "host", "both"), "what", f"must be gpu, host or both, not {self.what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JitterSpec:
    """Random variation of kernel times: [jitter] in a cluster file. The same seed gives the same run."""

    relative: float = 0.0
    """Standard deviation of a kernel's time over its mean (0.02: 2 %)."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _require(0 <= self.relative < 1, "relative", f"must be in [0, 1), not {self.relative}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """Which nodes and GPUs a run gets: [placement] in a cluster file. Ranks fill them node by node, like torchrun."""

    nodes: tuple[int, ...] = ()
    """The run's k-th node is this node of the cluster; nodes beyond the list follow in order. Empty: 0, 1, 2, ..."""
    gpus: tuple[int, ...] = ()
    """Local rank k uses this GPU of its node (as CUDA_VISIBLE_DEVICES would have it). Empty: 0, 1, 2, ..."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("nodes", "gpus"):
            listed = getattr(self, name)
            _require(len(set(listed)) == len(listed), name, f"must not name one twice: {list(listed)}")
            _require(min(listed, default=0) >= 0, name, "must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs and what joins them."""

    name: str
    """Name of the preset or the file's stem."""
    num_nodes: int
    """Nodes that exist: a run may use fewer."""
    gpus_per_node: int
    """GPUs of one node."""
    gpu: GpuSpec
    """The GPU."""
    host: HostSpec
    """The host."""
    intra_node: IntraNodeSpec
    """Links between GPUs of a node or NVLink domain."""
    nic: NicSpec = field(default_factory=NicSpec)
    """Network cards."""
    fabric: FabricSpec = field(default_factory=lambda: FabricSpec(kind="none"))
    """Network between nodes."""
    notes: str = ""
    """Where the figures come from, in a sentence."""
    placement: PlacementSpec = field(default_factory=PlacementSpec)
    """Nodes and GPUs that a run gets."""
    fault: tuple[FaultSpec, ...] = ()
    """Links that are slow or broken, for a time or throughout: tables [[fault]]."""
    straggler: tuple[StragglerSpec, ...] = ()
    """Ranks or nodes that are slower than the rest: tables [[straggler]]."""
    jitter: JitterSpec = field(default_factory=lambda: JitterSpec())
    """Random variation; none by default."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _require_positive(self, "num_nodes", "gpus_per_node")
        few = self.num_nodes * self.gpus_per_node <= MAX_GPUS
        _require(few, "num_nodes", f"x gpus_per_node must be at most {MAX_GPUS} GPUs")
        few = self.intra_node.kind != "mesh" or self.gpus_per_node <= MAX_MESH_GPUS
        _require(few, "gpus_per_node", f"must be at most {MAX_MESH_GPUS} in a mesh")
        domain, cards, gpus = self.intra_node.num_domain_nodes, self.nic.count, self.gpus_per_node
        joined = self.intra_node.kind != "none"
        _require(joined or gpus == 1, "gpus_per_node", "must be 1 when intra_node.kind is \"none\"")
        whole = self.num_nodes % domain == 0
        _require(whole, "num_nodes", f"must be a multiple of intra_node.num_domain_nodes ({domain})")
        alone = self.num_nodes == domain
        _require(alone or cards > 0, "nic.count", f"must be greater than 0: {self.num_nodes} nodes need a network")
        self._check_placement()
        if cards:
            low, high = sorted((cards, gpus))
            _require(high % low == 0, "nic.count", f"({cards}) and gpus_per_node ({gpus}) must divide one another")

    def _check_placement(self) -> None:
        for name, listed, count in (
            ("nodes", self.placement.nodes, self.num_nodes), ("gpus", self.placement.gpus, self.gpus_per_node),
        ):  # fmt: skip
            largest = max(listed, default=0)
            _require(largest < count, f"placement.{name}", f"names {largest}, but there are {count}")

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.num_nodes * self.gpus_per_node
