"""`phantora doctor`: what this machine lacks, and the command that mends it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from phantora.errors import UserError

_PYTHONS = ((3, 10), (3, 13))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing examined. mend: the command that helps when it is not good."""

    what: str
    good: bool
    detail: str
    mend: str = ""

    def line(self) -> str:
        mark = "ok  " if self.good else "BAD "
        return f"{mark} {self.what}: {self.detail}" + (f"\n     mend it: {self.mend}" if not self.good and self.mend else "")


def examine() -> list[Finding]:
    """All findings, in the order in which they matter."""
    findings = [_python(), _torch()]
    findings.append(_compiler())
    if all(finding.good for finding in findings):
        findings.append(_device())
    return findings


def _python() -> Finding:
    version = sys.version_info[:2]
    good = _PYTHONS[0] <= version <= _PYTHONS[1]
    return Finding("Python", good, ".".join(map(str, sys.version_info[:3])), "use Python 3.10 to 3.13")


def _torch() -> Finding:
    from phantora.intercept import build

    try:
        return Finding("torch", True, build.checked_torch_version())
    except UserError as error:
        return Finding("torch", False, str(error), f"{sys.executable} -m pip install torch==2.13.0")


def _compiler() -> Finding:
    from phantora.intercept import build

    try:
        return Finding("C++ compiler", True, build.compiler())
    except UserError as error:
        return Finding("C++ compiler", False, str(error), "apt-get install g++ (or set CXX)")


def _device() -> Finding:
    from phantora.intercept import build

    try:
        return Finding("simulated device", True, str(build.native_path()))
    except UserError as error:
        return Finding("simulated device", False, str(error))
