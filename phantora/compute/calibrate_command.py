"""`phantora calibrate`: measures operators on this machine's GPU and writes a table for `--prices`.

The standard sweep takes about five minutes; --from RUN measures exactly the operators that a recorded run met. Beside
the table FILE lie the raw rows (FILE without its suffixes + .rows.jsonl.gz), from which it can be built again.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phantora.compute.build_table import table_of, write
from phantora.compute.call import OpCall
from phantora.compute.table import measured_gpu
from phantora.errors import UserError


def calibrate(
    out: Path, run: Path | None, cluster: Any, seconds: float, say: Callable[[str], None], only: str | None = None
) -> None:
    """Measures, prints what was found (host_us too) and writes table and rows. UserError without a GPU or torch.

    only: families of the sweep, comma-separated (sweep.groups.FAMILIES); None: the standard ones.
    """
    from phantora.compute.sweep.groups import families_of
    from phantora.compute.sweep.worker import require_gpu, watch

    families = families_of(only)
    calls = None if run is None else recorded_calls(run)
    require_gpu()
    rows_path = out.parent / (out.name.split(".")[0] + ".rows.jsonl.gz")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "rows.jsonl"
        if calls is None:
            say(f"measuring {', '.join(families)}, at most {seconds:.0f} s")
            watch(raw, seconds, families)
        else:
            say(f"measuring the {len(calls)} operators of {run}, costliest first, at most {seconds:.0f} s")
            watch(raw, seconds, recording=operators_file(run))
        with open(raw, "rb") as source, gzip.open(rows_path, "wb") as target:
            shutil.copyfileobj(source, target)
    _finish(out, rows_path, cluster, say)


def _finish(out: Path, rows_path: Path, cluster: Any, say: Callable[[str], None]) -> None:
    found = merged_rows(rows_path)
    if not found:
        raise UserError(f"nothing could be measured: see {rows_path}")
    header = header_of(provenance_of(rows_path), cluster)
    table = table_of(found, header, measured_gpu(header, out))
    for line in host_summary(found):
        say(line)
    say(f"{write(table, out)} points in {out}, rows in {rows_path}")


def merged_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of times with the kernels that the second pass found for them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("}\n")]
    kernels = {line["case"]: line for line in lines if "case" in line and "op" not in line}
    rows = [line for line in lines if "op" in line and "us" in line]
    return [{**row, **kernels.get(row.get("case"), {})} for row in rows]


def provenance_of(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        first = json.loads(file.readline())
    return first["provenance"]  # type: ignore[no-any-return]


def header_of(provenance: dict[str, Any], cluster: Any) -> dict[str, str]:
    """The table's header: what was measured with, and the roofs of `cluster`'s GPU, which no benchmark tells."""
    gpu = cluster.gpu
    peaks = " ".join(f"{dtype}={flops:g}" for dtype, flops in gpu.peak_flops.items())
    figures = {"memory_bytes_per_s": f"{gpu.memory_bytes_per_s:g}", "peak_flops": peaks}
    return {key: str(value) for key, value in provenance.items() if key != "memory_bytes"} | figures


def host_summary(rows: list[dict[str, Any]]) -> list[str]:
    """Median host us of launching an operator, by operator (the commonest forty)."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.get("host_us"):
            groups.setdefault(row["op"], []).append(row["host_us"])
    chosen = sorted(groups, key=lambda op: (-len(groups[op]), op))[:40]
    return ["host us per launch (median)"] + [
        f"  {op:32} {sorted(groups[op])[len(groups[op]) // 2]:9.1f}" for op in sorted(chosen)
    ]


def operators_file(run: Path) -> Path:
    """The file of operators in a run's folder, or the file itself."""
    return run / "operators.jsonl" if run.is_dir() else run


def recorded_calls(run: Path) -> list[OpCall]:
    """The operator calls that a run met, costliest first. UserError when the run kept none.

    Copies between host and device are left out: they are priced from the host's rates, not from a table.
    """
    from phantora.compute.call_json import from_json

    path = operators_file(run)
    if not path.is_file():
        raise UserError(f"{run} holds no operators.jsonl (written by record-and-simulate)")
    calls = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            calls.append(from_json(json.loads(line)))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise UserError(f"{path}:{number}: not an operator call as record-and-simulate writes it") from None
    calls = [call for call in calls if not call.name.startswith("memcpy")]
    if not calls:
        raise UserError(f"{path} holds no operators that could be measured")
    return calls
