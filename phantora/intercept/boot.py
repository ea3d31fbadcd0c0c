"""What has to happen around `import torch`, done by a finder on sys.meta_path. Imports nothing of torch itself.

| module                             | before it is loaded        | after                                             |
|------------------------------------|----------------------------|---------------------------------------------------|
| torch._C                           | load phantora_native       | install() it, torch._C._cuda_* (cuda_leaves)      |
| torch                              |                            | Python kernels, patches, the caller's callbacks   |
| torch.distributed.distributed_c10d | process group class (nccl) | groups; the c10d operators once torch is complete |
| ..._functional_collectives         |                            | its collectives are counted (host_time)           |
| torch._dynamo.callback             |                            | compile time is not counted (compiled)            |
| torch._inductor.compile_fx         |                            | kernels without Triton (compiled)                 |

Why so early: the native module's registrars must run before libtorch_python's, because at::detail::getCUDAHooks()
caches its first answer; a CUDA build's libtorch_cuda overwrites the device guard, so the guard is registered again
afterwards; and torch.cuda's Python binds `torch._C._cuda_*` by name while it is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from phantora.intercept import build

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_INDUCTOR = "torch._inductor.compile_fx"
_DYNAMO = "torch._dynamo.callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootConfig:
    """The simulated devices of this process. `gpu` or `device_properties` must be given."""

    num_devices: int = 8
    """Devices that the process sees (torch.cuda.device_count())."""
    gpu: Any = None
    """phantora.cluster.spec.GpuSpec; `device_properties` and `context_bytes` are taken from it."""
    device_properties: Mapping[str, Any] = field(default_factory=dict)
    """What torch.cuda.get_device_properties() shows, by name; overrides what comes from `gpu`."""
    context_bytes: int = 0
    """Device memory that the CUDA context takes; 0: as `gpu` says."""
    memory_limit_bytes: int | None = None
    """What PyTorch's allocator may reserve per device; None: no limit but the device's capacity."""
    measured_host_time: bool = False
    """Host clocks follow the thread CPU time really used, instead of the host profile."""
    host_speed: float = 1.0
    """Host of the cluster relative to this machine; divides measured host time."""
    call_cost_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Class of call (HostSpec.launch_ns) -> (forward_ns, backward_ns); here 'event', 'sync', 'alloc', 'collective'."""
    unit_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Unit of host time (HostSpec.unit_ns) -> (forward_ns, backward_ns)."""
    parts: tuple[str, ...] = ("patches", "kernels", "host_time", "distributed", "compiled", "dynamo_skips", "frameworks")
    """Parts of the interception above the native device; fewer of them for tests and tools."""
    on_torch_ready: Sequence[Callable[[], None]] = ()
    """Called once, at the end of `import torch`."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_devices <= 64:
            raise ValueError(f"num_devices must be 0 to 64, not {self.num_devices}")
        if self.gpu is None and not self.device_properties:
            raise ValueError("device_properties must not be empty when gpu is not given")
        if self.host_speed <= 0:
            raise ValueError(f"host_speed must be positive, not {self.host_speed}")


_armed: "Boot | None" = None


def arm(config: BootConfig) -> None:
    """Make the coming `import torch` of this process find simulated devices. UserError when they cannot be built here.

    Arming again changes nothing. RuntimeError when torch is imported already.
    """
    global _armed
    if _armed is not None:
        return
    if "torch" in sys.modules:
        raise RuntimeError("phantora must be armed before `import torch`")
    build.native_path()  # a missing compiler is the user's to know now, not from inside `import torch`
    # Engine::~Engine waits 10 s for device threads, one of which exit_guard.cpp may have parked.
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    _armed = Boot(config)
    sys.meta_path.insert(0, _armed.finder())
    _armed._call("frameworks", "arm")


def is_armed() -> bool:
    return _armed is not None


def set_host_factor(factor: float) -> None:
    """Host calls of this process cost `factor` times what the configuration says (a slow host)."""
    assert _armed is not None and _armed.native is not None
    _armed.set_costs(factor)


class Boot:
    """The steps of one process, in the order in which torch is imported."""

    def __init__(self, config: BootConfig) -> None:
        self.config = config
        self.torch_is_ready = False
        self.native: ModuleType | None = None

    def finder(self) -> HookFinder:
        return HookFinder(
            {
                "torch._C": Hook(self.before_extension, self.after_extension),
                "torch": Hook(None, self.after_torch),
                _C10D: Hook(self.before_c10d, self.after_c10d),
                _FUNCTIONAL: Hook(None, self.after_functional),
                _INDUCTOR: Hook(None, self.after_inductor),
                _DYNAMO: Hook(None, self.after_dynamo),
            }
        )

    def before_extension(self) -> None:
        self.native = build.load()
        self.native.mute_stderr(True)  # a CUDA build's libtorch_cuda prints that our CUDAHooks stay

    def after_extension(self, extension: ModuleType) -> None:
        from phantora.intercept import cuda_leaves, session

        assert self.native is not None
        self.native.mute_stderr(False)
        cuda_leaves.install(extension, self.native, self.config, session.sink)
        self.set_costs(1.0)

    def after_torch(self, torch: ModuleType) -> None:
        assert self.native is not None
        self.native.ready(torch.OutOfMemoryError)
        self._call("patches", "install")
        self._call("kernels", "install")
        self._call("host_time", "install")
        self.torch_is_ready = True
        if _C10D in sys.modules:
            self._call("distributed", "install_ops")
        self._call("dynamo_skips", "install")
        for callback in self.config.on_torch_ready:
            callback()

    def after_functional(self, module: ModuleType) -> None:
        self._call("host_time", "count_functional_collectives", module)

    def after_dynamo(self, module: ModuleType) -> None:
        self._call("compiled", "follow_compilations", module)

    def after_inductor(self, module: ModuleType) -> None:
        self._call("compiled", "install", module)

    def before_c10d(self) -> None:
        self._call("distributed", "before")

    def after_c10d(self, module: ModuleType) -> None:
        self._call("distributed", "after", module)
        if self.torch_is_ready:  # else import torch itself imports it, and after_torch() does this
            self._call("distributed", "install_ops")
            self._call("dynamo_skips", "install")

    def _call(self, part: str, function: str, *arguments: Any) -> None:
        if part in self.config.parts:
            module = importlib.import_module(f"phantora.intercept.{part}")
            getattr(module, function)(*arguments)

    def set_costs(self, host_factor: float) -> None:
        """Tell the device what calls cost that launch no kernel."""
        from phantora.engine.protocol import UNIT_KINDS, Kind

        assert self.native is not None
        query, costs = 32, self.config.call_cost_ns  # native/record.h: Kind::kQuery
        for name, kinds in {
            "event": (Kind.EVENT_RECORD, Kind.EVENT_WAIT, query),
            "sync": (Kind.HOST_WAIT,),
            "alloc": (Kind.ALLOC,),
            "collective": (Kind.COLLECTIVE,),
        }.items():
            if name in costs:
                for kind in kinds:
                    self.native.set_call_cost_ns(int(kind), *(round(cost * host_factor) for cost in costs[name]))
        if "kernel" in costs:
            permille = 47  # native/record.h: Kind::kPermille
            self.native.set_call_cost_ns(permille, *(round(cost * host_factor / 1000) for cost in costs["kernel"]))
        for name, unit_cost in self.config.unit_ns.items():
            self.native.set_call_cost_ns(UNIT_KINDS[name], *(round(cost * host_factor) for cost in unit_cost))
        self.native.set_clock_mode(self.config.measured_host_time, host_factor / self.config.host_speed)


@dataclass(frozen=True, slots=True)
class Hook:
    """What to do before a module's code is loaded, and after it has run."""

    before: Callable[[], None] | None
    after: Callable[[ModuleType], None]


class HookFinder(importlib.abc.MetaPathFinder):
    """Wraps the loader of the named modules, once each; everything else is found as always."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        hook = self.hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None and spec.loader is not None:
                _wrap(spec.loader, hook, lambda: self.hooks.pop(name, None))
                return spec
        return None


def _wrap(loader: Any, hook: Hook, done: Callable[[], Any]) -> None:
    """`done()` when the module is imported, and not when somebody only asks whether it is there."""
    create_module, exec_module = loader.create_module, loader.exec_module

    def create(spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if hook.before is not None:
            hook.before()  # here and not in exec: an extension is dlopened when it is created
        return create_module(spec)

    def execute(module: ModuleType) -> None:
        done()
        exec_module(module)
        hook.after(module)

    loader.create_module, loader.exec_module = create, execute
