"""The command `phantora nccl-tests`: options in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phantora.cluster.loader import load_cluster
from phantora.cluster.placement import Placement, check_world
from phantora.errors import UserError
from phantora.network.measured import Measurement, read_measurements, table
from phantora.network.nccl_tests import DTYPES, Row, busbw_factor, kind_of, parse_size, run_sweep, sweep_sizes
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
        num_gpus = self.num_gpus or len(cluster.placement.gpus) or cluster.gpus_per_node
        check_world(cluster, self.num_nodes, num_gpus, ("-n", "-G"))
        self._check_options(num_gpus)
        placement = Placement(cluster, self.num_nodes, num_gpus)
        kind = kind_of(self.collective)
        factor = busbw_factor(kind, placement.world_size)
        sizes = sweep_sizes(parse_size(self.begin), parse_size(self.end), self.factor)
        measured = self._measured(placement, factor)
        element = DTYPES[self.dtype][1] if self.dtype in DTYPES else 1
        whole = (max(element, size // element * element) for size in sizes)  # of elements, as nccl-tests rounds
        sizes = sorted({*whole, *(m.size_bytes for m in measured)})
        rows = run_sweep(
            placement, self.collective, sizes, dtype=self.dtype, gpus_per_process=self.gpus_per_process,
            environment=environment,
        )  # fmt: skip
        title = f"{kind} on {placement.world_size} x {cluster.gpu.name} ({cluster.name}, nodes: {self.num_nodes})"
        if self.plot is not None:
            _write(self.plot, bandwidth_svg(title, rows, measured, factor))
        if self.is_json:
            fields = {"cluster": cluster.name, "collective": kind, "rows": _json_rows(rows, measured)}
            return json.dumps(fields, indent=1)
        chosen = [f"{name}={value}" for name, value in sorted(environment.items()) if value]
        return table(rows, measured, [title, *chosen])

    def _check_options(self, num_gpus: int) -> None:
        """UserError for options that contradict each other or the cluster."""
        if self.gpus_per_process is not None and not 1 <= self.gpus_per_process <= num_gpus:
            raise UserError(f"-g {self.gpus_per_process}: a thread launches for 1 to {num_gpus} GPUs here")
        if self.column is not None and self.compare is None:
            raise UserError("--column: names a column of the file of --compare, which is not given")
        if self.plot is not None and not self.plot.endswith(".svg"):
            raise UserError(f"--plot {self.plot!r}: the plot is an SVG file: give it a name that ends in .svg")

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
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
