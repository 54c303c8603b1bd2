"""From rows to what people read: the tidy frame, rates and their bounds, sentences, figures, the offline page."""

from __future__ import annotations

import json
import re
import shutil

import pandas as pd
import pytest
from matplotlib.figure import Figure
from seen import Seen, drawn

from evalkit import fill, grid, load_suite, open_model, plan, report, scoring, suites
from evalkit.records import Failure, Usage, Verdict

SUITE = """
kind = "docs_qa"
rules = ["docs_qa"]
[[conditions]]
name = "closed"
[[conditions]]
name = "open"
instructions = "Search first."
"""


def line(n, key_fact="30", **parts):
    """A sample; 1, 3, 5 … are easy."""
    gold = {"answer": f"It is {key_fact}.", "key_fact": [key_fact], "urls": ["https://docs.example/a/"]}
    tags = {"type": "easy" if n % 2 else "hard", "fresh": False}
    return {"id": f"q{n}", "question": f"What is {n}?", "gold": gold, "cluster": f"c{n % 2}", "tags": tags} | parts


class Bench:
    """A project folder of one suite and one run, filled with script: models."""

    def __init__(self, root):
        self.root, self.folder, self.run = root, root / "data/mine", root / "results/r"
        self.folder.mkdir(parents=True)
        self.write([line(n) for n in range(4)])

    def write(self, samples, toml=SUITE):
        (self.folder / "suite.toml").write_text(toml)
        (self.folder / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)))

    @property
    def suite(self):
        return load_suite(self.folder)

    def says(self, text):
        """The name of a script: model that always says so; without a text it always fails."""
        path = self.root / f"script-{len(list(self.root.glob('script-*')))}.jsonl"
        path.write_text(json.dumps({"text": text}) if text else "")
        return f"script:{path}"

    def measure(self, *models, failed=(), usd=0.0, repeats=1, conditions=()):
        """Fill the cells of models; those whose (sample, condition) is in `failed` fail at the provider."""
        for name in models:
            model = open_model(name)
            honest = grid.tracing("r", self.suite, model)

            def work(k, cell, honest=honest):
                row = honest(k, cell).model_copy(update={"usd": usd})
                if (cell.sample.id, cell.condition.name) not in failed:
                    return row
                fault = Failure(where="provider", kind="http_429")
                return row.model_copy(update={"failure": fault, "stop": "failed", "answer": ""})

            cells = plan(self.suite, model, repeats=repeats, conditions=conditions)
            fill(self.run / "traces.jsonl", cells, work, who=name)
        return self

    def score(self):
        traces = grid.latest(grid.read(self.run / "traces.jsonl")[0])
        fill(self.run / "verdicts.jsonl", scoring.owed(self.suite, traces), scoring.verdict)
        return self

    @property
    def frame(self):
        return report.frame(self.run)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    return Bench(tmp_path)


CONTROLS = ("script:null", "script:random", "script:oracle")


def correct(frame):
    return frame[frame["metric"] == "correct"]


def test_the_frame_has_one_row_a_trace_and_metric_with_the_columns_and_one_more_a_tag(bench):
    frame = bench.measure(*CONTROLS).score().frame
    assert list(frame) == [*report.COLUMNS, "type", "fresh"]
    assert not frame.duplicated(["key", "metric", "by"]).any() and frame["key"].nunique() == 3 * 4 * 2
    metrics = {"correct", "key_fact", "denies", "cited", "cited_exact", "cited_host", "cited_read", "abstained"}
    assert set(frame["metric"]) == metrics and len(frame) == 24 * len(metrics)
    assert set(frame["by"]) == {"rule:docs_qa"} and set(frame["run_id"]) == {"r"} and set(frame["suite"]) == {"mine"}


def test_cluster_and_tags_are_those_of_the_sample(bench):
    frame = bench.measure("script:null").score().frame
    assert {(r.sample_id, r.cluster, r.type) for r in frame.itertuples()} == {
        ("q0", "c0", "hard"), ("q1", "c1", "easy"), ("q2", "c0", "hard"), ("q3", "c1", "easy")}  # fmt: skip


def test_models_stand_before_the_controls(bench):
    frame = bench.measure(*CONTROLS, mine := bench.says("It is 30.")).score().frame
    assert list(dict.fromkeys(frame["model"])) == [mine, *CONTROLS]


def test_the_oracle_is_right_and_the_null_agent_is_wrong_and_measured(bench):
    rows = correct(bench.measure(*CONTROLS).score().frame).groupby("model")["value"].agg(["mean", "count"])
    assert tuple(rows.loc["script:oracle"]) == (1, 8) and tuple(rows.loc["script:null"]) == (0, 8)


def test_a_failed_trace_has_null_for_every_metric_and_says_why(bench):
    frame = bench.measure("script:oracle", failed={("q1", "open")}).score().frame
    failed = frame[(frame["sample_id"] == "q1") & (frame["condition"] == "open")]
    assert set(failed["metric"]) == set(frame["metric"]) and failed["value"].isna().all()
    assert set(failed["failure"]) == {"http_429"} and set(failed["stop"]) == {"failed"}
    others = frame.drop(failed.index)
    assert others["failure"].isna().all() and correct(others)["value"].notna().all()


def test_a_failed_judgement_is_null_and_says_why(bench):
    bench.measure("script:oracle", conditions=["open"]).score()
    trace = grid.read(bench.run / "traces.jsonl")[0][0]
    fault = Failure(where="judge", kind="unreadable")
    values = {"pass": None, "correctness": None}
    grid.append(bench.run / "verdicts.jsonl",
                Verdict(key="v", of=(trace.key,), by="grade:j", values=values, failure=fault))  # fmt: skip
    frame = bench.frame
    judged = frame[frame["by"] == "grade:j"]
    assert len(judged) == 2 and judged["value"].isna().all() and set(judged["failure"]) == {"judge: unreadable"}
    assert correct(frame)["failure"].isna().all()  # the rules have measured it all the same


def test_superseded_rows_are_out(bench):
    bench.measure("script:oracle", failed={("q1", "open"), ("q2", "open")}).measure("script:oracle").score()
    frame = correct(bench.frame)
    assert len(grid.read(bench.run / "traces.jsonl")[0]) == 10 and len(frame) == 8
    assert frame["failure"].isna().all() and frame["value"].eq(1).all()


def test_the_last_verdict_counts_after_gold_was_mended_and_mended_back(bench):
    def rate():
        return correct(bench.score().frame)["value"].mean()

    bench.measure(bench.says("It is 30."))
    first = rate()
    bench.write([line(n, "31") for n in range(4)])
    mended = rate()
    bench.write([line(n) for n in range(4)])
    assert (first, mended, rate()) == (1, 0, 1)


def test_rows_outlive_their_suite(bench):
    bench.measure("script:oracle").score()
    shutil.rmtree(bench.folder)
    frame = bench.frame
    assert correct(frame)["value"].eq(1).all() and set(frame["cluster"]) == {"q0", "q1", "q2", "q3"}


def test_a_folder_without_rows_is_an_empty_frame(tmp_path):
    frame = report.frame([tmp_path / "nothing"])
    assert frame.empty and list(frame) == report.COLUMNS


def test_several_runs_stand_in_one_frame(bench, tmp_path):
    bench.measure("script:null").score()
    shutil.copytree(bench.run, tmp_path / "results/s")
    assert len(report.frame([bench.run, tmp_path / "results/s"])) == 2 * len(report.frame(bench.run))


CALLS = """
kind = "tool_choice"
rules = ["tool_choice"]
tools = "tools.json"
[[conditions]]
name = "all"
"""


def test_a_choice_that_was_cut_off_is_missing_and_attempted(bench):
    rows = [{"id": f"q{n}", "prompt": "Thanks!", "gold": {"no_call": True}} for n in range(3)]
    (bench.folder / "tools.json").write_text('[{"name": "search", "parameters": {}}]')
    bench.write(rows, CALLS)
    bench.measure("script:oracle")
    whole = next(row for row in grid.read(bench.run / "traces.jsonl")[0] if row.sample_id == "q1")
    grid.append(bench.run / "traces.jsonl", whole.model_copy(update={"stop": "truncated"}))
    frame = bench.score().frame
    cut = frame[frame["sample_id"] == "q1"]
    assert cut["value"].isna().all() and set(cut["failure"]) == {"truncated"} and len(cut) == 6
    (row,) = report.rates(frame, "correct").to_dict("records")
    assert (row["right"], row["measured"], row["attempted"], row["floor"]) == (2, 2, 3, 2 / 3)
    apart = correct(frame.drop(cut.index))
    assert apart["failure"].isna().all() and apart["value"].eq(1).all()
    null = frame[(frame["metric"] == "args_right") & (frame["sample_id"] != "q1")]
    assert null["value"].isna().all() and null["failure"].isna().all()  # does not apply, and is not missing


def seven_of_ten(bench):
    """3 right, 4 wrong, 3 failed."""
    bench.write([line(n, "30" if n < 3 else "31") for n in range(10)])
    return bench.measure(bench.says("It is 30."), failed={(f"q{n}", "closed") for n in (7, 8, 9)},
                         conditions=["closed"]).score()  # fmt: skip


def test_rates_show_both_denominators_and_both_bounds(bench):
    (row,) = report.rates(seven_of_ten(bench).frame, "correct").to_dict("records")
    assert (row["right"], row["measured"], row["attempted"]) == (3, 7, 10)
    assert row["estimate"] == pytest.approx(3 / 7) and (row["floor"], row["ceiling"]) == (0.3, 0.6)
    assert (round(row["low"], 4), round(row["high"], 4)) == (0.1582, 0.7495)


def test_a_model_of_which_nothing_was_measured_has_no_rate_and_the_whole_interval(bench):
    bench.measure("script:null", bench.says("")).score()
    row = report.rates(bench.frame, "correct").set_index("model").iloc[0]
    assert pd.isna(row["estimate"]) and (row["low"], row["high"], row["floor"], row["ceiling"]) == (0, 1, 0, 1)
    assert (row["measured"], row["attempted"]) == (0, 4)


def test_repeats_are_averaged_and_count_as_one_sample(bench):
    table = report.rates(bench.measure("script:oracle", repeats=3).score().frame, "correct")
    assert set(table["measured"]) == {4} and set(table["estimate"]) == {1}


def tidy(*groups, metric="correct", by="rule:docs_qa", **columns):
    """A frame of (model, condition, values); a value None is a failed cell. Samples are numbered within a group."""
    rows = [
        {"key": f"{model}/{condition}/{n}", "run_id": "r", "suite": "mine", "sample_id": f"q{n}", "cluster": f"q{n}",
         "condition": condition, "model": model, "effort": "", "repeat": 0, "stop": "answered" if v is not None else
         "failed", "failure": None if v is not None else "http_429", "by": by, "metric": metric, "value": v, "usd": 0.0,
         "tokens": 10, "seconds": 1.0} | {name: make(n) for name, make in columns.items()}
        for model, condition, values in groups for n, v in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=report.COLUMNS + list(columns)).astype({"value": float})


def said(frame, baseline="closed"):
    return report.headline(frame, report.gaps(frame, "correct", baseline), "correct")


def test_a_difference_is_one_sentence_with_its_interval_and_n():
    frame = tidy(("m", "closed", [0] * 12), ("m", "open", [1] * 9 + [0] * 3))
    sentence = said(frame)
    assert "0.75 better" in sentence and "12 questions" in sentence
    assert re.search(r"95 % CI \+0\.\d\d to [+]\d\.\d\d", sentence)


def test_no_difference_says_what_could_have_been_seen():
    sentence = said(tidy(("m", "closed", [0, 1] * 6), ("m", "open", [1, 0] * 6)))
    assert sentence.startswith("No difference") and re.search(r"about 0\.\d\d\.$", sentence)


@pytest.mark.parametrize(("missing", "withheld"), [(1, False), (2, False), (3, True)])
def test_the_headline_is_withheld_when_more_than_a_tenth_is_missing(missing, withheld):
    values = [None] * missing + [1] * (10 - missing)
    sentence = said(tidy(("m", "closed", [0] * 10), ("m", "open", values)))
    assert ("Nothing is claimed for m" in sentence) is withheld and ("better" in sentence) is not withheld


def test_what_is_missing_in_one_comparison_is_not_hidden_by_the_other_conditions():
    frame = tidy(("m", "closed", [0] * 10), ("m", "open", [None] * 3 + [1] * 7), ("m", "third", [0] * 10))
    assert "better" not in said(frame)


def test_without_a_model_beside_the_controls_there_is_nothing_to_claim():
    frame = tidy(("script:null", "closed", [0] * 4), ("script:oracle", "closed", [1] * 4))
    assert "no model" in said(frame) and "no model" in said(tidy())


def controls(null, oracle, model=(0, 1), **options):
    groups = [("script:null", "open", null), ("script:oracle", "open", oracle), ("m", "open", model)]
    return report.controls(tidy(*groups, **options), "correct")


def test_controls_in_order_are_said_with_their_values():
    sentence = controls([0, 0], [1, 1])
    assert "in order" in sentence and "1.00" in sentence and "0.00" in sentence


@pytest.mark.parametrize(
    ("null", "oracle", "model"),
    [([1, 1], [0, 0], [0, 1]), ([0, 0], [0, 1], [1, 1]), ([1, 1], [1, 1], [1, 1]), ([0, 0], [0, 0], [0, 0])],
)  # fmt: skip
def test_controls_out_of_order_say_where_and_that_the_rules_are_not_to_be_trusted(null, oracle, model):
    sentence = controls(null, oracle, model)
    assert "out of order on correct under open" in sentence and "cannot be trusted" in sentence


def test_rules_may_put_an_agent_below_the_one_that_does_nothing_and_a_judge_may_not():
    below = [1, 0], [1, 1], [0, 0]  # where no call is right, who does nothing is right
    assert controls(*below).startswith("The controls are in order") and "null agent 0.50" in controls(*below)
    groups = zip(("script:null", "script:oracle", "m"), ("open",) * 3, below, strict=True)
    judged = report.controls(tidy(*groups, by="grade:j"), "correct", "this judge")
    assert "out of order" in judged and "this judge cannot be trusted" in judged


@pytest.mark.parametrize("there", [[], ["script:null"], ["script:oracle"]])
def test_absent_controls_are_not_in_order(there):
    sentence = report.controls(tidy(("m", "open", [0, 1]), *[(name, "open", [0, 1]) for name in there]), "correct")
    assert "not been run" in sentence and "in order" not in sentence


@pytest.mark.parametrize("null", [[0, 0], None])
def test_a_condition_without_its_controls_is_not_called_in_order(null):
    groups = [("script:null", "closed", [0, 0]), ("script:oracle", "closed", [1, 1]), ("m", "open", [0, 1])]
    groups += [("script:null", "open", null)] if null else []
    sentence = report.controls(tidy(*groups), "correct")
    assert not sentence.startswith("The controls are in order")


def test_controls_of_which_nothing_was_measured_are_not_in_order():
    assert not controls([None, None], [None, None]).startswith("The controls are in order")


NAMES = ["m", "vendor/$x_1$-long_name", "a$b", "$", "\\frac{1}{2}$", "é & <b>"]
SHAPES = {
    "usual": (("closed", [0, 1, 0]), ("open", [1, 1, 0])),
    "one sample": (("closed", [0]), ("open", [1])),
    "equal scores": (("closed", [0.5] * 5), ("open", [0.5] * 5)),
    "all right": (("closed", [1] * 5), ("open", [1] * 5)),
    "nothing measured": (("closed", [None] * 3), ("open", [None] * 3)),
    "one condition": (("open", [1, 0]),),
    "no data": (),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_no_figure_fails_and_names_are_shown_as_typed(shape, name):
    frame = tidy(*[(name, *group) for group in SHAPES[shape]], type=lambda n: name)
    rates, gaps = report.rates(frame, "correct"), report.gaps(frame, "correct", "closed")
    lift = report.lift(frame, "correct", name, "open", "closed")
    figures = [
        (rates, f"{name} · open", drawn(lambda ax: report.plot_rates(rates, ax))),
        (gaps, f"{name} · open over closed", drawn(lambda ax: report.plot_gaps(gaps, ax, name))),
        (lift, f"type: {name}  ({len(frame) // 2})", drawn(lambda ax: report.plot_lift(lift, ax, name))),
    ]
    for table, label, texts in figures:
        assert (label if len(table) else "nothing to show: no measurement of this metric") in texts
    if len(gaps):
        assert f"paired gap in {name}, 95 % interval" in figures[1][2]
    if len(lift):
        assert name in figures[2][2]


def test_figures_are_drawn_from_a_run_of_one_model_with_its_controls(bench):
    frame = bench.measure(*CONTROLS, bench.says("It is 30.")).score().frame
    table = report.rates(frame, "correct")
    texts = drawn(lambda ax: report.plot_rates(table, ax))
    assert all(f"{model} · {condition}" in texts for model in set(frame["model"]) for condition in ("closed", "open"))


HOSTILE = "<script>alert(1)</script> </pre> {{ 1234*1001 }} {% raw %} --> </svg> \" ' & <img src=x onerror=alert(1)>"


def page(bench, *sections, title="Report"):
    return report.html(bench.root / "report.html", title, sections).read_text("utf-8")


@pytest.fixture
def sections(bench):
    bench.write([line(n) for n in range(2)] + [line(2, question=HOSTILE, id="<q2>")])
    frame = bench.measure(*CONTROLS, bench.says(HOSTILE)).score().frame
    frame["condition"] = frame["condition"] + HOSTILE
    figure, table = Figure(), report.rates(frame, "correct")
    report.plot_rates(table, figure.subplots())
    return [("", HOSTILE), (HOSTILE, table), ("Figure", figure), ("Facts", {"a": HOSTILE}),
            ("Traces", report.rows(bench.run))]  # fmt: skip


def test_the_page_asks_for_nothing_from_outside(bench, sections):
    text = page(bench, *sections)
    for tag, attributes in Seen(text).tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"):
                assert value.startswith("#"), (tag, name, value)
    assert "@import" not in text and not re.search(r"url\(\s*['\"]?(?!#)", text) and "<base" not in text


def test_hostile_text_is_shown_and_never_run(bench, sections):
    seen = Seen(page(bench, *sections, title=HOSTILE))
    assert seen.count("script") == 1 and seen.count("img") == 0 and seen.count("svg") == 1
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert seen.text.count(HOSTILE) >= 7 and "1235234" not in seen.text


def test_every_trace_stands_behind_a_fold_with_question_answer_and_gold(bench, sections):
    seen = Seen(page(bench, *sections))
    assert seen.count("details") == seen.count("summary") == 4 * 3 * 2  # models, samples, conditions; no steps here
    assert not any("open" in attributes for tag, attributes in seen.tags if tag == "details")
    assert "gold: It is 30." in seen.text and "What is 0?" in seen.text


def test_a_failed_trace_says_why_on_the_page(bench):
    bench.measure("script:null", failed={("q1", "open")}).score()
    assert "http_429" in Seen(page(bench, ("Traces", report.rows(bench.run)))).text


def test_missing_numbers_are_empty_cells(bench):
    text = page(bench, ("Table", pd.DataFrame({"a": [1.5, None], "b": [None, "x"]})))
    assert "nan" not in text.lower().partition("<body>")[2].replace("isnan", "") and "<td>1.5</td><td></td>" in text


DEGENERATE = {
    "no data": (),
    "one model": (("m", "open", [1, 0]),),
    "one sample": (("m", "closed", [0]), ("m", "open", [1])),
    "nothing measured": (("m", "closed", [None]), ("m", "open", [None])),
    "only controls": (("script:null", "open", [0]), ("script:oracle", "open", [1])),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_a_summary_of_degenerate_data_is_json_without_nan(name):
    found = report.summary(tidy(*DEGENERATE[name]), "closed", "correct", {"at": "now"})
    assert json.loads(json.dumps(found, allow_nan=False))["baseline"] == "closed"


def test_a_summary_with_the_grades_of_a_judge_gives_their_mean():
    arms = ("m", "closed", [5, 3, 1]), ("m", "open", [5, 5, 2])
    frame = pd.concat([tidy(*RULES), tidy(*arms, metric="correctness", by="grade:j")])
    found = json.loads(json.dumps(report.summary(frame, "closed", "correct", {}), allow_nan=False))
    means = {row["condition"]: row["estimate"] for row in found["metrics"]["correctness"]}
    assert means == {"closed": 3, "open": 4}


def test_a_summary_holds_what_a_machine_should_read(bench):
    frame = bench.measure(*CONTROLS, mine := bench.says("It is 30."), usd=0.5).score().frame
    found = json.loads(json.dumps(report.summary(frame, "closed", "correct", {"commit": "abc"}), allow_nan=False))
    assert (found["eval_version"], found["metric"], found["provenance"]) == ("1", "correct", {"commit": "abc"})
    (row,) = [r for r in found["metrics"]["correct"] if (r["model"], r["condition"]) == (mine, "open")]
    assert (row["estimate"], row["measured"], row["attempted"]) == (1, 4, 4)
    (gap,) = [r for r in found["gaps"] if r["model"] == mine and r["against"] == "closed"]
    assert (gap["estimate"], gap["n"]) == (0, 4) and found["headline"].startswith("No difference")
    (cost,) = [r for r in found["cost"] if (r["model"], r["condition"]) == (mine, "open")]
    assert cost["usd"] == 2.0 and {"tokens", "median_seconds"} <= cost.keys()


def paid(bench, sample, usd, answer, failed=False):
    """One row of a model, written as fill writes it."""
    cell = next(c for c in plan(bench.suite, open_model("script:null")).values() if c.sample.id == sample)
    row = grid.tracing("r", bench.suite, open_model("script:null"))(f"key-{sample}", cell)
    fault = Failure(where="provider", kind="http_500") if failed else None
    parts = {"model": "vendor:m", "usd": usd, "answer": answer, "failure": fault, "usage": Usage(input=10)}
    grid.append(bench.run / "traces.jsonl", row.model_copy(update=parts | {"stop": "failed" if failed else "answered"}))


def test_failed_and_superseded_attempts_are_in_the_cost_of_a_right_answer(bench):
    paid(bench, "q0", 0.04, "", failed=True)
    paid(bench, "q0", 0.06, "It is 30.")
    paid(bench, "q1", 0.10, "It is 99.")
    (sentence,) = report.cost_per_correct(bench.score().frame, "correct")
    assert "1 right of 2" in sentence and "0.2000 USD, 0.2000 USD each" in sentence


def test_what_failed_for_good_is_in_the_cost_and_not_among_the_measured(bench):
    paid(bench, "q0", 0.04, "", failed=True)
    paid(bench, "q1", 0.06, "It is 30.")
    (sentence,) = report.cost_per_correct(bench.score().frame, "correct")
    assert "1 right of 1" in sentence and "0.1000 USD, 0.1000 USD each" in sentence


def test_the_cost_of_a_judge_is_no_cost_of_the_agent(bench):
    paid(bench, "q0", 0.06, "It is 30.")
    bench.score()
    values = {"pass": 1.0, "correctness": 5.0}
    grid.append(bench.run / "verdicts.jsonl", Verdict(key="v", of=("key-q0",), by="grade:j", values=values, usd=9.0))
    assert "0.0600 USD each" in report.cost_per_correct(bench.frame, "correct")[0]


def test_without_a_right_answer_there_is_no_cost_of_one():
    frame = tidy(("vendor:m", "open", [0, 0])).assign(usd=0.1)
    assert "no cost per correct" in report.cost_per_correct(frame, "correct")[0]
    assert "not priced" in report.cost_per_correct(frame.assign(usd=0.0), "correct")[0]


@pytest.mark.parametrize(
    ("values", "usd", "said"),
    [
        ([1] * 21 + [0] * 4, 0.0861 / 25, "21 right of 25, 0.0861 USD, 0.0041 USD each (95 % CI 0.00"),
        ([1] + [0] * 9, 0.1, "1 right of 10, 1.0000 USD, 1.0000 USD each (95 % CI 0."),
        ([1], 0.1, "1 right of 1, 0.1000 USD, 0.1000 USD each, 1 s each"),
        ([1, 0], 0, "1 right of 2, not priced, 2 s each"),
        ([0, None], 0.1, "0 right of 1, 0.2000 USD, no cost per correct"),
    ],
)
def test_a_line_of_costs_has_right_measured_price_interval_and_seconds(values, usd, said):
    (sentence,) = report.cost_per_correct(tidy(("m", "open", values)).assign(usd=usd), "correct")
    assert sentence.startswith(f"m open: {said}") and "nan" not in sentence
    assert ("no upper bound" in sentence) == (len(values) == 10) and ("CI" in sentence) == (len(values) > 2)


RULES = (("m", "open", [1, 0, 1, 0, 1, 0]), ("script:null", "open", [0] * 6), ("script:oracle", "open", [1] * 6))


def judged(*groups):
    return report.judge_worth(pd.concat([tidy(*RULES), tidy(*groups, metric="pass", by="grade:j")]), "grade:j")


def test_a_judge_that_says_what_the_rules_say_can_be_read():
    found, sentence = judged(*RULES)
    assert (found.agreement, found.kappa, found.n) == (1, 1, 18)
    assert "agrees with the rules" in sentence and "cannot be believed" not in sentence


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("verdict", [0, 1])
def test_a_constant_judge_cannot_be_believed(verdict):
    found, sentence = judged(*[(m, c, [verdict] * 6) for m, c, _ in RULES])
    assert "cannot be believed" in sentence and (found.kappa is None or found.kappa <= 0)
    assert "out of order" in sentence


def test_a_judge_that_turns_the_controls_round_cannot_be_believed():
    groups = [("script:null", "open", [1] * 6), ("script:oracle", "open", [0] * 6), RULES[0]]
    assert "cannot be believed" in judged(*groups)[1]


def test_a_judge_whose_every_judgement_is_missing_has_judged_nothing():
    found, sentence = judged(*[(m, c, [None] * 6) for m, c, _ in RULES])
    assert found.n == 0 and "judged nothing" in sentence and "18 judgements missing" in sentence


def test_missing_judgements_are_counted_and_are_no_zeros():
    found, sentence = judged(("m", "open", [1, 0, 1, 0, None, None]), *RULES[1:])
    assert (found.n, found.agreement) == (16, 1) and "2 judgements missing" in sentence


@pytest.mark.parametrize(("size", "claimed"), [(1, False), (4, False), (5, True), (8, True)])
def test_a_group_of_under_five_samples_is_a_point_without_an_interval(size, claimed):
    values = [n % 2 for n in range(size)]
    frame = tidy(("m", "closed", [0] * size), ("m", "open", values), type=lambda n: "easy")
    (row,) = report.lift(frame, "correct", "m", "open", "closed").to_dict("records")
    assert (row["group"], row["n"], row["estimate"]) == ("type: easy", size, sum(values) / size)
    assert (pd.notna(row["low"]), pd.notna(row["high"])) == (claimed, claimed)


def test_lift_can_be_over_a_control_under_the_same_condition():
    arms = ("m", "open", [1, 1, 0, 1, 1]), ("script:random", "open", [1, 0, 0, 0, 0])
    frame = tidy(*arms, ("m", "other", [0] * 5), ("script:random", "other", [1] * 5), type=lambda n: "easy")
    (row,) = report.lift(frame, "correct", "m", "open", "script:random").to_dict("records")
    assert (row["group"], row["n"], row["estimate"]) == ("type: easy", 5, 0.6) and row["low"] < 0.6 < row["high"]


def test_lift_is_within_every_value_of_every_tag():
    frame = tidy(("m", "closed", [0] * 12), ("m", "open", [0, 1] * 6), ("x", "open", [1] * 12),
                 type=lambda n: "odd" if n % 2 else "even", level=lambda n: "one")  # fmt: skip
    table = report.lift(frame, "correct", "m", "open", "closed").set_index("group")
    assert dict(table["estimate"]) == {"type: odd": 1, "type: even": 0, "level: one": 0.5}
    assert set(table["n"]) == {6, 12}
