"""Trace files as streams: plain, gzip, and the members of a tar archive."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from phantora.errors import UserError
from phantora.importers.report import ImportReport

_TRACES = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz")
_MAX_MEMBERS = 100_000
_TAR_MAGIC_AT, _TAR_MAGIC = 257, b"ustar"


def open_sources(files: Iterable[str | Path], report: ImportReport) -> Iterator[tuple[str, BinaryIO]]:
    """(name in messages, stream) of every JSON text in `files`, in order. UserError for what cannot be opened."""
    for path in _files(files, report):
        try:
            plain = path.open("rb")
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        with plain:
            yield from _unpacked(plain, str(path), report)


def _files(files: Iterable[str | Path], report: ImportReport) -> Iterator[Path]:
    """The files, and in order of names the traces in folders."""
    for file in files:
        path = Path(file)
        if not path.is_dir():
            yield path
            continue
        try:
            inside = sorted(entry for entry in path.iterdir() if entry.is_file())
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        traces = [entry for entry in inside if entry.name.endswith(_TRACES) and not entry.name.startswith("._")]
        if not traces:
            raise UserError(f"{path}: the folder holds no trace ({', '.join(_TRACES)})")
        for entry in inside:
            if not entry.name.endswith(_TRACES) or entry.name.startswith("._"):
                report.leave_out("files of folders that are no traces by their name", str(entry))
        yield from traces


def _unpacked(file: BinaryIO, shown: str, report: ImportReport) -> Iterator[tuple[str, BinaryIO]]:
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 18) if is_packed else file  # type: ignore[type-var]
    if _is_tar(stream, shown):
        stream.seek(0)
        yield from _members(stream, shown, report)
    else:
        stream.seek(0)
        yield shown, stream  # type: ignore[misc]


def _is_tar(stream: BinaryIO | io.BufferedReader, shown: str) -> bool:
    try:
        head = stream.read(_TAR_MAGIC_AT + len(_TAR_MAGIC))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{shown}: cannot be unpacked: {error}") from None
    return head[_TAR_MAGIC_AT:] == _TAR_MAGIC


def _members(stream: BinaryIO | io.BufferedReader, shown: str, report: ImportReport) -> Iterator[tuple[str, BinaryIO]]:
    num_found = 0
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= _MAX_MEMBERS:
                    raise UserError(f"{shown}: more than {_MAX_MEMBERS} members")
                name = f"{shown}!{member.name}"
                if not member.isfile():
                    continue
                if not member.name.endswith((".json", ".json.gz")) or Path(member.name).name.startswith("._"):
                    report.leave_out("members of archives that are no JSON files", name)
                    continue
                content = archive.extractfile(member)
                assert content is not None
                num_found += 1
                with content:
                    packed = content.read(2) == b"\x1f\x8b"
                    content.seek(0)
                    yield name, gzip.GzipFile(fileobj=content) if packed else content  # type: ignore[misc]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{shown}: not a readable archive: {error}") from None
    if not num_found:
        raise UserError(f"{shown}: the archive holds no .json file")
