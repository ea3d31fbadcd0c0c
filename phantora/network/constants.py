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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureConstants:
    """What differs between GPU generations and is no figure of a data sheet."""

    nvlink_efficiency: dict[Protocol, float]
    """Share of the NVLink rate that a protocol reaches, its flags included."""
    ll_judged_share: float
    """What NCCL's tuner takes that of LL for when it chooses: where it is less, LL is given up too early."""
    ring_step_ns: dict[Protocol, int]
    """Latency of one ring step inside one NVLink domain."""
    nvls_efficiency: float
    """Share of the NVLink rate at which the switch reduces and multicasts; 0: it cannot."""
    ll_net_bytes_per_s: tuple[float, float]
    """Most that LL carries between nodes (bus bandwidth of one node), on two nodes and on more. [tuning] llMaxBws."""


AMPERE = ArchitectureConstants(
    # LL: 87.7 of 240 GB/s, [tuning] llMaxBws. LL128: FITTED, [azure] A100 4 to 16 MiB.
    nvlink_efficiency={"LL": 0.365, "LL128": 0.52, "Simple": 1.0},
    ll_judged_share=0.25,  # [tuning] until 2.20: a quarter of the ring's rate
    # LL and LL128: [tuning]. Simple: FITTED, [azure] A100 32 MiB to 1 GiB, where the tuner's 3,400 is far too little.
    ring_step_ns={"LL": 600, "LL128": 1_900, "Simple": 11_800},
    nvls_efficiency=0.0,
    ll_net_bytes_per_s=(22.5e9, 19e9),
)
HOPPER = ArchitectureConstants(
    # LL: 141 of 370.8 GB/s, [tuning] llMaxBws. LL128: FITTED, [azure] H200 4 and 8 MiB.
    nvlink_efficiency={"LL": 0.38, "LL128": 0.81, "Simple": 1.0},
    ll_judged_share=0.38,
    # LL and Simple: [tuning]. LL128: FITTED, [azure] H200 1 to 8 MiB (the tuner has 1,900).
    ring_step_ns={"LL": 600, "LL128": 1_000, "Simple": 3_400},
    nvls_efficiency=0.835,  # FITTED, [azure] H200 from 128 MiB on; [tuning] nvlsEfficiency says 0.85
    ll_net_bytes_per_s=(45e9, 35e9),
)
BLACKWELL = ArchitectureConstants(  # nothing measured: [tuning], and Hopper's where the tuner makes no difference
    nvlink_efficiency={"LL": 0.39, "LL128": 0.81, "Simple": 1.0},
    ll_judged_share=0.39,
    ring_step_ns={"LL": 600, "LL128": 1_000, "Simple": 3_400},
    nvls_efficiency=0.74,
    ll_net_bytes_per_s=(90e9, 70e9),
)

# A ring's last step only receives: the block is copied from the buffer, which takes this share of the time of a step
# over NVLink. So a ring of s sending steps takes (s + 0.4) / s of the time of its busiest link: 1.2 for an all-reduce
# of two ranks, 1.4 for their all-gather, 1.03 for an all-reduce of eight. [h200x2]: ring Simple, 256 MiB, all-reduce
# 302, all-gather 245, reduce-scatter 230, broadcast (no such step) 361 GB/s; the same ratios for LL.
RECEIVE_SHARE = 0.4

# Between nodes. LL sends a flag with every 4 bytes, LL128 120 bytes of 128 ([tuning]; with one GPU per node 0.7).
NET_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
NET_LL128_ONE_GPU_EFFICIENCY = 0.7

# Share of PCIe (peer copies or host memory). LL as on the network; NCCL does not use LL128 there.
PCIE_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.0, "Simple": 1.0}

# Posting a message on the proxy thread: no ring step inside a node is shorter when there are several. [tuning]
NET_OVERHEAD_NS = 1_000
NET_OVERHEAD_SIMPLE_FACTOR = 3
# Ring Simple all-reduce between nodes from 64 bytes per channel and rank on: latency x 1.4. [tuning]
RING_PLATEAU_FACTOR = 1.4
RING_PLATEAU_BYTES = 64

TREE_EFFICIENCY = 0.92  # of a ring's rate, as one GPU sends both up and down. [tuning]
TREE_ONE_NODE_EFFICIENCY = 0.92 * 0.85  # [tuning], pattern 'tree'
TREE_ONE_NODE_LL128_SHARE = 7 / 9 / (120 / 128)  # [tuning]: of that, LL128 on one node

PAT_EFFICIENCY = 0.75  # [tuning]
PAT_STEP_SHARE = 1 / 3.5  # of a network step, for each of log2(n) steps. [tuning]
PAT_RANK_NS = 2_800  # the linear part, for each rank. [tuning]

# Chunks in flight before the last stage of a pipeline has the first of them. [chunking]
NVLS_FILL_STAGES = 2  # copy in and reduce; broadcast and copy out
NVLS_CHANNELS = 16  # NCCL's default on Hopper
NVLS_CHUNK_BYTES = 131_072  # NCCL_NVLS_CHUNKSIZE
TREE_CHUNK_BYTES = 524_288  # NCCL_BUFFSIZE / NCCL_STEPS

# Rings that fill the NVLinks of one GPU: [h200x2] choices.json, 'nChannels 12, bw 30'; 12 x 20 on a DGX A100. NCCL
# runs each twice (24 channels). With fewer channels than these the rate falls in proportion.
NVLINK_CHANNELS = 12
MAX_CHANNELS = 24

# Send/recv and direct all-to-all: one kernel of the p2p sort. [h200x2]: send_recv of 1 KiB 5.7 us, of 4 MiB 9.3 us
# beyond its bytes. A further peer costs its share of a proxy or channel: estimate.
P2P_BASE_NS: dict[Protocol, int] = {"LL": 6_000, "LL128": 14_000, "Simple": 6_600}
P2P_PEER_NS: dict[LinkSort, int] = {"nvlink": 300, "pcie": 500, "net": 600}
P2P_LL_MAX_BYTES = 16_384  # NCCL_P2P_LL_THRESHOLD, per message
# A GPU that sends and receives at once reaches less than in one direction: [h200x2] all_to_all 284 (256 MiB) to 336
# GB/s (4 GiB), exchange 306 to 364, send_recv 370.
P2P_DUPLEX_EFFICIENCY = 0.9

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
