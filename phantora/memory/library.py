"""Builds the native allocator as a shared library on first use and keeps it in the user's cache directory."""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from phantora.errors import UserError

NATIVE = Path(__file__).parent / "native"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared")


def cache_directory() -> Path:
    """Where built libraries lie: $XDG_CACHE_HOME/phantora, else ~/.cache/phantora."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "phantora"


def source_hash() -> str:
    """Changes with any source of the library, the compiler's name or its flags."""
    digest = hashlib.sha256(" ".join((compiler(), *FLAGS)).encode())
    for path in sorted([*NATIVE.glob("*.h"), NATIVE / "module.cpp"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str:
    """The C++ compiler: $CXX, else g++."""
    return os.environ.get("CXX") or "g++"


def build() -> Path:
    """Path of the library; compiles it if the cache does not hold it. Processes may race: the rename is atomic."""
    target = cache_directory() / f"allocator-{source_hash()}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / "allocator.so"
        compile_library(output)
        os.replace(output, target)
    return target


def compile_library(output: Path) -> None:
    """Compiles native/module.cpp to `output`; UserError with the compiler's text if that fails."""
    command = [compiler(), *FLAGS, "-o", str(output), str(NATIVE / "module.cpp")]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"no C++ compiler: {compiler()!r} not found (install g++ 10 or newer, or set CXX)") from None
    if done.returncode != 0:
        raise UserError(f"building the allocator failed: {' '.join(command)}\n{done.stderr}")


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with the types of its functions declared."""
    library = ctypes.CDLL(str(build()))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, f"phantora_allocator_{name}")
        setattr(library, name, function)
        function.restype = result
        function.argtypes = arguments
    return library


class TraceRow(ctypes.Structure):
    """One action; mirrors TraceRow of native/module.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("action", "address", "bytes", "stream")]


_HANDLE, _INT, _U64, _I64, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p
SIGNATURES: dict[str, tuple] = {
    "new": (_HANDLE, _INT, _TEXT, _U64, _U64),
    "delete": (None, _HANDLE),
    "error": (_TEXT, _HANDLE),
    "malloc": (_INT, _HANDLE, _U64, _I64, ctypes.POINTER(_U64)),
    "free": (_INT, _HANDLE, _U64),
    "record_stream": (_INT, _HANDLE, _U64, _I64),
    "finish_stream": (None, _HANDLE, _I64),
    "empty_cache": (_INT, _HANDLE, _U64, _U64),
    "set_fraction": (_INT, _HANDLE, ctypes.c_double),
    "apply": (_INT, _HANDLE, _TEXT),
    "set_other_bytes": (None, _HANDLE, _U64),
    "free_bytes": (_U64, _HANDLE),
    "block_size": (_U64, _HANDLE, _U64),
    "segment_of": (_INT, _HANDLE, _U64, ctypes.POINTER(_U64), ctypes.POINTER(_U64)),
    "place": (None, _HANDLE, _U64),
    "reset_peak": (None, _HANDLE),
    "reset_accumulated": (None, _HANDLE),
    "pool": (_INT, _HANDLE, _INT, _U64, _U64, _I64),
    "stats": (_TEXT, _HANDLE),
    "snapshot": (_TEXT, _HANDLE, _U64, _U64),
    "set_tracing": (None, _HANDLE, _INT),
    "trace": (_U64, _HANDLE, ctypes.POINTER(ctypes.POINTER(TraceRow))),
    "clear_trace": (None, _HANDLE),
    "check_settings": (_TEXT, _TEXT),
    "format_size": (_U64, _U64, _TEXT, _U64),
}
