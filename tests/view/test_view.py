"""`phantora view`: what the page of the internet may read, when the server ends, and the mistakes."""

import gzip
import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from phantora.errors import UserError
from phantora.view.command import trace_of, view
from phantora.view.handover import UI_ORIGIN, HandoverServer
from phantora.view.offline import OfflineServer

TRACE = b"\x0a\x04\x40\x01\x50\x02" + bytes(range(256)) * 4000


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "trace.pftrace").write_bytes(TRACE)
    return folder


@pytest.fixture
def server(run):
    """A hand-over on a free port, in a thread of its own, and a function that asks it."""
    with HandoverServer(run / "trace.pftrace", port=0) as made:
        thread = threading.Thread(target=made.serve_once)
        thread.start()

        def ask(method, path, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", made.server_address[1], timeout=10)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer, body

        yield made, ask, thread
        made.is_done = True
        thread.join(timeout=10)


def test_the_page_gets_the_trace_once_and_the_server_ends(server):
    made, ask, thread = server
    answer, body = ask("GET", "/trace.pftrace", Origin=UI_ORIGIN)
    assert answer.status == 200 and body == TRACE
    assert answer.headers["Access-Control-Allow-Origin"] == UI_ORIGIN
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.parametrize("size", [100, len(TRACE)])
def test_who_hangs_up_before_the_end_has_not_fetched_it(server, size):
    made, ask, thread = server
    made.path.write_bytes(TRACE[:size])
    with socket.create_connection(("127.0.0.1", made.server_address[1])) as connection:
        host = f"127.0.0.1:{made.server_address[1]}"
        connection.sendall(f"GET /trace.pftrace HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        assert connection.recv(15) == b"HTTP/1.0 200 OK"
        time.sleep(0.3)  # for the rest to come: a reset says that it was not read
    thread.join(timeout=1.5)
    assert thread.is_alive() and not made.is_done
    assert ask("GET", "/trace.pftrace")[1] == TRACE[:size]
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "data,is_one",
    [
        (TRACE, True),
        (gzip.compress(TRACE), True),
        (b"", False),
        (b'{\n  "complete": true\n}', False),
        (gzip.compress(b'{"traceEvents": []}'), True),  # Chrome's, which the interface opens too
        (b'[{"ph": "X"}]', True),
        (b'"traceEvents"', False),
        (gzip.compress(TRACE)[:12], False),
        (b"\x1f\x8bnothing", False),
        (b"\n\nText after two empty lines", False),
        (b"\x0a\x04\x40", False),
        (b"\x0a" + b"\xff" * 40, False),
    ],
)
def test_what_is_a_perfetto_trace(tmp_path, data, is_one):
    file = tmp_path / "some file"
    file.write_bytes(data)
    if is_one:
        assert trace_of(file) == file
    else:
        with pytest.raises(UserError, match="is no Perfetto trace|is empty"):
            trace_of(file)


def test_browsers_may_ask_first(server):
    made, ask, thread = server
    answer, _ = ask("OPTIONS", "/trace.pftrace", Origin=UI_ORIGIN, **{"Access-Control-Request-Private-Network": "true"})
    assert answer.status == 204 and answer.headers["Access-Control-Allow-Private-Network"] == "true"
    answer, body = ask("HEAD", "/trace.pftrace")
    assert (answer.headers["Content-Length"], body) == (str(len(TRACE)), b"")
    assert thread.is_alive()


def test_nothing_else_is_served_and_no_other_page_may_read(server):
    made, ask, thread = server
    for path in ("/", "/../trace.pftrace", "/etc/passwd", "/trace.pftrace/x", "/summary.json"):
        assert ask("GET", path)[0].status == 404
    assert ask("GET", "/trace.pftrace", Host="evil.example")[0].status == 404  # a name that was made to point here
    answer, _ = ask("HEAD", "/trace.pftrace", Origin="https://evil.example")
    assert answer.headers["Access-Control-Allow-Origin"] == UI_ORIGIN  # the browser refuses it to others
    assert ask("POST", "/status")[0].status == 501
    assert thread.is_alive()


def test_addresses(run):
    with HandoverServer(run / "trace.pftrace", port=0) as made:
        port = made.server_address[1]
        assert made.page_url.startswith(f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{port}/trace.pftrace")


def test_mistakes(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such run: .*nothing"):
        trace_of(tmp_path / "nothing")
    with pytest.raises(UserError, match="no trace.pftrace: .*--no-perfetto"):
        trace_of(tmp_path)
    assert trace_of(run / "trace.pftrace") == run / "trace.pftrace"
    with pytest.raises(UserError, match="from port 9001 only"):
        view(run, offline=False, port=9002, open_browser=False, say=print)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install 'phantora\[view\]'"):
        view(run, offline=True, port=0, open_browser=False, say=print)


def test_a_port_that_is_taken(run):
    with HandoverServer(run / "trace.pftrace", port=0) as other:
        with pytest.raises(OSError):
            HandoverServer(run / "trace.pftrace", port=other.server_address[1])


def test_offline_serves_the_user_interface_and_the_trace(run, tmp_path):
    ui = tmp_path / "ui"
    (ui / "v1").mkdir(parents=True)
    (ui / "index.html").write_text("<html>")
    (ui / "v1" / "engine.wasm").write_bytes(b"wasm")
    (tmp_path / "secret").write_text("no")
    with OfflineServer(run / "trace.pftrace", ui, 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()

        def ask(path):
            connection = http.client.HTTPConnection("127.0.0.1", made.server_address[1], timeout=10)
            connection.putrequest("GET", path)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type"), answer.read()

        assert ask("/") == (200, "text/html", b"<html>")
        assert ask("/v1/engine.wasm") == (200, "application/wasm", b"wasm")
        assert ask("/localtrace") == (200, "application/octet-stream", TRACE)
        assert ask("/file_info") == ask("/vizviewer_info") == (200, "application/json", b"{}")
        for path in ("/../secret", "/%2e%2e/secret", "/v1", "/missing"):
            assert ask(path)[0] == 404
        made.shutdown()


def test_ctrl_c_ends_the_command_in_order(run):
    """From a terminal, with the user interface that is not there replaced by a hand-over on port 9001 or a taken
    port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phantora.cli", "view", "--no-browser", str(run)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    first = process.stderr.readline()
    if "port 9001" in first:
        assert process.wait(timeout=20) == 2
        pytest.skip("port 9001 is in use here")
    assert first.startswith("open https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/trace.pftrace")
    assert "waiting for the page" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == "ended\n"
    process.stderr.close()
