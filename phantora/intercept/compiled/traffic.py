"""Which memory a fused kernel moves: every distinct element of its external inputs and outputs once.

Inductor knows for each buffer with which index expressions it is read and written. The elements that an expression
touches are the product of the ranges of the variables in it (an expanded dimension is not in it); a buffer is never
read for more elements than it has, so rows gathered from a table count as often as they are gathered up to the whole
table. What passes between the nodes of a group stays in registers: Inductor removes such buffers, they are no
arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch._inductor.virtualized import V


def hint(size: Any) -> int:
    """A size as a number; for a symbolic one, that of the example with which it is compiled."""
    try:
        return int(size)
    except TypeError:
        sizes = V.graph.sizevars
        return int(sizes.optimization_hint(size) if hasattr(sizes, "optimization_hint") else sizes.size_hint(size))


def of_arguments(kernel: Any, nodes: Iterable[Any]) -> tuple[tuple[int, int, int], ...]:
    """(elements read, elements written, elements of the buffer) for each tensor argument in the order of the call.

    kernel: SIMDKernel or ComboKernel after its code was generated; nodes: the scheduler nodes in it.
    """
    reads: dict[str, dict[str, int]] = {}
    writes: dict[str, dict[str, int]] = {}
    real_names = V.graph.scheduler.mutation_real_name  # a buffer that stands for an input written in place
    for node in nodes:
        for found, accesses in ((reads, node.read_writes.reads), (writes, node.read_writes.writes)):
            for access in accesses:
                name = real_names.get(access.name, access.name) if found is writes else access.name
                found.setdefault(name, {})[_index(access)] = _elements(access)
    _, call_args, signature, _ = kernel.args.python_argdefs()
    aliases = _aliases(kernel)
    arguments = []
    for name, argument in zip(call_args, signature):
        if type(argument).__name__ != "TensorArg":
            continue
        same = aliases.get(name, (name,))
        numel = hint(V.graph.get_numel(name))
        written = _total(writes, [real_names.get(one, one) for one in same], numel)
        read = _total(reads, [one for one in same if one not in writes or one in kernel.args.input_buffers], numel)
        pointer = argument.name  # in_ptr0, out_ptr0, in_out_ptr0: a mutated input may be passed as one of each
        if pointer.startswith("in_ptr"):
            read, written = read or numel, 0
        elif pointer.startswith("out_ptr"):
            read, written = 0, written or numel
        arguments.append((read, written, numel))
    return tuple(arguments)


def _index(access: Any) -> str:
    return str(access.index) if hasattr(access, "var_names") else "*"


def _elements(access: Any) -> int:
    """What one index expression touches; a node that reads a buffer as a whole (StarDep) touches all of it."""
    if not hasattr(access, "var_names"):
        return hint(V.graph.get_numel(access.name))
    variables = access.index.free_symbols
    if any(str(symbol).startswith(("tmp", "indirect")) for symbol in variables):  # gathered: one per iteration
        return hint(_product(access.size))
    return hint(_product(size for name, size in zip(access.var_names, access.size) if name in variables))


def _product(sizes: Iterable[Any]) -> Any:
    product: Any = 1
    for size in sizes:
        product = product * size
    return product


def _total(found: dict[str, dict[str, int]], names: Iterable[str], numel: int) -> int:
    return min(sum(sum(found.get(name, {}).values()) for name in names), numel)


def _aliases(kernel: Any) -> dict[str, tuple[str, ...]]:
    """Buffers updated in place have several names; the call passes the last one."""
    found = {}
    for inplaced in kernel.args.inplace_buffers.values():
        names = getattr(inplaced, "other_names", None)
        if names:
            found[names[-1]] = tuple(names)
    return found
