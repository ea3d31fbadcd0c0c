"""Texts of unknown length and content, made fit for messages and result files."""

from __future__ import annotations

import os

MAX_ERROR_BYTES = 20_000
"""Of an error text in messages and results; the rank's own log has the whole."""


def shortened(text: str, max_bytes: int = MAX_ERROR_BYTES) -> str:
    """`text` with its middle left out when it is longer: the head says where, the tail what."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode()
    half = max_bytes // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n... ({len(data) - max_bytes:,} bytes left out) ...\n{tail}"


def printable(text: str, max_chars: int = 200) -> str:
    """An argument of the command line (which may hold bytes that are no UTF-8), for one line of a message."""
    text = os.fsencode(text).decode("utf-8", "backslashreplace")
    return text if len(text) <= max_chars else f"{text[: max_chars // 2]}...{text[-max_chars // 2 :]}"
