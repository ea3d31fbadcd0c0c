"""Compiles the native simulated device, once per torch version, Python ABI and source.

Plain `g++` against the headers inside the torch wheel; no ninja, no torch.utils.cpp_extension, no import of torch. The
module lies in the user's cache directory. All sources are one translation unit: most of the time goes into torch's
headers, which are then read once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from phantora.errors import UserError

SUPPORTED_TORCH = ("2.12", "2.13", "2.14")
MODULE = "phantora_native"

_SOURCES = Path(__file__).parent / "native"
_ALLOCATOR_HEADERS = Path(__file__).parent.parent / "memory" / "native"
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fno-plt", "-w")
_COMPILERS = ("g++", "c++", "clang++")
_DOCTOR = "`phantora doctor` shows what else is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStatus:
    """What `phantora doctor` shows. `problem` is empty when the device can be built (or is built already)."""

    torch_version: str | None
    compiler: str | None
    native_path: str | None
    is_built: bool
    problem: str


def torch_dir() -> Path:
    """The folder of the torch that `import torch` would take. UserError when there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise UserError(f"torch is not installed for {sys.executable}; install it (`pip install torch`): {_DOCTOR}")
    return Path(spec.origin).parent


def torch_version() -> str:
    """Version of the installed torch, such as '2.13.0+cpu', without importing it."""
    text = (torch_dir() / "version.py").read_text()
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    assert match is not None, f"{torch_dir() / 'version.py'} has no __version__"
    return match.group(1)


def checked_torch_version() -> str:
    """As torch_version(); UserError when the simulated device does not fit this version."""
    version = torch_version()
    if ".".join(version.split(".")[:2]) not in SUPPORTED_TORCH:
        raise UserError(f"torch {version} is not supported (supported: {', '.join(SUPPORTED_TORCH)}); {_DOCTOR}")
    return version


def compiler() -> str:
    """Path of the C++ compiler: $CXX, or the first of g++, c++, clang++ on PATH. UserError when there is none."""
    wanted = os.environ.get("CXX", "").split()
    names = wanted[:1] or list(_COMPILERS)
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    what = f"$CXX is {names[0]!r}, which is not on PATH" if wanted else "no C++ compiler found"
    raise UserError(f"{what}: install g++ 11 or later (for example `apt-get install g++`) or set CXX; {_DOCTOR}")


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/phantora, else ~/.cache/phantora, else a folder of this user in the temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    wanted = Path(base) if base else Path(os.path.expanduser("~")) / ".cache"
    path = wanted / "phantora"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = Path(tempfile.gettempdir()) / f"phantora-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():  # never load a module that somebody else may have put there
        raise UserError(f"{wanted} is not writable and {path} belongs to another user; set XDG_CACHE_HOME")
    return path


def native_path() -> Path:
    """Path of the compiled module; compiles it first when it is not in the cache. UserError when that is impossible."""
    path = _target()
    if path.exists():
        return path
    with _locked(path.with_suffix(".lock")):
        if not path.exists():  # another process may have compiled it meanwhile
            _compile(path)
    return path


def load() -> ModuleType:
    """The module, as `sys.modules['phantora_native']`; must run before torch._C is loaded (see boot.py)."""
    module = sys.modules.get(MODULE)
    if module is None:
        path = str(native_path())
        loader = importlib.machinery.ExtensionFileLoader(MODULE, path)
        spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[MODULE] = module
    return module


def status() -> BuildStatus:
    """The state of things, for people; compiles nothing and raises nothing."""
    version = path = found = None
    problem = ""
    try:
        version = torch_version()
        checked_torch_version()
        path = _target()
        found = compiler()
    except UserError as error:
        problem = str(error)
    is_built = path is not None and path.exists()
    return BuildStatus(
        torch_version=version,
        compiler=found,
        native_path=str(path) if path else None,
        is_built=is_built,
        problem="" if is_built else problem,
    )


def _target() -> Path:
    version = checked_torch_version()
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return cache_dir() / f"{MODULE}-{version}-{_source_hash(version)}{suffix}"


def _source_hash(version: str) -> str:
    digest = hashlib.sha256()
    for part in (version, str(torch_dir()), sysconfig.get_config_var("SOABI") or sys.version, *_FLAGS):
        digest.update(part.encode() + b"\0")
    for path in sorted([*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h"), *_ALLOCATOR_HEADERS.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _compile(path: Path) -> None:
    command_line = compiler()
    version = torch_version()
    notice = f"phantora: compiling the simulated device for torch {version} (once, about 20 s) ..."
    print(notice, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        unit, built = Path(folder) / "unit.cpp", Path(folder) / path.name
        unit.write_text("".join(f'#include "{source}"\n' for source in sorted(_SOURCES.glob("*.cpp"))))
        _run([command_line, *_FLAGS, "-o", str(built), str(unit), *_torch_arguments()])
        os.replace(built, path)  # atomic: a reader sees all of it or nothing


def _torch_arguments() -> list[str]:
    torch, python = torch_dir(), sysconfig.get_paths()["include"]
    if not (Path(python) / "Python.h").exists():
        raise UserError(f"Python.h is not in {python}: install Python's headers (apt-get install python3-dev)")
    includes = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include", python]
    return [f"-I{path}" for path in includes] + [f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    detail = errors[0] if errors else (result.stderr.strip().splitlines() or ["no message"])[-1]
    what = f"{command[0]} could not compile the simulated device: {detail.strip()}"
    raise UserError(f"{what}; g++ 11 or later is needed, {_DOCTOR}")


if __name__ == "__main__":
    print(native_path())
