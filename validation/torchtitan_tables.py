"""Throughput and memory of Llama models that torchtitan published, beside torchtitan itself, simulated.

usage: python -m phantora.validation torchtitan FOLDER --torchtitan DIR [--row TEXT ...] [--json]
       FOLDER holds torchtitan.csv; DIR: pip install --no-deps --target DIR torchtitan==0.2.2

A100 rows: docs/performance.md at commit 217cc94e. The page does not name the hosts; torchtitan's own script for several
nodes (multinode_trainer.slurm) is one for AWS with EFA, whose only A100s of 80 GB are p4de. The norm was the Triton kernel:
without checkpointing, the 13B model of two sequences of 4,096 does not fit in 80 GB with any other.
H100 row: benchmarks/llama3_h100_202412_torchtitan.md, Grand Teton, 500 W; norm_type "rmsnorm", which had no kernel of its
own then, and a loss that was not compiled.

Every rank of a row runs `-m torchtitan.train` (0.2.2 with validation/workloads/titan_2024*.py). No constant is fitted on
these rows. Exit code 1 when a limit of LIMITS is exceeded (when all rows were run).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from phantora.errors import UserError
from phantora.validation.published import WORKLOADS, Case, Compared, add_arguments, chosen, csv_rows, mean_error, report, run_all_ranks

LIMITS = {"each step": 0.06, "mean of the steps": 0.03, "each peak": 0.03}

_CLUSTERS = {"A100-80G": "p4de", "H100-96G-500W": "grand-teton-h100"}
_NORMS = {"A100-80G": "titan_2024", "H100-96G-500W": "titan_2024_plain_norm"}
_STEPS = 3
# What torchtitan imports for seconds, and what does not look at the command line while it is imported (tyro does).
_PRELOADED = (
    "datasets", "transformers", "torchdata.stateful_dataloader", "torch.distributed.checkpoint.state_dict",
    "torch.distributed._symmetric_memory",
)  # fmt: skip


def read_cases(path: Path) -> list[Case]:
    return [_case(row) for row in csv_rows(path)]


def _case(row: dict[str, str]) -> Case:
    """tps_per_gpu: tokens a second on each GPU."""
    if row["gpu"] not in _CLUSTERS:
        raise UserError(f"no preset for the GPU {row['gpu']!r} of the table; there are {', '.join(_CLUSTERS)}")
    family, flavor = row["model"].rsplit("-", 1)
    tokens = int(row["seq"]) * int(row["local_batch"])
    mode, _, option = row["activation_checkpoint"].partition("-")
    options = {
        "experimental.custom_import": _NORMS[row["gpu"]], "model.name": "llama2" if family == "Llama2" else "llama3",
        "model.flavor": flavor, "training.seq_len": row["seq"], "training.local_batch_size": row["local_batch"],
        "activation_checkpoint.mode": mode, "training.steps": str(_STEPS), "training.dataset": "c4_test",
        "model.hf_assets_path": "./tests/assets/tokenizer", "metrics.log_freq": "1",
    }  # fmt: skip
    if option:
        options["activation_checkpoint.selective_ac_option"] = {"layer": "2", "op": "op"}[option]
    flags = ["--compile.enable", "--compile.components", "model"] if row["compile"] == "1" else []
    if row["float8"] == "1":
        flags += ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather",
                  "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]  # fmt: skip
    return Case(
        name=f"{row['gpus']} {row['gpu']} {row['model']} {row['activation_checkpoint']}" + " compiled" * (row["compile"] == "1") + " float8" * (row["float8"] == "1"),
        cluster=_CLUSTERS[row["gpu"]],
        num_ranks=int(row["gpus"]),
        arguments=(*(part for name, value in options.items() for part in (f"--{name}", value)), *flags),
        measured_ms=tokens / float(row["tps_per_gpu"]) * 1e3,
        measured_gib=float(row["peak_gib"] or 0),
    )


def simulate(case: Case, torchtitan: Path, assets: Path, out: Path) -> tuple[float, float]:
    """(ms of a step, GiB reserved by the rank that needs most). RuntimeError with the end of the output on failure."""
    paths = (str(torchtitan), str(WORKLOADS), os.environ.get("PYTHONPATH", ""))
    run_all_ranks(
        case, out, ("-m", "torchtitan.train"), ("--preload", ",".join(_PRELOADED)), folder=assets,
        environment={"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    steps = [step["duration_ns"] / 1e6 for step in summary["steps"]]
    return statistics.median(steps), max(rank["peak_reserved_bytes"] for rank in summary["ranks"]) / 2**30


def compare(cases: list[Case], torchtitan: Path) -> list[Compared]:
    """Each case simulated, one after the other; its lines are printed at once."""
    found: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        subprocess.run([sys.executable, WORKLOADS / "titan_assets.py", assets], check=True)
        for number, case in enumerate(cases):
            step_ms, peak_gib = simulate(case, torchtitan, assets, assets / f"run{number}")
            rows = [Compared(name=case.name, unit="ms", simulated=step_ms, measured=case.measured_ms)]
            if case.measured_gib:
                rows.append(Compared(name=case.name, unit="GiB", simulated=peak_gib, measured=case.measured_gib))
            for row in rows:
                print(row.line, file=sys.stderr, flush=True)
            found += rows
    return found


def verdicts(rows: list[Compared]) -> list[tuple[str, bool]]:
    """(what must hold, whether it does)."""
    steps = [abs(row.error) for row in rows if row.unit == "ms"]
    peaks = [abs(row.error) for row in rows if row.unit == "GiB"]
    errors = {"each step": max(steps), "mean of the steps": mean_error(row for row in rows if row.unit == "ms")}
    if peaks:
        errors["each peak"] = max(peaks)
    return [(f"{name} {error:.1%}, at most {LIMITS[name]:.0%}", error <= LIMITS[name]) for name, error in errors.items()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torchtitan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--torchtitan", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    if not (options.torchtitan / "torchtitan").is_dir():
        advice = "pip install --no-deps --target DIR torchtitan==0.2.2"
        raise UserError(f"--torchtitan {options.torchtitan}: no torchtitan there ({advice})")
    cases = read_cases(options.folder / "torchtitan.csv")
    wanted = chosen(cases, options.row)
    rows = compare(wanted, options.torchtitan.resolve())
    return report(rows, verdicts(rows) if len(wanted) == len(cases) else [], options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
