"""What an OpCall says about a call: names by schema, numbers, mutated arguments, outputs, flags."""

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, launches, pricer, probe

from phantora.compute.call import OpCall, TensorSpec

A = torch.randn(8, 8, device="cuda")


def only(function) -> OpCall:
    """The one call that `function` launches."""
    launches()
    function()
    ((call, _, _),) = launches()
    return call


@probe
def functional():
    call = only(lambda: torch.addmm(A[0], A, A.t(), beta=0.5))
    assert (call.name, call.overload, call.mutated) == ("aten::addmm", "", ())
    assert dict(call.args) == {
        "self": TensorSpec((8,), (1,), "float32"),
        "mat1": TensorSpec((8, 8), (8, 1), "float32"),
        "mat2": TensorSpec((8, 8), (1, 8), "float32"),
        "beta": 0.0,
        "alpha": 0,
    }
    assert call.outputs == (TensorSpec((8, 8), (8, 1), "float32"),)
    assert ("allow_tf32", False) in call.flags


@probe
def in_place_and_out():
    call = only(lambda: A.add_(1.0))
    assert (call.name, call.overload, call.mutated, call.outputs) == ("aten::add_", "Tensor", ("self",), ())
    assert call.arg("other") == TensorSpec((), (), "float32", "cpu")
    out = torch.empty_like(A)
    assert only(lambda: torch.mul(A, A, out=out)).mutated == ("out",)
    assert only(lambda: torch._foreach_mul_([A, A], 2.0)).mutated == ("self",)


@probe
def lists_dtypes_and_defaults():
    call = only(lambda: torch.cat([A, A], 1))
    assert call.arg("tensors") == (TensorSpec((8, 8), (8, 1), "float32"),) * 2
    assert call.arg("dim") == 1
    call = only(lambda: A.sum((0,), dtype=torch.float64))
    assert (call.arg("dim"), call.arg("keepdim"), call.arg("dtype")) == ((0,), False, "float64")


@probe
def numbers_do_not_make_signatures():
    only(lambda: A * 0.25)
    only(lambda: torch.pow(A, 3.0))
    before = len(pricer.calls)
    for number in (0.5, 0.75, 3.0):
        only(lambda: A * number)
        only(lambda: torch.pow(A, number))
    assert len(pricer.calls) == before


@probe
def convolutions_carry_cudnn_flags():
    image, weight = torch.randn(2, 3, 8, 8, device="cuda"), torch.randn(4, 3, 3, 3, device="cuda")
    assert dict(only(lambda: F.conv2d(image, weight)).flags) == {"cudnn_allow_tf32": True, "cudnn_benchmark": False}
    torch.backends.cudnn.benchmark = True
    assert dict(only(lambda: F.conv2d(image, weight)).flags)["cudnn_benchmark"] is True
    torch.backends.cudnn.benchmark = False


@probe
def switches_change_planned_signatures():
    large = torch.randn(512, 512, device="cuda")
    for allow in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = allow
        for _ in range(3):
            assert dict(only(lambda: large @ large).flags)["allow_tf32"] is allow
    torch.set_float32_matmul_precision("high")
    assert dict(only(lambda: large @ large).flags)["allow_tf32"] is True
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True)
    assert ("deterministic", True) in only(lambda: large + 1).flags
    torch.use_deterministic_algorithms(False)
    assert only(lambda: large + 1).flags == ()


@probe
def custom_operators():
    @torch.library.custom_op("phantora_test::widen", mutates_args=(), device_types="cuda")
    def widen(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("would launch a kernel")

    @widen.register_fake
    def _(x):
        return x.new_empty(x.shape[0], 7)

    call = only(lambda: widen(A))
    assert call.name == "phantora_test::widen"
    assert call.outputs == (TensorSpec((8, 7), (7, 1), "float32"),)


@probe
def operators_of_extensions():
    library = torch.library.Library("phantora_ext", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    for _ in range(2):
        call = only(lambda: torch.ops.phantora_ext.twice(A))
    assert (call.name, call.arg("x")) == ("phantora_ext::twice", TensorSpec((8, 8), (8, 1), "float32"))


@probe
def prices_are_asked_once():
    assert len(set(pricer.calls)) == len(pricer.calls)


finish()
