"""What `phantora view` does: find the trace, serve it, open the browser, end."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

from phantora.errors import UserError
from phantora.view.handover import UI_PORT, HandoverServer
from phantora.view.offline import OfflineServer, ui_folder
from phantora.view.perfetto_file import is_perfetto

_TRACE = "trace.pftrace"


def view(run: Path, offline: bool, port: int | None, open_browser: bool, say: Callable[[str], None]) -> None:
    """Show the trace of `run` (a folder, or a trace) and return when it was handed over, or at Ctrl-C.

    UserError: no run, no trace, port taken, or no user interface for `offline`.
    """
    path = trace_of(run)
    if port is not None and not offline:
        raise UserError(
            f"--port {port}: ui.perfetto.dev takes traces from port {UI_PORT} only; --port goes with --offline"
        )
    server = _offline_server(path, port) if offline else _handover_server(path)
    with server:
        say(f"open {server.page_url}")
        if open_browser:  # in a thread: a browser of the terminal returns only when it is left
            threading.Thread(target=_open, args=(server.page_url, say), daemon=True).start()
        try:
            _serve(server, say)
        except KeyboardInterrupt:
            say("ended")


def trace_of(run: Path) -> Path:
    """The trace to show; UserError when there is none, or a file that is none."""
    if run.is_file():
        return _checked(run)
    if not run.is_dir():
        raise UserError(f"no such run: {run}")
    if not (run / _TRACE).is_file():
        hint = f"recorded with --no-perfetto (phantora export --format perfetto {run} makes one)"
        raise UserError(f"{run} has no {_TRACE}: it is no run, or one that was {hint}")
    return _checked(run / _TRACE)


def _checked(path: Path) -> Path:
    if not is_perfetto(path):
        what = "is no Perfetto trace" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {what}: give the folder of a run, or its {_TRACE}")
    return path


def _open(url: str, say: Callable[[str], None]) -> None:
    if not webbrowser.open_new_tab(url):
        say("no browser found here: open that address yourself")


def _serve(server: HandoverServer | OfflineServer, say: Callable[[str], None]) -> None:
    if isinstance(server, HandoverServer):
        say(
            "waiting for the page to fetch the trace (from another machine: "
            f"ssh -L {UI_PORT}:127.0.0.1:{UI_PORT} first); Ctrl-C ends"
        )
        server.serve_once()
        say("handed over")
    else:
        say("serving the trace and the user interface; Ctrl-C ends")
        server.serve_forever()


def _handover_server(path: Path) -> HandoverServer:
    try:
        return HandoverServer(path)
    except OSError as error:
        raise UserError(
            f"port {UI_PORT} of 127.0.0.1: {error.strerror}. ui.perfetto.dev takes traces from this port only: end "
            "what uses it (another phantora view, a trace_processor), or use --offline with --port"
        ) from None


def _offline_server(path: Path, port: int | None) -> OfflineServer:
    number = UI_PORT if port is None else port
    try:
        return OfflineServer(path, ui_folder(), number)
    except OSError as error:
        raise UserError(f"port {number} of 127.0.0.1: {error.strerror}; --port takes another, 0 a free one") from None
