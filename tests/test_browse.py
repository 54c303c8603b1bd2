"""The trace browser: a static page without a kernel, filters and one trace at a time with one."""

from __future__ import annotations

import re
import string
from html import unescape

import pytest
from seen import Seen

from evalkit import Sample, Trace, browse, grid, suites
from evalkit.browse import marked, table_html, trace_html
from evalkit.records import Call, Citation, Failure, Step, Verdict

GOLD, OTHER = "https://docs.example/timeouts/", "https://docs.example/hooks/"
SAMPLE = Sample(id="q1", prompt="How long is it?", gold={"answer": "It is 30 seconds.", "urls": [GOLD]},
                tags={"type": "easy", "fresh": False})  # fmt: skip


def trace(n=1, **parts):
    step = Step(turn=1, call=Call(id="a", name="grep_index", args={"pattern": "timeout"}), result="timeouts: 30")
    return Trace(**{"key": f"k{n}", "run_id": "r", "suite": "mine", "sample_id": f"q{n}", "condition": "open",
                    "model": "m", "answer": "It is 30.", "steps": [step], "stop": "answered"} | parts)  # fmt: skip


def rule(key, correct=1.0, **parts):
    return Verdict(key=f"v-{key}", of=(key,), by="rule:docs_qa", values={"correct": correct}, **parts)


HOSTILE = "<script>alert(1)</script></pre></details>{{ 7*7 }}-->\"'&<img src=x onerror=alert(1)>"


def hostile_row():
    step = Step(turn=1, call=Call(id="a", name=HOSTILE, args={HOSTILE: HOSTILE}), result=HOSTILE, ok=False)
    sample = SAMPLE.model_copy(update={"prompt": HOSTILE, "gold": {"answer": HOSTILE, "urls": [HOSTILE]}})
    row = trace(sample_id=HOSTILE, condition=HOSTILE, model=HOSTILE, answer=HOSTILE, steps=[step],
                citations=[Citation(url="https://a.example/<b>")])  # fmt: skip
    said = {HOSTILE: rule("k1", why=HOSTILE, failure=Failure(where="judge", kind=HOSTILE))}
    return row, sample, said


@pytest.mark.parametrize("show", [trace_html, lambda row: table_html([row], 5)])
def test_hostile_text_is_shown_and_never_run(show):
    seen = Seen(show(hostile_row()))
    assert seen.count("script") == seen.count("img") == 0 and seen.text.count(HOSTILE) >= 9
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)


def test_the_detail_of_a_failure_is_escaped_too():
    row = trace(failure=Failure(where="provider", kind="http_400", detail=HOSTILE), stop="failed", answer="")
    seen = Seen(trace_html((row, SAMPLE, {})))
    assert seen.count("script") == 0 and HOSTILE in seen.text and "http_400" in seen.text


def test_a_trace_shows_question_gold_steps_answer_and_verdicts():
    said = {"rule:docs_qa": rule("k1"), "grade:j": Verdict(key="g", of=("k1",), by="grade:j", values={"pass": None},
            why="vague", failure=Failure(where="judge", kind="unreadable"))}  # fmt: skip
    text = Seen(trace_html((trace(), SAMPLE, said))).text
    parts = ("How long is it?", "It is 30 seconds.", "grep_index", "timeouts: 30", "It is 30.", "correct 1",
             "unreadable", "vague", "open", "answered")  # fmt: skip
    assert all(part in text for part in parts)


def test_a_step_that_failed_was_cut_or_was_not_run_says_so():
    call = Call(id="a", name="look")
    steps = [Step(call=call, result="x", ok=False), Step(call=call, result="x", truncated=True),
             Step(call=call, result="x", ok=False, executed=False)]  # fmt: skip
    summaries = re.findall(r"<summary>(.*?)</summary>", trace_html((trace(steps=steps), SAMPLE, {})))
    assert ["fault" in s for s in summaries] == [True, False, True]
    assert ["cut" in s for s in summaries] == [False, True, False]
    assert ["not run" in s for s in summaries] == [False, False, True]


def test_a_trace_of_a_lost_sample_and_an_empty_answer_are_shown():
    text = Seen(trace_html((trace(answer=""), None, {}))).text
    assert "no longer" in text and "(empty answer)" in text


def marks(answer, cited, gold=(GOLD,)):
    """[(URL, is it marked as gold)] of an answer, in order."""
    row = trace(answer=answer, citations=[Citation(url=url) for url in cited])
    page = marked(row, {"urls": list(gold)})
    assert Seen(page).text == answer  # marks change nothing a reader sees
    return [(unescape(url), off == "") for off, url in re.findall(r"<mark( class=off)?>([^<]*)</mark>", page)]


def test_gold_citations_are_marked_and_others_are_marked_off():
    answer = f"It is 30 ({GOLD}), not {OTHER}. Sources: {GOLD}"
    assert marks(answer, [GOLD, OTHER]) == [(GOLD, True), (OTHER, False), (GOLD, True)]


@pytest.mark.parametrize("spelled", ["https://DOCS.example/timeouts", "https://docs.example/timeouts/#idle"])
def test_a_gold_page_is_known_by_any_spelling(spelled):
    assert marks(f"See {spelled}", [spelled]) == [(spelled, True)]


@pytest.mark.parametrize(
    "gold", ["https://docs.example/a", "https://docs.example/a/b", "https://docs.example/a?x=1&y=2"]
)
def test_a_citation_that_begins_like_another_keeps_its_own_mark(gold):
    cited = ["https://docs.example/a", "https://docs.example/a/b", "https://docs.example/a?x=1&y=2"]
    assert marks(" and ".join(cited), cited, [gold]) == [(url, url == gold) for url in cited]


def test_without_gold_every_citation_is_off():
    assert marks(f"See {GOLD}", [GOLD], []) == [(GOLD, False)]


def test_a_table_folds_every_trace_and_says_how_many_there_are_in_all():
    rows = [(trace(n, steps=()), SAMPLE, {}) for n in range(5)]
    seen = Seen(table_html(rows, 3))
    assert "5 traces" in seen.text and "first 3" in seen.text and seen.count("details") == 1 + 3
    assert "q2 ·" in seen.text and "q3 ·" not in seen.text
    assert "first" not in Seen(table_html(rows, 5)).text and table_html(rows, 5).count("<style>") == 1


def test_a_table_of_no_traces_says_so():
    assert "0 traces" in Seen(table_html([], 5)).text


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """shown(traces, verdicts) -> (menus by name, text search, list of traces, the open trace, those beside it)."""
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    folder = tmp_path / "data/mine"
    folder.mkdir(parents=True)
    (folder / "suite.toml").write_text(
        'kind = "docs_qa"\n[[conditions]]\nname = "open"\n[[conditions]]\nname = "closed"'
    )
    lines = [SAMPLE.model_copy(update={"id": f"q{n}", "prompt": f"How long is number {n}?", "gold": SAMPLE.gold | {
             "key_fact": ["30"]}, "tags": {"type": "easy" if n % 2 else "hard"}}) for n in range(6)]  # fmt: skip
    (folder / "samples.jsonl").write_text("\n".join(line.model_dump_json(exclude={"history"}) for line in lines))

    def browser(traces, verdicts=()):
        for name, rows in (("traces", traces), ("verdicts", verdicts)):
            for row in rows:
                grid.append(tmp_path / f"results/r/{name}.jsonl", row)
        grid_box, pick, one, side = browse.browser(tmp_path / "results/r").children
        *menus, search = grid_box.children
        return {menu.description: menu for menu in menus}, search, pick, one, side

    return browser


TRACES = [
    trace(0, condition="closed", steps=[], answer="I don't know.", stop="abstained"),
    trace(1), trace(2, answer="Maybe HALF a minute."), trace(3, model="n"),
    trace(4, failure=Failure(where="provider", kind="http_429"), stop="failed", answer="", steps=[]),
]  # fmt: skip
VERDICTS = [rule("k0", 0.0), rule("k1"), rule("k2", 0.0), rule("k3")]


def listed(pick):
    return sorted(label.split(" · ")[0] for label, _ in pick.options)


@pytest.mark.parametrize(
    ("menu", "value", "wanted"),
    [("condition", "closed", ["q0"]), ("model", "n", ["q3"]), ("outcome", "failed", ["q4"]),
     ("correct", "1", ["q1", "q3"]), ("correct", "", ["q4"]), ("type", "easy", ["q1", "q3"]),
     ("outcome", "all", ["q0", "q1", "q2", "q3", "q4"])],
)  # fmt: skip
def test_a_menu_leaves_the_traces_of_its_value(shown, menu, value, wanted):
    menus, _, pick, _, _ = shown(TRACES, VERDICTS)
    menus[menu].value = value
    assert listed(pick) == wanted


def test_menus_narrow_each_other_and_all_widens_again(shown):
    menus, _, pick, _, _ = shown(TRACES, VERDICTS)
    menus["type"].value, menus["model"].value = "easy", "m"
    assert listed(pick) == ["q1"]
    menus["type"].value = menus["model"].value = "all"
    assert len(pick.options) == 5


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("half a", ["q2"]), ("NUMBER 3", ["q3"]), ("timeouts: 30", ["q1", "q2", "q3"]), ("don't know", ["q0"]),
     ("", ["q0", "q1", "q2", "q3", "q4"]), ("nowhere", [])],
)  # fmt: skip
def test_text_is_searched_in_question_answer_and_results(shown, text, wanted):
    _, search, pick, one, _ = shown(TRACES, VERDICTS)
    search.value = text
    assert listed(pick) == wanted
    assert ("no trace matches" in one.value) is (not wanted)


def test_the_trace_that_is_picked_is_opened_with_the_same_question_elsewhere_beside_it(shown):
    beside = trace(1, key="k9", condition="closed", answer="Not from memory.")
    _, _, pick, one, side = shown([*TRACES, beside], VERDICTS)
    pick.value = next(i for label, i in pick.options if label.startswith("q1 · open"))
    assert "It is 30." in one.value and "number 1" in one.value and "Not from memory." in side.value
    pick.value = next(i for label, i in pick.options if label.startswith("q2"))
    assert "HALF" in one.value and "Not from memory." not in side.value


def test_nothing_is_open_before_a_trace_is_picked(shown):
    _, _, pick, one, side = shown(TRACES, VERDICTS)
    assert (pick.value, one.value, side.value) == (None, "", "")


def test_the_trace_that_a_filter_leaves_can_be_opened_and_opened_again_after_another(shown):
    menus, search, pick, one, _ = shown(TRACES, VERDICTS)
    for menu, value in ((menus["model"], "n"), (menus["type"], "easy"), (search, "number 3")):
        menu.value = value
        pick.value = next(i for label, i in pick.options if label.startswith("q3 "))
        assert "<b>q3</b>" in one.value


@pytest.mark.parametrize("text", ["nowhere", "number 4"])
def test_nothing_stays_open_that_the_filters_no_longer_show(shown, text):
    _, search, pick, one, side = shown([*TRACES, trace(1, key="k9", condition="closed")], VERDICTS)
    pick.value = next(i for label, i in pick.options if label.startswith("q1 · open"))
    assert "q1" in one.value and "q1" in side.value
    search.value = text
    assert "q1" not in one.value and "q1" not in side.value


def test_one_trace_can_be_opened_and_has_nothing_to_filter_by(shown):
    menus, _, pick, one, side = shown(TRACES[1:2], VERDICTS[1:2])
    assert menus == {} and listed(pick) == ["q1"]
    pick.value = 0
    assert "<b>q1</b>" in one.value and side.value == ""


def test_no_trace_is_said_and_breaks_nothing(shown):
    menus, search, pick, one, _ = shown([])
    search.value = "x"
    assert (menus, pick.options) == ({}, ()) and "no trace" in one.value


def test_what_is_opened_is_escaped(shown):
    _, _, pick, one, _ = shown([hostile_row()[0], trace(2)])
    pick.value = next(i for label, i in pick.options if "script" in label)
    assert Seen(one.value).count("script") == 0 and HOSTILE in Seen(one.value).text


def test_a_notebook_without_a_kernel_shows_the_same_traces_as_a_table(shown, capsys, monkeypatch):
    import IPython.display

    outputs = []
    monkeypatch.setattr(IPython.display, "display", outputs.append)
    shown(TRACES, VERDICTS)
    page = Seen("".join(out.data for out in outputs if isinstance(out, IPython.display.HTML)))
    assert "5 traces" in page.text and all(f"q{n} ·" in page.text for n in range(5))


def test_a_label_is_short_and_on_one_line():
    text = browse.label((trace(), SAMPLE, {"rule:docs_qa": rule("k1")}))
    assert text == "q1 · open · m · answered · correct 1" and not set(text) & set(string.whitespace) - {" "}
