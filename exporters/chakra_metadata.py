"""GlobalMetadata of a recorded rank's trace: beside the nodes, everything that it takes to read the run back as it was.

Columns (phantora.trace.tables) are `sint64_list` attributes of differences, each to the value before; plain values are
one JSON text. The first rank's file also has what all ranks share. The last attribute is the CRC-32 of all other bytes
of the file: whoever edits nodes need not keep the tables right, a reader sees that they no longer speak of the same
file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from phantora.exporters import chakra_schema as schema
from phantora.exporters.protobuf_rows import varint

from phantora.cluster.plain import as_plain
from phantora.cluster.spec import Cluster
from phantora.trace.model import RankTrace, Run
from phantora.trace.tables import Columns, rank_tables, run_tables

CRC_BYTES = 4


def write_metadata(run: Run, trace: RankTrace, file: BinaryIO) -> int:
    """Write the first message of a rank's file; the offset of its CRC, which `seal` fills in."""
    metadata = schema.GlobalMetadata(version=schema.SCHEMA_VERSION)
    metadata.attr.add(name="rank", int64_val=trace.rank)
    metadata.attr.add(name="world_size", int64_val=run.world_size)
    metadata.attr.add(name="nproc_per_node", int64_val=run.nproc_per_node)
    metadata.attr.add(name="host_end_ns", int64_val=trace.host_end_ns)
    _add_tables(metadata, "host", *rank_tables(trace))
    if trace is run.ranks[0]:
        cluster = as_plain(run.cluster) if isinstance(run.cluster, Cluster) else str(run.cluster)
        _add_tables(metadata, "run", *run_tables(run, cluster))
    metadata.attr.add(name="crc32", fixed32_val=0)
    message = metadata.SerializeToString()
    frame = varint(len(message)) + message
    file.write(frame)
    return len(frame) - CRC_BYTES


def seal(path: Path, crc_at: int) -> None:
    """Fill in the CRC of all bytes but its own."""
    with path.open("r+b") as file:
        crc = zlib.crc32(file.read(crc_at))
        file.seek(crc_at + CRC_BYTES)
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
        file.seek(crc_at)
        file.write(crc.to_bytes(CRC_BYTES, "little"))


def _add_tables(metadata: Any, name: str, columns: Columns, plain: Mapping[str, Any]) -> None:
    metadata.attr.add(name=name, string_val=json.dumps(plain, separators=(",", ":")))
    for column, values in columns.items():
        differences = np.diff(values, prepend=0) if len(values) else values
        metadata.attr.add(name=column).sint64_list.values.extend(differences.tolist())
