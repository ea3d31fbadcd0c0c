"""How TensorIterator refuses shapes that do not go together (infer_size in aten/src/ATen/ExpandUtils.cpp)."""

from __future__ import annotations

from collections.abc import Sequence


def mismatch(shapes: list[Sequence[int]]) -> RuntimeError | None:
    """torch's error when tensors of these shapes cannot be broadcast, in this order; None when they can."""
    common: list[int] = []
    for shape in shapes:
        num_dims = max(len(common), len(shape))
        a, b = ([1] * (num_dims - len(each)) + list(each) for each in (common, shape))
        for dim in reversed(range(num_dims)):
            if a[dim] != b[dim] and a[dim] != 1 and b[dim] != 1:
                return RuntimeError(
                    f"The size of tensor a ({a[dim]}) must match the size of tensor b ({b[dim]}) at non-singleton "
                    f"dimension {dim}"
                )
        common = [one if other == 1 else other for one, other in zip(a, b)]
    return None
