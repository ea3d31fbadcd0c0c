"""Describe the machine that the other scripts measure: GPUs, links, software, CPU. Prints JSON; names no host, no serial number.

usage: python machine.py --out DIR
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

GPU_FIELDS = (
    "index", "name", "driver_version", "memory.total", "power.limit", "power.default_limit", "clocks.max.sm", "clocks.max.mem",
    "clocks.sm", "clocks.mem", "temperature.gpu", "pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.current",
    "ecc.mode.current", "persistence_mode", "compute_mode", "mig.mode.current",
)  # fmt: skip
PACKAGES = ("torch", "triton", "transformers", "nvidia-nccl-cu13", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cuda-runtime", "numpy")


def output_of(*command: str) -> str:
    """What a command prints, without colours and unique identifiers; its error if it fails."""
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"failed: {type(error).__name__}"
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r" \(UUID: [^)]*\)", "", text)


def gpus() -> list[dict[str, str]]:
    """One record a GPU; a field that this driver refuses is left out."""
    records: list[dict[str, str]] = [{} for _ in range(torch.cuda.device_count())]
    for field in GPU_FIELDS:  # one at a time: one unknown name fails a whole query
        values = output_of("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader").splitlines()
        if len(values) == len(records):
            for record, value in zip(records, values):
                record[field] = value.strip()
    return records


def cpu() -> dict[str, object]:
    text = Path("/proc/cpuinfo").read_text()
    models = sorted(set(re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE)))
    mhz = [float(value) for value in re.findall(r"^cpu MHz\s*: (.*)$", text, re.MULTILINE)]
    lscpu = output_of("lscpu")
    fields = ("Thread(s) per core", "Core(s) per socket", "Socket(s)", "NUMA node(s)", "Hypervisor vendor", "L3 cache", "L2 cache")
    found = {field: match.group(1).strip() for field in fields if (match := re.search(rf"^{re.escape(field)}:(.*)$", lscpu, re.MULTILINE))}
    return {"models": models, "cores": os.cpu_count(), "mhz": max(mhz, default=None), **found}


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, object]:
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    peers = [[a == b or torch.cuda.can_device_access_peer(a, b) for b in range(len(properties))] for a in range(len(properties))]
    return {
        "gpus": gpus(),
        "gpu_properties": [
            {"name": p.name, "multiprocessors": p.multi_processor_count, "memory_bytes": p.total_memory, "l2_bytes": p.L2_cache_size,
             "capability": f"{p.major}.{p.minor}"} for p in properties
        ],  # fmt: skip
        "peer_access": peers,
        "topology": output_of("nvidia-smi", "topo", "-m").splitlines(),
        "nvlink": output_of("nvidia-smi", "nvlink", "--status").splitlines(),
        "cpu": cpu(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "packages": {package: installed(package) for package in PACKAGES},
        "nccl_environment": {key: value for key, value in sorted(os.environ.items()) if re.match(r"(TORCH_)?NCCL_|TORCH_SYMM|NVSHMEM", key)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(describe(), indent=1)
    (options.out / "machine.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
