"""load_cluster: the name of a preset, or a TOML file, to a checked Cluster.

A file may begin with `base = "dgx-h100"` (a preset, or a file relative to this one) and state only what differs. Every
mistake ends in a UserError of one line: file, line, table, key, and the nearest right thing.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from phantora.cluster import spec
from phantora.cluster.toml_source import KeyPath, TomlSource, read_toml
from phantora.errors import UserError, nearest

PRESETS = Path(__file__).parent / "presets"

_MAX_NAME = 4096  # PATH_MAX of Linux


def list_clusters() -> list[str]:
    """Names of the presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_cluster(name_or_path: str | Path) -> spec.Cluster:
    """The cluster of that preset or file. UserError when there is none or something in it is wrong."""
    path, shown = _find(str(name_or_path), Path())
    source = _read_with_bases(path, shown, ())
    data = {key: value for key, value in source.data.items() if key != "base"}
    data.setdefault("name", path.stem)
    cluster = _build(spec.Cluster, data, (), source)
    if cluster.fault:
        _check_fault_links(cluster, source)
    return cluster


def _check_fault_links(cluster: spec.Cluster, source: TomlSource) -> None:
    """UserError for a [[fault]] whose link the cluster does not have."""
    from phantora.cluster.topology import Topology  # needs NumPy; the rest of this module does not

    topology = Topology(cluster)
    for index, fault in enumerate(cluster.fault):
        if not topology.has_link(fault.link):
            place = source.place(("fault", str(index), "link"))
            examples = nearest(fault.link, topology.some_names())[:200]
            raise UserError(f"{place}: table {index + 1} of [[fault]]: no link is called {fault.link!r}{examples}")


def cluster_of(data: Mapping[str, Any], shown: str) -> spec.Cluster:
    """The cluster with these values, checked as those of a file; `shown` is named in messages."""
    return _build(spec.Cluster, data, (), TomlSource(data=dict(data), places={(): shown}))


def _find(name: str, folder: Path) -> tuple[Path, str]:
    """(path, name in messages) of a preset, or of a file relative to `folder`."""
    if not name.isprintable():
        raise UserError(f"{name!r}: no cluster has a name with characters that cannot be printed")
    if not name:
        raise UserError(f"a cluster needs a name{nearest(name, list_clusters())}")
    if len(name) > _MAX_NAME:
        raise UserError(f"{name[:60]}...: no cluster has a name of {len(name)} characters")
    preset = PRESETS / f"{name}.toml"
    try:
        if Path(name).name == name and preset.is_file():
            return preset, preset.name
        path = folder / Path(name).expanduser()
        if path.is_file():
            return path, name
        if path.is_dir():
            raise UserError(f"{name}: is a folder, not a cluster file")
    except (OSError, RuntimeError) as error:  # too long a name, or a home that nobody has
        raise UserError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if name.endswith(".toml") or Path(name).name != name:
        raise UserError(f"{name}: no such cluster file")
    raise UserError(f"unknown cluster {name!r}{nearest(name, list_clusters())}")


def _read_with_bases(path: Path, shown: str, chain: tuple[Path, ...]) -> TomlSource:
    source = read_toml(path, shown)
    base = source.data.get("base")
    if base is None:
        return source
    place = source.place(("base",))
    if not isinstance(base, str):
        raise UserError(f"{place}: base must be a string, not {_describe(base)}")
    if path.resolve() in chain:
        raise UserError(f"{place}: base = \"{base}\" leads back to this file")
    try:
        base_path, base_shown = _find(base, path.parent)
    except UserError as error:
        raise UserError(f"{place}: base: {error}") from None
    return source.over(_read_with_bases(base_path, base_shown, (*chain, path.resolve())))


def _build(kind: type, data: Any, path: KeyPath, source: TomlSource) -> Any:
    """An instance of the dataclass `kind` from the table at `path`."""
    place, where = source.place(path), _table_name(path)
    if not isinstance(data, Mapping):
        raise UserError(f"{place}: {'.'.join(path)} must be a table, not {_describe(data)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            known = sorted(fields) + (["base"] if not path else [])
            raise UserError(f"{source.place((*path, key))}: unknown key {key!r} in {where}{nearest(key, known)}")
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in data and not optional:
            raise UserError(f"{place}: missing key {name!r} in {where}")
    hints = typing.get_type_hints(kind)
    values = {key: _convert(hints[key], value, (*path, key), source) for key, value in data.items()}
    try:
        return kind(**values)
    except ValueError as error:
        first = str(error).split(" ", 1)[0]
        raise UserError(f"{source.place((*path, *first.split('.')))}: {where}: {error}") from None


def _table_name(path: KeyPath) -> str:
    if path and path[-1].isdigit():
        return f"table {int(path[-1]) + 1} of [[{'.'.join(path[:-1])}]]"
    return f"table [{'.'.join(path)}]" if path else "the top level"


def _convert(hint: Any, value: Any, path: KeyPath, source: TomlSource) -> Any:
    """`value` as the type of the field, or UserError at its place."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path, source)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and isinstance(value, str):
        if value not in arguments:
            choices = nearest(value, list(arguments))
            raise UserError(f"{source.place(path)}: {_table_name(path[:-1])}: {path[-1]} cannot be {value!r}{choices}")
        return value
    if origin is tuple and isinstance(value, list) and len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_convert(arguments[0], item, (*path, str(index)), source) for index, item in enumerate(value))
    if origin is tuple and isinstance(value, list) and len(value) == len(arguments):
        return tuple(_convert(kind, item, path, source) for kind, item in zip(arguments, value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _convert(arguments[1], item, (*path, key), source) for key, item in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number of hundreds of digits: bounds.py has the word
            return math.inf if value > 0 else -math.inf
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 80e9 is a float to TOML
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = _describe_hint(hint)
    table, key = path[:-1], path[-1]
    if key.isdigit() and table:  # an item of a list of numbers
        table, key = table[:-1], f"item {int(key) + 1} of {table[-1]}"
    raise UserError(f"{source.place(path)}: {_table_name(table)}: {key} must be {wanted}, not {_describe(value)}")


def _describe_hint(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is tuple and Ellipsis in get_args(hint):
        return "a list of whole numbers" if get_args(hint)[0] is int else "a list of tables"
    if origin is tuple:
        return f"a list of {len(get_args(hint))} numbers"
    if origin is Mapping:
        return "a table"
    return {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}.get(hint, "a string")


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, (list, bool, types.NoneType)):
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"the list {value}"[:120]
    return str(value)[:120]
