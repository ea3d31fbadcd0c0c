"""What CUDA kernels check of their arguments and torch's meta kernels do not, once per signature.

Meta kernels give shapes; many were rewritten in Python without the checks of dtypes. The rules in `checks` are those of
the files under aten/src/ATen/native that each names, with their messages; a rule stands there only when the source or
torch's own tests say so. Repeats of a signature are not checked again.
"""

from __future__ import annotations

from typing import Any

from phantora.intercept.checks import indices, losses, products, values
from phantora.intercept.checks.helpers import Rule
from phantora.intercept.checks.in_place import check_in_place, check_out
from phantora.intercept.checks.supported_dtypes import check_dtype
from phantora.intercept.schemas import Schema, tensors_in

_RULES: dict[str, Rule] = {**products.RULES, **indices.RULES, **losses.RULES, **values.RULES}


def check_arguments(op: Any, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CUDA kernel of `op` raises for arguments that do not fit together."""
    if not schema.name.startswith("aten::"):
        return
    name = _base_name(schema.name)
    rule = _RULES.get(name)
    if rule is not None:
        rule(dict(schema.bound(args, kwargs)))
    check_dtype(name, tensors_in(args[:2], {}))
    if schema.is_in_place:
        check_in_place(op, schema, args, kwargs)
    elif schema.out_names:
        check_out(schema, kwargs)


def _base_name(qualified: str) -> str:
    """'add' for aten::add_ too; operators that exist only in place keep their underscore (normal_, masked_fill_)."""
    name = qualified.removeprefix("aten::")
    return name[:-1] if name.endswith("_") and not name.endswith("__") and name not in _RULES else name
