"""Checkpoints of weights that do not exist: files of the true length whose zeros take no room on the disk.

What is copied from the simulated device without known contents arrives as memory that nobody wrote, which the system hands out
as zeros. When a checkpoint file is complete, every block of zeros in it becomes a hole (fallocate(2), FALLOC_FL_PUNCH_HOLE): it
reads as before, so that loading works, and the report says how much was left out. A disk without holes keeps the zeros.

| module                               | what writes                                       |
|--------------------------------------|---------------------------------------------------|
| torch.serialization                  | torch.save to a path                              |
| torch.distributed.checkpoint.filesystem | torch.distributed.checkpoint (DCP)             |
| safetensors.torch                    | save_file (transformers, accelerate, diffusers)   |
| megatron...strategies.filesystem_async | Megatron's own writer                           |
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_BLOCK_BYTES = 1 << 16
_SMALLEST_BYTES = 1 << 20
_ZEROS = bytes(_BLOCK_BYTES)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h


def after(module: ModuleType) -> None:
    """`module` is one of those above."""
    if module.__name__ == "torch.serialization":
        _follow_torch_save(module)
    elif module.__name__ == "safetensors.torch":
        _follow_save_file(module)
    elif module.__name__.startswith("megatron."):
        _follow_buckets(module.FileSystemWriterAsync)
    else:
        _follow_streams(module)


def _follow_torch_save(module: Any) -> None:
    writer = module._open_zipfile_writer_file
    leave = writer.__exit__

    def __exit__(self: Any, *args: Any) -> None:
        leave(self, *args)
        if isinstance(self.name, (str, os.PathLike)):
            punch(os.fspath(self.name))

    writer.__exit__ = __exit__


def _follow_save_file(module: Any) -> None:
    save = module.save_file

    @functools.wraps(save)
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        result = save(tensors, filename, *args, **kwargs)
        punch(os.fspath(filename))
        return result

    module.save_file = save_file


def _follow_streams(module: Any) -> None:
    original = module.FileSystem.create_stream

    @contextlib.contextmanager
    def create_stream(self: Any, path: Any, mode: str) -> Iterator[Any]:
        with original(self, path, mode) as stream:
            yield stream
        if "w" in mode:
            punch(os.fspath(path))

    module.FileSystem.create_stream = create_stream


def _follow_buckets(writer: Any) -> None:
    write = writer.write_preloaded_data_multithread  # returns when all of its threads have written
    signature = inspect.signature(write)

    @functools.wraps(write)
    def write_preloaded_data_multithread(*args: Any, **kwargs: Any) -> Any:
        buckets = signature.bind(*args, **kwargs).arguments["write_buckets"]
        result = write(*args, **kwargs)
        for path, *_ in buckets:
            punch(os.fspath(path))
        return result

    writer.write_preloaded_data_multithread = staticmethod(write_preloaded_data_multithread)


def punch(path: str) -> int:
    """Make holes of the zeros in `path`; the bytes saved, 0 when the file is small or the file system has no holes."""
    if not os.path.isfile(path) or os.path.getsize(path) < _SMALLEST_BYTES:
        return 0
    saved = 0
    with open(path, "r+b") as file:
        for offset, length in _zeros_of(file):
            if not _punch_hole(file.fileno(), offset, length):
                break
            saved += length
    if saved:
        from phantora.intercept import session

        session.remark("checkpoints: weights that were not computed are holes in sparse files (they read as zeros)")
    return saved


def _zeros_of(file: Any) -> Iterator[tuple[int, int]]:
    """(offset, length) of runs of whole blocks of zeros."""
    begin, offset = -1, 0
    while block := file.read(_BLOCK_BYTES):
        is_zero = block == _ZEROS
        if is_zero and begin < 0:
            begin = offset
        elif not is_zero and begin >= 0:
            yield begin, offset - begin
            begin = -1
        offset += len(block)
    if begin >= 0:
        yield begin, offset - begin


@functools.cache
def _fallocate() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return function


def _punch_hole(descriptor: int, offset: int, length: int) -> bool:
    function = _fallocate()
    return function is not None and function(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length) == 0
