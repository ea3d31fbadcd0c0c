"""`phantora price`: rows in the order of the file, errors against `us`, unknown operators, bad lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora.cli import main
from phantora.compute.described import calls_of

ROWS = [
    {"op": "mm", "shapes": [[4096, 4096], [4096, 4096]], "layout": "nt", "dtype": "bf16", "us": 190.0},
    {"op": "masked_fill", "numel": 8388608, "dtype": "bf16"},
    {"op": "aten::group_norm", "shapes": [[4, 320, 64, 64]], "groups": 32, "dtype": "fp32"},
    {"op": "frobnicate", "shapes": [[1024, 1024]], "dtype": "fp32"},
]


def write(folder: Path, rows: list[object]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_json_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["price", "--cluster", "lab-h200", write(tmp_path, ROWS), "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["rows"]
    assert [row["op"] for row in rows] == [row["op"] for row in ROWS]
    assert all(row["predicted_us"] > 0 and row["source"] in ("measured", "interpolated", "roofline") for row in rows)
    assert abs(rows[0]["error"]) < 0.2 and "error" not in rows[1]
    assert rows[3]["source"] == "roofline" and "bytes" in rows[3]["note"]


def test_text_ends_with_errors_by_operator(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["price", "--cluster", "lab-h200", write(tmp_path, ROWS)])
    assert done.exit_code == 0 and "all over 20 us" in done.output


@pytest.mark.parametrize(
    "row, reason",
    [
        ("{not json", "no JSON"),
        ("[1]", "a row is a JSON object"),
        ({"shapes": [[1]]}, "op is missing"),
        ({"op": "mm", "shapes": [[2, 3], [4, 5]], "dtype": "bf16"}, "is not a product"),
        ({"op": "add", "numel": 1024, "dtype": "bf17"}, "unknown dtype 'bf17'"),
        ({"op": "add", "dtype": "bf16"}, "shapes or numel is missing"),
        ({"op": "add", "numel": -4}, "must be a whole number"),
        ({"op": "add", "numel": 4, "us": 0}, "us must be a number greater than 0"),
    ],
)
def test_bad_rows_are_named_with_their_line(tmp_path: Path, row: object, reason: str) -> None:
    done = CliRunner().invoke(main, ["price", write(tmp_path, [ROWS[0], row])])
    assert done.exit_code == 2
    assert "rows.jsonl:2:" in done.output and reason in done.output


def test_missing_file_is_the_users_mistake(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["price", str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2 and "cannot read" in done.output


def test_described_convolution_has_both_gradients() -> None:
    row = {
        "op": "conv2d_backward",
        "shapes": [[8, 64, 56, 56], [64, 64, 3, 3]],
        "stride": 1,
        "padding": 1,
        "dtype": "bf16",
    }
    (call,), note = calls_of(row)
    assert call.arg("output_mask") == (True, True, False) and note == ""
    assert call.arg("grad_output").shape == (8, 64, 56, 56)  # type: ignore[union-attr]
