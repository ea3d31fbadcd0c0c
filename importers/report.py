"""What an import took, guessed, left out and found impossible: nothing of a foreign trace is dropped in silence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NUM_EXAMPLES = 3
_MAX_EXAMPLE = 120
_MAX_KINDS = 200  # a hostile file has as many categories as events

_SINGULARS = {"ranks": "rank", "streams": "stream", "collectives": "collective", "ranges": "range"}

Counts = dict[str, "Counted"]


@dataclass(slots=True)
class Counted:
    """How often, and for instance where."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ImportReport:
    """What became of everything in the files.

    taken: what is in the run. guessed: what the trace does not say, and how it was filled in. left_out: what is not in
    the run. broken: what cannot have happened as the trace tells it. notes: sentences. gpu: name of the GPU, if known.
    """

    files: list[str] = field(default_factory=list)
    taken: Counts = field(default_factory=dict)
    guessed: Counts = field(default_factory=dict)
    left_out: Counts = field(default_factory=dict)
    broken: Counts = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gpu: str = ""

    def take(self, what: str, count: int = 1) -> None:
        """Count something that is in the run."""
        _count(self.taken, what, "", count)

    def guess(self, what: str, example: str = "", count: int = 1) -> None:
        """Count something that had to be guessed."""
        _count(self.guessed, what, example, count)

    def leave_out(self, what: str, example: str = "", count: int = 1) -> None:
        """Count something that is not in the run."""
        _count(self.left_out, what, example, count)

    def doubt(self, what: str, example: str = "", count: int = 1) -> None:
        """Count something that cannot have happened."""
        _count(self.broken, what, example, count)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """The report as text, one line for each thing."""
        found = []
        for title, counts in self._sections():
            if counts:
                found.append(f"{title}:")
                found += [f"  {c.count:>9,}  {_named(what, c)}{_for_instance(c)}" for what, c in counts.items()]
        return found + [f"note: {text}" for text in self.notes]

    def as_notes(self) -> list[str]:
        """The report as notes of a run."""
        sections = self._sections()[1:]
        return self.notes + [f"{title}: {c.count:,} {what}" for title, counts in sections for what, c in counts.items()]

    def write(self, path: Path) -> Path:
        """Write it as JSON."""
        document: dict[str, Any] = {"files": self.files, "notes": self.notes}
        for name in ("taken", "guessed", "left_out", "broken"):
            counts: Counts = getattr(self, name)
            document[name] = {what: {"count": c.count, "examples": c.examples} for what, c in counts.items()}
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def _sections(self) -> list[tuple[str, Counts]]:
        return [
            ("taken", self.taken), ("guessed", self.guessed), ("left out", self.left_out), ("impossible", self.broken),
        ]  # fmt: skip


def _count(counts: Counts, what: str, example: str, count: int) -> None:
    if count <= 0:
        return
    if what not in counts and len(counts) >= _MAX_KINDS:
        what = "of further kinds"
    counted = counts.setdefault(what, Counted())
    counted.count += count
    example = example if len(example) <= _MAX_EXAMPLE else example[: _MAX_EXAMPLE - 3] + "..."
    if example and len(counted.examples) < _NUM_EXAMPLES and example not in counted.examples:
        counted.examples.append(example)


def _named(what: str, counted: Counted) -> str:
    return _SINGULARS.get(what, what) if counted.count == 1 else what


def _for_instance(counted: Counted) -> str:
    return f" (such as {'; '.join(counted.examples)})" if counted.examples else ""
