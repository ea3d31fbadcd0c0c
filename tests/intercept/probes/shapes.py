"""Shapes, strides and dtypes of results: like the CPU's, and like an H200's."""

import sys

import kernel_probe

kernel_probe.arm()

import op_cases
import torch
from kernel_probe import finish, measured, probe

NATIVE = sys.modules["phantora_native"]


@probe
def like_the_cpu():
    for name in op_cases.CASES:
        expected = op_cases.evaluate(name, torch, "cpu")
        for attempt in ("first", "planned"):
            assert op_cases.evaluate(name, torch, "cuda") == expected, (name, attempt)


@probe
def like_an_h200():
    for name, expected in measured()["ops"].items():
        if name in op_cases.CASES:
            assert op_cases.evaluate(name, torch, "cuda") == expected, name


@probe
def repeats_are_planned():
    hits, _ = NATIVE.plan_stats()
    assert hits > len(op_cases.CASES), hits


def _gradients(name, device):
    leaves = []

    class Leaves(op_cases.Factory):
        def __call__(self, *shape, dtype=None):
            leaf = super().__call__(*shape, dtype=dtype)
            leaves.append(leaf.requires_grad_() if leaf.is_floating_point() else leaf)
            return leaf

    scope = {"torch": torch, "F": torch.nn.functional, "t": Leaves(torch, device)}
    eval(op_cases.CASES[name], scope).sum().backward()
    return [op_cases.describe(leaf.grad) for leaf in leaves if leaf.requires_grad]


@probe
def gradients_like_the_cpu():
    """Backward kernels: gradients lie as on the CPU."""
    for name in (
        "conv2d",
        "conv2d_channels_last",
        "layer_norm",
        "group_norm",
        "embedding",
        "max_pool2d",
        "softmax",
        "linear",
        "cdist",
    ):
        assert _gradients(name, "cuda") == _gradients(name, "cpu"), name


finish()
