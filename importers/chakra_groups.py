"""Communicator groups of Chakra traces: ASTRA-sim's JSON file, or what the converter's metadata nodes say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraFile
from phantora.importers.report import ImportReport

Groups = dict[str, tuple[int, ...]]
METADATA_NODE = 1


def read_groups(path: Path | str | None, files: Sequence[ChakraFile], report: ImportReport) -> tuple[Groups, bool]:
    """(pg_name -> global ranks, whether a file says so). UserError for a file that is no such thing."""
    beside = files[0].path.parent / "comm_groups.json"
    if path is None and beside.is_file():
        path = beside
    if path is not None:
        return _from_file(Path(path), len(files)), True
    return _from_metadata(files, report), False


def _from_file(path: Path, world_size: int) -> Groups:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: must be an object of group -> list of ranks")
    return {name: _members(f"{path}: group {name!r}", ranks, world_size) for name, ranks in data.items()}


def _members(where: str, ranks: Any, world_size: int) -> tuple[int, ...]:
    if not isinstance(ranks, list) or not ranks or any(type(rank) is not int for rank in ranks):
        raise UserError(f"{where} must be a list of ranks")
    for rank in ranks:
        if not 0 <= rank < world_size:
            raise UserError(f"{where} names rank {rank}, but there are {world_size} traces")
    if len(set(ranks)) != len(ranks):
        raise UserError(f"{where} names a rank twice")
    return tuple(ranks)


def _from_metadata(files: Sequence[ChakraFile], report: ImportReport) -> Groups:
    """`process_group:init` nodes of the converter: inputs.values is a list with one JSON text of all groups."""
    found: Groups = {}
    world = range(len(files))
    for file in files:
        for node in file.nodes:
            if node.type != METADATA_NODE or node.inputs is None:
                continue
            for entry in _entries(node.inputs[0]):
                name, ranks = str(entry.get("pg_name", "")), entry.get("ranks")
                if not isinstance(ranks, list) or any(type(rank) is not int or rank not in world for rank in ranks):
                    report.doubt(
                        "process groups whose ranks have no trace", f"{file.path}: node {node.id}: group {name!r}"
                    )
                    continue
                if name not in found and len(set(ranks)) == len(ranks):
                    found[name] = tuple(ranks) or tuple(world)
                    report.take("process groups of metadata nodes")
    return found


def _entries(text: str) -> list[dict[str, Any]]:
    try:
        values = json.loads(text)
        values = values[0] if isinstance(values, list) and values and isinstance(values[0], str) else values
        values = json.loads(values) if isinstance(values, str) else values
    except (ValueError, RecursionError):
        return []
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
