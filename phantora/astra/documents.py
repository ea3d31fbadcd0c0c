"""Reads the JSON and YAML files of ASTRA-sim's configuration; whatever is wrong names file, line or key."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.errors import UserError, nearest

_MAX_BYTES = 1 << 24  # of a configuration file


def read_text(path: Path) -> str:
    """The text of a small file. UserError: not there, not text, too big."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _MAX_BYTES:
        raise UserError(f"{path}: larger than {_MAX_BYTES} bytes, so no configuration file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start}: not UTF-8 text") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. UserError: malformed (with the line), or no object."""
    try:
        value = json.loads(read_text(path), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to the keys of one JSON object."""

    path: Path
    values: dict[str, Any]

    def fail(self, key: str, what: str) -> UserError:
        """An error about a key."""
        return UserError(f'{self.path}: "{key}" {what}, not {shown(self.values.get(key))}')

    def integer(self, key: str, default: int | None, least: int = 0) -> int:
        """An integer of at least `least`; without a default the key is required."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
            raise self.fail(key, f"must be an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None) -> float:
        """A finite number, not negative."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
            raise self.fail(key, "must be a number, not negative")
        return float(value)

    def flag(self, key: str) -> bool:
        """0 or 1 (absent: 0)."""
        value = self.values.get(key, 0)
        if value not in (0, 1):
            raise self.fail(key, "must be 0 or 1")
        return bool(value)

    def choice(self, key: str, known: list[str], default: str | None = None) -> str | None:
        """One of the known words, or the default if the key is absent."""
        value = self.values.get(key, default)
        if value is not None and (not isinstance(value, str) or value not in known):
            raise self.fail(key, f"must be one of {', '.join(known)}")
        return value

    def words(self, key: str) -> tuple[str, ...] | None:
        """An array of strings, or None if the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
            raise self.fail(key, "must be an array of strings")
        return tuple(value)

    def _value(self, key: str, default: float | None) -> Any:
        if key not in self.values and default is None:
            raise UserError(f'{self.path}: "{key}" is missing')
        return self.values.get(key, default)

    def note_unread(self, read: list[str], silent: list[str]) -> None:
        """Says on stderr which keys ASTRA-sim would ignore, unless they are commonplace."""
        for key in self.values:
            if key not in read and key not in silent:
                print(f'phantora: note: {self.path}: "{shown(key)}" is not read{nearest(key, read)}', file=sys.stderr)


def shown(value: Any) -> str:
    """A value in an error message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, slots=True)
class Entry:
    """A scalar of a YAML file, and its line."""

    text: str
    line: int


def read_yaml_mapping(path: Path) -> dict[str, Entry | list[Entry]]:
    """A YAML mapping of scalars and lists of scalars. UserError: malformed, or anything else in it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(read_text(path), Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{path}: line {mark.line + 1 if mark else 1}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: must hold a YAML mapping")
    found: dict[str, Entry | list[Entry]] = {}
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{path}: line {line}: a key must be a word")
        if key.value in found:
            raise UserError(f"{path}: line {line}: {shown(key.value)} stands there twice")
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise UserError(f"{path}: line {line}: {shown(key.value)} must be a value or a list of values")
        entries = [Entry(item.value, item.start_mark.line + 1) for item in items]
        found[key.value] = entries if isinstance(value, yaml.SequenceNode) else entries[0]
    return found
