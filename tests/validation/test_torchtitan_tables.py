"""Reading torchtitan's published rows, and what is said of them. (The runs themselves take minutes.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from phantora.errors import UserError
from phantora.validation import torchtitan_tables
from phantora.validation.published import Compared

_HEADER = "gpu,gpus,model,seq,local_batch,activation_checkpoint,compile,float8,tps_per_gpu,mfu_percent,peak_gib\n"
_ROWS = (
    "A100-80G,64,Llama2-13B,4096,2,none,0,0,2162,61.1,\n"
    "H100-96G-500W,8,Llama3.1-8B,8192,2,selective-op,1,0,6667,,77.0\n"
    "H100-96G-500W,8,Llama3.1-8B,8192,2,selective-layer,1,1,8532,,76.8\n"
)


def table(tmp_path: Path, rows: str = _ROWS) -> Path:
    path = tmp_path / "torchtitan.csv"
    path.write_text(_HEADER + rows, encoding="utf-8")
    return path


def test_rows_become_command_lines(tmp_path: Path) -> None:
    plain, compiled, float8 = torchtitan_tables.read_cases(table(tmp_path))
    assert (plain.cluster, plain.num_ranks) == ("p4de", 64) and compiled.cluster == "grand-teton-h100"
    assert plain.measured_ms == pytest.approx(2 * 4096 / 2162 * 1e3) and (plain.measured_gib, compiled.measured_gib) == (0.0, 77.0)
    words = " ".join(plain.arguments)
    assert "--model.name llama2 --model.flavor 13B" in words and "titan_2024 " in words and "compile" not in words
    assert "selective_ac_option op --compile.enable --compile.components model" in " ".join(compiled.arguments)
    assert "selective_ac_option 2" in " ".join(float8.arguments) and "float8" in " ".join(float8.arguments)
    assert len({case.name for case in (plain, compiled, float8)}) == 3


def test_verdicts(tmp_path: Path) -> None:
    rows = [Compared(name="a", measured=100, simulated=105), Compared(name="b", measured=100, simulated=100)]
    assert [holds for _, holds in torchtitan_tables.verdicts(rows)] == [True, True]
    rows.append(Compared(name="b", measured=100, simulated=96, unit="GiB"))
    assert [holds for _, holds in torchtitan_tables.verdicts(rows)] == [True, True, False]


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no torchtitan there"):
        torchtitan_tables.main([str(tmp_path), "--torchtitan", str(tmp_path)])
    (tmp_path / "torchtitan").mkdir()
    with pytest.raises(UserError, match="No such file"):
        torchtitan_tables.main([str(tmp_path), "--torchtitan", str(tmp_path)])
    table(tmp_path, "")
    with pytest.raises(UserError, match="has no rows"):
        torchtitan_tables.main([str(tmp_path), "--torchtitan", str(tmp_path)])
    table(tmp_path, _ROWS.replace("A100-80G", "B300"))
    with pytest.raises(UserError, match="no preset for the GPU 'B300'"):
        torchtitan_tables.main([str(tmp_path), "--torchtitan", str(tmp_path)])
