"""torch._C._cudart, _nvtx and _cudnn of the simulated device, and torch.cuda._sleep."""

from __future__ import annotations

import types
from typing import Any

from phantora.engine.protocol import Kind

CUDNN_VERSION = 92000
_PUSH, _POP, _INSTANT = 1, -1, 0  # Kind.MARK
_NO_DEVICE = -1


class cudaError(int):  # noqa: N801  (the name in torch._C._cudart)
    """As the enum of the CUDA runtime: an int with named values."""

    success = 0


def make_cudart(native: Any) -> types.SimpleNamespace:
    def host_register(address: int, num_bytes: int, flags: int = 0) -> int:
        native.pin(int(address), int(num_bytes))
        return 0

    def host_unregister(address: int) -> int:
        native.unpin(int(address))
        return 0

    def memory_info(device: int | None = None) -> tuple[int, int]:
        return native.memory_info(native.device() if device is None else int(device))

    def stream_create(pointer: int) -> int:
        return 0

    return types.SimpleNamespace(
        cudaError=cudaError,
        cudaGetErrorString=lambda error: "no error" if int(error) == 0 else f"CUDA error {int(error)}",
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaHostRegister=host_register,
        cudaHostUnregister=host_unregister,
        cudaMemGetInfo=memory_info,
        cudaStreamCreate=stream_create,
        cudaStreamDestroy=stream_create,
    )


def make_nvtx(native: Any) -> types.SimpleNamespace:
    depth = [0]

    def mark(text: str, change: int) -> None:
        from phantora.intercept import session

        native.emit(int(Kind.MARK), _NO_DEVICE, session.string_id(text) if text else 0, change, 0)

    def push(text: str) -> int:
        mark(text, _PUSH)
        depth[0] += 1
        return depth[0] - 1

    def pop() -> int:
        mark("", _POP)
        depth[0] -= 1
        return depth[0]

    return types.SimpleNamespace(
        rangePushA=push,
        rangePop=pop,
        markA=lambda text: mark(text, _INSTANT),
        # Ranges that may overlap have no place in a stack: their begin is marked.
        rangeStartA=lambda text: mark(text, _INSTANT) or 0,
        rangeEnd=lambda number: None,
        deviceRangeStart=lambda text, stream: None,
        deviceRangeEnd=lambda handle, stream: None,
    )


def make_cudnn(extension: Any) -> types.SimpleNamespace:
    major, minor, patch = CUDNN_VERSION // 10000, CUDNN_VERSION // 100 % 100, CUDNN_VERSION % 100
    real = getattr(extension, "_cudnn", None)
    modes = getattr(real, "RNNMode", None) or type("RNNMode", (), {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3})
    return types.SimpleNamespace(
        is_cuda=True,
        getVersionInt=lambda: CUDNN_VERSION,
        getRuntimeVersion=lambda: (major, minor, patch),
        getCompileVersion=lambda: (major, minor, patch),
        RNNMode=modes,
    )


def make_sleep(native: Any, clock_khz: int) -> Any:
    """torch.cuda._sleep(cycles): a kernel that spins for that many cycles of the SM clock."""
    signatures: dict[int, int] = {}

    def sleep(cycles: int) -> None:
        number = signatures.get(cycles)
        if number is None:
            number = signatures[cycles] = _define_sleep(int(cycles * 1_000_000 // clock_khz))
        native.launch(number, native.device())

    return sleep


def _define_sleep(duration_ns: int) -> int:
    from phantora.intercept import session

    fields = {"inputs": [], "outputs": [], "num_kernels": 1, "flops": 0, "bytes": 0}
    name = {"name": "cuda::sleep", "overload": "", "family": "sleep", "source": "measured"}
    return session.define_signature(duration_ns, (0, 0), {**name, **fields})
