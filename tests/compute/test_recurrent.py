"""Recurrent layers beside 280 that were measured on an H200 (validation/data/h200/recurrent.jsonl)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from phantora.compute import OpCall, Pricer, TensorSpec

MEASURED = Path(__file__).parents[2] / "validation" / "data" / "h200" / "recurrent.jsonl"
MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}


def recurrent(row: dict[str, object], direction: str) -> OpCall:
    """A row's layers; `row`: kind, dtype, layers, hidden, seq, batch, bidirectional."""
    shape = (int(row["seq"]), int(row["batch"]), int(row["hidden"]))  # type: ignore[call-overload]
    source = TensorSpec(shape, (shape[1] * shape[2], shape[2], 1), str(row["dtype"]))
    given = {"mode": MODES[str(row["kind"])], "hidden_size": row["hidden"], "num_layers": row["layers"],
             "batch_first": False, "bidirectional": row["bidirectional"]}  # fmt: skip
    name = "aten::_cudnn_rnn" + ("_backward" if direction == "backward" else "")
    return OpCall(name, args=(("input", source), *given.items()), outputs=(source,))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_measured_layers(h200: Pricer, direction: str) -> None:
    """Layers of 64 and 128 steps; the GPU waits for the host in most of the longer ones, which were measured anyway."""
    errors = []
    for row in map(json.loads, MEASURED.read_text().splitlines()):
        if row["seq"] <= 128:
            errors.append(abs(h200.price(recurrent(row, direction)).duration_ns / 1e3 / row[f"{direction}_us"] - 1))
    errors.sort()
    assert len(errors) == 140
    assert statistics.median(errors) < 0.08 and errors[int(0.9 * len(errors))] < 0.25


def test_layers_run_side_by_side_and_directions_wait_for_each_other(h200: Pricer) -> None:
    row = {"kind": "LSTM", "dtype": "bfloat16", "layers": 1, "hidden": 512, "seq": 256, "batch": 64, "bidirectional": False}

    def forward_ns(**changes: object) -> int:
        return h200.price(recurrent({**row, **changes}, "forward")).duration_ns

    assert 1.2 < forward_ns(layers=2) / forward_ns() < 1.6
    assert 1.2 < forward_ns(bidirectional=True) / forward_ns() < 1.6
    assert 1.9 < forward_ns(bidirectional=True, layers=2) / forward_ns(bidirectional=True) < 2.3


def test_one_kernel_walks_through_time_where_torch_asks_for_it(h200: Pricer) -> None:
    """get_algo of aten/native/cudnn/RNN.cpp: float16, one layer, units in 128s up to 1,024, rows in 8s up to 128; no GRU."""
    row = {"kind": "LSTM", "dtype": "float16", "layers": 1, "hidden": 512, "seq": 256, "batch": 64, "bidirectional": False}

    def kernels(**changes: object) -> int:
        return h200.price(recurrent({**row, **changes}, "forward")).num_kernels

    assert kernels() < 4
    for changes in ({"kind": "GRU"}, {"dtype": "bfloat16"}, {"layers": 2}, {"hidden": 1152}, {"hidden": 500}, {"batch": 136},
                    {"batch": 60}, {"bidirectional": True}):  # fmt: skip
        assert kernels(**changes) > 500, changes
    assert kernels(kind="RNN", dtype="float32", hidden=384) < 4 and kernels(kind="RNN", dtype="float32", hidden=385) > 500
