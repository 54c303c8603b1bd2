"""JupyterLab and the report in a real Chromium: what a person sees, clicks and interrupts."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import papermill
import pytest
from provider import Provider, question, says
from rows import write_run

from evalkit import browse, fill, frontier, grid, guards, load_suite, open_model, plan, report, scoring
from evalkit.records import CONTROLS, ROOT, latest

CHROMIUM = "/usr/bin/chromium"
pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
GOLD = {sample.prompt: sample for sample in load_suite("docs_qa").samples}
HAIKU = "anthropic:claude-haiku-4-5"
ERRORS = '[data-mime-type="application/vnd.jupyter.error"], [data-mime-type="application/vnd.jupyter.stderr"]'


def until(true, seconds=60):
    """Wait until it is true and return what it is; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, f"nothing happened in {seconds} s"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def measured():
    """A run of its own: extractive: and the controls on four questions, scored by the rules."""
    folder, suite = guards.run_dir(f"test-{uuid.uuid4().hex[:12]}"), load_suite("docs_qa")
    for name in ("extractive:", *CONTROLS):
        model = open_model(name)
        work = grid.tracing(folder.name, suite, model)
        fill(folder / "traces.jsonl", plan(suite, model, limit=4), work, who=name)
    traces = latest(grid.read(folder / "traces.jsonl")[0])
    fill(folder / "verdicts.jsonl", scoring.owed(suite, traces), scoring.verdict, workers=1, who="rules")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def slow():
    """A provider that takes its time: an agent that searches once, then gives the gold."""

    def reply(body, number):
        asks = body.get("tools") and not any(message["role"] == "assistant" for message in body["messages"])
        call = ("call-1", "grep_index", {"pattern": "timeout"})
        return says(calls=[call]) if asks else says(GOLD[question(body)].gold["answer"])

    with Provider(reply, delay=0.15) as server:
        yield server


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab over copies of the notebooks: (address, folder); its kernels have a key that opens nothing."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for plugin, settings in {
        "notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }.items():
        file = home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
    (home / "config" / "labconfig").mkdir(parents=True)
    (home / "config" / "labconfig" / "page_config.json").write_text(
        json.dumps({"disabledExtensions": {"@jupyterlab/debugger-extension": True}})  # it races with a new kernel
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "JUPYTER"))}
    environment |= {
        "ANTHROPIC_API_KEY": "-".join(["sk", "ant", "marked", uuid.uuid4().hex]), "NO_PROXY": "127.0.0.1",
        "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }  # fmt: skip
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
             f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}",
             "--IdentityProvider.token=", "--ServerApp.password=", '--LabApp.news_url=""']  # fmt: skip
    with open(home / "log", "wb") as log:
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def up():
        assert server.poll() is None, (home / "log").read_text()[-3000:]
        try:
            return opener.open(f"{url}/api/status", timeout=5).status == 200
        except OSError:
            return False

    try:
        until(up)
        yield url, folder
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(5)


def set_parameters(file, **values):
    """Write values into the parameters cell of a copied notebook, as a person does by hand."""
    notebook = json.loads(file.read_text("utf-8"))
    cell = next(c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", ()))
    source = "".join(cell["source"])
    for name, value in values.items():
        source, count = re.subn(rf"(?m)^({name}: \w+ = ).*?(  #)", lambda m, v=value: f"{m[1]}{v!r}{m[2]}", source)
        assert count == 1, name
    cell["source"] = source
    file.write_text(json.dumps(notebook), "utf-8")


@pytest.fixture
def window(chromium):
    """window(**context) -> a page, whose faults are kept in page.faults and whose addresses in page.asked."""
    contexts = []

    def begin(**options):
        context = chromium.new_context(viewport={"width": 1400, "height": 1000}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.faults, page.asked = [], []
        page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda fault: page.faults.append(str(fault)))
        page.on("requestfailed", lambda request: page.faults.append(f"{request.url}: {request.failure}"))
        page.on("request", lambda request: page.asked.append(request.url))
        return page

    yield begin
    for context in contexts:
        context.close()


def opened(page, lab, name):
    """Open a notebook in Lab and wait for its kernel."""
    page.goto(f"{lab[0]}/lab/tree/{name}?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")
    idle(page)


def idle(page):
    page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for(
        timeout=60_000
    )


def prompts(page):
    return page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()


def run_all(page):
    """Run > Run All Cells; once more when Lab, whose kernel has just connected, has forgotten what it was told."""
    before = prompts(page)
    for _ in range(3):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if prompts(page) != before:
                return
            page.wait_for_timeout(50)
    raise AssertionError("Lab runs no cell")


def stays_here(page):
    return {address.split("/")[2].partition(":")[0] for address in page.asked if "://" in address} <= {"127.0.0.1"}


@pytest.mark.browser
def test_explore_filters_the_traces_of_a_run_and_opens_one(lab, measured, window, tmp_path):
    set_parameters(lab[1] / "explore.ipynb", run_id=measured.name)
    page = window()
    opened(page, lab, "explore.ipynb")
    run_all(page)
    traces = page.locator(".widget-select select")
    traces.wait_for(timeout=60_000)
    rows = report.rows(measured)

    def listed():
        return [text.replace("\xa0", " ") for text in traces.locator("option").all_inner_texts()]

    def choose(name, value):
        labelled = page.locator(".widget-label", has_text=re.compile(f"^{name}$"))
        page.locator(".widget-dropdown", has=labelled).locator("select").select_option(value)

    def becomes(wanted):
        until(lambda: listed() == [browse.label(row) for row in wanted], 20)

    becomes(rows)
    choose("condition", "index_grep")
    some = [row for row in rows if row[0].condition == "index_grep"]
    becomes(some)
    choose("outcome", "answered")
    fewer = [row for row in some if row[0].stop == "answered"]
    becomes(fewer)
    assert 1 < len(fewer) < len(some) < len(rows)

    row = next(row for row in fewer if row[0].model == "extractive:" and row[0].steps)
    traces.select_option(index=fewer.index(row))
    shown = page.locator(".widget-html .evalkit").first
    shown.get_by_text(row[1].prompt, exact=True).wait_for()
    steps = shown.locator("details")
    assert steps.count() == len(row[0].steps)
    steps.first.locator("summary").click()
    assert steps.first.locator("pre").is_visible() and row[0].steps[0].call.name in steps.first.inner_text()
    assert row[1].gold["answer"] in shown.inner_text()
    beside = page.get_by_text("the same question under the other conditions", exact=True)
    assert beside.is_visible()
    page.screenshot(path=tmp_path / "explore.png")

    def narrowed(word):
        return [one for one in fewer if word.lower() in " ".join(
            [one[0].answer, one[1].prompt, *(step.result for step in one[0].steps)]).lower()]  # fmt: skip

    word = next(w for w in row[1].prompt.split() if row in narrowed(w) and len(narrowed(w)) < len(fewer))
    search = page.locator(".widget-text input")
    search.fill(word.upper())
    search.press("Enter")
    becomes(narrowed(word))
    search.fill("no trace says this")
    search.press("Enter")
    becomes([])
    page.get_by_text("no trace matches").wait_for()
    idle(page)
    assert page.locator(ERRORS).all_inner_texts() == [] and page.faults == [] and stays_here(page)


@pytest.mark.browser
def test_a_filter_closes_the_open_trace_and_what_stood_beside_it(measured):
    filters, pick, one, beside = browse.browser(measured).children
    pick.index = 0
    assert "evalkit" in one.value and "evalkit" in beside.value
    filters.children[-1].value = "no trace says this"
    assert "no trace matches" in one.value and beside.value == ""


@pytest.mark.browser
def test_a_run_interrupted_by_hand_is_safe_and_run_again_it_completes(lab, slow, window, run_id, tmp_path):
    path = guards.run_dir(run_id) / "traces.jsonl"
    set_parameters(lab[1] / "run.ipynb", run_id=run_id, model=HAIKU, base_url=slow.url, limit=8, workers=2)
    page = window()
    opened(page, lab, "run.ipynb")
    run_all(page)
    until(lambda: len(slow.requests) >= 8)
    page.locator(".jp-Notebook .jp-Cell .jp-InputPrompt").first.click()  # command mode
    page.keyboard.press("i")
    page.keyboard.press("i")
    page.locator(ERRORS, has_text="KeyboardInterrupt").first.wait_for()
    idle(page)
    banner = page.locator(".jp-Notebook .jp-OutputArea-output").first
    assert "NOT FINISHED" in banner.inner_text()
    quiet = len(slow.requests)
    rows, problems = grid.read(path)
    mine = [row for row in rows if row.model == HAIKU]
    assert problems == [] and 0 < len(mine) < 16 and not any(row.failure for row in mine)

    run_all(page)
    page.get_by_text("Finished: 16 of 16 cells measured, 0 failed").first.wait_for(timeout=60_000)
    idle(page)
    page.screenshot(path=tmp_path / "run.png")
    assert "Finished" in banner.inner_text() and "NOT FINISHED" not in page.locator(".jp-Notebook").inner_text()
    assert page.locator(ERRORS).all_inner_texts() == [] and page.faults == [] and stays_here(page)

    rows, problems = grid.read(path)
    first = sorted(sample.id for sample in GOLD.values())[:8]
    cells = {(m, c, s) for m in (HAIKU, *CONTROLS) for c in ("closed_book", "index_grep") for s in first}
    assert problems == [] and len(rows) == len(latest(rows)) == len(cells)
    assert {(row.model, row.condition, row.sample_id) for row in rows if not row.failure} == cells
    assert mine == [row for row in rows if row.model == HAIKU][: len(mine)], "what was finished stands as it was"
    said = Counter(json.dumps([r.body.get("system"), r.body["messages"]]) for r in slow.requests)
    assert set(said.values()) == {1} and len(slow.requests) == 3 * len(first) > quiet


@pytest.fixture(scope="module")
def page_of_the_report(measured, tmp_path_factory):
    papermill.execute_notebook(ROOT / "notebooks" / "analyze.ipynb", tmp_path_factory.mktemp("out") / "analyze.ipynb",
                               {"runs": [measured.name]}, progress_bar=False, execution_timeout=120)  # fmt: skip
    return measured / "report.html"


CONTRAST = """() => {
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * linear(c[i] / 255), 0);
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const ratio = e => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const read = [...document.querySelectorAll("h1, h2, p, p span, th, td, summary, summary span, pre")];
  return {dark: light(behind(document.body)) < 0.2, least: Math.min(...read.map(ratio)), elements: read.length};
}"""
EMPTY = """() => [...document.querySelectorAll("svg g[id^=axes_]")].filter(
  g => ![...g.children].some(child => child.querySelector("image")
    || /^(line2d|text|patch_([89]|[1-9]\\d)|Poly|Path|Line)/.test(child.id))).length"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_from_disk_without_a_network_sorts_and_unfolds(page_of_the_report, window, tmp_path, scheme):
    page = window(color_scheme=scheme)
    page.context.set_offline(True)
    page.goto(page_of_the_report.as_uri())
    page.screenshot(path=tmp_path / f"report-{scheme}.png", full_page=True)
    seen = page.evaluate(CONTRAST)
    assert seen["dark"] == (scheme == "dark") and seen["elements"] > 50 and seen["least"] >= 4.5
    assert page.locator("svg").count() >= 2 and page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    table = page.locator("table", has=page.locator("th", has_text=re.compile("^estimate$"))).last
    heads = table.locator("th").all_inner_texts()
    assert table.locator("tbody tr").count() == 8

    def column(name):
        return [row.locator("td").nth(heads.index(name)).inner_text() for row in table.locator("tbody tr").all()]

    for name, kind in {"estimate": float, "high": float, "model": str}.items():
        before, whole = list(map(kind, column(name))), sorted(table.locator("tbody tr").all_inner_texts())
        head = table.locator("th", has_text=re.compile(f"^{name}$"))
        head.click()
        assert list(map(kind, column(name))) == sorted(before)
        head.click()
        assert list(map(kind, column(name))) == sorted(before, reverse=True)
        assert sorted(table.locator("tbody tr").all_inner_texts()) == whole

    trace = page.locator("body > details", has_text="extractive:").filter(has_text="index_grep").first
    prompt = trace.locator("> p").first
    assert not prompt.is_visible()
    trace.locator("> summary").click()
    assert prompt.is_visible() and prompt.inner_text() in GOLD
    step = trace.locator("> details").first
    step.locator("summary").click()
    assert step.locator("pre").is_visible() and step.locator("pre").inner_text().strip()
    trace.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / f"trace-{scheme}.png")
    assert page.faults == [] and {address.split(":")[0] for address in page.asked} <= {"file", "data", "blob"}


@pytest.mark.browser
def test_no_figure_of_the_report_is_an_empty_box(page_of_the_report, window):
    page = window()
    page.goto(page_of_the_report.as_uri())
    assert page.locator("svg g[id^=axes_]").count() >= 2 and page.evaluate(EMPTY) == 0


@pytest.fixture
def site(tmp_path):
    """Two snapshots of the frontier: (folder, page of the first as it was written)."""
    half, most, few = [1, 0] * 5, [1] * 9 + [0], [1] + [0] * 9
    arms = ("vendor:good_$1", most, 0.05), ("vendor:cheap", half, 0.01), ("vendor:<b>poor</b>", few, 0.2)
    free, none = ("local:free", half, 0.0), ("vendor:wrong", [0] * 10, 0.3)
    run = write_run(tmp_path / "r", *arms, free, none, ("script:oracle", [1] * 10, 0.0))
    page = frontier.export([run], tmp_path / "site", name="first")
    first = tmp_path / "first.html"
    shutil.copy(page, first)
    later = write_run(tmp_path / "s", ("vendor:new", most, 0.02), at="2025-05-01T10:00:00+00:00")
    frontier.export([run, later], tmp_path / "site")
    return tmp_path / "site", first


def cells(page, column):
    heads = page.locator("#table th").all_inner_texts()
    return [row.locator("td").nth(heads.index(column)).inner_text() for row in page.locator("#table tr").all()[1:]]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_frontier_opens_from_disk_without_a_network_with_a_dot_for_every_priced_arm(site, window, scheme, tmp_path):
    page = window(color_scheme=scheme)
    page.context.set_offline(True)
    page.goto(site[1].as_uri())
    page.screenshot(path=tmp_path / "frontier.png", full_page=True)
    assert page.locator("circle").count() == 3 and page.locator("polyline").count() == 1
    joined = page.locator("polyline").get_attribute("points").split()
    dots = [f"{c.get_attribute('cx')},{c.get_attribute('cy')}" for c in page.locator("circle").all()]
    assert len(joined) == 2 and set(joined) < set(dots)
    words = set(page.locator("svg text").all_text_contents())
    assert {"vendor:good_$1", "vendor:cheap", "vendor:<b>poor</b>", "script:oracle", "USD per right answer"} <= words
    assert {"local:free", "vendor:wrong"}.isdisjoint(words) and page.locator("b").count() == 0
    said = dict(zip(cells(page, "agent"), cells(page, "USD each"), strict=True))
    assert (said["local:free"], said["vendor:wrong"]) == ("not priced", "none right") and len(said) == 5
    assert said["vendor:good_$1"].startswith("0.0556 (0.05") and said["vendor:<b>poor</b>"].endswith("to ∞)")
    assert [cells(page, "right")[n] for n in (0, -1)] == ["9 of 10", "0 of 10"]

    page.locator("#unit").select_option("seconds")
    assert page.locator("circle").count() == 4 and page.get_by_text("seconds per right answer").count() == 1
    assert not page.locator("#pick").is_visible()  # no other snapshot can be read from disk
    seen = page.evaluate(CONTRAST)
    assert seen["dark"] == (scheme == "dark") and seen["least"] >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.faults == [] and page.asked == [site[1].as_uri()]


class Files(SimpleHTTPRequestHandler):
    log_message = staticmethod(lambda *line: None)


@pytest.fixture
def address(site):
    """Where the snapshots are served, with a page that is older than the latest of them."""
    shutil.copy(site[1], site[0] / "index.html")
    (site[0] / "favicon.ico").touch()  # which a browser asks for by itself
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=site[0])) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.mark.browser
def test_the_frontier_served_follows_the_latest_snapshot_and_lists_them_all(address, window):
    page = window()
    page.goto(address)
    page.locator("#snapshot").wait_for()
    assert "snapshot 2025-05-01" in page.locator("#about").inner_text()
    assert page.locator("#snapshot option").all_inner_texts() == ["first", "2025-05-01"]
    assert page.locator("#snapshot").input_value() == "2025-05-01" and page.locator("circle").count() == 4
    page.locator("#snapshot").select_option("first")
    page.locator("#about", has_text="snapshot first").wait_for()
    assert page.locator("circle").count() == 3 and "vendor:new" not in page.locator("#chart").inner_text()
    assert page.faults == [] and stays_here(page)
