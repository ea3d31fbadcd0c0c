"""The command `phantora nccl-tests`: options in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phantora.cluster.loader import load_cluster
from phantora.cluster.placement import Placement
from phantora.errors import UserError
from phantora.network.measured import Measurement, read_measurements, table
from phantora.network.nccl_tests import Row, busbw_factor, kind_of, parse_size, run_sweep, sweep_sizes
from phantora.network.plot import bandwidth_svg


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """Options of the command; sizes as the user wrote them."""

    cluster: str
    collective: str
    begin: str
    end: str
    factor: float
    num_nodes: int
    num_gpus: int | None
    """GPUs of each node; None: all."""
    gpus_per_process: int | None
    dtype: str
    compare: str | None
    column: str | None
    plot: str | None
    is_json: bool

    def run(self, environment: Mapping[str, str]) -> str:
        """What is to be printed. Writes the plot."""
        cluster = load_cluster(self.cluster)
        placement = Placement(cluster, self.num_nodes, self.num_gpus or cluster.gpus_per_node)
        kind = kind_of(self.collective)
        factor = busbw_factor(kind, placement.world_size)
        sizes = sweep_sizes(parse_size(self.begin), parse_size(self.end), self.factor)
        measured = self._measured(placement, factor)
        sizes = sorted({*sizes, *(m.size_bytes for m in measured)})
        rows = run_sweep(
            placement, self.collective, sizes, dtype=self.dtype, gpus_per_process=self.gpus_per_process,
            environment=environment,
        )  # fmt: skip
        title = f"{kind} on {placement.world_size} x {cluster.gpu.name} ({cluster.name}, nodes: {self.num_nodes})"
        if self.plot:
            _write(self.plot, bandwidth_svg(title, rows, measured, factor))
        if self.is_json:
            fields = {"cluster": cluster.name, "collective": kind, "rows": _json_rows(rows, measured)}
            return json.dumps(fields, indent=1)
        chosen = [f"{name}={value}" for name, value in sorted(environment.items()) if value]
        return table(rows, measured, [title, *chosen])

    def _measured(self, placement: Placement, factor: float) -> list[Measurement]:
        if self.compare is None:
            return []
        name = placement.cluster.name
        return read_measurements(self.compare, self.column, name, placement.world_size, factor)


def _json_rows(rows: list[Row], measured: list[Measurement]) -> list[dict[str, object]]:
    times = {m.size_bytes: m.time_us for m in measured}
    found = []
    for row in rows:
        fields = row.as_json()
        if row.size_bytes in times:
            fields["measured_us"] = round(times[row.size_bytes], 3)
            fields["error"] = round(row.time_us / times[row.size_bytes] - 1, 4)
        found.append(fields)
    return found


def _write(path: str, text: str) -> None:
    if not path.endswith(".svg"):
        raise UserError(f"{path}: the plot is an SVG file: give it a name that ends in .svg")
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
