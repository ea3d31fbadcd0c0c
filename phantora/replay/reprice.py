"""Recorded kernels at the prices of another GPU, and how much faster or slower its host is."""

from __future__ import annotations

import json
import statistics
from dataclasses import astuple, replace

from phantora.cluster.spec import Cluster
from phantora.compute import Pricer
from phantora.compute.call import OpCall
from phantora.compute.call_json import from_json
from phantora.compute.table import Table
from phantora.errors import UserError
from phantora.trace.model import Run, SignatureInfo


def repriced(run: Run, cluster: Cluster, table: Table | None = None) -> tuple[list[SignatureInfo], list[str]]:
    """(the run's signatures with new prices, notes). A kernel whose call was not recorded keeps its time."""
    pricer = Pricer(cluster.gpu, cluster.host, table, cluster.intra_node)
    signatures = [_repriced(signature, pricer) for signature in run.signatures]
    num_kept = sum(not signature.call for signature in run.signatures)
    notes = [f"repriced for {cluster.gpu.name}: {len(signatures) - num_kept} of {len(signatures)} kinds of kernels"]
    if num_kept:
        names = sorted({s.name for s in run.signatures if not s.call})
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        notes.append(
            f"kept their recorded time, because their calls are not in the trace: {num_kept} kinds of kernels ({shown})"
        )
    return signatures, notes


def host_scale(source: object, cluster: Cluster) -> tuple[float, list[str]]:
    """(factor of all host time, notes): the ratio of what launches cost on both hosts, the median of all kinds."""
    if not isinstance(source, Cluster):
        return 1.0, ["host time was kept: the host of the source is not known"]
    if source.host.launch_ns == cluster.host.launch_ns:
        return 1.0, []
    ratios = [
        cluster.host.launch_ns[name][i] / source.host.launch_ns[name][i]
        for name in source.host.launch_ns
        for i in (0, 1)
        if source.host.launch_ns[name][i]
    ]
    scale = statistics.median(ratios) if ratios else 1.0
    return scale, [
        f"host time was multiplied by {scale:.3g}, the ratio of launch costs of {cluster.name} and {source.name}"
    ]


def _repriced(signature: SignatureInfo, pricer: Pricer) -> SignatureInfo:
    if not signature.call:
        return signature
    price = pricer.price(_call(signature))
    return replace(
        signature, duration_ns=price.duration_ns, num_kernels=price.num_kernels, source=price.source, flops=price.flops,
        bytes=price.bytes, family=price.family, draw=() if price.draw is None else astuple(price.draw),
    )  # fmt: skip


def _call(signature: SignatureInfo) -> OpCall:
    try:
        return from_json(json.loads(signature.call))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"the call of {signature.name} in the trace cannot be read: {error}") from None
