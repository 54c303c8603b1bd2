"""Somebody else's agent as a real process and a real server: what it says is measured, what it breaks is a failure."""

import json
import os
import shlex
import sys
import threading
import time
import tracemalloc
import uuid
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from evalkit import Condition, Sample, Suite, fill, grid, plan
from evalkit.external import AgentError, Response, open_agent, plain, run
from evalkit.records import Reply

AGENTS = Path(__file__).parent / "agents"
BARE = Condition(name="external")
ASKED = {"protocol": "evalkit-agent/1", "suite": "desk", "sample_id": "d-1", "input": "Refund 30.", "repeat": 0}
GOOD = '{"outcome": "refuse", "actions_attempted": [], "actions_executed": [], "submitted": true}'


def command(code, folder, **options):
    """A Python agent of this code."""
    file = folder / "an agent.py"
    file.write_text(code, "utf-8")
    return open_agent(f"command:{shlex.join([sys.executable, '-S', str(file)])}", **options)


def shell(code, **options):
    return open_agent(f"command:{shlex.join(['sh', '-c', code])}", **options)


def measure(agent, prompt="Refund 30.", **gold):
    return run(Sample(id="d-1", prompt=prompt, gold=gold), agent, BARE, "desk")


def kind(agent):
    """The code of the failure that a measurement of this agent is, which holds no answer."""
    trace = measure(agent)
    assert (trace.stop, trace.answer, trace.submission, trace.failure.where) == ("failed", "", None, "agent")
    return trace.failure.kind


def alive(mark):
    """Processes that were started with this mark, after those that were killed had a moment to go."""
    for _ in range(100):
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        if not found:
            break
        time.sleep(0.02)
    return found


@pytest.fixture
def mark():
    """An argument of `sleep` that no other process has; what still sleeps by then is ended after the test."""
    text = f"59.{uuid.uuid4().int % 10**12:012d}"
    yield text
    for process in alive(text):
        process.kill()


# --- a command ------------------------------------------------------------------------------------------------------


def test_an_answer_becomes_a_trace(tmp_path):
    code = (
        "import json, sys; r = json.load(sys.stdin); print('a log', file=sys.stderr);"
        "print(json.dumps({'answer': 'It is 30, see https://a.example/x.', 'citations': ['lib/a.py', 'https://a.example/x'],"
        "'usage': {'input': 7, 'output': 2, 'cost': 0.1}, 'thoughts': ['none']}))"
    )
    agent = command(code, tmp_path)
    trace = measure(agent)
    assert (trace.stop, trace.failure, trace.suite, trace.condition) == ("answered", None, "desk", "external")
    assert trace.answer == "It is 30, see https://a.example/x."
    assert [c.url or c.path for c in trace.citations] == ["https://a.example/x", "lib/a.py"]
    assert (trace.usage.input, trace.usage.output, trace.notes) == (7, 2, {"stderr": "a log\n"})
    assert trace.model == agent.name
    assert trace.model.startswith("command:")
    assert 0 < trace.seconds < 30


@pytest.mark.parametrize(
    ("said", "stop"),
    [
        (GOOD, "submitted"),
        ('{"outcome": "refuse", "submitted": false}', "answered"),
        ('{"submitted": false}', "abstained"),
        ('{"answer": "I do not know.", "submitted": true}', "abstained"),
    ],
)
def test_how_a_run_ended_is_what_the_agent_says(said, stop):
    assert measure(shell(f"echo '{said}'")).stop == stop


def test_the_request_is_the_contract_and_holds_nothing_expected(tmp_path):
    agent = command("import json, sys; print(json.dumps({'answer': sys.stdin.read()}))", tmp_path)
    trace = measure(agent, urls=["https://gold.example"], key_fact="GOLD")
    assert json.loads(trace.answer) == ASKED
    assert agent.ask(ASKED | {"input": {"amount": 30}})["answer"] == json.dumps(ASKED | {"input": {"amount": 30}})


def test_a_conversation_is_not_put_as_if_it_were_one_question():
    sample = Sample(id="d-1", prompt="And now?", history=("Hello", Reply(text="Hi")))
    trace = run(sample, shell(f"echo '{GOOD}'"), BARE, "desk")
    assert trace.failure.kind == "unasked"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("echo starting; echo '{}'", "not_one_object"),
        (f"echo '{GOOD}'; echo '{GOOD}'", "not_one_object"),
        (f"echo '[{GOOD}]'", "not_one_object"),
        ("true", "not_one_object"),
        ('printf \'{"outcome": "ref\'', "not_one_object"),
        (f"echo '{GOOD}'; exit 3", "exit_3"),
        ('printf \'{"outcome": "ref\'; kill -9 $$', "signal_9"),
        (r"""printf '{"outcome": "caf\351", "submitted": true}'""", "not_utf8"),
        ("head -c 1000001 /dev/zero", "oversize"),
        ("echo '{}'", "response"),
        ("""echo '{"submitted": true}'""", "response"),
        (f"exec >&- 2>&-; sleep 5; echo '{GOOD}'", "timeout"),
    ],
)
def test_what_is_no_response_is_a_failure_and_no_answer(code, expected):
    assert kind(shell(code, timeout=1.0 if expected == "timeout" else 30.0)) == expected


def test_nested_deeper_than_can_be_read_is_a_failure(tmp_path):
    assert kind(command("print('{\"answer\":' + '[' * 200_000 + ']' * 200_000 + '}')", tmp_path)) == "not_one_object"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outcome", 1),
        ("answer", ["x"]),
        ("actions_attempted", "pay"),
        ("actions_executed.0", [1]),
        ("submitted", "true"),
        ("submitted", 1),
        ("citations", None),
        ("usage.input", {"input": "7"}),
        ("usage.output", {"output": -1}),
        ("usage.output", {"output": True}),
    ],
)
def test_a_wrong_type_is_refused_with_the_name_of_its_field(field, value):
    said = json.loads(GOOD) | {field.partition(".")[0]: value}
    trace = measure(shell(f"echo '{json.dumps(said)}'"))
    assert trace.failure.kind == "response"
    assert trace.failure.detail.startswith(f"{field}: ")


def test_half_a_character_and_nan_can_be_written():
    trace = measure(shell(r"""printf '{"answer": "a \\ud83d b", "score": NaN}'"""))
    assert trace.answer == "a \ufffd b"
    assert json.loads(trace.model_dump_json())["answer"] == "a \ufffd b"


def test_an_agent_that_reads_nothing_is_asked_all_the_same():
    agent = shell(f"echo '{GOOD}'")
    assert measure(agent, "x" * 1_500_000).stop == "submitted"


def test_what_left_the_group_just_before_the_time_out_ends_too(mark):
    assert kind(shell(f"sleep 0.2; setsid sleep {mark} & sleep {mark}", timeout=0.45)) == "timeout"
    assert alive(mark) == []


@pytest.mark.parametrize("many", ["python", "shell"])
def test_at_the_time_out_the_agent_ends_with_everything_it_started(many, mark, tmp_path):
    if many == "shell":
        daemon = f"sh -c 'setsid sleep {mark} &'"
        agent = shell(f"sleep {mark} & setsid sleep {mark} & {daemon}; sh -c 'sleep {mark}; true'", timeout=1.0)
    else:
        code = (
            "import subprocess, time\n"
            f"run = ['sleep', '{mark}']\n"
            "subprocess.Popen(run); subprocess.Popen(run, start_new_session=True)\n"
            "subprocess.Popen(['sh', '-c', 'setsid sleep " + mark + "; true'], start_new_session=True)\n"
            f"open({str(tmp_path / 'started')!r}, 'w').close(); time.sleep(59)\n"
        )
        agent = command(code, tmp_path, timeout=2.0)
    started = []
    watch = threading.Thread(target=lambda: (time.sleep(0.7), started.extend(alive_now(mark))))
    watch.start()
    assert kind(agent) == "timeout"
    watch.join()
    assert len(started) >= 3  # that there was something to end
    assert alive(mark) == []


def alive_now(mark):
    return [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


@pytest.mark.parametrize("left", ["sleep {} &", "setsid sleep {} &", "sh -c 'setsid sleep {} &';"])
def test_what_an_agent_leaves_behind_ends_with_it_and_does_not_hold_up_its_answer(mark, left):
    trace = measure(shell(f"{left.format(mark)} echo '{GOOD}'"))
    assert trace.stop == "submitted"
    assert trace.seconds < 30
    assert alive(mark) == []


def test_an_interrupt_ends_the_agent_too(mark, monkeypatch):
    def interrupt(family):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("evalkit.transport.below", interrupt)
    with pytest.raises(KeyboardInterrupt):
        shell(f"sleep {mark}; sleep {mark}").ask(ASKED)
    assert alive(mark) == []


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_100_mb_is_not_kept(stream, tmp_path):
    code = f"import sys\nfor _ in range(1600): sys.{stream}.buffer.write(b'x ' * 32_768)\nprint({GOOD!r})"
    agent = command(code, tmp_path)
    tracemalloc.start()
    trace = measure(agent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000
    if stream == "stdout":
        assert trace.failure.kind == "oversize"
    else:
        assert (trace.stop, len(trace.notes["stderr"])) == ("submitted", 4_000)


def test_the_largest_response_is_one_megabyte(tmp_path):
    code = "import json; print(json.dumps({'answer': 'x' * (1_000_000 - 14)}), end='')"
    assert len(measure(command(code, tmp_path)).answer) == 1_000_000 - 14


def test_the_environment_is_path_and_what_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DESK_MODE", "on")
    monkeypatch.setenv("DESK_OTHER", "off")
    code = "import json, os; print(json.dumps({'answer': ' '.join(os.environ)}))"
    seen = set(measure(command(code, tmp_path, env=("DESK_MODE",))).answer.split()) - {"LC_CTYPE"}  # Python's own
    assert seen == {"PATH", "DESK_MODE"}
    assert set(measure(command(code, tmp_path)).answer.split()) - {"LC_CTYPE"} == {"PATH"}


def test_the_environment_reaches_no_record_even_from_an_agent_that_tells_it(tmp_path, monkeypatch):
    secret = f'{uuid.uuid4().hex}"/{uuid.uuid4().hex}'  # as JSON it is written otherwise
    monkeypatch.setenv("DESK_PASS", secret)
    monkeypatch.setenv("DESK_PART", secret[:40])  # hidden first, it would leave the rest in sight
    told = "json.dumps({'answer': os.environ['DESK_PASS'], 'citations': [os.environ['PATH']]})"
    tell = f"import json, os, sys; print((os.environ['DESK_PASS'] + ' ') * 300, file=sys.stderr); print({told}"
    for code in (f"{tell})", f"{tell}.replace('/', chr(92) + '/'))", f"{tell}, 'stray')", f"{tell}[:-1])"):
        trace = measure(command(code, tmp_path, env=("DESK_PART", "DESK_PASS")))
        record = trace.model_dump_json()
        assert secret[:32] not in record
        assert secret[-16:] not in record
        assert "[DESK_PASS]" in trace.notes["stderr"]
        assert "[DESK_PASS]" in (trace.failure.detail if trace.failure else trace.answer)
        assert os.environ["PATH"] not in record


def test_the_agents_of_the_readme_keep_to_the_contract():
    desk = open_agent(f"command:{sys.executable} {AGENTS / 'desk.py'}")
    assert Response(**desk.ask(ASKED)).outcome == "approve"
    assert measure(desk, "Refund 101.").submission["actions_executed"] == ["look_up_order", "open_ticket"]
    trace = measure(open_agent(f"command:sh {AGENTS / 'refuse.sh'}"))
    assert (trace.answer, trace.notes["stderr"][:6]) == ("refuse", "asked:")


@pytest.mark.parametrize(
    ("spec", "options", "hint"),
    [
        ("command:", {}, "write the agent as command:python"),
        ("command:'", {}, "write the agent as command:python"),
        ("command:no-such-program-here x", {}, "no program no-such-program-here on PATH"),
        ("python a.py", {}, "write the agent as command:python"),
        ("http://", {}, "write the agent as"),
        ("http://h:99999/", {}, "write the agent as"),
        ("http://h/a b", {}, "write the agent as"),
        ("http://h/", {"env": ("PATH",)}, "without env"),
        ("ftp://h/", {}, "write the agent as"),
        ("mock:", {"timeout": 0}, "timeout 0"),
        ("mock:", {"timeout": float("nan")}, "timeout nan"),
        ("command:sh", {"env": ("NO_SUCH_NAME_HERE",)}, "NO_SUCH_NAME_HERE .* not set"),
    ],
)
def test_an_agent_that_cannot_be_is_refused_with_what_to_write(spec, options, hint):
    with pytest.raises(ValueError, match=hint):
        open_agent(spec, **options)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("http://127.0.0.1:8000/evaluate", "http://127.0.0.1:8000/evaluate"),
        ("http://me:pa%40ss@h/e?a=1&b=Zm9v==&c#top", "http://h/e?a=…&b=…&…"),
        ("http://m@e:pass@h", "http://h"),
        (
            "command:python a.py --url https://u:p@h/x?k=v --top-k 3",
            "command:python a.py --url https://h/x?k=… --top-k 3",
        ),
        ('command:python a.py --api-key "a b" --max-tokens 9', "command:python a.py --api-key … --max-tokens 9"),
        ("command:env MY_TOKEN=abc python a.py --password=x", "command:env MY_TOKEN=… python a.py --password=…"),
    ],
)
def test_an_agent_is_named_without_its_secrets(spec, shown):
    assert plain(spec) == shown


def test_the_grid_fills_with_it_and_owes_only_what_failed(tmp_path):
    code = (
        "import json, os, sys; r = json.load(sys.stdin)\n"
        f"if r['sample_id'] == 'b' and not os.path.exists({str(tmp_path / 'mended')!r}): sys.exit(3)\n"
        "print(json.dumps({'answer': r['suite'] + ' ' + r['input']}))"
    )
    agent = command(code, tmp_path)
    samples = tuple(Sample(id=name, prompt=f"What is {name}?") for name in "abc")
    suite = Suite(name="letters", kind="docs_qa", path=tmp_path, samples=samples, conditions=(BARE,))
    cells, path = plan(suite, agent), tmp_path / "traces.jsonl"
    counts = [fill(path, cells, grid.tracing("r", suite, agent), workers=2)]
    (tmp_path / "mended").touch()
    counts += [fill(path, cells, grid.tracing("r", suite, agent), workers=2) for _ in range(2)]
    assert [(c["done"], c["failed"]) for c in counts] == [(2, 1), (1, 0), (0, 0)]
    rows = grid.read(path)[0]
    assert {row.key for row in rows} == set(cells)
    assert {row.answer for row in rows} == {"", "letters What is a?", "letters What is b?", "letters What is c?"}


# --- a URL ----------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """An agent on loopback; the path of the request says how it behaves."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.seen, self.dripped = f"127.0.0.1:{self.server_port}", [], 0
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *fault):
        self.shutdown()
        super().__exit__(*fault)

    def handle_error(self, *client):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*client)


class Handler(BaseHTTPRequestHandler):
    log_message = staticmethod(lambda *line: None)

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(asked)))
        name = self.path.partition("?")[0].strip("/")
        status = int(name) if name.isdigit() else 200
        echo = json.dumps({"answer": f"{self.path} {dict(self.headers)}"}).encode()
        data = {"logs": b"ok\n{}", "latin": b'{"answer": "caf\xe9"}', "echo": echo}.get(name, GOOD.encode())
        data = echo if status >= 400 else data
        if name == "reset":
            return self.connection.close()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/moved")
        if name != "big":
            self.send_header("content-length", str(len(data) + (name == "half")))
        self.end_headers()
        if name == "big":
            for _ in range(1600):
                self.wfile.write(b"x" * 65_536)
        for byte in data if name == "drip" else b"":
            self.wfile.write(bytes([byte]))
            self.server.dripped += 1
            time.sleep(0.1)
        return None if name == "drip" else self.wfile.write(data)


@pytest.fixture
def server():
    with Server() as running:
        yield running


def test_an_agent_behind_a_url_is_asked_the_same(server):
    agent = open_agent(f"http://{server.url}/evaluate?v=2")
    trace = measure(agent, gold="GOLD")
    assert (trace.stop, trace.answer, trace.model) == ("submitted", "refuse", f"http://{server.url}/evaluate?v=…")
    ((path, headers, asked),) = server.seen
    assert (path, asked, headers["Content-Type"]) == ("/evaluate?v=2", ASKED, "application/json")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("400", "http_400"),
        ("404", "http_404"),
        ("500", "http_500"),
        ("302", "http_302"),
        ("307", "http_307"),
        ("logs", "not_one_object"),
        ("latin", "not_utf8"),
        ("half", "connection"),
        ("reset", "connection"),
        ("big", "oversize"),
        ("drip", "timeout"),
    ],
)
def test_what_is_no_response_over_http_is_a_failure(server, path, expected):
    tracemalloc.start()
    assert kind(open_agent(f"http://{server.url}/{path}", timeout=0.5 if path == "drip" else 30.0)) == expected
    assert tracemalloc.get_traced_memory()[1] < 12_000_000
    tracemalloc.stop()
    assert server.dripped < len(GOOD)
    assert [seen[0] for seen in server.seen] == [f"/{path}"]  # no redirect was followed, nothing asked twice


def test_nobody_there_and_nobody_answering(server):
    with Server() as gone:
        pass
    assert kind(open_agent(f"http://{gone.url}/")) == "connection"
    with pytest.raises(AgentError, match="timeout"):
        open_agent(f"http://{server.url}/drip", timeout=0.2).ask(ASKED)


@pytest.mark.parametrize("path", ["echo", "500"])
def test_what_is_secret_in_a_url_is_sent_and_reaches_no_record(server, path):
    user, secret, query = "somebody", uuid.uuid4().hex, uuid.uuid4().hex
    trace = measure(open_agent(f"http://{user}:{secret}@{server.url}/{path}?k={query}"))
    sent = b64encode(f"{user}:{secret}".encode()).decode()
    assert server.seen[0][1]["Authorization"] == f"Basic {sent}"
    record = trace.model_dump_json()
    assert "[url]" in record
    assert [form for form in (secret, query, sent, user + ":") if form in record] == []
