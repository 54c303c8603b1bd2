"""A key is in the environment and nowhere else, whatever a server, a URL or an exception makes of it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote

import papermill
import pytest
from provider import error, question, says

from evalkit import Condition, Sample, Suite, fill, grid, guards, load_suite, open_model, plan, tool
from evalkit.models import Model, parse_reply
from evalkit.models.replay import Recording
from evalkit.records import ROOT, latest

GOLD = {sample.prompt: sample for sample in load_suite("docs_qa").samples}
IDS = sorted(sample.id for sample in GOLD.values())
GRADE = json.dumps({"correctness": 5, "key_fact_match": True, "hallucinated_specifics": False, "reason": "the same"})
AGENT, JUDGE = "anthropic:claude-haiku-4-5", "openai:gpt-5-mini"
HEADS = {  # how the keys of the providers that open_model names begin
    "anthropic": "sk-ant-api03-",
    "openai": "sk-proj-",
    "openrouter": "sk-or-v1-",
    "groq": "gsk_",
    "gemini": "AIzaSy",
    "cerebras": "csk-",
    "fireworks": "fw_",
}


def marked(head=""):
    """A key that opens nothing, put together here so that none stands in a file."""
    return f"{head}{uuid.uuid4().hex}"


def execute(folder, name, **parameters):
    """Run a notebook as papermill does; returns its text and, when it failed, the error papermill raised."""
    output = folder / f"{name}-{len(list(folder.glob('*.ipynb')))}.ipynb"
    try:
        papermill.execute_notebook(ROOT / "notebooks" / f"{name}.ipynb", output, parameters, progress_bar=False,
                                   log_output=True, execution_timeout=120, cwd=folder)  # fmt: skip
    except papermill.PapermillExecutionError as fault:
        return output.read_text("utf-8"), str(fault)
    return output.read_text("utf-8"), ""


def holding(secret, *places):
    """What holds the secret, as it is or as a URL or a header writes it: texts, and files in folders."""
    forms = [secret.encode(), quote(secret, safe="").encode(), base64.b64encode(f"user:{secret}".encode())]
    texts = [(place[:40], place.encode()) for place in places if isinstance(place, str)]
    files = [file for place in places if isinstance(place, Path) for file in place.rglob("*") if file.is_file()]
    found = texts + [(str(file), file.read_bytes()) for file in files]
    return [name for name, data in found if any(form in data for form in forms)]


def sick(secret):
    """A provider that repeats the key in one kind of error a question, and in some errors to the judge."""
    kinds = [
        error(400, f"bad key {secret}"),
        error(500, f"stack: headers={{'x-api-key': '{secret}'}}", after=0),
        error(404, f"no such page: /v1/messages?key={secret}"),
        error(429, f"slow down, http://user:{secret}@127.0.0.1/", after=0),
        (500, f"<html>{secret}</html>".encode(), {"retry-after": "0", "content-type": "text/html"}),
        (422, {"error": secret}, {}),
    ]

    def reply(body, number):
        text = question(body)
        if "<answer_to_grade>" in text:
            return kinds[len(text) % 6] if len(text) % 3 == 0 else says(GRADE)
        place = IDS.index(GOLD[text].id)
        return kinds[place] if body.get("tools") and place < len(kinds) else says(GOLD[text].gold["answer"])

    return reply


@pytest.fixture
def run_folder():
    folder = guards.run_dir(f"test-{uuid.uuid4().hex[:12]}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_key_that_errors_and_addresses_repeat_is_in_no_file_and_no_log(
    tmp_path, run_folder, provider, key, monkeypatch, caplog, capfd
):
    caplog.set_level("DEBUG")
    address = provider.url.removeprefix("http://")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://user:{key}@{address}")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://{address}/v1?key={key}")
    run = {"run_id": run_folder.name, "model": AGENT, "limit": 8, "record": str(tmp_path / "agent.jsonl")}

    provider.replies = lambda body, number: error(401, f"invalid x-api-key: {key}")
    text, fault = execute(tmp_path, "run", **run)
    assert "Stopped" in fault and "http_401" in fault and "NOT FINISHED" in text
    assert holding(key, fault) == [] and len(provider.requests) > 0

    provider.replies = sick(key)
    text, fault = execute(tmp_path, "run", **run, stop_when=0.9)
    assert fault == "" and "Finished: 10 of 16" in text, fault
    text, fault = execute(tmp_path, "judge", run_id=run_folder.name, judge=JUDGE, models=[AGENT],
                          record=str(tmp_path / "judge.jsonl"))  # fmt: skip
    assert fault == "" and "Finished" in text, fault
    text, fault = execute(tmp_path, "analyze", runs=[run_folder.name])
    said = capfd.readouterr()
    assert holding(key, ROOT / "results", tmp_path, caplog.text, said.out, said.err) == []

    assert fault == "" and "Finished" in text, fault
    mine = [row for row in latest(grid.read(run_folder / "traces.jsonl")[0]) if row.model == AGENT]
    assert sorted({row.failure.kind for row in mine if row.failure}) == [
        "http_400", "http_404", "http_422", "http_429", "http_500"
    ]  # fmt: skip
    verdicts = [v for v in grid.read(run_folder / "verdicts.jsonl")[0] if v.by == f"grade:{JUDGE}"]
    assert len(verdicts) == 10
    names = {file.name for file in [*run_folder.iterdir(), *tmp_path.iterdir()]}
    assert {"traces.jsonl", "verdicts.jsonl", "run.json", "report.html", "summary.json"} <= names
    assert {"agent.jsonl", "judge.jsonl", "run-0.ipynb", "run-1.ipynb", "judge-2.ipynb", "analyze-3.ipynb"} <= names


def test_a_key_in_an_address_that_cannot_be_parsed_is_not_in_the_notebook_that_fails(
    tmp_path, run_folder, key, monkeypatch, caplog
):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://user:{key}")  # the @ and what follows was forgotten
    text, fault = execute(tmp_path, "run", run_id=run_folder.name, model=AGENT, limit=1)
    assert fault and "NOT FINISHED" in text
    assert holding(key, ROOT / "results", tmp_path, fault, caplog.text) == []


def look(pattern: str) -> str:
    """Look a word up."""
    raise RuntimeError(f"GET http://127.0.0.1/?key={SECRET[0]} failed for {pattern}")


SECRET = [""]  # what the tool above repeats


def asked(*tools):
    """A suite of one question."""
    condition = Condition(name="open", tools=lambda sample: tools)
    return Suite(name="made", kind="made", path=Path("."), samples=(Sample(id="q", prompt="What is it?"),),
                 conditions=(condition,))  # fmt: skip


def rows(folder, suite, model):
    fill(folder / "traces.jsonl", plan(suite, model), grid.tracing("r", suite, model))
    return grid.read(folder / "traces.jsonl")[0]


def test_a_key_in_the_exception_of_a_tool_is_not_in_its_trace_nor_in_what_is_asked_next(
    tmp_path, provider, key, monkeypatch
):
    monkeypatch.setitem(globals(), "SECRET", [key])
    provider.replies = lambda body, number: says("No.") if number else says(calls=[("a", "look", {"pattern": "x"})])
    model = open_model(AGENT, base_url=provider.url, record=str(tmp_path / "record.jsonl"))
    (row,) = rows(tmp_path, asked(tool(look)), model)
    assert row.failure is None and len(row.steps) == 1 and not row.steps[0].ok
    assert holding(key, tmp_path, json.dumps(provider.requests[-1].body)) == []


class Broken(Model):
    name = "script:broken"

    def ask(self, prompt):
        raise RuntimeError(f"Illegal header value b'Bearer {SECRET[0]}'")


def test_a_key_in_an_exception_of_an_adapter_is_not_in_its_trace(tmp_path, key, monkeypatch):
    monkeypatch.setitem(globals(), "SECRET", [key])
    (row,) = rows(tmp_path, asked(), Recording(Broken(), str(tmp_path / "record.jsonl")))
    assert row.failure.where == "agent" and row.failure.kind == "RuntimeError"
    assert holding(key, tmp_path) == []


@pytest.mark.parametrize("head", [*HEADS.values(), ""], ids=[*HEADS, "without a shape"])
@pytest.mark.parametrize("end", ["", "\n"], ids=["", "with a line end"])
def test_a_key_of_any_shape_is_cut_out_of_what_a_provider_and_its_sdk_say(
    tmp_path, provider, key, monkeypatch, head, end
):
    secret = marked(head)
    monkeypatch.setenv("OPENAI_API_KEY", secret + end)  # with a line end the SDK refuses the header and names it
    monkeypatch.setattr("evalkit.models.time.sleep", lambda seconds: None)
    provider.replies = lambda body, number: error(400, f"no: {secret}")
    model = open_model(JUDGE, base_url=provider.url, record=str(tmp_path / "record.jsonl"))
    (row,) = rows(tmp_path, asked(), model)
    assert row.failure is not None and holding(secret, tmp_path) == []


@pytest.mark.parametrize("wire", ["anthropic", "openai"])
def test_a_key_in_an_error_that_came_with_status_200_is_cut_out(key, wire):
    with pytest.raises(RuntimeError) as fault:
        parse_reply({"type": "error", "error": {"type": "overloaded_error", "message": f"no: {key}"}}, wire)
    assert holding(key, str(fault.value), fault.value.detail) == [] and "overloaded_error" in str(fault.value)


def test_a_key_given_as_a_parameter_is_refused_before_any_call_and_the_error_names_the_file(tmp_path, provider, key):
    run_id, output = f"test-{uuid.uuid4().hex[:12]}", tmp_path / "refused.ipynb"
    address = provider.url.replace("http://", f"http://user:{key}@")
    words = [sys.executable, "-m", "papermill", ROOT / "notebooks" / "run.ipynb", output, "--no-progress-bar",
             "--execution-timeout", "120", "-p", "run_id", run_id, "-p", "model", AGENT, "-p", "limit", "1",
             "-p", "base_url", address]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "base_url" in said and "secret" in said and "delete" in said
    assert provider.requests == [] and not guards.run_dir(run_id).exists()
    assert key not in said and "NOT FINISHED" in output.read_text()
    assert output.name in said, "the error names the file to delete"


def refusal(name, value):
    """What guards.parameters says to a value that papermill injected into run.ipynb's parameters."""
    scope = {"__annotations__": {"model": str, "base_url": str, "conditions": list}, "model": "", "base_url": "",
             "conditions": [], "In": [f"# Parameters\n{name} = {value!r}\n"]}  # fmt: skip
    with pytest.raises(ValueError, match=rf"'{name}'.*secret.*delete") as fault:
        guards.parameters(scope)
    return str(fault.value)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("form", ["{}", "http://user:{}@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key={}"])
def test_a_parameter_of_the_shape_of_a_key_is_refused_wherever_it_stands_in_the_value(head, form):
    secret = marked(head)
    assert secret not in refusal("base_url", form.format(secret)) + refusal("conditions", [form.format(secret)])


@pytest.mark.parametrize("form", ["{}", "http://user:{}@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key={}"])
def test_a_parameter_that_holds_a_key_of_the_environment_is_refused_whatever_its_shape(monkeypatch, form):
    secret = marked()
    monkeypatch.setenv("MISTRAL_API_KEY", secret)
    assert secret not in refusal("base_url", form.format(secret))
