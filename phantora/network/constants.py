"""Every constant of the collective model, with its source. Latencies in ns, efficiencies as shares of link rates.

Sources:
  [tuning]  NCCL's tuning model (src/graph/tuning.cc of NCCL 2.18 to 2.27): latency = base + steps x step.
  [vidur]   all-reduce profiles of DGX A100 and H100 nodes in Vidur (MIT licence): 2, 4 and 8 GPUs of one node,
            1 to 64 MiB. Constants marked so were FITTED on them; rows below 1 MiB show the host's launch rate and were
            not used.
  [azure]   nccl-tests of Azure's AI benchmarking guide (8 x A100-80G with NCCL 2.18.5, 8 x H200 with NCCL 2.20.5).
            FITTED on them: NVLS_OVERHEAD (H200, 256 MiB and more) and the NVLink efficiency of the A100 preset (1 GiB
            and more). All other rows are a CHECK, though not a blind one: they were seen when the model was made.
  [aws]     nccl-tests of AWS awsome-distributed-training on 2 x p5 and 2 x p4de. FITTED: latency_ns of the EFA cards
            (1 MiB rows), efficiency of the p4d cards (p4de, 2 GiB). The p5 rows of 128 MiB and 8 GiB are a CHECK.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Protocol = Literal["LL", "LL128", "Simple"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "direct", "p2p", "copy", "none"]
LinkSort = Literal["nvlink", "pcie", "net"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

# Latency of a collective before its first step. [tuning] baseLat; ring Simple is replaced by RING_SIMPLE below.
BASE_NS: dict[tuple[str, Protocol], int] = {
    ("ring", "LL"): 6_600, ("ring", "LL128"): 14_000, ("ring", "Simple"): 8_400,
    ("tree", "LL"): 6_800, ("tree", "LL128"): 14_000, ("tree", "Simple"): 8_400,
}  # fmt: skip

# Latency of one step over one sort of link. [tuning] hwLat.
STEP_NS: dict[tuple[str, LinkSort, Protocol], int] = {
    ("ring", "nvlink", "LL"): 600, ("ring", "nvlink", "LL128"): 1_900, ("ring", "nvlink", "Simple"): 3_400,
    ("ring", "pcie", "LL"): 1_000, ("ring", "pcie", "LL128"): 2_500, ("ring", "pcie", "Simple"): 5_700,
    ("ring", "net", "LL"): 2_700, ("ring", "net", "LL128"): 4_000, ("ring", "net", "Simple"): 14_000,
    ("tree", "nvlink", "LL"): 600, ("tree", "nvlink", "LL128"): 1_250, ("tree", "nvlink", "Simple"): 4_000,
    ("tree", "pcie", "LL"): 1_000, ("tree", "pcie", "LL128"): 1_900, ("tree", "pcie", "Simple"): 4_000,
    ("tree", "net", "LL"): 5_000, ("tree", "net", "LL128"): 8_500, ("tree", "net", "Simple"): 14_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureConstants:
    """What differs between GPU generations."""

    nvlink_efficiency: dict[Protocol, float]
    """Share of the NVLink rate (that of Simple) that a protocol reaches, its flags included."""
    ring_base_ns: dict[Protocol, int]
    """Base latency of a ring inside one NVLink domain."""
    ring_step_ns: dict[Protocol, int]
    """Latency of one ring step over NVLink."""
    nvls_base_ns: int
    """Latency of an NVLS all-reduce inside one domain."""


AMPERE = ArchitectureConstants(
    # LL: 87.7 of 234 GB/s, [tuning] llMaxBws. LL128: slope of [vidur] A100 from 1 to 16 MiB, 122 of 234 GB/s.
    nvlink_efficiency={"LL": 0.375, "LL128": 0.52, "Simple": 1.0},
    # LL: [tuning]. LL128 and Simple: intercepts of [vidur] A100 (Simple from 16 MiB on).
    ring_base_ns={"LL": 6_600, "LL128": 34_000, "Simple": 60_000},
    ring_step_ns={"LL": 600, "LL128": 500, "Simple": 5_500},
    nvls_base_ns=0,  # no NVLS before Hopper
)
HOPPER = ArchitectureConstants(
    # LL: 141 of 370 GB/s, [tuning] llMaxBws. LL128: slope of [vidur] H100 from 1 to 8 MiB, 290 of 370 GB/s.
    nvlink_efficiency={"LL": 0.38, "LL128": 0.78, "Simple": 1.0},
    # LL: [tuning]. LL128 and Simple: intercepts of [vidur] H100 (Simple from 16 MiB on, 2 and 4 GPUs).
    ring_base_ns={"LL": 6_600, "LL128": 16_500, "Simple": 10_000},
    ring_step_ns={"LL": 600, "LL128": 750, "Simple": 4_600},
    nvls_base_ns=60_000,  # intercept of [vidur] H100, 8 GPUs, 16 to 64 MiB
)

# Bytes on NVLink per byte that an NVLS all-reduce moves, relative to a Simple ring: [azure] H200 reaches a bus
# bandwidth of 480 GB/s at 8 GPUs, that is 274 GB/s of data; each GPU sends and receives 1 + 1/8 of it, 309 of the 370
# GB/s of a ring.
NVLS_OVERHEAD = 1.2

# A ring of two ranks inside one domain reaches less with Simple. FITTED on [vidur], 2 GPUs, 16 to 64 MiB, A100 and
# H100.
PAIR_EFFICIENCY = 0.83

# Share of a network link's rate: LL sends a flag with every 4 bytes; LL128 120 bytes of 128. [tuning]
NET_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}

# Share of PCIe (peer copies or host memory). LL as on the network; NCCL does not use LL128 there.
PCIE_EFFICIENCY: dict[Protocol, float] = {"LL": 0.5, "LL128": 0.0, "Simple": 1.0}

TREE_EFFICIENCY = 0.9  # [tuning]: trees reach 0.9 of a ring's rate, as one GPU both sends up and down

NVLS_TREE_BASE_NS = 25_000  # [tuning]: NVLSTree over NVLink; plus twice log2(domains) network steps
NVLS_TREE_NET_STEP_NS = 20_900  # [tuning]

# Send/recv and direct all-to-all: one kernel of the p2p sort. Base as of a ring's LL and Simple; a further peer costs
# its share of a proxy or channel: estimate.
P2P_BASE_NS: dict[Protocol, int] = {"LL": 6_600, "LL128": 14_000, "Simple": 8_400}
P2P_PEER_NS: dict[LinkSort, int] = {"nvlink": 300, "pcie": 500, "net": 600}

# A group of one rank: NCCL copies the buffer on the device (or only launches an empty kernel).
SINGLE_RANK_BASE_NS = 4_000  # launch and tail of one kernel; estimate
SINGLE_RANK_COPY_SHARE = 0.45  # a copy reads and writes; share of peak bandwidth per byte copied


def architecture(compute_capability: tuple[int, int]) -> ArchitectureConstants:
    """Constants of the GPU generation: Ampere's up to 8.x, Hopper's from 9.0 on (Blackwell's are not measured here)."""
    return HOPPER if compute_capability >= (9, 0) else AMPERE
