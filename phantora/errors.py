"""What a user can have done wrong, and what can go wrong in simulated work."""


class UserError(Exception):
    """A mistake of the user: shown as one line (what, where, nearest right thing), exit code 2."""


class SimulationError(Exception):
    """A fault in simulated work (a rank died, collectives do not match): ends the run with a non-zero code."""


def nearest(word: str, known: "list[str]") -> str:
    """' (did you mean a, b?)' or, when nothing is close, ' (known: a, b, ...)'."""
    import difflib

    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return f" (did you mean {', '.join(close)}?)"
    return f" (known: {', '.join(sorted(known))})" if known else ""
