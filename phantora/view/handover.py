"""Hands a file over to https://ui.perfetto.dev: served on 127.0.0.1 until that page has fetched it once.

The page takes `?url=http://127.0.0.1:9001/...`; its content security policy allows this one local address and no other.
Source: Perfetto, docs/visualization/deep-linking-to-perfetto-ui.md and tools/open_trace_in_ui. The trace does not leave
the machine: the page reads it in the browser.
"""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import sys
import urllib.parse
from pathlib import Path

UI_ORIGIN = "https://ui.perfetto.dev"
UI_PORT = 9001
_HANG_UP_S = 60.0


class HandoverServer(http.server.ThreadingHTTPServer):
    """Serves one file under its name. is_done: it was fetched to the end."""

    daemon_threads = True
    allow_reuse_address = True  # an earlier hand-over may linger in TIME_WAIT; a live server still makes this fail

    def __init__(self, path: Path, port: int = UI_PORT) -> None:
        """OSError when the port is taken; port 0: a free one (for tests)."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.path = path
        self.is_done = False
        self.timeout = 0.5

    @property
    def trace_url(self) -> str:
        """Where the trace is."""
        return f"http://127.0.0.1:{self.server_address[1]}/{urllib.parse.quote(self.path.name)}"

    @property
    def page_url(self) -> str:
        """The page that fetches it."""
        return f"{UI_ORIGIN}/#!/?url={self.trace_url}&referrer=open_trace_in_ui"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no error of ours; anything else is, and is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def serve_once(self) -> None:
        """Returns when the file was fetched."""
        while not self.is_done:
            self.handle_request()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HandoverServer

    def do_GET(self) -> None:
        size = self._send_head()
        if size:
            with self.server.path.open("rb") as file:
                shutil.copyfileobj(file, self.wfile, 1 << 20)
                is_whole = file.tell() == size
            self.wfile.flush()
            self._await_hang_up()
            self.server.is_done |= is_whole

    def _await_hang_up(self) -> None:
        """What was written may still be in buffers: who hangs up with unread bytes resets (ConnectionResetError), who
        has read all closes. One that stays connected has at least been sent everything.
        """
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(_HANG_UP_S)
        with contextlib.suppress(TimeoutError):
            while self.connection.recv(1 << 12):
                pass

    def do_HEAD(self) -> None:
        self._send_head()

    def do_OPTIONS(self) -> None:
        """Browsers ask before a page of the internet may read from this machine."""
        self.send_response(204)
        self._allow_page()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.send_header("Access-Control-Allow-Headers", "*")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _send_head(self) -> int:
        """The bytes of the one file if it was asked for, by this machine's name (another name is a page that tries to
        get at it); else 0."""
        port = self.server.server_address[1]
        is_local = self.headers.get("Host", "") in (f"127.0.0.1:{port}", f"localhost:{port}")
        wanted = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path) == f"/{self.server.path.name}"
        if not (is_local and wanted):
            self.send_error(404)
            return 0
        size = self.server.path.stat().st_size
        self.send_response(200)
        self._allow_page()
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return size

    def _allow_page(self) -> None:
        self.send_header("Access-Control-Allow-Origin", UI_ORIGIN)
        self.send_header("Vary", "Origin")

    def log_message(self, *args: object) -> None:
        """Nothing: the command says what there is to say."""
