"""Memory that cuBLAS takes: argument = case of the table read on an H200 (one process each)."""

import sys

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, measured, probe

CASE = sys.argv[1]
DTYPE = torch.bfloat16 if "bf16" in CASE else torch.float32
SQUARE = torch.randn(256, 256, device="cuda", dtype=DTYPE)
WEIGHT = torch.randn(256, 256, device="cuda", dtype=DTYPE, requires_grad=True)
BIAS = torch.randn(256, device="cuda", dtype=DTYPE, requires_grad=True)
BATCH = torch.randn(2, 256, 256, device="cuda", dtype=DTYPE)
SIDE = torch.cuda.Stream()


def step(bias):
    F.linear(SQUARE, WEIGHT, bias).sum().backward()
    WEIGHT.grad = BIAS.grad = None


def on_side_stream(function):
    with torch.cuda.stream(SIDE):
        function()


STEPS = {
    "mm": lambda: SQUARE @ SQUARE,
    "addmm": lambda: torch.addmm(BIAS, SQUARE, SQUARE),
    "bmm": lambda: torch.bmm(BATCH, BATCH),
    "baddbmm": lambda: torch.baddbmm(BATCH, BATCH, BATCH),
    "mv": lambda: torch.mv(SQUARE, BIAS),
    "dot": lambda: torch.dot(BIAS, BIAS),
    "linear3d": lambda: F.linear(BATCH, WEIGHT, BIAS),
    "fwd+bwd bias": lambda: step(BIAS),
    "again": lambda: step(BIAS),
    "nobias": lambda: step(None),
    "fwd+bwd": lambda: step(None),
    "nobias side stream": lambda: on_side_stream(lambda: step(None)),
    "bias side stream": lambda: on_side_stream(lambda: step(BIAS)),
    "inv": lambda: torch.linalg.inv(torch.eye(3, device="cuda")),
    "chol": lambda: torch.linalg.cholesky(torch.eye(3, device="cuda")),
}


@probe
def like_an_h200():
    sys.modules["phantora_native"].set_planning(False)  # planned repeats on another stream take no workspace
    (steps,) = [steps for case, steps in measured()["workspaces"] if case == CASE]
    for name, expected in steps:
        before = torch.cuda.memory_allocated()
        STEPS[name]()
        assert torch.cuda.memory_allocated() - before == expected, (
            name,
            torch.cuda.memory_allocated() - before,
            expected,
        )


finish()
