"""The three models that most kernels share: streams, rows, and kernels bound by their instructions.

stream  at = (bytes,): memory traffic at the streaming rate above a launch floor.
rows    at = (rows, columns) of a tensor of which each row is normalised, with the rates of rates.py.
items   at = (elements, bytes, ...): a fixed time, instructions per element and traffic, with the rates of rates.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from phantora.compute.families.rates import item_rates, row_rates
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, item_bytes

WEIGHTS = {"stream": (0.4,), "rows": (0.35, 1.0, 1.0), "items": (0.25, 0.25, 0.7, 0.4, 0.4)}


def stream(family: str, like: Iterable[str], dtype: str, num_bytes: int, num_kernels: int = 1, flops: int = 0) -> Work:
    """Streaming work whose efficiency is that of the first measured operator in `like`."""
    curves = tuple(f"stream/all/{op}/{width(dtype)}" for op in like)
    return Work(
        family=family, curves=curves, at=(max(num_bytes, 1),), flops=flops, bytes=num_bytes, num_kernels=num_kernels
    )


def rows(
    family: str,
    like: Iterable[str],
    dtype: str,
    num_rows: int,
    num_columns: int,
    num_kernels: int = 1,
    scale: float = 1.0,
) -> Work:
    """Work on `num_rows` rows of `num_columns` elements each."""
    names = tuple(like)
    size = num_rows * num_columns
    return Work(
        family=family,
        curves=tuple(f"rows/{op}/{width(dtype)}" for op in names),
        at=(max(num_rows, 1), max(num_columns, 1)),
        flops=5 * size,
        bytes=int(max(row_rates(names[0])[4], 1.0) * size * item_bytes(dtype)),
        num_kernels=num_kernels,
        scale=scale,
    )


def items(
    family: str, kind: str, num_items: int, num_bytes: int, num_kernels: int = 1, flops: int = 0, *,
    op: str = "any", like: str = "", more: tuple[int, ...] = (),
) -> Work:  # fmt: skip
    """Work of `num_items` elements and `num_bytes` of traffic at the rates of `kind` (rates.RATES).

    op: what else its rate depends on (dtype, layout). more: sizes beside the two that it depends on (a row's length).
    like: the kind whose measured points serve when there are none of `kind`.
    """
    names = (f"items/{kind}/{op}",) + ((f"items/{like}/{op}",) if like else ())
    return Work(
        family=family,
        curves=names,
        at=(max(num_items, 1), max(num_bytes, 1), *(max(m, 1) for m in more)),
        flops=flops,
        bytes=num_bytes,
        num_kernels=num_kernels,
    )


def width(dtype: str) -> str:
    """Bytes of an element: kernels of equally wide types behave alike."""
    return str(item_bytes(dtype))


def stream_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    return LAUNCH_FLOOR_NS + roof.stream_ns(at[0])


def rows_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Fixed time, instructions per row, per column (few rows) and per element, and traffic."""
    _, kind, size = curve.split("/")
    fixed_ns, per_row, per_column, per_element, passes = row_rates(kind)
    num_rows, num_columns = at
    size_bytes = num_rows * num_columns * int(size)
    own = per_row * num_rows + per_element * num_rows * num_columns
    return fixed_ns + per_column * num_columns + roof.items_ns(own, 1e9) + roof.stream_ns(passes * size_bytes)


def items_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Fixed time, instructions per element, and traffic, each at the rate of the curve's kind."""
    fixed_ns, items_per_s, passes = item_rates(curve.split("/")[1])
    return fixed_ns + roof.items_ns(at[0], items_per_s) + roof.stream_ns(passes * at[1])
