"""Records: usage adds, keys are content, rows survive writing, damage is reported, the last row of a slot counts."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evalkit.records import Budget, Call, Failure, Step, Trace, Usage, Verdict, clean, key, latest, load_rows

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3))
COUNTS = st.builds(Usage, **{name: st.integers(0, 10**9) for name in Usage.model_fields})
ANY_CHARACTER = st.characters() | st.integers(0xD800, 0xDFFF).map(chr) | st.sampled_from("\u2028\u2029\x85\x0b\r\n👩‍💻")


def rows_file(tmp_path, *lines, end=b"\n"):
    path = tmp_path / "verdicts.jsonl"
    path.write_bytes(b"\n".join(lines) + end)
    return path


def verdict_line(name, **more):
    return Verdict(key=name, of=(name,), by="rule:x", **more).model_dump_json().encode()


def test_usage_adds_every_count_and_reasoning_is_no_part_of_the_total():
    both = Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=2) + Usage(input=10, output=20, reasoning=5)
    assert both == Usage(input=11, output=22, cache_read=3, cache_write=4, reasoning=7)
    assert both.total == 11 + 22 + 3 + 4


@given(COUNTS, COUNTS, COUNTS)
def test_usage_adds_in_any_order(a, b, c):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b).total == a.total + b.total
    assert a + Usage() == a


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=2, max_size=5))
def test_a_key_does_not_depend_on_the_order_of_a_dict(content):
    backwards = dict(reversed(content.items()))
    assert key(content) == key(backwards)
    assert len(key(content)) == 16 and int(key(content), 16) >= 0


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_a_key_changes_with_any_part(parts, data):
    at = data.draw(st.integers(0, len(parts) - 1))
    other = data.draw(VALUES.filter(lambda v: json.dumps(v, sort_keys=True) != json.dumps(parts[at], sort_keys=True)))
    assert key(*parts) != key(*parts[:at], other, *parts[at + 1 :])


def test_a_key_knows_where_one_part_ends_and_types_apart():
    assert key("ab", "c") != key("a", "bc")
    assert key("1") != key(1) != key(True)
    assert key("a") != key("a", None)


def test_a_key_sees_into_records():
    assert key(Budget(turns=3)) == key(Budget(turns=3)) != key(Budget(turns=4))


def test_a_key_is_the_start_of_the_sha256_of_compact_sorted_json():
    text = b'["question",{"limit":null,"repeat":0}]'
    assert key("question", {"repeat": 0, "limit": None}) == hashlib.sha256(text).hexdigest()[:16]


def test_a_torn_last_line_is_reported_with_its_byte_offset(tmp_path):
    whole = verdict_line("ä")
    rows, problems = load_rows(rows_file(tmp_path, whole, b'{"key":"b","sta', end=b""), Verdict)
    assert [row.key for row in rows] == ["ä"]
    assert len(problems) == 1
    assert f"byte {len(whole) + 1}," in problems[0] and "verdicts.jsonl" in problems[0]


def test_a_file_of_one_torn_line_has_no_rows(tmp_path):
    rows, problems = load_rows(rows_file(tmp_path, b'{"key"', end=b""), Verdict)
    assert rows == [] and "byte 0," in problems[0]


def test_a_missing_or_empty_file_has_neither_rows_nor_problems(tmp_path):
    assert load_rows(tmp_path / "none.jsonl", Verdict) == ([], [])
    assert load_rows(rows_file(tmp_path, end=b""), Verdict) == ([], [])


@pytest.mark.parametrize(
    "damage",
    [b'{"key":"b","sta', b"\x00" * 64, b"\xff\xfe", b"[]", b"17", b"", b'{"key": "b"}', b"[" * 200_000],
    ids=["cut", "zeros", "not UTF-8", "a list", "a number", "blank", "fields missing", "nested too deep"],
)
def test_damage_in_the_middle_is_reported_by_line_and_hides_no_other_row(tmp_path, damage):
    path = rows_file(tmp_path, verdict_line("a"), damage, verdict_line("c"))
    rows, problems = load_rows(path, Verdict)
    assert [row.key for row in rows] == ["a", "c"]
    assert len(problems) == 1 and problems[0].startswith(f"{path}:2:")


def test_nan_and_infinity_of_older_files_are_read_as_null(tmp_path):
    legacy = b'{"key":"a","of":["t"],"by":"r","values":{"x":NaN,"y":-Infinity,"z":Infinity,"w":1}}'
    rows, _ = load_rows(rows_file(tmp_path, legacy), Verdict)
    assert rows[0].values == {"x": None, "y": None, "z": None, "w": 1.0}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_written_as_null_and_read_back(tmp_path, number):
    line = verdict_line("a", values={"x": number}, usd=0.5)
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    rows, problems = load_rows(rows_file(tmp_path, line), Verdict)
    assert (rows[0].values, rows[0].usd, problems) == ({"x": None}, 0.5, [])


def test_a_lone_surrogate_is_saved_as_a_replacement_character_and_an_emoji_as_it_is(tmp_path):
    step = Step(call=Call(id="1", name="grep", args={"p\ud800": ["\udfff", "👩‍💻"]}), result="r\ud800")
    trace = Trace(key="k", answer="A\ud800B 👩‍💻 ok", steps=(step,), notes={"said": "\ud83d\udc69"})
    rows, problems = load_rows(rows_file(tmp_path, trace.model_dump_json().encode()), Trace)
    assert problems == [] and rows == [trace]
    assert rows[0].answer == "A\ufffdB 👩‍💻 ok"
    assert rows[0].steps[0].call.args == {"p\ufffd": ["\ufffd", "👩‍💻"]}
    assert rows[0].steps[0].result == "r\ufffd"
    assert rows[0].notes == {"said": "👩"}


@given(st.lists(ANY_CHARACTER, max_size=20).map("".join))
def test_any_text_survives_writing_and_reading(tmp_path_factory, text):
    trace = Trace(key="k", answer=text, failure=Failure(where="agent", kind="x", detail=text))
    path = rows_file(tmp_path_factory.getbasetemp(), trace.model_dump_json().encode())
    assert load_rows(path, Trace) == ([trace], [])
    assert trace.answer == clean(text)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert trace.answer == text


def test_the_last_row_of_a_slot_counts_whatever_its_key():
    here = {"suite": "s", "sample_id": "q1", "condition": "c", "model": "m", "options": {"effort": "low", "seed": 1}}
    old, other = Trace(key="1", **here), Trace(key="2", **here, repeat=1)
    mended = Trace(key="3", **here | {"options": {"seed": 1, "effort": "low"}})
    assert {row.key for row in latest([old, other, mended])} == {"2", "3"}
    assert {row.key for row in latest([mended, other, old])} == {"1", "2"}


@pytest.mark.parametrize("field", ["suite", "sample_id", "condition", "model", "options", "repeat"])
def test_rows_that_differ_in_one_part_of_the_slot_stand_apart(field):
    other = {"options": {"effort": "high"}, "repeat": 1}.get(field, "x")
    assert len(latest([Trace(key="1"), Trace(key="1", **{field: other})])) == 2


def test_the_last_verdict_on_the_same_trace_by_the_same_rule_counts():
    first, second = Verdict(key="1", of=("t",), by="rule:a"), Verdict(key="2", of=("t",), by="rule:a")
    other = Verdict(key="3", of=("t",), by="rule:b")
    assert latest([first, other, second]) == [second, other]


@pytest.mark.parametrize(
    ("record", "field"),
    [(Usage(), "input"), (Trace(key="k"), "answer"), (Verdict(key="k", of=(), by="r"), "why"), (Budget(), "turns")],
)
def test_records_are_frozen(record, field):
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, field, getattr(record, field))
