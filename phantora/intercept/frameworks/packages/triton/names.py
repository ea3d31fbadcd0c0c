"""Names of Triton's language: they occur in the bodies of kernels, which never run, and in annotations and defaults,
which do."""

from __future__ import annotations

from typing import Any


class Name:
    """Stands for anything in triton.language: `tl.float32`, `tl.constexpr`, `tl.math.exp`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "Name":
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if self._name.endswith("constexpr") and args else self

    def __getitem__(self, item: Any) -> "Name":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


def names_of(module: str) -> Any:
    """A module's __getattr__ that knows every public name."""

    def find(name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return Name(f"{module}.{name}")

    return find
