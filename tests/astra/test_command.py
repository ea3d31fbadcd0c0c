"""`phantora simulate` with ASTRA-sim's files: output, options, and what the process loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from workloads import Workload, arguments, coll, comp

from phantora.cli import main


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(words))
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ranks = [[comp(1, 5 if rank == 2 else 1)] for rank in range(4)]
    return Workload(ranks, groups={"1": [0, 1, 2, 3]}).write(tmp_path)


def test_json_is_only_the_finish_times(folder: Path) -> None:
    for backend in ("congestion-unaware", "congestion-aware"):
        code, output = _run(*arguments(folder, "--backend", backend, "--json"))
        assert code == 0
        assert json.loads(output) == {"finish_ns": {"0": 1000, "1": 1000, "2": 5000, "3": 1000}}


def test_table_joins_equal_neighbours(folder: Path) -> None:
    code, output = _run(*arguments(folder))
    assert code == 0
    assert [line.split() for line in output.splitlines()[1:]] == [
        ["rank", "finish", "ns"], ["0-1", "1,000"], ["2", "5,000"], ["3", "1,000"], ["last", "5,000"],
    ]  # fmt: skip


def test_a_folder_stands_for_its_prefix(folder: Path) -> None:
    words = arguments(folder, "--json")
    words[1] = str(folder)
    assert _run(*words) == _run(*arguments(folder, "--json"))


def test_astra_sims_own_spelling_of_options(tmp_path: Path) -> None:
    folder = Workload([[coll(1)]] * 4).write(tmp_path)
    plain = _run(*arguments(folder, "--json"))
    assert (
        _run(
            *arguments(folder, "--json", "--num-queues-per-dim=1", "--injection-scale=1", "--rendezvous-protocol=false")
        )
        == plain
    )
    slow = _run(*arguments(folder, "--json", "--rendezvous-protocol=true"))
    assert slow[0] == 0 and slow != plain and slow == _run(*arguments(folder, "--rendezvous-protocol", "--json"))


@pytest.mark.parametrize(
    "more,reason",
    [
        (
            ("--cluster", "dgx-h100"),
            "--cluster (replay on a cluster) and --astra-system (ASTRA-sim's semantics) exclude each other",
        ),
        (("--reprice",), "--reprice (replay on a cluster) and --astra-system"),
        (("--injection-scale", "0"), "--injection-scale 0.0: must be above 0 and below 1e9"),
        (("--injection-scale", "1e300"), "--injection-scale 1e+300: must be above 0 and below 1e9"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, more: tuple[str, ...], reason: str) -> None:
    code, output = _run(*arguments(folder, *more))
    assert (code, output.count("\n")) == (2, 1) and reason in output


def test_half_of_astra_sims_files(folder: Path) -> None:
    code, output = _run("simulate", str(folder / "w"), "--astra-system", str(folder / "system.json"))
    assert code == 2 and "--astra-system needs --astra-network and --astra-memory too" in output
    code, output = _run("simulate", str(folder / "w"), "--backend", "congestion-aware")
    assert code == 2 and "--backend needs --astra-system and --astra-network and --astra-memory too" in output


def test_the_process_loads_little(folder: Path) -> None:
    code = f"import sys; from phantora.cli import main; main({arguments(folder, '--json')!r}, standalone_mode=False)"
    code += "; print(sorted({'torch', 'numpy', 'google.protobuf', 'rich'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"
