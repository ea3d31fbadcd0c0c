"""Workspaces of cuDNN's convolutions against the allocator's log of a ResNet-50 step on an H200."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantora.memory.convolution import Convolution, forward_bytes, weight_gradient_bytes

H200 = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "h200"
CASE = "resnet50-b64-fp32"
MIB = 1 << 20
PLAIN = Convolution(
    input=(64, 256, 28, 28), weight=(256, 256, 3, 3), output=(64, 256, 28, 28), item_bytes=4, uses_tensor_cores=True,
    is_channels_last=False, is_strided=True, groups=1, num_sms=132,
)  # fmt: skip


def size(shape: list[int]) -> int:
    total = 4
    for extent in shape:
        total *= extent
    return total


def described(x: list[int], w: list[int], stride: list[int], padding: list[int]) -> Convolution:
    pixels = ((x[i + 2] + 2 * padding[i] - w[i + 2]) // stride[i] + 1 for i in range(2))
    plain = stride == [1, 1] and padding == [0, 0]
    return replace(PLAIN, input=tuple(x), weight=tuple(w), output=(x[0], w[0], *pixels), is_strided=not plain)


def calls() -> Iterator[tuple[str, Convolution, int]]:
    """(direction, convolution, bytes of what it makes) in the order of a step, from the Kineto trace."""
    with gzip.open(H200 / "traces" / f"{CASE}.kineto.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    names = ("aten::cudnn_convolution", "aten::convolution_backward")
    for event in sorted((e for e in events if e.get("name") in names), key=lambda e: e["ts"]):
        shapes, values = event["args"]["Input Dims"], event["args"]["Concrete Inputs"]
        if event["name"] == names[0]:
            conv = described(shapes[0], shapes[1], ast.literal_eval(values[3]), ast.literal_eval(values[2]))
            yield "forward", conv, size(list(conv.output))
            continue
        conv = described(shapes[1], shapes[2], ast.literal_eval(values[4]), ast.literal_eval(values[5]))
        if ast.literal_eval(values[10])[0]:
            yield "forward", conv, size(shapes[1])
        yield "weight", conv, size(shapes[2])


def workspaces() -> Iterator[tuple[str, Convolution, int]]:
    """(direction, convolution, bytes) of every workspace of 1 MiB or more that the log shows behind a result."""
    with gzip.open(H200 / "alloc" / f"{CASE}.alloc.jsonl.gz", "rt") as lines:
        next(lines)
        log: list[list[Any]] = [row for row in map(json.loads, lines) if row[0] in ("alloc", "free_requested")]
    at = 300  # behind the construction of the model
    for direction, conv, num_bytes in calls():
        made = next(i for i in range(at, len(log)) if log[i][0] == "alloc" and log[i][2] == num_bytes)
        at = made + 1
        taken, given_back = log[made + 1], log[made + 2]
        if taken[0] == "alloc" and given_back[:2] == ["free_requested", taken[1]] and taken[2] >= MIB:
            yield direction, conv, taken[2]


@pytest.mark.skipif(not H200.exists(), reason="measured allocation logs are not here")
def test_every_workspace_of_a_step() -> None:
    found = list(workspaces())
    assert len(found) > 70
    exact = 0
    for direction, conv, num_bytes in found:
        modelled = forward_bytes(conv) if direction == "forward" else weight_gradient_bytes(conv)
        assert abs(modelled - num_bytes) <= 8.4 * MIB, (direction, conv, num_bytes)
        exact += abs(modelled - num_bytes) <= 1024
    assert exact > 0.9 * len(found)


def test_layouts_and_kinds() -> None:
    copies = 2 * 64 * 256 * 28 * 28 * 4 + 256 * 256 * 9 * 4
    assert forward_bytes(PLAIN) == copies
    assert forward_bytes(replace(PLAIN, is_channels_last=True)) == 0
    assert forward_bytes(replace(PLAIN, item_bytes=2)) == copies // 2
    assert forward_bytes(replace(PLAIN, groups=256)) == weight_gradient_bytes(replace(PLAIN, groups=256)) == 0
    exact = replace(PLAIN, uses_tensor_cores=False)
    assert forward_bytes(exact) == 0 and forward_bytes(replace(exact, is_channels_last=True)) == copies
    pointwise = replace(PLAIN, weight=(256, 256, 1, 1), is_strided=False)
    assert forward_bytes(pointwise) == 0
    assert weight_gradient_bytes(pointwise) == 64 * 256 * 256 * 4
    assert forward_bytes(replace(pointwise, is_strided=True)) == 2 * 64 * 256 * 28 * 28 * 4


def test_three_channels_are_padded_where_tensors_are_nhwc() -> None:
    shapes = {"input": (8, 3, 224, 224), "weight": (64, 3, 7, 7), "output": (8, 64, 112, 112)}
    image = replace(PLAIN, **shapes, item_bytes=2, is_channels_last=True)
    assert forward_bytes(image) == (8 * 8 * 224 * 224 + 64 * 8 * 49) * 2
    assert weight_gradient_bytes(image) >= 8 * 8 * 224 * 224 * 2
