"""Text about clusters for the command line: a table row each, or everything about one with a drawing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from phantora.cluster.loader import list_clusters, load_cluster
from phantora.cluster.spec import Cluster
from phantora.cluster.svg import cluster_svg
from phantora.errors import UserError


def cluster_rows() -> list[tuple[str, str, str]]:
    """(name, GPUs, fabric) of every preset."""
    return [(name, _gpus(cluster), _fabric(cluster)) for name in list_clusters() for cluster in [load_cluster(name)]]


def cluster_table() -> str:
    """The table of presets."""
    rows = [("NAME", "GPUS", "FABRIC"), *cluster_rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def describe_cluster(cluster: Cluster) -> str:
    """All figures with units, then the topology."""
    parts = [
        [cluster.name, f"  {_gpus(cluster)}"] + ([f"  source: {cluster.notes}"] if cluster.notes else []),
        ["GPU", *_lines(_gpu_figures(cluster))],
        ["Host", *_lines(_host_figures(cluster))],
        ["Links (per direction)", *_lines(_link_figures(cluster))],
        *([["Faults and variation", *_lines(variation)]] if (variation := _variation_figures(cluster)) else []),
        ["Topology", *(f"  {line}" for line in drawing(cluster))],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def link_lines(cluster: Cluster) -> Iterator[str]:
    """Every directed link: name, GB/s that large messages reach, latency."""
    from phantora.cluster.topology import Topology  # needs NumPy; the rest of this module does not

    topology = Topology(cluster)
    width = max(map(len, topology.names()), default=0)
    links = (topology.link(index) for index in range(topology.num_links))
    return (f"{link.name.ljust(width)}  {_gigabytes(link.bytes_per_s)}  {link.latency_ns} ns" for link in links)


def write_drawing(cluster: Cluster, path: str) -> None:
    """Write the SVG drawing. UserError when the file cannot be written."""
    if not path.endswith(".svg"):
        raise UserError(f"--svg {path!r}: the drawing is an SVG file: give it a name that ends in .svg")
    try:
        Path(path).write_text(cluster_svg(cluster), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def drawing(cluster: Cluster) -> list[str]:
    """A drawing of one node and of the fabric above it, a line each."""
    lines = _draw_fabric(cluster) + _draw_node(cluster)
    if cluster.intra_node.num_domain_nodes > 1:
        gpus = cluster.intra_node.num_domain_nodes * cluster.gpus_per_node
        lines.append(f"one NVLink domain = {cluster.intra_node.num_domain_nodes} nodes, {gpus} GPUs")
    return lines


def _draw_fabric(cluster: Cluster) -> list[str]:
    fabric, nodes = cluster.fabric, cluster.num_nodes
    if not cluster.nic.count or nodes == 1:
        return []
    if fabric.kind == "none":
        return [f"[ switch ] -- {nodes} nodes"]
    groups = -(-nodes // fabric.hosts_per_leaf)
    rails = min(cluster.nic.count, cluster.gpus_per_node)
    per_group = f"{rails} rail leaves" if fabric.kind == "rail-optimised" else "1 leaf"
    lines = []
    if groups > 1 or rails > 1 and fabric.kind == "rail-optimised":
        lines += [f"[ {fabric.num_spines} spines ]", f"     |  {fabric.oversubscription:g}:1"]
    lines.append(f"[ {groups} x {per_group}, {min(nodes, fabric.hosts_per_leaf)} nodes below each ]")
    return [*lines, f"     |  {_gigabytes(cluster.nic.bytes_per_s)} a card"]


def _draw_node(cluster: Cluster) -> list[str]:
    gpus, cards, kind = cluster.gpus_per_node, cluster.nic.count, cluster.intra_node.kind
    shown = min(gpus, 8)
    per_gpu = cards / gpus
    lines = []
    if cards:
        cells = [f"{cards // gpus} NIC" if per_gpu > 1 else f"NIC{gpu * cards // gpus}" for gpu in range(shown)]
        lines += [" ".join(cell.center(6) for cell in cells), " ".join("|".center(6) for _ in cells)]
    lines.append(" ".join(f"GPU{gpu}".center(6) for gpu in range(shown)) + (" ..." if gpus > shown else ""))
    if kind != "none":
        name = {"nvswitch": "NVSwitch", "mesh": "NVLink, every pair", "pcie": "PCIe"}[kind]
        width = shown * 7 - 1
        lines.append(" ".join("|".center(6) for _ in range(shown)))
        label = f" {name} {_gigabytes(cluster.intra_node.bytes_per_s)} per GPU "
        lines.append("[" + label.center(width - 2, "=") + "]")
    return [line.rstrip() for line in lines]


def _gpu_figures(cluster: Cluster) -> list[tuple[str, str]]:
    gpu = cluster.gpu
    peaks = [
        (f"peak {name}", f"{flops / 1e12:g} T{'OP' if name == 'int8' else 'FLOP'}/s" if flops else "none")
        for name, flops in gpu.peak_flops.items()
    ]
    return [
        ("name", gpu.name),
        ("compute capability", ".".join(map(str, gpu.compute_capability))),
        ("SMs", str(gpu.num_sms)),
        ("memory", f"{gpu.memory_bytes / 2**20:,.0f} MiB, {gpu.visible_memory_bytes / 2**20:,.0f} MiB of it visible to programs"),
        ("memory bandwidth", _gigabytes(gpu.memory_bytes_per_s)),
        ("memory bus", f"{gpu.memory_bus_bits} bits at {gpu.memory_clock_hz / 1e6:g} MHz"),
        ("L2 cache", f"{gpu.l2_bytes / 2**20:g} MiB"),
        ("SM clock", f"{gpu.clock_hz / 1e6:g} MHz"),
        ("CUDA context", f"{gpu.context_bytes / 2**20:g} MiB"),
        ("shared memory per SM", f"{gpu.shared_memory_per_sm_bytes / 1024:g} KiB"),
        ("threads per SM", str(gpu.max_threads_per_sm)),
        ("power limit", f"{gpu.power_w:g} W" if gpu.power_w else "not known"),
        *peaks,
    ]


def _host_figures(cluster: Cluster) -> list[tuple[str, str]]:
    host = cluster.host
    launches = [
        (f"launch {name}", f"{forward / 1000:g} us from Python, {backward / 1000:g} us from autograd")
        for name, (forward, backward) in host.launch_ns.items()
    ]
    units = [
        (f"unit {name}", f"{forward / 1000:g} us from Python, {backward / 1000:g} us from autograd")
        for name, (forward, backward) in host.unit_ns.items()
    ]
    return [
        ("host to device, pinned", _gigabytes(host.pcie_h2d_bytes_per_s)),
        ("device to host, pinned", _gigabytes(host.pcie_d2h_bytes_per_s)),
        ("pageable", _gigabytes(host.pageable_bytes_per_s)),
        ("CPU speed", f"{host.cpu_speed:g} x the recording machine"),
        ("launch of one NCCL call", f"{host.nccl_launch_ns / 1000:g} us from C++"),
        *launches,
        *units,
    ]


def _link_figures(cluster: Cluster) -> list[tuple[str, str]]:
    intra, nic, fabric = cluster.intra_node, cluster.nic, cluster.fabric
    figures = [("GPU to GPU", "none")]
    if intra.kind != "none":
        reached = f"{_gigabytes(intra.bytes_per_s)} per GPU, {intra.efficiency:.0%} reached, {intra.latency_ns} ns"
        figures = [("GPU to GPU", f"{intra.kind}, {reached}"), ("NVLS", "yes" if intra.nvls else "no")]
    if nic.count:
        reached = f"{_gigabytes(nic.bytes_per_s)}, {nic.efficiency:.0%} reached, {nic.latency_ns} ns"
        figures.append(("network cards", f"{nic.count} a node, each {reached}"))
        protocols = "LL, LL128 and Simple" if nic.ordered_writes else "Simple only (writes are not ordered)"
        figures.append(("NCCL between nodes", f"{protocols}; PXN {'on' if nic.pxn else 'off'}"))
    if fabric.kind != "none":
        shape = f"{fabric.hosts_per_leaf} nodes a leaf, {fabric.num_spines} spines, {fabric.oversubscription:g}:1"
        figures.append(("fabric", f"{fabric.kind}, {shape}, {fabric.routing} routing, {fabric.latency_ns} ns a hop"))
    return figures


def _variation_figures(cluster: Cluster) -> list[tuple[str, str]]:
    """Faults, stragglers and jitter of the file."""
    figures = []
    for fault in cluster.fault:
        until = f"{fault.until_s:g} s" if math.isfinite(fault.until_s) else "the end"
        figures.append((fault.link, f"x {fault.factor:g} from {fault.from_s:g} s to {until}"))
    for straggler in cluster.straggler:
        who = f"rank {straggler.rank}" if straggler.rank >= 0 else f"node {straggler.node}"
        figures.append((who, f"{straggler.what}: times x {straggler.factor:g}"))
    if cluster.jitter.relative:
        figures.append(("kernel times", f"vary by {cluster.jitter.relative:.1%}, seed {cluster.jitter.seed}"))
    return figures


def _gpus(cluster: Cluster) -> str:
    return f"{cluster.num_nodes} x {cluster.gpus_per_node} {cluster.gpu.name}"


def _fabric(cluster: Cluster) -> str:
    intra = cluster.intra_node
    inside = f"{intra.kind} {_gigabytes(intra.bytes_per_s)}" if intra.kind != "none" else "one GPU"
    if not cluster.nic.count:
        return inside
    return f"{inside}; {cluster.nic.count} x {cluster.nic.bytes_per_s * 8 / 1e9:g} Gb/s, {cluster.fabric.kind}"


def _gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"


def _lines(figures: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in figures)
    return [f"  {name.ljust(width)}  {value}" for name, value in figures]
