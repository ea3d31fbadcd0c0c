"""The load of one message from every GPU of a group to every other one, without routing each of the n^2 pairs.

Of a route only the links of the spines depend on both ends, and with adaptive routing only through their leaves: so the
messages that cross a link can be counted per GPU and per leaf.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phantora.cluster.topology import Indices, Topology

Floats = NDArray[np.float64]


def can_count(topology: Topology) -> bool:
    """Whether the count is possible: not with ECMP (a cable for each pair), nor where messages change their rail."""
    return (not topology.has_spines or topology.uplinks_per_leaf == 1) and not topology.uses_pxn


def all_pairs_load(topology: Topology, gpus: Indices) -> tuple[Floats, Floats]:
    """Messages over each link between GPUs of one domain, and between those of different ones."""
    inside, between = np.zeros(topology.num_links), np.zeros(topology.num_links)
    domains, domain_of, sizes = np.unique(gpus // topology.gpus_per_domain, return_inverse=True, return_counts=True)
    near = sizes[domain_of] - 1
    _add_inside(topology, inside, gpus, near)
    if len(domains) > 1:
        _add_between(topology, between, gpus, domain_of, len(gpus) - 1 - near)
    return inside, between


def _add_inside(topology: Topology, load: Floats, gpus: Indices, near: Indices) -> None:
    out, into, pair = (topology.first_link(block) for block in ("out", "in", "pair"))
    if out is not None and into is not None:
        load[out + gpus] += near
        load[into + gpus] += near
    elif pair is not None:
        size = topology.gpus_per_domain
        for domain in np.unique(gpus // size):
            members = gpus[gpus // size == domain]
            first, second = np.repeat(members, len(members)), np.tile(members, len(members))
            apart = first != second
            load[pair + first[apart] * size + second[apart] % size] += 1


def _add_between(topology: Topology, load: Floats, gpus: Indices, domain_of: Indices, far: Indices) -> None:
    per_node, cards = topology.cluster.gpus_per_node, topology.nics_per_node
    card = gpus // per_node * cards + gpus % per_node * cards // per_node
    gpu_blocks = ("out", "in") if topology.has_lanes else ("to_nic", "from_nic")
    for blocks in zip(gpu_blocks, ("nic_out", "nic_in")):
        for block, place in zip(blocks, (gpus, card)):
            start = topology.first_link(block)
            assert start is not None, block
            np.add.at(load, start + place, far)
    if topology.has_spines:
        leaf = topology.leaf(card)
        _, both = np.unique(leaf * (domain_of.max() + 1) + domain_of, return_inverse=True)
        same_leaf = np.bincount(leaf)[leaf] - np.bincount(both)[both]  # in other domains
        for block in ("up", "down"):
            start = topology.first_link(block)
            assert start is not None, block
            np.add.at(load, start + leaf, far - same_leaf)
