"""ProcessGroupNCCL and ProcessGroupGloo without NCCL and Gloo: names and attributes over C++ FakeProcessGroup objects.

Python subclasses of c10d's Backend cannot be made (it has no trampoline), so both backends are FakeProcessGroup objects
and are told apart by the class of their options.
"""

from __future__ import annotations

import copy
import datetime
import sys
from typing import Any

from torch._C import _distributed_c10d as _c10d

from phantora.intercept.distributed import groups

_Fake: Any = _c10d.FakeProcessGroup

# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, kProcessGroupNCCLDefaultTimeout
_NCCL_TIMEOUT = datetime.timedelta(minutes=10)

# A C++ object that loses its Python half loses the class and attributes added there.
_kept: list[Any] = []


class NCCLConfig:
    """ncclConfig_t as ProcessGroupNCCL.Options.config exposes it; kept, not acted on."""

    def __init__(self) -> None:
        self.blocking = self.cga_cluster_size = self.min_ctas = self.max_ctas = 0
        self.split_share = self.shrink_share = self.traffic_class = self.collnet_enable = 0
        self.cta_policy = self.nvls_ctas = self.n_channels_per_net_peer = self.nchannels_per_net_peer = 0
        self.net_name = self.comm_name = ""


class _Options(_Fake.Options):
    """Options of either backend. wire_name: see groups.register."""

    backend_name = ""

    def __init__(self) -> None:
        super().__init__()
        self.wire_name = ""
        self.is_eager = False
        self.num_splits = 0

    @property
    def backend(self) -> str:
        return self.backend_name

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Options":
        twin = type(self)()
        twin._timeout = self._timeout
        twin.__dict__.update(copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "split_from"}, memo))
        twin.wire_name, twin.is_eager = "", False
        return twin

    __copy__ = lambda self: self.__deepcopy__({})  # noqa: E731


class NCCLOptions(_Options):
    """torch.distributed.ProcessGroupNCCL.Options"""

    backend_name = "nccl"

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__()
        self._timeout = _NCCL_TIMEOUT
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: Any = None
        self.split_color = 0


class GlooOptions(_Options):
    """What ProcessGroupGloo.options returns."""

    backend_name = "gloo"

    def __init__(self) -> None:
        super().__init__()
        self._devices: list[Any] = []
        self._threads = 2


class _BackendClass(type):
    """Calling makes a FakeProcessGroup; isinstance looks at the options."""

    options_class: type[_Options] = _Options

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Fake) and isinstance(instance.options, cls.options_class)

    def __call__(cls, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None, **_: Any) -> Any:
        if not isinstance(options, cls.options_class):  # ProcessGroupGloo takes a timeout in this place too
            timeout, options = options if isinstance(options, datetime.timedelta) else timeout, cls.options_class()
        if timeout is not None:
            options._timeout = timeout
        backend = _Fake._create_internal(rank, size, options)
        _kept.append(options)
        return backend


class ProcessGroupNCCL(metaclass=_BackendClass):
    """Stands where torch.distributed.ProcessGroupNCCL stands on a CUDA build."""

    options_class = NCCLOptions
    Options = NCCLOptions
    NCCLConfig = NCCLConfig
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = 0, 1, 2


class ProcessGroupGloo(metaclass=_BackendClass):
    """Stands where torch.distributed.ProcessGroupGloo stands."""

    options_class = GlooOptions
    Options = _Options_ = GlooOptions

    @staticmethod
    def create_device(**_: Any) -> Any:
        return None

    create_default_device = create_device


ProcessGroupGloo._Options = GlooOptions  # type: ignore[attr-defined]


# ------------------------------------------------------------------ attributes of the backends


def _is(backend: Any, kind: type) -> bool:
    return isinstance(backend.options, kind)


def _name(backend: Any) -> str:
    options = backend.options
    return options.backend_name if isinstance(options, _Options) else "fake"


def _register(backend: Any) -> None:
    """Called by torch when the options of a new backend are complete."""
    options = backend.options
    if not isinstance(options, _Options):
        return
    members, name = list(options.global_ranks_in_group), str(options.group_name)
    group = groups.register(name, options.backend_name, members, backend.rank(), backend.size(), options.wire_name)
    if isinstance(options, NCCLOptions):
        by_environment = groups.high_priority_by_environment()
        group.main.is_high_priority = bool(options.is_high_priority_stream) or by_environment
        group.is_eager = options.is_eager


def _register_backends(process_group: Any) -> None:
    for device in process_group._device_types:
        backend = process_group._get_backend(device)
        if isinstance(backend, _Fake) and isinstance(backend.options, _Options):
            _register(backend)


def _connect_eagerly(backend: Any, device: Any = None) -> None:
    """init_process_group(device_id=...) makes the communicator, and so its stream, at once."""
    if not _is(backend, NCCLOptions):
        return
    backend.options.is_eager = True
    if groups.named(str(backend.options.group_name)) is None:
        _register(backend)
    group = groups.named(str(backend.options.group_name))
    if group is not None:
        group.is_eager = True
        group.main.stream(device.index if device is not None else 0)


def _sequence_number(backend: Any) -> int:
    group = groups.named(str(backend.options.group_name))
    return 0 if group is None else group.main._num_calls


def _nothing(*_: Any, **__: Any) -> None:
    return None


_BACKEND_ATTRIBUTES: dict[str, Any] = {
    "supports_coalescing": property(lambda backend: _is(backend, NCCLOptions)),
    "supports_splitting": property(lambda backend: isinstance(backend.options, _Options)),
    "name": _name,
    "_get_backend_name": _name,
    "_set_sequence_number_for_group": _register,
    "_get_sequence_number_for_group": _sequence_number,
    "eager_connect_single_device": _connect_eagerly,
    "comm_split_count": lambda backend: getattr(backend.options, "num_splits", 0),
    "perform_nocolor_split": _nothing,
    "uid": property(lambda backend: str(backend.options.group_name)),
    "_comm_ptr": lambda backend: 0,
    "_is_initialized": lambda backend: True,
    "get_error": lambda backend: getattr(_c10d.ErrorType, "SUCCESS", 0),
    **dict.fromkeys(
        (
            "_set_default_timeout",
            "set_timeout",
            "_add_ephemeral_timeout",
            "_set_enable_nan_check",
            "_group_start",
            "_group_end",
            "_enable_collectives_timing",
            "_shutdown",
            "register_mem_pool",
            "deregister_mem_pool",
        ),
        _nothing,
    ),
    "_verify_work_timeout": lambda backend, work, timeout: True,
}


def _group_sequence_number(process_group: Any) -> int:
    group = groups.named(process_group.group_name)
    return 0 if group is None else group.main._num_calls


def _log_without_gloo(logger: Any, *args: Any, **kwargs: Any) -> None:
    """DDP's C++ Logger asks a backend of type GLOO for its threads and would cast ours to ProcessGroupGloo."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    kinds = _c10d.ProcessGroup.BackendType
    hidden = [group for group in c10d._world.pg_map if group._get_backend_name() == "gloo"]
    for group in hidden:
        group._set_default_backend(kinds.UNDEFINED)
    try:
        _set_construction_data_and_log(logger, *args, **kwargs)
    finally:
        for group in hidden:
            group._set_default_backend(kinds.GLOO)


_set_construction_data_and_log: Any = _c10d.Logger.set_construction_data_and_log


def install() -> None:
    """Put the classes where torch.distributed looks for them."""
    for name, value in _BACKEND_ATTRIBUTES.items():
        setattr(_Fake, name, value)
    groups.register_backends = _register_backends
    base: Any = _c10d.ProcessGroup
    base.set_timeout = _nothing
    base._set_sequence_number_for_group = _nothing
    base._get_sequence_number_for_group = _group_sequence_number
    base._enable_collectives_timing = _nothing
    logger: Any = _c10d.Logger
    logger.set_construction_data_and_log = _log_without_gloo
    for backend in (ProcessGroupNCCL, ProcessGroupGloo):
        backend.__module__ = "torch._C._distributed_c10d"
        setattr(_c10d, backend.__name__, backend)
    _c10d._DEFAULT_PG_NCCL_TIMEOUT = _NCCL_TIMEOUT  # type: ignore[attr-defined]
    package: Any = sys.modules.get("torch.distributed")
    if package is not None:
        package.ProcessGroupNCCL = ProcessGroupNCCL
