"""Samples from elsewhere: a CSV, a frame or a dataset on disk, and the questions of the BFCL, in our rows."""

import csv
import io
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit import sources
from evalkit.sources import SourceError
from evalkit.suites import load_suite

ORACLE = [json.loads(x) for x in (Path(__file__).parent / "cases/bfcl_oracle.jsonl").read_text("utf-8").splitlines()]
CAPPED = ("bfcl-hand-108", "bfcl-hand-119")
QA = 'kind = "docs_qa"\nrules = ["docs_qa"]\n[[conditions]]\nname = "closed_book"\n'
CALLS = 'kind = "tool_choice"\nrules = ["tool_choice"]\n[[conditions]]\nname = "all"\n'
FULL = {
    "id": "a1",
    "prompt": "What is the port?",
    "gold": {"answer": "It is 7.", "key_fact": ["7", "seven"], "urls": ["https://docs.example/a/"]},
    "tags": {"level": "easy"},
}


def asked(*names, turns=(("user", "Do it."),), **properties):
    """A question of BFCL that offers tools of these names, each with the same properties, all of them optional."""
    shape = {"type": "dict", "properties": properties, "required": []}
    tools = [{"name": name, "description": "A tool.", "parameters": shape} for name in names]
    return {"id": "x", "question": [[{"role": r, "content": c} for r, c in turns]], "function": tools}


def canonical(call):
    """The set of calls that an expected call with its alternatives accepts, as text."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call["tool"])
    plain = json.dumps([name, call["args"]], sort_keys=True)
    return frozenset({plain, *(form for other in call.get("alternatives", []) for form in canonical(other))})


def meaning(task):
    """What a gold, or a task of the oracle, accepts: for each call owed a set of calls, in no order."""
    task = {name.removeprefix("expected_"): value for name, value in task.items()}
    if task.get("no_call"):
        return Counter()
    one = [{**task.get("call", task.get("expected", {})), "alternatives": task.get("alternatives", [])}]
    return Counter(map(canonical, task.get("parallel") or one))


@pytest.fixture(scope="module")
def everything():
    return sources.bfcl(1_000_000)


def converted(row):
    """The gold that a row of the oracle gets here."""
    question = asked() | {"function": row["tools"]}
    return sources.tool_choice(question, row["bfcl_ground_truth"] or [], row["category"])["gold"]


@pytest.mark.parametrize("row", [row for row in ORACLE if row["id"] not in CAPPED], ids=lambda row: row["id"])
def test_ground_truth_of_bfcl_becomes_what_an_independent_conversion_made_of_it(row):
    assert meaning(converted(row)) == meaning(row["task"])


def test_where_the_independent_conversion_stops_at_16_ways_ours_has_them_all_or_leaves_the_row_out():
    many, some = (row for row in ORACLE if row["id"] in CAPPED)
    with pytest.raises(SourceError, match="over 64"):  # 2 to the power of its 7 optional keys
        converted(many)
    (ours,), (theirs,) = meaning(converted(some)), meaning(some["task"])
    assert (len(ours), len(theirs)) == (64, 16) and theirs < ours


def test_every_question_is_a_row_or_is_left_out_with_its_reason(everything):
    rows, left_out = everything
    assert Counter(row["tags"]["category"] for row in rows) == {
        "simple_python": 400, "multiple": 200, "parallel": 199, "parallel_multiple": 200, "irrelevance": 240,
        "live_simple": 254, "live_multiple": 1050, "live_parallel": 16, "live_parallel_multiple": 24,
        "live_irrelevance": 880,
    }  # fmt: skip
    assert {re.sub(r"(\d+) .*: (.*)\.", r"\1 \2", sentence) for sentence in left_out} == {
        "150 arguments are source text of another language, not JSON",
        "2 gold accepts over 64 calls",
        "1 an argument has a name that providers refuse",
        "3 gold accepts no value of an argument",
        "2 gold has an argument that the tool has not",
        "4 no tool is offered",
    }
    assert len({row["id"] for row in rows}) == len(rows)


def test_gold_and_tools_of_every_row_are_of_the_kind_its_category_says(everything):
    types = set()

    def walk(node):
        types.add(node.get("type"))
        for part in [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]:
            walk(part)

    for row in everything[0]:
        kind = {"irrelevance": "no_call", "parallel": "parallel"}
        wanted = next((gold for word, gold in kind.items() if word in row["tags"]["category"]), "call")
        assert set(row["gold"]) == ({"call", "alternatives"} if wanted == "call" else {wanted}), row["id"]
        owed = row["gold"].get("parallel", [row["gold"]["call"]] if wanted == "call" else [])
        offered = {tool["name"]: tool["parameters"] for tool in row["tools"]}
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in offered), row["id"]
        assert all(call["args"].keys() <= offered[call["tool"]]["properties"].keys() for call in owed), row["id"]
        assert isinstance(row["prompt"], str) and row["prompt"].strip(), row["id"]
        for parameters in offered.values():
            walk(parameters)
    assert types == {"string", "integer", "number", "boolean", "array", "object", None}


def test_a_draw_is_seeded_spread_and_the_beginning_of_a_larger_one(everything):
    rows, left_out = sources.bfcl(60)
    assert (rows, left_out) == (everything[0][:60], everything[1])
    assert set(Counter(row["tags"]["category"] for row in rows).values()) == {6}
    assert {row["id"] for row in sources.bfcl(60, seed=1)[0]} != {row["id"] for row in rows}


def test_drawn_rows_are_a_suite_that_loads(tmp_path):
    rows, _ = sources.bfcl(40)
    suite = load_suite(sources.write(tmp_path / "bfcl", rows, CALLS))
    assert [sample.id for sample in suite.samples] == [row["id"] for row in rows]


def test_what_came_before_the_prompt_is_history_and_system_text_stands_before_the_first_words():
    turns = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Do it."))
    row = sources.tool_choice(asked("f", turns=turns), [], "irrelevance")
    assert (row["history"], row["prompt"]) == (["Be brief.\n\nHi", {"text": "Yes?"}], "Do it.")
    row = sources.tool_choice(asked("f", turns=(turns[0], turns[3])), [], "irrelevance")
    assert (row["history"], row["prompt"]) == ([], "Be brief.\n\nDo it.")


def test_a_parameter_that_is_named_type_stays_and_types_are_those_of_json_schema():
    text = json.dumps(
        {
            "type": "dict",
            "properties": {"type": {"type": "any"}, "pair": {"type": "tuple", "items": {"type": "float"}}},
            "required": ["type"],
            "default": "any",
        }
    )
    assert json.loads(text, object_hook=sources.schema) == {
        "type": "object",
        "properties": {"type": {}, "pair": {"type": "array", "items": {"type": "number"}}},
        "required": ["type"],
        "default": "any",
    }


def test_dots_in_tool_names_become_underscores_in_tools_and_gold_and_twins_are_left_out():
    row = sources.tool_choice(asked("math.add", a={"type": "integer"}), [{"math.add": {"a": [1]}}], "multiple")
    assert (row["tools"][0]["name"], row["gold"]["call"]["tool"]) == ("math_add", "math_add")
    for twin in ("math_add", "math.add"):
        with pytest.raises(SourceError, match="two tools have one name"):
            sources.tool_choice(asked("math.add", twin), [], "irrelevance")


def args(accepted, required=()):
    """The argument values of every call that the accepted values allow, in their order."""
    tool = {"name": "f", "parameters": {"properties": dict.fromkeys("abc"), "required": required}}
    return [{k: v["value"] for k, v in call["args"].items()} for call in sources.accepted(tool, accepted)]


@pytest.mark.parametrize(
    ("accepted", "required", "right"),
    [
        ({"a": [1, 2], "b": ["x"]}, "", [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]),
        ({"a": [1], "b": ["x", ""]}, "", [{"a": 1}]),
        ({"a": [1], "b": ["x", ""]}, "b", [{"a": 1, "b": "x"}]),
        ({"a": [""], "b": [""]}, "", [{}]),
        ({"a": [1, 1, 2, 1]}, "", [{"a": 1}, {"a": 2}]),
        ({"a": [1, True, "1"]}, "", [{"a": 1}, {"a": True}, {"a": "1"}]),
        ({"a": [[1, 2], [3]]}, "", [{"a": [1, 2]}, {"a": [3]}]),
        ({"a": [None]}, "", [{"a": None}]),
        ({"a": [{"k": [1, 2], "o": [3, ""]}]}, "", [{"a": a} for a in ({"k": 1, "o": 3}, {"k": 1}, {"k": 2, "o": 3},
                                                                      {"k": 2})]),
        ({"a": [[{"k": [1, 2]}, {"k": [3]}]]}, "", [{"a": [{"k": 1}, {"k": 3}]}, {"a": [{"k": 2}, {"k": 3}]}]),
        ({"a": [{"k": [[1, 2]]}]}, "", [{"a": {"k": [1, 2]}}]),
        ({"a": [{"k": [{"l": 10.5}]}]}, "", [{"a": {"k": {"l": 10.5}}}]),
    ],
)  # fmt: skip
def test_accepted_values_become_calls(accepted, required, right):
    assert args(accepted, required) == right


def test_gold_that_no_call_or_too_many_calls_could_meet_is_refused():
    assert len(args({"a": list(range(8)), "b": list(range(8))})) == 64
    with pytest.raises(SourceError, match="over 64"):
        args({"a": list(range(5)), "b": list(range(13))})
    with pytest.raises(SourceError, match="no value"):
        args({"a": [1], "b": []})
    with pytest.raises(SourceError, match="the tool has not"):
        args({"z": [1]})
    assert args({"a": [1], "z": [1, ""]}) == [{"a": 1}]


@pytest.fixture
def sheet(tmp_path):
    """Write a CSV and give its path."""

    def write(text, encoding="utf-8"):
        path = tmp_path / "sheet.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


HEAD = "id,question,answer,key_fact,urls,level\n"
LINE = "a1,What is the port?,It is 7.,7|seven,https://docs.example/a/,easy\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_a_csv_is_read_whatever_program_wrote_it(sheet, encoding, separator):
    text = (HEAD + LINE).replace(",", separator).replace("easy", "più").replace("\n", "\r\n")
    assert sources.table(sheet(text, encoding)) == [FULL | {"tags": {"level": "più"}}]


def test_quoted_separators_and_newlines_stay_in_their_cell_and_blank_cells_and_lines_are_left_out(sheet):
    text = 'id;prompt;answer;urls;level\nb;"One; two,\n""three""?"; ;|;\n;;;;\n\nc;Four?;4;;\n'
    assert sources.table(sheet(text)) == [
        {"id": "b", "prompt": 'One; two,\n"three"?', "gold": {"urls": []}, "tags": {}},
        {"id": "c", "prompt": "Four?", "gold": {"answer": "4"}, "tags": {}},
    ]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ('id,prompt\n1,"two\nlines"\n2,\n', 4, "no question; write it under prompt or question"),
        ("id,frage\n1,Wo?\n", 2, "no question; write it under prompt or question"),
        ('id,prompt\n1,"two\nlines"\n2,"open\n3,x\n', 4, "close the quotes"),
        ('id,prompt\n1,"a "b" c"\n', 2, "double a quote inside them"),
        ("id,prompt\n1,One, two?\n", 2, "' two?'] has no column; name it, or quote the cell"),
        ("id,prompt,\n1,One?,easy\n", 2, "'easy' has no column; name it"),
    ],
)
def test_a_csv_that_cannot_be_read_is_refused_with_file_and_line(sheet, text, line, told):
    path = sheet(text)
    with pytest.raises(SourceError) as error:
        sources.table(path)
    assert str(error.value).startswith(f"{path}:{line}: ") and told in str(error.value)


@given(
    st.lists(
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1).filter(str.strip),
        max_size=5,
    ),
    st.sampled_from(",;"),
)
def test_any_text_survives_a_csv(tmp_path_factory, prompts, separator):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows([("prompt", "tag"), *((p, p) for p in prompts)])
    path = tmp_path_factory.mktemp("csv") / "any.csv"
    path.write_bytes(text.getvalue().encode())
    rows = [{"prompt": p.strip(), "gold": {}, "tags": {"tag": p.strip()}} for p in prompts]
    assert sources.table(path) == rows


def test_a_frame_gives_the_rows_that_its_csv_gives(sheet):
    text = HEAD + LINE + "007,Where?,,,,\n"
    df = pd.read_csv(io.StringIO(text), dtype=str)
    assert sources.frame(df) == sources.table(sheet(text))
    assert sources.frame(df)[0] == FULL and sources.frame(df)[1]["id"] == "007"


def test_blanks_of_a_frame_are_left_out_and_its_values_keep_the_types_that_tags_have():
    df = pd.DataFrame(
        {
            "id": [1, np.nan],
            "prompt": ["One?", "Two?"],
            "answer": [7, np.nan],
            "key_fact": [["a|b", "c"], None],
            "urls": [np.array(["https://docs.example/a/"]), pd.NA],
            "fresh": [True, None],
            "day": [pd.Timestamp("2025-03-14"), pd.NaT],
            "share": [0.5, float("nan")],
        }
    )
    gold = {"answer": "7", "key_fact": ["a|b", "c"], "urls": ["https://docs.example/a/"]}
    tags = {"fresh": True, "day": "2025-03-14 00:00:00", "share": "0.5"}
    rows = sources.frame(df)
    assert rows == [
        {"id": "1", "prompt": "One?", "gold": gold, "tags": tags},
        {"prompt": "Two?", "gold": {}, "tags": {}},
    ]
    assert rows[0]["tags"]["fresh"] is True and json.loads(json.dumps(rows)) == rows


def test_a_frame_without_a_question_is_refused_by_row():
    with pytest.raises(SourceError, match=r"^row 8: no question"):
        sources.frame(pd.DataFrame({"prompt": ["One?", None], "answer": ["1", "2"]}, index=[4, 8]))


def test_a_dataset_on_disk_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match="pip install pyarrow") as error:
        sources.frame(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_dataset_on_disk_gives_the_rows_of_its_frame(tmp_path, ending):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    df = pd.DataFrame({"question": ["One?", "Two?", None], "key_fact": [["1"], None, None], "step": [1, None, None]})
    for number in range(2):  # the second holds rows 1 and 2
        part = arrow.Table.from_pandas(df[number : 2 * number + 1], preserve_index=False)
        file = tmp_path / f"data-0000{number}-of-00002.{ending}"
        if ending == "parquet":
            parquet.write_table(part, file)
        else:
            with arrow.ipc.new_stream(str(file), part.schema) as stream:
                stream.write_table(part)
    (tmp_path / f"cache-1.{ending}").write_bytes(b"what a library has worked out")
    assert sources.frame(tmp_path) == sources.frame(df)
    with pytest.raises(SourceError, match="name a split's folder"):
        sources.frame(tmp_path.parent)


def test_written_rows_are_a_suite_that_loads(tmp_path, sheet):
    folder = sources.write(tmp_path / "new" / "suite", sources.table(sheet(HEAD + LINE)), QA)
    assert sorted(file.name for file in folder.iterdir()) == ["samples.jsonl", "suite.toml"]
    (sample,) = load_suite(folder).samples
    assert (sample.prompt, sample.gold, sample.tags) == (FULL["prompt"], FULL["gold"], FULL["tags"])


@pytest.mark.parametrize("changed", ["samples.jsonl", "suite.toml"])
def test_what_stands_in_the_folder_is_never_overwritten(tmp_path, changed):
    sources.write(tmp_path, [FULL], QA)
    assert sources.write(tmp_path, [FULL], QA) == tmp_path
    (tmp_path / changed).write_text("mine", "utf-8")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SourceError, match=rf"{changed} holds something else; name another folder"):
        sources.write(tmp_path, [FULL], QA)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
