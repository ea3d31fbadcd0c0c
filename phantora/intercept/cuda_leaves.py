"""torch._C as a CUDA build with working devices has it.

Installed when torch._C is loaded and before any Python of torch.cuda runs, so that torch.cuda keeps its own Python
(classes, lazy initialisation, default generators, graphs) on CPU builds and on CUDA builds alike.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from phantora.intercept import build, cuda_memory, cuda_objects, cuda_runtime
from phantora.intercept.device_properties import DeviceProperties, device_properties

CUDA_VERSION = 12080
NCCL_VERSION = (2, 27, 5)
_CUDA = 1  # c10::DeviceType::CUDA

# The remaining functions of a CUDA build (torch 2.12 to 2.14): accepted, without effect here.
_WITHOUT_EFFECT = """
_cuda_CUDAAllocator_AllocatorState _cuda_allocationTraceback _cuda_annotateMemory
_cuda_changeCurrentAllocator _cuda_checkPoolLiveAllocations
_cuda_cudaCachingAllocator_enable
_cuda_customAllocator _cuda_getAllocator
_cuda_getCublasLtWorkspaceSize _cuda_getCublasWorkspaceSize _cuda_getHipblasltVersion
_cuda_get_conv_benchmark_empty_cache _cuda_hasPrimaryContext _cuda_ipc_collect
_cuda_jiterator_compile_and_launch_kernel _cuda_lock_mutex _cuda_memoryMetadataSupported
_cuda_record_untuned_enable _cuda_record_untuned_is_enabled
_cuda_resetAccumulatedHostMemoryStats _cuda_resetCublasLtWorkspaceSize _cuda_resetCublasWorkspaceSize
_cuda_resetPeakHostMemoryStats _cuda_setCublasLtWorkspaceSize _cuda_setCublasWorkspaceSize
_cuda_setMemoryMetadata _cuda_setWarnOnFirstRestore _cuda_set_cudnn_benchmark_limit _cuda_tunableop_enable
_cuda_tunableop_get_cublaslt_requested_algo_count _cuda_tunableop_get_filename _cuda_tunableop_get_max_tuning_duration
_cuda_tunableop_get_max_tuning_iterations _cuda_tunableop_get_results _cuda_tunableop_get_rotating_buffer_size
_cuda_tunableop_get_validators _cuda_tunableop_read_file _cuda_tunableop_set_cublaslt_requested_algo_count
_cuda_tunableop_set_filename _cuda_tunableop_set_max_tuning_duration _cuda_tunableop_set_max_tuning_iterations
_cuda_tunableop_set_numerical_check_tolerances _cuda_tunableop_set_rotating_buffer_size _cuda_tunableop_tuning_enable
_cuda_tunableop_tuning_is_enabled _cuda_unlock_mutex _cudnn_clear_dropout_state _cudnn_set_conv_benchmark_empty_cache
_host_emptyCache _accelerator_emptyHostCache
""".split()


def install(extension: Any, native: Any, config: Any, sink: Any) -> None:
    """Start the native device with `config` (boot.BootConfig) and give `extension` (torch._C) what it lacks."""
    libtorch_python = os.path.join(os.path.dirname(extension.__file__), "lib", "libtorch_python.so")
    num_devices = _visible(config.num_devices)
    native.install(num_devices, sink, libtorch_python)
    properties = device_properties(config.gpu, config.device_properties, num_devices)
    context_bytes = config.context_bytes or getattr(config.gpu, "context_bytes", 0)
    if properties:
        native.set_memory_capacity(properties[0].total_memory, context_bytes)
    if config.memory_limit_bytes is not None:
        native.set_memory_limit_bytes(config.memory_limit_bytes)
    leaves: dict[str, Any] = dict.fromkeys(_WITHOUT_EFFECT, _nothing)
    leaves |= cuda_objects.make_classes(extension, native) | cuda_memory.make_functions(native, build.torch_version())
    leaves |= _device_functions(native, properties) | _stream_functions(native) | _versions(properties)
    leaves |= _copies_between_devices(native)
    leaves["_cudart"] = cuda_runtime.make_cudart(native)
    leaves["_nvtx"] = cuda_runtime.make_nvtx(native)
    leaves["_cudnn"] = cuda_runtime.make_cudnn(extension)
    for name, value in leaves.items():
        setattr(extension, name, value)
    if not hasattr(extension, "_cuda_CUDAAllocator"):
        extension._cuda_CUDAAllocator = type("_cuda_CUDAAllocator", (), {})


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _visible(num_devices: int) -> int:
    """As the CUDA driver reads CUDA_VISIBLE_DEVICES: ordinals up to the first that does not exist."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not text.strip() or text.strip() == "-1":  # often set on machines without a GPU; there is one here
        return num_devices
    count = 0
    for entry in text.split(","):
        if not (entry.strip().isdigit() and int(entry) < num_devices):
            break
        count += 1
    return count


def _device_functions(native: Any, properties: list[DeviceProperties]) -> dict[str, Any]:
    sync_debug_mode = [0]

    def initialise() -> None:  # THCPModule_initExtension
        cuda: Any = sys.modules["torch.cuda"]
        cuda.default_generators = tuple(native.default_generator(index) for index in range(native.num_devices()))
        cuda._get_device_properties = lambda device: properties[int(device)]

    return {
        "_cuda_init": initialise,
        "_cuda_getDevice": native.device,
        "_cuda_setDevice": native.set_device,
        "_cuda_exchangeDevice": native.exchange_device,
        "_cuda_maybeExchangeDevice": native.maybe_exchange_device,
        "_cuda_getDeviceCount": native.num_devices,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_synchronize": lambda: native.synchronize_device(native.device()),
        "_cuda_canDeviceAccessPeer": lambda device, peer: True,
        "_cuda_set_sync_debug_mode": lambda mode: sync_debug_mode.__setitem__(0, int(mode)),
        "_cuda_get_sync_debug_mode": lambda: sync_debug_mode[0],
        "_cuda_sleep": cuda_runtime.make_sleep(native, properties[0].clock_rate if properties else 1_000_000),
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_cudaHostAllocator": lambda: 0,
        "_CudaDeviceProperties": DeviceProperties,
        "_accelerator_getDeviceCapability": lambda device: {"supported_dtypes": set()},
    }


def _stream_functions(native: Any) -> dict[str, Any]:
    def set_stream(stream_id: int, device_index: int, device_type: int = _CUDA) -> None:
        if device_index != native.device():
            native.set_device(device_index)
        native.set_stream(device_index, stream_id)

    return {
        "_cuda_getCurrentStream": lambda device: (native.stream(device), device, _CUDA),
        "_cuda_getCurrentRawStream": native.stream,
        "_cuda_getDefaultStream": lambda device: (0, device, _CUDA),
        "_cuda_setStream": set_stream,
        "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, device, _CUDA),
        "_cuda_isCurrentStreamCapturing": native.capturing,
    }


def _versions(properties: list[DeviceProperties]) -> dict[str, Any]:
    major, minor, patch = NCCL_VERSION
    version = sys.modules.get("torch.version")
    if version is not None and not getattr(version, "cuda", None):
        version.cuda = f"{CUDA_VERSION // 1000}.{CUDA_VERSION % 1000 // 10}"  # type: ignore[attr-defined]
    architectures = {"sm_80", "sm_90", "sm_100"} | {f"sm_{p.major}{p.minor}" for p in properties[:1]}
    return {
        "_cuda_getArchFlags": lambda: " ".join(sorted(architectures, key=lambda name: int(name[3:]))),
        "_cuda_getCompiledVersion": lambda: CUDA_VERSION,
        "_cuda_getDriverVersion": lambda: CUDA_VERSION,
        "_nccl_version": lambda: major << 32 | minor << 16 | patch,
        "_nccl_version_suffix": lambda: b"",
        "_has_cuda": True,
        "_has_cudnn": True,
    }


def _copies_between_devices(native: Any) -> dict[str, Any]:
    """What torch.nn.DataParallel and torch.cuda.comm / nccl use; each is made of ordinary copies and additions."""

    def place(index: int) -> Any:
        torch = sys.modules["torch"]
        return torch.device("cuda", index) if isinstance(index, int) and index >= 0 else torch.device("cpu")

    def broadcast(tensor: Any, devices: list[int]) -> list[Any]:
        return [tensor.to(place(device)) for device in devices]

    def scatter(tensor: Any, devices: list[int], chunk_sizes: Any = None, dim: int = 0, _: Any = None) -> list[Any]:
        chunks = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return [chunk.to(place(device)) for chunk, device in zip(chunks, devices)]

    def gather(tensors: list[Any], dim: int, destination: int | None = None) -> Any:
        target = place(native.device() if destination is None else destination)
        pieces = [(tensor if tensor.dim() else tensor.view(1)).to(target) for tensor in tensors]
        return sys.modules["torch"].cat(pieces, dim)

    def broadcast_coalesced(tensors: list[Any], devices: list[int], size: int = 0) -> list[list[Any]]:
        return [[tensor.to(place(device)) for tensor in tensors] for device in devices]

    def reduce(inputs: list[Any], output: Any, root: int = 0, *_: Any) -> None:
        total = inputs[root]
        for index, tensor in enumerate(inputs):
            if index != root:
                total = total + tensor.to(total.device)
        output.copy_(total)

    def all_reduce(inputs: list[Any], outputs: list[Any], *_: Any) -> None:
        for index, output in enumerate(outputs):
            reduce(inputs, output, index)

    def nccl_broadcast(inputs: list[Any], root: int = 0, *_: Any) -> None:
        for index, tensor in enumerate(inputs):
            if index != root:
                tensor.copy_(inputs[root])

    def unsupported(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("phantora: torch.cuda.nccl.all_gather and reduce_scatter are not simulated")

    return {
        "_broadcast": broadcast,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_gather": gather,
        "_nccl_reduce": reduce,
        "_nccl_all_reduce": all_reduce,
        "_nccl_broadcast": nccl_broadcast,
        "_nccl_all_gather": unsupported,
        "_nccl_reduce_scatter": unsupported,
    }
