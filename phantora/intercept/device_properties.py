"""What torch.cuda.get_device_properties() shows of a simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DeviceProperties:
    """As torch._C._CudaDeviceProperties: plain attributes, memory in bytes, clocks in kHz."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:  # the same text as torch/csrc/cuda/Module.cpp
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


# What does not depend on the GPU, or is nobody's business.
_DEFAULTS: dict[str, Any] = {
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "max_blocks_per_multi_processor": 32,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "warp_size": 32,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "gcnArchName": "",
    "pci_device_id": 0,
    "pci_domain_id": 0,
}


def properties_of_gpu(gpu: Any) -> dict[str, Any]:
    """The properties by name, from a phantora.cluster.spec.GpuSpec."""
    major, minor = gpu.compute_capability
    return {
        "name": gpu.name,
        "major": major,
        "minor": minor,
        "total_memory": gpu.visible_memory_bytes,
        "multi_processor_count": gpu.num_sms,
        "L2_cache_size": gpu.l2_bytes,
        "shared_memory_per_multiprocessor": gpu.shared_memory_per_sm_bytes,
        "shared_memory_per_block": gpu.shared_memory_per_block_bytes,
        "shared_memory_per_block_optin": gpu.shared_memory_per_block_optin_bytes,
        "max_threads_per_multi_processor": gpu.max_threads_per_sm,
        "max_threads_per_block": gpu.max_threads_per_block,
        "max_blocks_per_multi_processor": gpu.max_blocks_per_sm,
        "regs_per_multiprocessor": gpu.registers_per_sm,
        "warp_size": gpu.warp_size,
        "clock_rate": int(gpu.clock_hz / 1e3),
        "memory_clock_rate": int(gpu.memory_clock_hz / 1e3),
        "memory_bus_width": gpu.memory_bus_bits,
    }


def device_properties(gpu: Any, overrides: Mapping[str, Any], num_devices: int) -> list[DeviceProperties]:
    """One object per device; they differ in PCI bus and uuid only."""
    shared = {**_DEFAULTS, **(properties_of_gpu(gpu) if gpu is not None else {}), **overrides}
    return [
        DeviceProperties(**{"pci_bus_id": index, "uuid": f"00000000-0000-0000-0000-{index:012x}", **shared})
        for index in range(num_devices)
    ]
