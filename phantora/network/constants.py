"""Every constant of the collective model, with its source. Latencies in ns, rates as shares of link rates.

Sources:
  [tuning]   NCCL's tuning model, src/graph/tuning.cc of NCCL 2.18 to 2.28: baseLatencies, hwLatencies, llMaxBws,
             nvlsEfficiency and the formulas round them.
  [chunking] NCCL's calcCollChunking, src/enqueue.cc.
  [h200x2]   two H200s with NCCL 2.28.9, validation/data/h200x2: forced.json (algorithm and protocol by environment).
             Used for what belongs to a protocol whatever the machine.
  [azure]    nccl-tests of Azure's AI benchmarking guide on 8 x A100-80G (NCCL 2.18.5) and 8 x H200 (NCCL 2.20.5).
             Constants marked FITTED were fitted on these two curves and on nothing else.
Rates of links stand in the cluster files: nothing here is a rate but the caps of LL between nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Protocol = Literal["LL", "LL128", "Simple"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat", "direct", "p2p", "copy", "none"]
LinkSort = Literal["nvlink", "pcie", "net"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

# Latency of a collective before its first step. [tuning] baseLatencies (tree Simple: 0 until 2.19, 8.4 after).
BASE_NS: dict[tuple[str, Protocol], int] = {
    ("ring", "LL"): 6_600, ("ring", "LL128"): 14_000, ("ring", "Simple"): 8_400,
    ("tree", "LL"): 6_800, ("tree", "LL128"): 14_000, ("tree", "Simple"): 8_400,
    ("pat", "Simple"): 8_000,
}  # fmt: skip

# Latency of one step over one sort of link. [tuning] hwLatencies.
STEP_NS: dict[tuple[str, LinkSort, Protocol], int] = {
    ("ring", "nvlink", "LL"): 600, ("ring", "nvlink", "LL128"): 1_900, ("ring", "nvlink", "Simple"): 3_400,
    ("ring", "pcie", "LL"): 1_000, ("ring", "pcie", "LL128"): 2_500, ("ring", "pcie", "Simple"): 5_700,
    ("ring", "net", "LL"): 2_700, ("ring", "net", "LL128"): 4_000, ("ring", "net", "Simple"): 14_000,
    ("tree", "nvlink", "LL"): 600, ("tree", "nvlink", "LL128"): 1_250, ("tree", "nvlink", "Simple"): 4_000,
    ("tree", "pcie", "LL"): 1_000, ("tree", "pcie", "LL128"): 1_900, ("tree", "pcie", "Simple"): 4_000,
    ("tree", "net", "LL"): 5_000, ("tree", "net", "LL128"): 8_500, ("tree", "net", "Simple"): 14_000,
    ("nvls", "nvlink", "Simple"): 25_000, ("nvls_tree", "net", "Simple"): 20_900, ("pat", "net", "Simple"): 14_000,
}  # fmt: skip


# What the links inside a node take of these steps in machines as NCCL's authors measured: intra_node.latency_ns beyond
# it is added to each. Of the presets for such machines.
NEAR_WIRE_NS: dict[LinkSort, int] = {"nvlink": 500, "pcie": 1_500}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureConstants:
    """What differs between GPU generations and is no figure of a data sheet."""

    nvlink_efficiency: dict[Protocol, float]
    """Share of the NVLink rate that a protocol reaches, its flags included."""
    cached_ll_efficiency: float
    """That of LL for the first CACHED_LL_BYTES over a link."""
    ll_judged_share: float
    """What NCCL's tuner takes that of LL for when it chooses, as far as ll_bytes_per_s allows."""
    ring_step_ns: dict[Protocol, int]
    """Latency of one ring step inside one NVLink domain."""
    nvls_efficiency: float
    """Share of the NVLink rate at which the switch reduces and multicasts; 0: it cannot."""
    nvls_judged: float
    """What the tuner takes that for: nvlsEfficiency."""
    channel_ring_ll128: tuple[float, float, float]
    """[tuning] perChMaxRingLL128Bws, GB/s of one channel on one node, two nodes and more; the next three likewise."""
    channel_tree_ll128: tuple[float, float, float]
    channel_tree: tuple[float, float, float]
    channel_nvls_tree: tuple[float, float, float]


AMPERE = ArchitectureConstants(
    # LL: 87.7 of 240 GB/s, [tuning] llMaxBws. LL128: FITTED, [azure] A100 4 to 16 MiB.
    nvlink_efficiency={"LL": 0.365, "LL128": 0.52, "Simple": 1.0},
    cached_ll_efficiency=0.365,
    ll_judged_share=0.25,  # [tuning] until 2.20: a quarter of the ring's rate
    # LL: [h200x2]. LL128: FITTED, [azure] A100 4 MiB. Simple: FITTED, [azure] A100 32 MiB to 1 GiB (tuner: 3,400).
    ring_step_ns={"LL": 700, "LL128": 2_140, "Simple": 11_800},
    nvls_efficiency=0.0,
    nvls_judged=0.0,
    channel_ring_ll128=(20.0, 20.0, 20.0),
    channel_tree_ll128=(20.0, 20.0, 20.0),
    channel_tree=(24.0, 23.6, 17.8),
    channel_nvls_tree=(24.0, 23.6, 17.8),
)
HOPPER = ArchitectureConstants(
    # LL: 141 of 370.8 GB/s, [tuning] llMaxBws; [h200x2] has the same from 32 MiB on, and 197 until 1 MiB.
    # LL128: 120 bytes of 128, [tuning] and [h200x2].
    nvlink_efficiency={"LL": 0.38, "LL128": 0.92, "Simple": 1.0},
    cached_ll_efficiency=0.53,
    ll_judged_share=0.5,
    ring_step_ns={"LL": 700, "LL128": 2_100, "Simple": 3_400},  # LL, LL128: [h200x2]; Simple: [tuning]
    nvls_efficiency=0.835,  # FITTED, [azure] H200 from 128 MiB on; [tuning] nvlsEfficiency says 0.85
    nvls_judged=0.85,
    channel_ring_ll128=(36.7, 36.7, 36.7),
    channel_tree_ll128=(36.7, 36.7, 29.0),
    channel_tree=(38.7, 41.4, 36.0),
    channel_nvls_tree=(57.7, 57.7, 45.5),
)
BLACKWELL = ArchitectureConstants(  # nothing measured: [tuning], and Hopper's where the tuner makes no difference
    nvlink_efficiency={"LL": 0.39, "LL128": 0.92, "Simple": 1.0},
    cached_ll_efficiency=0.53,
    ll_judged_share=0.5,
    ring_step_ns={"LL": 700, "LL128": 2_100, "Simple": 3_400},
    nvls_efficiency=0.74,
    nvls_judged=0.74,
    channel_ring_ll128=(40.0, 40.0, 40.0),
    channel_tree_ll128=(55.6, 31.67, 20.0),
    channel_tree=(70.0, 42.8, 24.0),
    channel_nvls_tree=(96.0, 96.0, 43.8),
)

# Most that LL carries, GB/s of bus bandwidth on one node, two nodes and more. [tuning] llMaxBws: by the GPU on one
# node, by the CPU between nodes ('Volta/Intel' and 'Ampere/AMD').
_LL_ONE_NODE = {8: 87.7, 9: 141.0}
_LL_BETWEEN = {"intel": (39.0, 20.4), "arm": (39.0, 20.4), "amd": (22.5, 19.0)}


def ll_bytes_per_s(compute_capability: tuple[int, int], cpu: str, num_nodes: int) -> float:
    """Most that LL carries, as the bus bandwidth of a node."""
    if num_nodes > 1:
        return _LL_BETWEEN[cpu][num_nodes > 2] * 1e9
    generation = compute_capability[0]
    return (_LL_ONE_NODE.get(generation, 39.0) if generation < 10 else 282.0) * 1e9


# Before a kernel's first step on the GPU, and for each doubling of the bytes up to 128 KiB: [h200x2], LL of 1 KiB:
# broadcast 5.1, all-gather 5.8, all-reduce 6.6 us, one step more each. LL128: forced, 8 KiB. The tuner's own are larger.
ONE_NODE_BASE_NS: dict[Protocol, int] = {"LL": 4_400, "LL128": 8_500, "Simple": 8_400}
WIDENING_NS = 150
WIDENING_BYTES = (1 << 10, 1 << 17)

# A ring's last step only receives: the block is copied from the buffer, which takes this share of the time of a step
# over NVLink, less when more than RECEIVE_SHARE_BYTES cross each link (tails.LastReceive). [h200x2], ring Simple on two
# GPUs: 0.6 up to 64 MiB over a link; of 2 GiB 0.3 (all-gather), of 4 GiB 0.13 (all-reduce); broadcast has no such step.
RECEIVE_SHARE = 0.57
RECEIVE_SHARE_BYTES = 64 << 20
RECEIVE_SHARE_EXPONENT = 0.17  # for each sending step, up to two
LL_RECEIVE_SHARE = 0.44  # whatever the size: [h200x2] forced, 1 GiB: all-reduce 116, all-gather 98 GB/s
CACHED_LL_BYTES = 1 << 20

# Between nodes. LL sends a flag with every 4 bytes, LL128 120 bytes of 128 ([tuning]; with one GPU per node 0.7).
NET_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
NET_LL128_ONE_GPU_EFFICIENCY = 0.7

# Share of PCIe (peer copies or host memory). LL as on the network; NCCL does not use LL128 there.
PCIE_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.0, "Simple": 1.0}

# Posting a message on the proxy thread: no ring step inside a node is shorter when there are several. [tuning]
NET_OVERHEAD_NS = {"intel": 1_000, "amd": 2_000}
NET_OVERHEAD_SIMPLE_FACTOR = 3
# Ring Simple all-reduce between nodes from 64 bytes per channel and rank on: latency x 1.4. [tuning]
RING_PLATEAU_FACTOR = 1.4
RING_PLATEAU_BYTES = 64

TREE_EFFICIENCY = 0.92  # of a ring's rate, as one GPU sends both up and down. [tuning]
TREE_ONE_NODE_EFFICIENCY = 0.92 * 0.85  # [tuning], pattern 'tree'
TREE_PATTERN_SHARE = 0.85  # [tuning]: what the tuner takes off for the pattern 'tree'
TREE_ONE_NODE_LL128_SHARE = 7 / 9  # [tuning]: of that, LL128 on one node
TREE_LL_DIVISOR = 3.8  # [tuning]
# [tuning] treeCorrectionFactor: share of the rate that trees reach, for 64 bytes, 128, ... 512 MiB.
TREE_CORRECTION: dict[Protocol, tuple[float, ...]] = {
    "LL": (1.0,) * 4 + (0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9) + (1.0,) * 5,
    "LL128": (1.0,) * 5 + (0.9, 0.8, 0.8, 0.8, 0.7) + (0.6,) * 6 + (0.8, 0.9, 0.9, 0.9, 0.9) + (1.0,) * 3,
    "Simple": (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}

PAT_EFFICIENCY = 0.75  # [tuning]
PAT_STEP_SHARE = 1 / 3.5  # of a network step, for each of log2(n) steps. [tuning]
PAT_RANK_NS = 2_800  # the linear part, for each rank. [tuning]

# Chunks in flight before the last stage of a pipeline has the first of them. [chunking]
NVLS_FILL_STAGES = 2  # copy in and reduce; broadcast and copy out
NVLS_CHANNELS = 16  # NCCL's default on Hopper
NVLS_MAX_HEADS = 32  # NCCL_MAX_NVLS_ARITY
NVLS_CHUNK_BYTES = 131_072  # NCCL_NVLS_CHUNKSIZE
# A hop of an NVLS tree without its chunk: [tuning] of NCCL 2.19. Later versions put 20,900 instead, chunk included, to
# choose better; here the chunk is the fill.
NVLS_TREE_STEP_NS = 14_000
TREE_CHUNK_BYTES = 524_288  # NCCL_BUFFSIZE / NCCL_STEPS

# Rings that fill the NVLinks of one GPU: [h200x2] choices.json, 'nChannels 12, bw 30'; 12 x 20 on a DGX A100. NCCL
# runs each twice (24 channels). With fewer channels than these the rate falls in proportion.
NVLINK_CHANNELS = 12
MAX_CHANNELS = 24

# Send/recv and direct all-to-all: one kernel of the p2p sort. [h200x2]: send_recv of 1 KiB 5.9 us, beyond its bytes 6.5
# to 128 KiB and 9.4 from 1 MiB on. A further peer costs its share of a proxy or channel: estimate.
P2P_BASE_NS: dict[Protocol, int] = {"LL": 5_900, "LL128": 14_000, "Simple": 6_600}
P2P_WIDENING_NS = 900  # for each doubling of a message
P2P_WIDENING_BYTES = (1 << 17, 1 << 20)
P2P_PEER_NS: dict[LinkSort, int] = {"nvlink": 300, "pcie": 500, "net": 600}
P2P_LL_MAX_BYTES = 16_384  # NCCL_P2P_LL_THRESHOLD, per message
# A GPU that sends and receives at once loses 2.1 us x (us on the link) ^ 0.65: [h200x2] all_to_all, even powers.
P2P_DUPLEX_BASE_NS = 700  # the same, 1 KiB
P2P_DUPLEX_NS = 2_100
P2P_DUPLEX_EXPONENT = 0.65

# A group of one rank: NCCL copies the buffer on the device (or only launches an empty kernel).
SINGLE_RANK_BASE_NS = 4_000  # launch and tail of one kernel; estimate
SINGLE_RANK_COPY_SHARE = 0.45  # a copy reads and writes; share of peak bandwidth per byte copied

# nccl-tests: the mean over iterations of the slower of launching and running, both of which vary: (host^4 + gpu^4)^1/4.
# Exponent FITTED on the two 1 MiB rows of [azure].
LAUNCH_OVERLAP_EXPONENT = 4


def architecture(compute_capability: tuple[int, int]) -> ArchitectureConstants:
    """Constants of the GPU generation: Ampere's up to 8.x, Hopper's for 9.x, Blackwell's from 10.0 on."""
    if compute_capability >= (10, 0):
        return BLACKWELL
    return HOPPER if compute_capability >= (9, 0) else AMPERE
