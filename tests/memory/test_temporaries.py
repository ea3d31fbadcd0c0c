"""Temporaries of operators and workspaces of convolutions against those measured on an H200."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from phantora.compute.families.rnn import walks_through_time
from phantora.memory.convolution import Convolution, forward_bytes, weight_gradient_bytes
from phantora.memory.temporaries import (
    attention_backward_bytes,
    embedding_backward_bytes,
    recurrent_bytes,
    sort_bytes,
)

MEASURED = json.loads((Path(__file__).parents[2] / "validation/data/h200/memory.json").read_text())["temporaries"]
MIB = 1 << 20


def row(op: str, **fields: Any) -> dict[str, Any]:
    return next(r for r in MEASURED if r["op"] == op and all(r[key] == value for key, value in fields.items()))


def attention(backend: str) -> list[dict[str, Any]]:
    return [r for r in MEASURED if r["op"] == "attention" and r["backend"] == backend]


def last(blocks: list[list[int]]) -> int:
    """Bytes of the last block that was given back."""
    return [num_bytes for num_bytes, given_back in blocks if given_back][-1]


def test_embeddings() -> None:
    gpt2 = row("embedding_dense_backward 8192 of 50257x768")
    assert embedding_backward_bytes(8192, 50257, 768) == last(gpt2["blocks"])
    assert embedding_backward_bytes(65536, 400_000, 128) == last(row("embedding_bag sum backward")["blocks"])
    assert embedding_backward_bytes(3072, 50257, 768) == 0


@pytest.mark.parametrize("found", attention("CUDNN_ATTENTION"), ids=lambda r: str(r["query"]))
def test_cudnn_attention(found: dict[str, Any]) -> None:
    modelled = attention_backward_bytes(tuple(found["query"]), tuple(found["key"]), 2)
    assert modelled == pytest.approx(last(found["backward"]), rel=0.01)


@pytest.mark.parametrize("found", attention("FLASH_ATTENTION"), ids=lambda r: str(r["query"]))
def test_flash_attention(found: dict[str, Any]) -> None:
    """The measured calls begin with copies of the gradient and the output, which belong to the caller."""
    given_back = [num_bytes for num_bytes, is_back in found["backward"] if is_back][2:]
    modelled = attention_backward_bytes(tuple(found["query"]), tuple(found["key"]), 2)
    assert modelled == pytest.approx(sum(given_back), rel=0.01)


def test_sorts() -> None:
    temporary = sum(num_bytes for num_bytes, given_back in row("sort 2^20")["blocks"] if given_back)
    assert sort_bytes((1 << 20,), 0, 4) == pytest.approx(temporary, rel=0.02)
    assert sort_bytes((4096, 4096), 1, 4) == 0


def described(found: dict[str, Any]) -> Convolution:
    x, w = found["input"], found["weight"]
    stride, padding, dilation = found.get("stride", 1), found.get("padding", 0), found.get("dilation", 1)
    pixels = ((x[i] + 2 * padding - dilation * (w[i] - 1) - 1) // stride + 1 for i in range(2, len(x)))
    return Convolution(
        input=tuple(x), weight=tuple(w), output=(x[0], w[0], *pixels), item_bytes=2 if found["kind"] == "bf16" else 4,
        uses_tensor_cores=found["kind"] != "fp32", is_channels_last=found["channels_last"],
        is_strided=(stride, padding, dilation) != (1, 0, 1), groups=found.get("groups", 1), num_sms=132,
    )  # fmt: skip


def test_convolutions_on_tensor_cores() -> None:
    near = []
    for found in (r for r in MEASURED if r["op"] == "conv" and r["kind"] != "fp32"):
        for direction in ("forward", "dgrad", "wgrad"):
            measured = sum(num_bytes for num_bytes, given_back in found[direction] if given_back)
            model = weight_gradient_bytes if direction == "wgrad" else forward_bytes
            near.append(abs(model(described(found)) - measured) <= 10 * MIB)
    assert len(near) > 160 and sum(near) >= 0.88 * len(near)


RECURRENT = [json.loads(line) for line in (Path(__file__).parents[2] / "validation/data/h200/recurrent_memory.jsonl").read_text().splitlines()]
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def walks(found: dict[str, Any]) -> bool:
    mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[found["kind"]]
    chains = found["layers"] * (2 if found["bidirectional"] else 1)
    return walks_through_time(found["dtype"], mode, found["hidden"], found["input"], found["batch"], chains, packed=False)


def recurrent_workspaces(found: dict[str, Any]) -> tuple[int, int, int]:
    """(forward, backward, weights), bytes."""
    directions, size = 2 if found["bidirectional"] else 1, BYTES[found["dtype"]]
    hidden, width = found["hidden"], found["input"]
    layer = found["steps"] * found["batch"] * hidden * directions * size
    inputs = [width, *[hidden * directions] * (found["layers"] - 1)]
    weights = sum(GATES[found["kind"]] * hidden * directions * (one + hidden + 2) for one in inputs) * size
    forward, backward = (
        recurrent_bytes(
            layer, weights, found["layers"], directions, backward=back, training=found["training"], walks_through_time=walks(found)
        )
        for back in (False, True)
    )
    return forward, backward, weights


def test_recurrent_layers() -> None:
    """270 layers; the backward pass was measured with what it returns: gradients of the weights and of the input."""
    forward, backward, largest = [], [], 0.0
    for found in RECURRENT:
        if found["kind"] == "RNN" and (found["hidden"] <= 384 or walks(found)):
            continue  # other kernels, with smaller workspaces
        modelled, modelled_back, weights = recurrent_workspaces(found)
        forward.append(abs(modelled / found["forward_bytes"] - 1))
        if found["training"]:
            largest = max(largest, forward[-1])
            given = found["steps"] * found["batch"] * found["input"] * BYTES[found["dtype"]]
            backward.append(abs((modelled_back + weights + given) / found["backward_bytes"] - 1))
    assert statistics.median(forward) < 0.04 and largest < 0.2
    assert statistics.median(backward) < 0.04 and max(backward) < 0.2
