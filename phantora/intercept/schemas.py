"""What the schema of an operator says about a call: names, defaults, which arguments are written, what returns
alias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def tensors_in(args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors of a call, in order, those inside lists included."""
    found: list[Tensor] = []
    for value in args:
        _collect(value, found)
    for value in kwargs.values():
        _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    # A module-level function on purpose: the cell of a recursive closure forms a cycle that keeps tensors until gc
    # runs.
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


class Schema:
    """The parts of one overload's schema that a kernel needs at every call."""

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.name: str = schema.name  # 'aten::add'
        self.overload: str = schema.overload_name
        arguments = schema.arguments
        self.names = [a.name for a in arguments]
        self.defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self.scalar_names = {a.name for a in arguments if _base_type(a) == "number"}
        self.tensor_positions = [(i, a.name) for i, a in enumerate(arguments) if _base_type(a) == "Tensor"]
        self.written = [i for i, a in enumerate(arguments) if _is_written(a)]
        self.out_names = {arguments[i].name for i in self.written if arguments[i].kwarg_only}
        self.num_returns = len(schema.returns)
        self.returned_arguments = [_aliased_argument(r, arguments) for r in schema.returns]
        returns_arguments = all(i is not None for i in self.returned_arguments)
        self.is_in_place = bool(self.written) and returns_arguments and not self.out_names
        self.is_view = not self.written and any(r.alias_info is not None for r in schema.returns)

    def argument(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value at `position` of the schema, given or default."""
        if position < len(args):
            return args[position]
        name = self.names[position]
        return kwargs[name] if name in kwargs else self.defaults.get(name)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """(name, value) of every argument, defaults filled in."""
        for position, name in enumerate(self.names):
            yield name, self.argument(position, args, kwargs)

    def written_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that the call writes into."""
        return tensors_in([self.argument(i, args, kwargs) for i in self.written], {})


def _base_type(argument: Any) -> str:
    text = str(argument.type)
    return text[len("Optional[") : -1] if text.startswith("Optional[") else text


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _aliased_argument(ret: Any, arguments: list[Any]) -> int | None:
    if ret.alias_info is None or not ret.alias_info.is_write:
        return None
    labels = set(ret.alias_info.before_set)
    for position, argument in enumerate(arguments):
        if argument.alias_info is not None and labels & set(argument.alias_info.before_set):
            return position
    return None
