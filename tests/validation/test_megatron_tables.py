"""The published Megatron tables: rows become runs, and what is said of the errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantora.errors import UserError
from phantora.validation import megatron_tables
from phantora.validation.published import Case, Compared, mean_error

_HEADER = (
    "\ufeffParameters (billion),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
    "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n"
)


def row(name: str, measured_ms: float, simulated_ms: float) -> Compared:
    return Compared(name=name, measured=measured_ms, simulated=simulated_ms)


def test_a_row_of_the_large_table_becomes_a_run_of_all_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "vtrain_64gpu.csv"
    path.write_text(_HEADER + "3.6,64,512,8,3072,32,30,2048,2,16,2,5045.6\n", encoding="utf-8")
    (case,) = megatron_tables.vtrain_cases(path)
    assert (case.num_ranks, case.measured_ms, case.name) == (64, 5045.6, "h3072 l30 batch 512 micro 8 tp2 dp16 pp2")
    words = " ".join(case.arguments)
    assert "--tp 2 --pp 2 --recompute full" in words and "--micro-batch 8 --global-batch 512" in words


def test_each_model_of_korthikanti_is_run_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "korthikanti_table5.csv"
    path.write_text(
        "model,gpus,pipeline,interleave,global_batch,full_recompute_s,seq_selective_s\n175B,64,8,3,64,18.13,13.75\n",
        encoding="utf-8",
    )
    full, selective = megatron_tables.korthikanti_cases(path)
    assert (full.measured_ms, selective.measured_ms) == (18130.0, 13750.0)
    assert "--sequence-parallel" in selective.arguments and "--sequence-parallel" not in full.arguments
    assert "--chunks 3" in " ".join(full.arguments)


def test_verdicts_are_of_the_mean_and_of_the_fastest_row() -> None:
    rows = [row("a", 100.0, 110.0), row("b", 200.0, 190.0)]
    assert mean_error(rows) == pytest.approx(0.075)
    assert [holds for _, holds in megatron_tables.verdicts("vtrain", rows)] == [True, True]
    assert [holds for _, holds in megatron_tables.verdicts("korthikanti", rows)] == [False]
    swapped = [row("a", 100.0, 191.0), row("b", 200.0, 190.0)]
    assert not megatron_tables.fastest_agree(swapped)


def test_a_missing_table_and_an_unknown_row_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vtrain_64gpu.csv"):
        megatron_tables.main([str(tmp_path)])
    row = "3.6,64,512,8,3072,32,30,2048,1,64,1,3566.5\n"
    (tmp_path / "vtrain_64gpu.csv").write_text(_HEADER + row, encoding="utf-8")
    with pytest.raises(UserError, match="no row"):
        megatron_tables.main([str(tmp_path), "--row", "tp7"])


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        "--tp 2 --recompute full --optimizer zero1",
        "--tp 2 --pp 2 --chunks 2 --recompute selective --sequence-parallel --overlap --optimizer megatron",
    ],
)
def test_the_workload_runs(options: str, tmp_path: Path) -> None:
    """Four ranks, four layers: data with tensor parallelism; interleaved stages with sequence parallelism."""
    sizes = "--hidden 64 --heads 4 --layers 4 --seq 32 --vocab 500 --micro-batch 2 --global-batch 8"
    arguments = tuple(f"{sizes} {options}".split())
    case = Case(name="small", cluster="dgx-a100-80g", num_ranks=4, arguments=arguments, measured_ms=1.0)
    assert megatron_tables.simulate(case, tmp_path / "run") > 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["complete"] and summary["world_size"] == 4
