"""TOML with places: which file and line each key came from, so that every complaint can point at one."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # the standard library has it from 3.11 on
    import tomli as tomllib

KeyPath = tuple[str, ...]

_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_TABLE_OF_LIST = re.compile(r"^\s*\[\[\s*([^\[\]]+?)\s*\]\]\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_LINE_OF_ERROR = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlSource:
    """Parsed TOML (several files merged, the later winning) and where each table and key stands."""

    data: dict[str, Any]
    places: Mapping[KeyPath, str]
    """(table, ..., key) -> 'file:line'; () -> 'file:1'."""

    def place(self, path: KeyPath) -> str:
        """'file:line' of `path`, or of the nearest table round it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path]

    def over(self, base: TomlSource) -> TomlSource:
        """This source laid over `base`: tables are merged key by key, everything else is replaced."""
        places = {path: place for path, place in base.places.items() if path}
        return TomlSource(data=_merge(base.data, self.data), places={**places, **self.places})


def read_toml(path: Path, shown: str) -> TomlSource:
    """Read one file; `shown` is its name in messages. UserError with file and line when it is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{shown}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{shown}: cannot be read: {error.strerror}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(_syntax_message(str(error), text, shown)) from None
    except RecursionError:
        raise UserError(f"{shown}: lists or tables are nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{shown}: not valid TOML: {error}") from None
    return TomlSource(data=data, places=_places(text, shown))


def _syntax_message(message: str, text: str, shown: str) -> str:
    """One line 'file:line: not valid TOML: what'; an unexpected end of the text is placed on its last line."""
    found = _LINE_OF_ERROR.search(message)
    line = int(found.group(1)) if found else max(1, text.count("\n"))
    what = _LINE_OF_ERROR.sub("", message).replace("\n", " ").strip()
    return f"{shown}:{line}: not valid TOML: {what}"


def _places(text: str, shown: str) -> dict[KeyPath, str]:
    places: dict[KeyPath, str] = {(): f"{shown}:1"}
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.match(line):
            table = _split(match.group(1))
            places.setdefault(table, f"{shown}:{number}")
        elif match := _TABLE_OF_LIST.match(line):
            name = _split(match.group(1))
            table = (*name, str(counts.get(name, 0)))
            counts[name] = counts.get(name, 0) + 1
            places.setdefault(name, f"{shown}:{number}")
            places.setdefault(table, f"{shown}:{number}")
        elif match := _KEY.match(line):
            places.setdefault(table + _split(match.group(1)), f"{shown}:{number}")
    return places


def _split(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged
