"""Published iteration times of Megatron-LM and Megatron-DeepSpeed on A100s beside simulated ones.

usage: python -m phantora.validation megatron FOLDER [vtrain | vtrain-2gpu | korthikanti] [--row TEXT ...]
       [--json]
       FOLDER holds vtrain_64gpu.csv, vtrain_2gpu.csv, korthikanti_table5.csv

vtrain        26 configurations of a GPT of 3.6 billion parameters on 8 hosts of 8 A100 (Bang et al., vTrain, MICRO
              2024, data/ of its repository, MIT licence): tensor, data and pipeline parallelism, full recomputation
vtrain-2gpu   240 of small models on two GPUs of one host, from the same place
korthikanti   22B and 175B, full recomputation, and selective with sequence parallelism (arXiv 2205.05198, table 5)

Every rank of a row runs validation/workloads/megatron_gpt.py under `phantora record-and-simulate`, one row at a time.
No constant is fitted on these rows. Exit code 1 when a limit of LIMITS is exceeded, or when the fastest measured
configuration of `vtrain` is not the fastest simulated one (both only when all rows of a table were run).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from phantora.validation.published import WORKLOADS, Case, Compared, add_arguments, chosen, csv_rows, mean_error, report, run_all_ranks

SCRIPT = WORKLOADS / "megatron_gpt.py"
FOUR_CARDS = WORKLOADS / "a100_four_nics.toml"
LIMITS = {"vtrain": 0.08, "korthikanti": 0.06}
"""Greatest mean |error|, by table."""

# arXiv 2205.05198, table 3: hidden size, heads, layers, microbatch
_KORTHIKANTI = {"22B": (6144, 64, 48, 4), "175B": (12288, 96, 96, 1)}


def vtrain_cases(path: Path) -> list[Case]:
    """Rows of vtrain_64gpu.csv: ZeRO stage 1, full recomputation."""
    return [_vtrain_case(row, str(FOUR_CARDS), "full") for row in csv_rows(path)]


def vtrain_two_gpu_cases(path: Path) -> list[Case]:
    """Rows of vtrain_2gpu.csv, without recomputation: a further layer costs a forward and a backward pass alone."""
    return [_vtrain_case(row, "dgx-a100-80g", "none") for row in csv_rows(path)]


def _vtrain_case(row: dict[str, str], cluster: str, recompute: str) -> Case:
    tp, dp, pp = (row[f"{kind} parallelism"] for kind in ("tensor", "data", "pipeline"))
    sizes = {
        "hidden": row["hidden size"], "heads": row["attention heads"], "layers": row["# layers"],
        "seq": row["sequence length"], "micro-batch": row["micro batch"], "global-batch": row["global batch"],
        "tp": tp, "pp": pp, "recompute": recompute, "optimizer": "zero1",
    }  # fmt: skip
    model = f"h{row['hidden size']} l{row['# layers']} batch {row['global batch']}"
    return Case(
        name=f"{model} micro {row['micro batch']} tp{tp} dp{dp} pp{pp}",
        cluster=cluster,
        num_ranks=int(row["# GPUs"]),
        arguments=_options(sizes),
        measured_ms=float(row["iteration time (ms)"]),
    )


def korthikanti_cases(path: Path) -> list[Case]:
    """Rows of korthikanti_table5.csv on DGX A100: each model with full recomputation and with the paper's."""
    found = []
    for row in csv_rows(path):
        hidden, heads, layers, micro_batch = _KORTHIKANTI[row["model"]]
        sizes = {
            "hidden": hidden, "heads": heads, "layers": layers, "micro-batch": micro_batch, "vocab": 51200,
            "global-batch": row["global_batch"], "tp": 8, "pp": row["pipeline"], "chunks": row["interleave"],
            "optimizer": "megatron",
        }  # fmt: skip
        for recompute, flags, field in (
            ("full", (), "full_recompute_s"),
            ("selective", ("--sequence-parallel",), "seq_selective_s"),
        ):
            found.append(
                Case(
                    name=f"{row['model']} {recompute}",
                    cluster="dgx-a100-80g",
                    num_ranks=int(row["gpus"]),
                    arguments=(*_options({**sizes, "recompute": recompute}), "--overlap", "--fast-layer-norm", "--fused-accumulation", *flags),
                    measured_ms=float(row[field]) * 1e3,
                )
            )
    return found


TABLES: dict[str, tuple[str, Callable[[Path], list[Case]]]] = {
    "vtrain": ("vtrain_64gpu.csv", vtrain_cases),
    "vtrain-2gpu": ("vtrain_2gpu.csv", vtrain_two_gpu_cases),
    "korthikanti": ("korthikanti_table5.csv", korthikanti_cases),
}


def _options(values: dict[str, object]) -> tuple[str, ...]:
    return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


def simulate(case: Case, out: Path) -> float:
    """Milliseconds of the last step. RuntimeError with the end of the output when the run fails."""
    run_all_ranks(case, out, (str(SCRIPT),))
    lines = (out / "logs" / "rank_0" / "stdout.log").read_text(encoding="utf-8").splitlines()
    printed = [line for line in lines if line.startswith('{"step_ms"')]
    if not printed:
        raise RuntimeError(f"{case.name}: rank 0 printed no step time")
    return float(json.loads(printed[-1])["step_ms"])


def compare(cases: list[Case], folder: Path) -> list[Compared]:
    """Each case simulated, one after the other; its line is printed at once."""
    found = []
    for number, case in enumerate(cases):
        row = Compared(name=case.name, measured=case.measured_ms, simulated=simulate(case, folder / str(number)))
        print(row.line, file=sys.stderr, flush=True)
        found.append(row)
    return found


def fastest_agree(rows: list[Compared]) -> bool:
    """Whether the fastest measured row is the fastest simulated one."""
    return min(rows, key=lambda row: row.measured) is min(rows, key=lambda row: row.simulated)


def verdicts(table: str, rows: list[Compared]) -> list[tuple[str, bool]]:
    """(what must hold, whether it does)."""
    found = []
    if table in LIMITS:
        error = mean_error(rows)
        found.append((f"mean |error| {error:.1%}, at most {LIMITS[table]:.0%}", error <= LIMITS[table]))
    if table == "vtrain":
        fastest = min(rows, key=lambda row: row.measured).name
        found.append((f"the fastest measured ({fastest}) is the fastest simulated", fastest_agree(rows)))
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="megatron", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("table", nargs="?", choices=TABLES, default="vtrain")
    options = parser.parse_args(arguments)
    file, read = TABLES[options.table]
    cases = read(options.folder / file)
    wanted = chosen(cases, options.row)
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(wanted, Path(folder))
    return report(rows, verdicts(options.table, rows) if len(rows) == len(cases) else [], options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
