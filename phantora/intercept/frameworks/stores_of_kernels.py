"""Which arguments a Triton kernel writes, read off its source: those that reach the pointer of a store or an atomic.

A small data flow over names: `p = out_ptr + offsets` makes p an alias of out_ptr; what was loaded
(`tl.load(index_ptr)`) is a number and no alias. A helper function that gets a pointer may write it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_WRITING = (
    "store",
    "atomic_add",
    "atomic_max",
    "atomic_min",
    "atomic_cas",
    "atomic_xchg",
    "atomic_and",
    "atomic_or",
    "atomic_xor",
)


def written_arguments(kernel: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters of `kernel` that it may write; all of them when its source is not to be had."""
    names = tuple(inspect.signature(kernel).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kernel)))
    except (OSError, TypeError, SyntaxError):
        return frozenset(names)
    aliases = {name: frozenset((name,)) for name in names}
    for _ in range(3):  # a loop may use an alias before the line that makes it
        for node in ast.walk(tree):
            _follow(node, aliases)
    written: frozenset[str] = frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for argument in _written_operands(node):
                written |= _sources(argument, aliases)
    return written


def _follow(node: ast.AST, aliases: dict[str, frozenset[str]]) -> None:
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return
    sources = _sources(value, aliases)
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                aliases[name.id] = aliases.get(name.id, frozenset()) | sources


def _sources(node: ast.AST, aliases: dict[str, frozenset[str]]) -> frozenset[str]:
    """Parameters whose addresses may be part of the value of `node`."""
    found: frozenset[str] = frozenset()
    if isinstance(node, ast.Call) and _called(node) == "load":
        return found
    if isinstance(node, ast.Name):
        return aliases.get(node.id, found)
    for child in ast.iter_child_nodes(node):
        found |= _sources(child, aliases)
    return found


def _written_operands(call: ast.Call) -> Iterator[ast.AST]:
    """The pointer of a store; every argument of a function that is none of tl's."""
    if _called(call) in _WRITING:
        if call.args:
            yield call.args[0]
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "pointer")
    elif isinstance(call.func, ast.Name) and call.func.id not in ("range", "min", "max", "len", "print"):
        yield from call.args
        yield from (keyword.value for keyword in call.keywords)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
