"""How a mixture of experts routes its tokens when the router's scores are not known: `--moe-routing`. No torch here.

| policy   | load of expert i (the first one has the most) |
|----------|------------------------------------------------|
| balanced | equal                                          |
| zipf:S   | proportional to 1 / (i + 1)^S                  |
| FILE     | as in the file, one number for each expert     |

Lines of a file serve the routers of a step in turn (one line: all alike); `#` begins a comment.

No expert gets a token twice, so none has a larger share than 1 / k of what k choices for each token make; what it would
have beyond that goes to the others. Every rank routes its own tokens so. The number of tokens of each expert is exact
(largest remainders), and which tokens they are is mixed evenly over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """skew: the exponent of zipf; lines: relative loads from a file (then skew does not matter)."""

    skew: float = 0.0
    lines: tuple[tuple[float, ...], ...] = ()

    def weights(self, num_classes: int, call: int) -> tuple[float, ...] | None:
        """Relative loads at the `call`-th router of this rank; None when the file knows no router of so many
        experts."""
        if not self.lines:
            return tuple((i + 1) ** -self.skew for i in range(num_classes))
        fitting = [line for line in self.lines if len(line) == num_classes]
        return fitting[call % len(fitting)] if fitting else None


def parse(text: str) -> Routing:
    """The value of --moe-routing. UserError when it is none."""
    if text == "balanced":
        return Routing()
    if text.startswith("zipf:"):
        return Routing(skew=_skew(text))
    return Routing(lines=_read(text))


def _skew(text: str) -> float:
    try:
        skew = float(text.removeprefix("zipf:"))
    except ValueError:
        skew = -1.0
    if not 0 <= skew <= 20:
        raise UserError(f"--moe-routing {text}: the exponent must be a number from 0 (balanced) to 20")
    return skew


def _read(path: str) -> tuple[tuple[float, ...], ...]:
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise UserError(f"--moe-routing {path}: {error.strerror} (balanced, zipf:S, or a file with loads)") from None
    except UnicodeDecodeError:
        raise UserError(f"--moe-routing {path}: not a text file") from None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if words:
            lines.append(_loads(words, f"--moe-routing {path}, line {number}"))
    if not lines:
        raise UserError(f"--moe-routing {path}: the file has no loads")
    return tuple(lines)


def _loads(words: list[str], where: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(word) for word in words)
    except ValueError:
        raise UserError(f"{where}: not a list of numbers") from None
    if not all(load >= 0 for load in loads) or not math.isfinite(sum(loads)) or not any(loads):
        raise UserError(f"{where}: loads must be finite, not negative, and not all zero")
    return loads


def token_counts(weights: Sequence[float], num_tokens: int, k: int) -> list[int]:
    """How many of num_tokens x k choices each class gets: proportional to its weight, at most num_tokens each."""
    open_classes = [i for i, weight in enumerate(weights) if weight > 0]
    if len(open_classes) < k:  # not enough experts with a load: the others share what is left
        open_classes = list(range(len(weights)))
        weights = [weight or 1e-9 for weight in weights]
    exact = [0.0] * len(weights)
    left = float(num_tokens * k)
    while open_classes:
        total = sum(weights[i] for i in open_classes)
        full = [i for i in open_classes if weights[i] * left / total >= num_tokens]
        if not full:
            for i in open_classes:
                exact[i] = weights[i] * left / total
            break
        for i in full:
            exact[i] = float(num_tokens)
        left -= num_tokens * len(full)
        open_classes = [i for i in open_classes if i not in full]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - exact[i], i))
    for i in [i for i in by_remainder if counts[i] < num_tokens][: num_tokens * k - sum(counts)]:
        counts[i] += 1
    return counts


def mixing_step(num_tokens: int) -> int:
    """A step that visits all tokens, far from its neighbours: near the golden ratio, without common divisor."""
    step = max(round(num_tokens * 0.6180339887), 1)
    while math.gcd(step, num_tokens) != 1:
        step += 1
    return step


class _Chosen:
    routing = Routing()
    num_calls = 0


def choose(routing: Routing) -> None:
    """From now on, in this process."""
    _Chosen.routing, _Chosen.num_calls = routing, 0


def chosen() -> Routing:
    return _Chosen.routing


def next_weights(num_classes: int) -> tuple[float, ...] | None:
    """Loads at the router that is called now; None: balanced."""
    if not _Chosen.routing.lines and not _Chosen.routing.skew:
        return None
    weights = _Chosen.routing.weights(num_classes, _Chosen.num_calls)
    _Chosen.num_calls += weights is not None
    return weights
