"""Reads JSON traces of PyTorch and tells by content what each is: a Kineto trace or an execution trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from phantora.errors import UserError
from phantora.importers.json_stream import LIST_BEGINS, JsonStream
from phantora.importers.kineto_events import KinetoFile, KinetoReader
from phantora.importers.pytorch_et_file import EtFile, EtReader
from phantora.importers.report import ImportReport
from phantora.importers.sources import open_sources

_LISTS = ("traceEvents", "nodes")


def read_traces(files: Sequence[str | Path], report: ImportReport) -> tuple[list[KinetoFile], list[EtFile]]:
    """Everything in these files (plain, .gz, .tar.gz), in order. UserError for what is neither."""
    kineto: list[KinetoFile] = []
    et: list[EtFile] = []
    for shown, stream in open_sources(files, report):
        report.files.append(shown)
        found = read_stream(shown, stream, report)
        if isinstance(found, EtFile):
            et.append(found)
        else:
            kineto.append(found)
    if not kineto and not et:
        raise UserError("no trace files given")
    return kineto, et


def read_stream(shown: str, stream: BinaryIO, report: ImportReport) -> KinetoFile | EtFile:
    """What this stream of JSON holds; shown: its name in messages."""
    events, nodes = KinetoReader(shown, report), EtReader(shown, report)
    begun: dict[str, None] = {}
    for key, value in JsonStream(stream, shown).members(_LISTS):
        if value is LIST_BEGINS:
            begun[key] = None
        elif key not in begun:
            events.member(key, value)
            nodes.member(key, value)
        elif key == "nodes":
            nodes.node(value)
        else:
            events.event(value)
    if "traceEvents" in begun or "" in begun:
        if "nodes" in begun:
            report.leave_out("nodes in a file with traceEvents", shown)
        return events.finish()
    if "nodes" in begun:
        return nodes.finish()
    raise UserError(f'{shown}: neither a Kineto trace (no "traceEvents") nor an execution trace (no "nodes")')
