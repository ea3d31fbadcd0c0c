"""Chakra traces in a tar archive: unpacked into a folder that goes away after they were read."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from phantora.errors import UserError
from phantora.importers.report import ImportReport

_TRACES, _GROUPS = (".et", ".et.gz"), "comm_groups.json"
_MAX_MEMBERS, _MAX_BYTES = 100_000, 1 << 36
_SUFFIXES = (".tar", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether this is a tar archive, by its name."""
    return path.name.lower().endswith(_SUFFIXES) and path.is_file()


@contextmanager
def unpacked(path: Path, report: ImportReport) -> Iterator[Path]:
    """A folder with the traces of the archive. What else is in it is counted as left out.

    UserError: not a readable archive, no traces in it, traces of several folders. UserErrors of the block name the
    archive instead of the folder.
    """
    with tempfile.TemporaryDirectory(prefix="phantora-") as name:
        try:
            _unpack(path, Path(name), report)
            yield Path(name)
        except UserError as error:
            raise UserError(str(error).replace(f"{name}/", f"{path}!").replace(name, str(path))) from None


def _unpack(path: Path, folder: Path, report: ImportReport) -> None:
    homes: dict[str, None] = {}
    total = 0
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                place = PurePosixPath(member.name)
                if not member.isfile():
                    continue
                if not (place.name.endswith(_TRACES) or place.name == _GROUPS) or place.name.startswith("._"):
                    report.leave_out("members of archives that are no Chakra traces (.et)", f"{path}!{member.name}")
                    continue
                total += member.size
                if number >= _MAX_MEMBERS or total > _MAX_BYTES:
                    raise UserError(f"{path}: more than {_MAX_MEMBERS} members or {_MAX_BYTES >> 30} GiB of traces")
                if place.name != _GROUPS:
                    homes[str(place.parent)] = None
                    if len(homes) > 1:
                        raise UserError(f"{path}: holds traces in several folders: {', '.join(sorted(homes))}")
                content = archive.extractfile(member)
                assert content is not None
                with content, (folder / place.name).open("wb") as target:
                    shutil.copyfileobj(content, target)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a readable archive: {error}") from None
    if not homes:
        raise UserError(f"{path}: the archive holds no Chakra traces (.et)")
