"""Host time of issuing an operator, from the host profile's classes (cluster.spec.LAUNCH_CLASSES).

A class's time covers the dispatcher, the operator's C++ and one launch. Further kernels of the same operator cost half
a plain launch each, tensors of a list a fixed share of one (their addresses are packed into kernel arguments).
Measured on the host of the H200 in bare loops (median us per call): 8 for pointwise operators, 12 for reductions, 20 for products,
10 more per kernel of batch norm or convolution backward, 35 to 120 for _foreach_ operators on 60 to 200 tensors.
"""

from __future__ import annotations

from phantora.cluster.spec import HostSpec
from phantora.compute.call import OpCall
from phantora.compute.work import Work, tensors_in

_CLASS_OF_FAMILY = {
    "gemm": "gemm",
    "convolution": "gemm",
    "rnn": "gemm",
    "attention": "attention",
    "reduction": "reduction",
    "softmax": "reduction",
    "loss": "reduction",
    "normalization": "reduction",
    "sort": "reduction",
    "copy": "copy",
    "memcpy": "copy",
    "foreach": "foreach",
    "optimizer": "optimizer",
}
_CONVOLUTION_SHARES = (1.9, 2.4)  # of a product: cuDNN's plan is looked up; 95 and 120 us in steps of ResNet-50
_FURTHER_KERNEL_SHARE = 0.5
_LIST_TENSOR_SHARE = 0.03  # 0.25 us per tensor of a list where a pointwise operator costs 8 us
# FSDP2's Python for each parameter of a group (hooks, views of the gathered parameter, set and unset on the module),
# charged where the group is unpacked or packed: 160 us where a pointwise operator costs 23.
_FSDP_OPERATORS = ("aten::split_with_sizes_copy", "aten::_chunk_cat")
_FSDP_TENSOR_SHARE = 7.0
_LIST_OUTPUT_SHARE = 0.2  # an allocation and a Python-visible tensor per output of a list: 1.6 us


def host_ns(call: OpCall, works: tuple[Work, ...], host: HostSpec) -> tuple[int, int]:
    """(from Python, from the autograd engine), nanoseconds; calls that launch nothing cost a third of a kernel."""
    plain = host.launch_ns["kernel"]
    if not works:
        return round(plain[0] / 3), round(plain[1] / 3)
    base = host.launch_ns[_CLASS_OF_FAMILY.get(works[0].family, "kernel")]
    if works[0].family == "convolution":
        base = (round(base[0] * _CONVOLUTION_SHARES[0]), round(base[1] * _CONVOLUTION_SHARES[1]))
    shares = _FURTHER_KERNEL_SHARE * max(sum(work.num_kernels for work in works) - 1, 0) + _list_shares(call, works[0])
    return round(base[0] + plain[0] * shares), round(base[1] + plain[1] * shares)


def _list_shares(call: OpCall, work: Work) -> float:
    given = sum(1 for _, value in call.args for _ in tensors_in(value))
    if call.name in _FSDP_OPERATORS:
        return (given - 1) * _FSDP_TENSOR_SHARE
    if work.family not in ("foreach", "optimizer"):
        return 0.0
    made = 0 if call.mutated else len(call.outputs)
    return given * _LIST_TENSOR_SHARE + made * _LIST_OUTPUT_SHARE
