"""What a Triton kernel computes for one element, counted in the text that Inductor generates for it.

The text is a list of assignments `tmp7 = tmp3 * tmp6`. Those that depend on an element run once for each; those that
depend on reduced values alone run once for a row, which is as good as nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ASSIGNMENT = re.compile(r"^\s*(tmp\d+|_tmp\d+\w*) = (.*)$")
_NAME = re.compile(r"\b_?tmp\d+\w*\b")
_CALL = re.compile(r"\b(?:libdevice|tl_math|triton_helpers|tl)\.(\w+)\(")
_REDUCTIONS = ("sum", "reduce", "welford", "max2", "min2", "any", "prod", "argmax", "argmin", "max_with_index")
_SPECIAL = frozenset("exp exp2 log log2 rsqrt sqrt sigmoid div_rn sqrt_rn".split())  # one slow instruction
_HEAVY = frozenset(  # software: tens of instructions
    """sin cos expm1 log1p tan tanh erf erfc erfinv pow atan2 atan asin acos sinh cosh asinh acosh atanh lgamma fmod""".split()
)
_RANDOM = frozenset("rand randn randint64 rand4x randint".split())
# Steps of a walked reduction that are many instructions (runtime/triton_helpers.py): plain, special.
_HELPERS = {"online_softmax_combine": (6, 2), "welford_reduce": (6, 1), "welford_combine": (6, 1)}
_FREE = frozenset("full broadcast_to reshape load store where_mask".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Per element of the iteration space: plain arithmetic, special functions of the hardware (and divisions),
    functions made of many instructions, random numbers."""

    plain: int
    special: int
    heavy: int
    random: int


def count(text: str) -> Instructions:
    """The instructions in a kernel's text (`TritonKernel.codegen_kernel`)."""
    is_reduction = "rindex" in text
    per_element: dict[str, bool] = {}
    plain = special = heavy = random = 0
    for line in text.splitlines():
        helper = next((name for name in _HELPERS if f"triton_helpers.{name}(" in line), None)
        if helper is not None:
            plain, special = plain + _HELPERS[helper][0], special + _HELPERS[helper][1]
        match = _ASSIGNMENT.match(line)
        if match is None:
            continue
        name, expression = match.groups()
        calls = _CALL.findall(expression)
        runs_often = not is_reduction or "r0_" in expression or "rindex" in expression or "r1_" in expression
        runs_often = runs_often or any(per_element.get(used, False) for used in _NAME.findall(expression))
        if is_reduction and any(_is_reduction(call) for call in calls):
            per_element[name] = False
            plain += 1
            continue
        per_element[name] = runs_often
        if not runs_often or (calls and calls[0] in _FREE):
            continue
        if any(call in _RANDOM for call in calls):
            random += 1
        elif any(call in _HEAVY for call in calls):
            heavy += 1
        elif any(call in _SPECIAL for call in calls) or " / " in expression:
            special += 1
        else:
            plain += 1
    return Instructions(plain=plain, special=special, heavy=heavy, random=random)


def _is_reduction(call: str) -> bool:
    return call.startswith(_REDUCTIONS)
