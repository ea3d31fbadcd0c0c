"""How a Triton kernel addresses memory, read in the text that Inductor generates for it.

An access is `tl.load(in_ptr0 + (x0 + 768*x1), ...)`. Index variables are slices of the iteration space: `x0 = (xindex %
768)` runs fastest (neighbouring threads have neighbouring values), `x1 = xindex // 768` does not. Whether a fast variable
stands alone or is multiplied decides whether a warp's addresses lie side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOUND = re.compile(r"^\s*([xyzr]\d*_?\d+) = (.*)$", re.M)
_ACCESS = re.compile(r"tl\.(load|store|atomic_add)\((\w+) \+ \(")
_DIVISOR = re.compile(r"(?://|%) (\d+)")
_FAR = 16  # elements of two bytes in a sector of 32: beyond, every access is a sector of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Accesses:
    """Per element of the iteration space (what is done once per row is left out), but for the last three.

    near: neighbouring threads, neighbouring addresses; strided: a few elements apart; far_loads, far_stores: in sectors
    of their own; gathers: at an index that was loaded. divisions: by sizes that are no powers of two, in the whole text;
    sweeps: loops over a row; tiles: a two-dimensional block that is read along one side and written along the other.
    """

    near: int
    strided: int
    far_loads: int
    far_stores: int
    gathers: int
    divisions: int
    sweeps: int
    tiles: int


def count(text: str) -> Accesses:
    """The accesses in a kernel's text (`TritonKernel.codegen_kernel`)."""
    body = text.rpartition("@triton.jit")[2]
    fast = [name for name, value in _BOUND.findall(body) if "//" not in value]
    is_reduction = "rindex" in body
    found = dict.fromkeys(("near", "strided", "far_loads", "far_stores", "gathers"), 0)
    sides: dict[str, set[str]] = {"load": set(), "store": set(), "atomic_add": set()}
    for kind, _, index in indices(body):
        if is_reduction and "tmp" not in index and not re.search(r"\br\d*_\d+\b", index):
            continue
        step, variable = _step(index, fast)
        if "tmp" in index:
            found["gathers"] += 1
        elif step == 1:
            found["near"] += 1
            sides[kind].add(variable[0])
        elif step > _FAR:
            found["far_loads" if kind == "load" else "far_stores"] += 1
        elif step:
            found["strided"] += 1
    return Accesses(
        **found,
        divisions=sum(_is_odd(int(size)) for size in _DIVISOR.findall(body)),
        sweeps=body.count("for r0_offset in"),
        tiles=int(not is_reduction and bool(sides["load"] - sides["store"]) and bool(sides["store"] - sides["load"])),
    )


def _is_odd(size: int) -> bool:
    return size & (size - 1) != 0


def indices(body: str) -> list[tuple[str, str, str]]:
    """(load, store or atomic_add; pointer; index expression) of each access."""
    found = []
    for match in _ACCESS.finditer(body):
        depth, end = 1, match.end()
        while depth and end < len(body):
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        found.append((match[1], match[2], body[match.end() : end - 1]))
    return found


def _step(index: str, fast: list[str]) -> tuple[int, str]:
    """Smallest factor of a fast variable in `index`, and that variable; 0 when there is none (all threads the same)."""
    steps = [
        (int(match[1] or 1), name) for name in fast for match in re.finditer(rf"(?:(\d+)\*)?\(*\b{name}\b", index)
    ]
    return min(steps, default=(0, ""))
