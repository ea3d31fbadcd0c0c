"""torch.compile beside measurements: single fused kernels, or training steps.

usage: python -m phantora.validation compiled [CASE ...] [--kernels] [--measured FILE]
       [--cases FILE] [--workloads train_bench.py] [--cluster lab-h200] [--out DIR]

--kernels prices every Triton kernel that measure/compile_bench.py measured: the half that the constants were fitted to,
the half that was held out, and those of the training steps (held out too). Without it, the training steps of the same file
are simulated and compared; the shared one is a case of `hardware`. Cases: compiled-X, compiled-reduce-overhead-X, where X is
a case of train_bench.py. Measured steps: validation/data/h200/compile.json.gz, or a cases file.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phantora.compute.pricer import pricer_of
from phantora.errors import UserError
from phantora.validation import fused_kernels, hardware
from phantora.validation.cases import ROOT, Figures, read_cases, workload_of

DATA = ROOT / "validation" / "data" / "h200" / "compile.json.gz"


def main(arguments: list[str]) -> int:
    rest = [word for word in arguments if word != "--kernels"]
    path = DATA
    if "--measured" in rest:
        position = rest.index("--measured")
        path = Path("".join(rest[position + 1 : position + 2]))
        del rest[position : position + 2]
    if any(word in ("-h", "--help") for word in rest):
        print(__doc__)
        return 0
    measured = read(path)
    return _print_kernels(measured) if "--kernels" in arguments else _print_steps(rest, measured)


def _print_steps(arguments: list[str], measured: dict[str, Any]) -> int:
    """Each case by itself: compile_bench.py empties the allocator's cache before each. Exit code as of `hardware`."""
    options = hardware.parse_options(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        path = folder / "cases.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, case_rows(measured))), encoding="utf-8")
        known = read_cases(options.file or path)
        _check_names(options.names, known)
        rows = []
        for case in options.names or known:
            figures = hardware.simulate(case, workload_of(case, options.workloads), options.cluster, folder)
            rows.append(hardware.Compared(case=case, simulated=figures, measured=known[case]))
            print(hardware.line(rows[-1]), flush=True)
    print("\n" + hardware.table(rows))
    return 0 if all(check.holds for check in hardware.checks(rows)) else 1


def _check_names(names: list[str], known: Mapping[str, Figures]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"case {name} was not measured (measured: {', '.join(known)})")


def read(path: Path) -> dict[str, Any]:
    """What measure/compile_bench.py wrote. UserError when `path` is not that."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            found = json.load(file)
        return {"kernels": found["kernels"], "models": found["models"], **found}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no result of measure/compile_bench.py: {error!r}") from None


def case_rows(measured: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The training steps as rows of a cases file; those with an error are left out."""
    for row in [*measured["models"], *measured.get("autotune", ())]:
        if "error" in row:
            continue
        mode = "" if row["mode"] == "default" else f"{row['mode']}-"
        yield {
            "case": f"compiled-{mode}{row['model']}-b{row['batch']}-s{row['seq']}",
            "step_ms": row["step_ms"],
            "gpu_busy_ms": row["busy_ms"],
            "kernels": row["num_kernels"],
            "max_allocated_mib": row["max_allocated_mib"],
            "max_reserved_mib": row["max_reserved_mib"],
        }


def _print_kernels(measured: dict[str, Any]) -> int:
    pricer = pricer_of("lab-h200")
    kernels = list(fused_kernels.measured_kernels(measured["kernels"]))
    for title, chosen in (
        ("fitted", [kernel for kernel in kernels if not kernel.held_out]),
        ("held out", [kernel for kernel in kernels if kernel.held_out]),
        ("training steps (held out)", list(fused_kernels.measured_kernels(measured["models"]))),
    ):
        print(f"{title}\n{fused_kernels.errors_table(chosen, pricer)}\n")
    sys.stdout.flush()
    return 0
