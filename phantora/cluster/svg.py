"""A drawing of a cluster as SVG: one node with its GPUs, switch and cards, and the leaves and spines above it."""

from __future__ import annotations

from phantora.cluster.spec import Cluster

_MARGIN, _BOX, _GAP, _ROW = 30, 64, 14, 84
_MAX_SHOWN = 8
_GLYPH = 6.2  # width of a usual character at this size


def cluster_svg(cluster: Cluster) -> str:
    """The drawing, a text of its own."""
    shown = min(cluster.gpus_per_node, _MAX_SHOWN)
    width = 2 * _MARGIN + shown * (_BOX + _GAP) - _GAP
    parts: list[str] = []
    y = 64
    if cluster.nic.count and cluster.num_nodes > 1:
        y = _fabric(cluster, parts, width, y)
    if cluster.nic.count:
        _boxes(parts, [_card_name(cluster, gpu) for gpu in range(shown)], y, "#d9ead3")
        _posts(parts, shown, y + 32, y + _ROW - 16)
        rate = cluster.nic.bytes_per_s * 8 / 1e9
        parts.append(_text(_MARGIN, y - 8, f"{cluster.nic.count} cards a node, {rate:g} Gb/s each"))
        y += _ROW - 16
    _boxes(parts, [f"GPU {gpu}" for gpu in range(shown)], y, "#cfe2f3")
    if cluster.intra_node.kind != "none":
        _posts(parts, shown, y + 32, y + 62)
        parts.append(_box(_MARGIN, y + 62, width - 2 * _MARGIN, 32, _fabric_name(cluster), "#fff2cc"))
        y += 62
    height = y + 32 + _MARGIN
    box = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12">'
    title = f"{cluster.name}: {cluster.num_nodes} x {cluster.gpus_per_node} {cluster.gpu.name}"
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, background, _text(_MARGIN, 26, title), *parts, "</svg>", ""])


def _fabric(cluster: Cluster, parts: list[str], width: int, y: int) -> int:
    """Leaves, and spines where there are any; the y of what comes below."""
    fabric, inner = cluster.fabric, width - 2 * _MARGIN
    if fabric.kind == "none":
        parts.append(_box(_MARGIN, y, inner, 32, "switch", "#ead1dc"))
        return y + _ROW
    rails = min(cluster.nic.count, cluster.gpus_per_node) if fabric.kind == "rail-optimised" else 1
    leaves = -(-cluster.num_nodes // fabric.hosts_per_leaf) * rails
    if leaves > 1:
        label = f"{fabric.num_spines} spines, {fabric.oversubscription:g}:1"
        parts.append(_box(_MARGIN, y, inner, 32, label, "#ead1dc"))
        parts.append(_line(width / 2, y + 32, width / 2, y + 52))
        y += 52
    what = "rail leaves" if rails > 1 else "leaves" if leaves > 1 else "leaf"
    nodes = min(cluster.num_nodes, fabric.hosts_per_leaf)
    parts.append(_box(_MARGIN, y, inner, 32, f"{leaves} {what}, {nodes} nodes below each", "#ead1dc"))
    parts.append(_line(width / 2, y + 32, width / 2, y + _ROW - 26))
    return y + _ROW


def _card_name(cluster: Cluster, gpu: int) -> str:
    cards, gpus = cluster.nic.count, cluster.gpus_per_node
    return f"{cards // gpus} NICs" if cards > gpus else f"NIC {gpu * cards // gpus}"


def _fabric_name(cluster: Cluster) -> str:
    intra = cluster.intra_node
    name = {"nvswitch": "NVSwitch", "mesh": "NVLink, every pair", "pcie": "PCIe"}[intra.kind]
    text = f"{name}, {intra.bytes_per_s / 1e9:g} GB/s per GPU and direction"
    if intra.num_domain_nodes > 1:
        text += f", over {intra.num_domain_nodes} nodes"
    return text + (", NVLS" if intra.nvls else "")


def _boxes(parts: list[str], labels: list[str], y: int, fill: str) -> None:
    for index, label in enumerate(labels):
        parts.append(_box(_MARGIN + index * (_BOX + _GAP), y, _BOX, 32, label, fill))


def _posts(parts: list[str], count: int, top: int, bottom: int) -> None:
    for index in range(count):
        x = _MARGIN + index * (_BOX + _GAP) + _BOX / 2
        parts.append(_line(x, top, x, bottom))


def _box(x: float, y: float, width: float, height: float, label: str, fill: str) -> str:
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="#555"/>'
    middle = f'x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle"'
    fitted = ""
    if len(label) * _GLYPH > width - 8:  # squeezed into the box
        fitted = f' textLength="{width - 8:g}" lengthAdjust="spacingAndGlyphs"'
    return shape + f"<text {middle}{fitted}>{_escape(label)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#555"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{_escape(text)}</text>'


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
