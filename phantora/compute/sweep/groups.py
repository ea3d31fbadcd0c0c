"""Which families a sweep measures, which of them share a process, and for how long. No torch here."""

from __future__ import annotations

from phantora.errors import UserError

STANDARD = ("dense", "attention", "pointwise", "rows", "indexing", "images", "lists", "views", "recurrent")
# Families with a process of their own -> seconds at most.
ALONE = {"recurrent": 60.0, "factorizations": 60.0}
FAMILIES = (*STANDARD, "sampled", "factorizations")


def groups_of(families: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Group -> its seconds: those alone take at most a fifth each, the mixed ones the rest."""
    alone = {name: min(ALONE[name], seconds / 5) for name in families if name in ALONE}
    if len(alone) == len(families):
        return {name: seconds / len(alone) for name in alone}
    return {"mixed": seconds - sum(alone.values())} | alone


def families_of(text: str | None) -> tuple[str, ...]:
    """'dense,rows' -> ('dense', 'rows'); None: the standard sweep. UserError names what exists."""
    if text is None:
        return STANDARD
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    wrong = [name for name in found if name not in FAMILIES]
    if wrong or not found:
        raise UserError(f"--only: no family {wrong[0] if wrong else text!r}; there are {', '.join(FAMILIES)}")
    return found
