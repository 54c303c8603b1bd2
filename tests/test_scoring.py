"""Rules without a model: citations, declining, denying, key facts, and the rule of docs_qa on hand-made traces."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.records import Call, Citation, Failure, Sample, Step, Suite, Trace
from evalkit.scoring import (
    RULES,
    declined,
    denies,
    docs_qa,
    find_citations,
    owed,
    same_page,
    states,
    tool_choice,
    verdict,
)

DOCS = "https://fastify.dev/docs/latest"


def cases(name):
    lines = (Path(__file__).parent / "cases" / name).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def urls(text):
    return [citation.url for citation in find_citations(text)]


@pytest.mark.parametrize("case", cases("citations.jsonl"), ids=lambda case: case["form"])
def test_citations_are_found_as_the_prose_means_them(case):
    assert urls(case["text"]) == case["urls"]


def test_brackets_quotes_and_full_stops_of_the_prose_are_no_part_of_a_url():
    text = (
        "Per (https://law.example.org/wiki/Lease_(contract)). Also https://a.example/x. "
        'and [l](https://b.example/y); https://c.example/z"'
    )
    assert urls(text) == [
        "https://law.example.org/wiki/Lease_(contract)",
        "https://a.example/x",
        "https://b.example/y",
        "https://c.example/z",
    ]


URL = st.from_regex(
    r"https://[a-z]{1,8}\.example/[A-Za-z0-9]{1,8}(/[a-z0-9]{1,5}){0,2}(\?q=[0-9]{1,3})?", fullmatch=True
)
AROUND = st.sampled_from(["{}", "({})", "<{}>", "[x]({})", "see {}.", "{},", "`{}`", '"{}"', "**{}**", "({}).", "{}?"])


@given(st.lists(st.tuples(URL, AROUND), max_size=6))
def test_any_url_is_found_in_any_usual_setting_once_and_in_order(parts):
    text = " and ".join(around.format(url) for url, around in parts)
    assert urls(text) == list(dict.fromkeys(url for url, _ in parts))


@given(st.text(st.sampled_from("htps:/.[]()<>'\"\\#?&= ab1…（\n"), max_size=60) | st.text(max_size=60))
def test_no_text_breaks_the_search_for_citations_nor_their_comparison(text):
    for url in urls("https://" + text):
        assert url in text.replace("\\", "") or url.startswith("http")
        same_page(url)
    same_page(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/x", "https://a.example/x/"),
        ("https://a.example/x", "HTTPS://A.Example/x"),
        ("https://a.example/x", "http://a.example/x"),
        ("https://a.example/x", "https://www.a.example/x"),
        ("https://a.example/x#part", "https://a.example/x"),
        ("https://a.example/x/#part", "https://a.example/x"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example/x?q=1#part", "https://a.example/x?q=1"),
    ],
)
def test_host_case_trailing_slash_and_fragment_do_not_tell_pages_apart(one, other):
    assert same_page(one) == same_page(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/x", "https://a.example.evil.test/x"),
        ("https://a.example/x", "https://evil.test/a.example/x"),
        ("https://a.example/x", "https://b.a.example/x"),
        ("https://a.example/x", "https://a.example/X"),
        ("https://a.example/x", "https://a.example/x/y"),
        ("https://a.example/x", "https://a.example/x?q=1"),
        ("https://a.example/x", "https://a.example@evil.test/x"),
    ],
)
def test_host_path_and_query_tell_pages_apart(one, other):
    assert same_page(one) != same_page(other)


@pytest.mark.parametrize(
    "name", ["declined", "declined_unseen", "declined_unseen2", "declined_unseen3", "declined_unseen4"]
)
def test_declining_is_told_from_answering_nine_times_in_ten(name):
    rows = cases(f"{name}.jsonl")
    assert len(rows) >= 30 and 10 <= sum(row["declined"] for row in rows) <= len(rows) - 10
    missed = [row["text"] for row in rows if declined(row["text"]) != row["declined"]]
    assert len(missed) <= len(rows) / 10, "\n".join(missed)


@pytest.mark.parametrize("text", ["", "  \n ", "...", "Sources: https://a.example/x", "I don’t know.", "I DON'T KNOW"])
def test_an_empty_answer_and_the_told_words_decline(text):
    assert declined(text)


@pytest.mark.parametrize("case", cases("key_facts.jsonl"), ids=lambda case: case["text"][:40])
def test_a_key_fact_is_told_from_another_and_from_its_denial(case):
    assert states(case["text"], case["forms"]) == case["right"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("It is 1,048,576 bytes.", "1048576"),
        ("It is 1048576 bytes.", "1,048,576"),
        ("It is 1 048 576 bytes.", "1048576"),
        ("It is 1_048_576 bytes.", "1048576"),
        ("It is `1048576`.", "1048576"),
        ("It is (1048576).", "1048576"),
        ("It takes 1.5 seconds.", "1.5"),
        ("Between 10 and 1000.", "1000"),
        ("The limit is 72,000 ms.", "72000"),
        ("One of 400, 404 and 500.", "404"),
        ("Set it to **Null**!", "null"),
        ("Use the\n  exact   match.", "exact match"),
        ("It's “lower‑case”.", "lower-case"),
    ],
)
def test_case_space_marks_and_thousands_do_not_hide_a_fact(text, form):
    assert states(text, [form])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("The limit is 100.", "1000"),
        ("The limit is 1000.", "100"),
        ("The limit is 1,000.", "100"),
        ("The limit is 1,000.", "000"),
        ("The limit is 21000.", "1000"),
        ("It takes 1.5 seconds.", "5"),
        ("It takes 1.5 seconds.", "1"),
        ("It takes 15 seconds.", "1.5"),
        ("It takes 0,5 seconds.", "5"),
        ("Version 5.12 has it.", "12"),
        ("It is nullable.", "null"),
        ("Use logSerializersFor.", "logSerializers"),
        ("Use my_logSerializers.", "logSerializers"),
        ("", "null"),
    ],
)
def test_a_fact_inside_a_longer_word_or_number_is_another(text, form):
    assert not states(text, [form])


def test_a_number_after_a_longer_number_is_no_group_of_its_digits():
    assert states("In release 2026 500 users were asked.", ["500"])


NEGATED = [
    "It is not {}.",
    "It isn't {}.",
    "It is never {}.",
    "It is no longer {}.",
    "It is 80 rather than {}.",
    "It is 80 instead of {}.",
    "It is 80, not {}.",
    "It is not set to {}.",
    "It is neither {} nor 80.",
    "It is neither 80 nor {}.",
    "It does not return {}; it returns 80.",
    "It doesn't use {} but 80.",
    "It won't be {}.",
    "It cannot be {}.",
    "It’s not `{}`.",
]


@pytest.mark.parametrize("wording", NEGATED)
@pytest.mark.parametrize("form", ["null", "1048576"])
def test_a_negated_mention_does_not_count(wording, form):
    assert not states(wording.format(form), [form])


@pytest.mark.parametrize(
    "text",
    [
        "It is not 80 but null.",
        "It is not null in v4. In v5 it is null.",
        "No port is given, so it is null.",
        "It does not throw; it is null.",
        "If the host has no port, the value is null, not undefined.",
        "The port is never guessed: null is returned.",
        "Not only is it null, it is also read-only.",
    ],
)
def test_a_negation_of_something_else_does_not_hide_the_fact(text):
    assert states(text, ["null"])


def test_any_form_that_is_stated_is_enough():
    assert states("It is not 1,048,576 but 1 MiB.", ["1048576", "1 MiB"])
    assert not states("It is not 1,048,576 bytes.", ["1048576", "1 MiB"])
    assert not states("It is null.", [])


@given(st.text(max_size=40), st.lists(st.text(max_size=10), max_size=3))
def test_no_text_breaks_the_search_for_a_fact(text, forms):
    assert states(text, forms) in (True, False)
    assert declined(text) in (True, False)
    assert denies(text) in (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "Fastify has no `onUpgrade` hook.",
        "There is no such option in Fastify 5.",
        "There isn't an option like that; use `requestTimeout`.",
        "That hook does not exist.",
        "That option doesn't seem to exist in Fastify.",
        "`reply.sendLater` isn't a Fastify method.",
        "`onUpgrade` is not a valid hook name in Fastify.",
        "The onUpgrade hook is not part of Fastify.",
        "The documentation does not mention an option called maxRetries.",
        "I searched the reference, and FSTDEP026 is not listed there.",
        "FSTDEP026 is not among the deprecation codes; they end at FSTDEP025.",
        "No option named `bodyTimeout` is documented.",
        "Nothing called `maxSockets` is documented for Fastify.",
        "Fastify doesn’t come with a retry option.",
        "Fastify lacks an `autoScale` option.",
        "I could not find any `autoScale` option in the documentation.",
        "None of the documented hooks is called onUpgrade.",
        "I found no onUpgrade hook in the documentation.\n\nSources: https://fastify.dev/docs/latest/Reference/Hooks/",
    ],
)
def test_an_answer_that_says_the_thing_does_not_exist_denies_it(text):
    assert denies(text)


@pytest.mark.parametrize(
    "text",
    [
        "The onUpgrade hook receives request, socket and head.",
        "It defaults to 30 seconds.",
        "Use `autoScale: true` when you create the server.",
        "FSTDEP026 asks you to use `request.routeOptions` instead.",
        "FSTDEP026 says that the top-level option is no longer supported.",
        "`maxRetries` defaults to 3 and does not accept negative values.",
        "Set `autoScale: true`; there is no need to restart the server.",
        "The hook receives request and socket, and there is no callback.",
        "`bodyTimeout` is 10 s and is not supported over HTTP/2.",
        "`onUpgrade` is called with the socket. It does not have access to the reply.",
        'The hook takes "there is no such option" as its message.',
    ],
)
def test_a_specific_claim_denies_nothing(text):
    assert not denies(text)


@pytest.mark.parametrize(
    "text",
    ["I don't know.", "I’m not sure.", "I do not know the answer.", "I can't answer that.", "No idea.", "N/A", "", "?"],
)
def test_a_bare_i_dont_know_denies_nothing(text):
    assert not denies(text)


FACT = Sample(id="q", prompt="?", gold={"key_fact": ["1048576", "1 MiB"], "urls": [f"{DOCS}/Reference/Server/"]})
TRAP = Sample(id="t", prompt="?", gold={"answer": "There is none.", "trap": True})


def search(*found, **more):
    lines = "\n\n".join(f"{url} line 3\n…" for url in found)
    return Step(call=Call(id="s", name="grep_index", args={"pattern": "x"} | more), result=f"9 matches\n\n{lines}")


def read(url, **more):
    return Step(call=Call(id="r", name="read_page", args={"url": url}), result="# Server", **more)


def score(answer, *steps, sample=FACT, stop="answered"):
    found = tuple(find_citations(answer))
    return docs_qa(sample, Trace(key="k", answer=answer, citations=found, steps=steps, stop=stop))


def test_a_right_answer_from_the_gold_page_scores_in_full():
    page = f"{DOCS}/Reference/Server/"
    assert score(f"The default is 1,048,576 bytes.\n\nSources: {page}", search(page), read(page)) == {
        "correct": 1, "key_fact": 1, "denies": None, "cited": 1,
        "cited_exact": 1, "cited_host": 1, "cited_read": 1, "abstained": 0,
    }  # fmt: skip


def test_a_declined_answer_is_wrong_abstained_and_cites_nothing():
    assert score("I don't know.", stop="abstained") == {
        "correct": 0, "key_fact": 0, "denies": None, "cited": 0,
        "cited_exact": None, "cited_host": 0, "cited_read": None, "abstained": 1,
    }  # fmt: skip


def test_a_denied_trap_is_right_and_has_no_key_fact_and_no_gold_to_cite():
    assert score(f"There is no such hook. Sources: {DOCS}/Reference/Hooks/", sample=TRAP) == {
        "correct": 1, "key_fact": None, "denies": 1, "cited": 1,
        "cited_exact": None, "cited_host": None, "cited_read": 0, "abstained": 0,
    }  # fmt: skip


@pytest.mark.parametrize("answer", ["It gets request and socket.", "I don't know.", ""])
def test_a_trap_answered_or_declined_is_wrong(answer):
    values = score(answer, sample=TRAP)
    assert (values["correct"], values["denies"]) == (0, 0)


def test_a_fact_that_only_the_list_of_sources_holds_is_not_stated():
    assert score("See the page.\n\nSources: https://fastify.dev/1048576")["key_fact"] == 0


def test_shares_of_cited_pages_are_counted_by_page():
    gold, other, far = f"{DOCS}/Reference/Server", f"{DOCS}/Reference/Hooks/", "https://fastify.dev.evil.test/x"
    values = score(f"1 MiB. Sources: {gold}#bodylimit, {other}, {far}", read(other))
    assert values["cited_exact"] == values["cited_read"] == pytest.approx(1 / 3)
    assert values["cited_host"] == 1


@pytest.mark.parametrize(
    ("cited", "host"),
    [
        ("https://www.fastify.dev/elsewhere", 1),
        ("http://FASTIFY.dev:443/x", 1),
        ("https://fastify.dev.evil.test/x", 0),
        ("https://evil.test/fastify.dev", 0),
        ("https://fastify.dev@evil.test/", 0),
    ],
)
def test_the_host_of_a_citation_is_compared_whole(cited, host):
    assert score(f"1 MiB. Sources: {cited}")["cited_host"] == host


def test_only_pages_that_a_step_of_this_run_read_count_as_read():
    page = f"{DOCS}/Reference/Server/"
    answer = f"1 MiB.\n\nSources: {page}"
    assert score(answer, read("https://FASTIFY.dev/docs/latest/Reference/Server#x"))["cited_read"] == 1
    assert score(answer)["cited_read"] == 0
    assert score(answer, read(f"{DOCS}/Reference/Hooks/"))["cited_read"] == 0
    assert score(answer, read(page, ok=False))["cited_read"] == 0
    assert score(answer, read(page, executed=False, ok=False))["cited_read"] == 0


def test_a_url_that_was_only_searched_for_was_not_read():
    page = f"{DOCS}/Reference/Server/"
    nothing = Step(call=Call(id="s", name="grep_index", args={"pattern": page}), result="no match; try another word")
    assert score(f"1 MiB.\n\nSources: {page}", nothing)["cited_read"] == 0


@pytest.mark.parametrize(
    "hostile", ["http://[", "http://[::1", "http://", "https://a]b/", "//", "http://a:b:c/", "\x00"]
)
def test_hostile_urls_never_raise(hostile):
    steps = (read(hostile), search(hostile), read("x", ok=False))
    sample = Sample(id="q", prompt="?", gold={"key_fact": ["x"], "urls": [hostile]})
    trace = Trace(key="k", answer=f"x {hostile}", citations=(Citation(url=hostile),), steps=steps, stop="answered")
    assert docs_qa(sample, trace)["correct"] == 1
    assert find_citations(f"see {hostile} and https://a.example/x")[-1].url == "https://a.example/x"


def test_a_step_with_odd_arguments_never_raises():
    odd = Step(call=Call(id="1", name="x", args={"a": None, "b": [1], "c": {"url": "http://["}}), result="")
    assert score("1 MiB", odd)["correct"] == 1


def test_verdicts_are_owed_for_measured_traces_of_the_suite_by_gold_and_never_for_failed_ones(tmp_path):
    suite = Suite(name="s", kind="docs_qa", path=tmp_path, samples=(FACT,), conditions=(), rules=("docs_qa",))
    good, failed = (
        Trace(key="1", suite="s", sample_id="q", answer="1 MiB", stop="answered"),
        Trace(key="2", suite="s", sample_id="q", failure=Failure(where="provider", kind="http_429")),
    )
    others = (Trace(key="3", suite="other", sample_id="q"), Trace(key="4", suite="s", sample_id="gone"))
    cells = owed(suite, [good, failed, *others])
    assert [cell[2].key for cell in cells.values()] == ["1"]
    ((name, cell),) = cells.items()
    made = verdict(name, cell)
    assert (made.key, made.of, made.by, made.values["correct"]) == (name, ("1",), "rule:docs_qa", 1)
    mended = FACT.model_copy(update={"gold": FACT.gold | {"key_fact": ["2 MiB"]}})
    assert owed(suite.model_copy(update={"samples": (mended,)}), [good]).keys() != cells.keys()


LEASES = [{"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
          {"name": "web_search", "parameters": {}, "distractor": True}]  # fmt: skip
LEASE = {"call": {"tool": "search", "args": {"query": {"type": "keywords", "value": ["lease"]}}}}
CHOICE = Sample(id="c", prompt="Find the leases.", tools=LEASES, gold=LEASE)
SILENT = Sample(id="n", prompt="Thanks!", tools=LEASES, gold={"no_call": True})
KINDS = {
    "docs_qa": FACT,
    "code_search": FACT,
    "tool_choice": CHOICE,
}  # a sample of its kind for every rule of the module


def of(rule, sample, **settings):
    return Suite(name="s", kind=rule, path=".", samples=(sample,), conditions=(), rules=(rule,), settings=settings)


def chose(*calls, stop="answered"):
    """The trace of calls that were offered and not run, (name, arguments) each; None stands for malformed ones."""
    made = [Call(id=str(n), name=name, args=args or {}, malformed=args is None) for n, (name, args) in enumerate(calls)]
    steps = [Step(call=call, result="", executed=False) for call in made]
    return Trace(key="k", suite="s", sample_id="c", steps=steps, stop=stop)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.__module__ == "evalkit.scoring"])
def test_every_rule_gives_named_numbers_or_null_with_and_without_a_suite(name):
    for suite in (None, of(name, KINDS[name])):
        values = RULES[name](KINDS[name], Trace(key="k", stop="answered"), suite)
        notes = values.pop("notes", {})
        assert isinstance(notes, dict) and values["correct"] == 0
        assert all(value is None or value >= 0 for value in values.values())


def choice(*calls, sample=CHOICE, strict=None, **more):
    """What the rule of tool_choice says of calls."""
    suite = None if strict is None else of("tool_choice", CHOICE, strict=strict)
    return RULES["tool_choice"](sample, chose(*calls, **more), suite)


def test_the_choice_of_a_tool_is_judged_by_its_calls():
    right, wrong = ("search", {"query": "Leases 2024"}), ("web_search", {"query": "lease"})
    broken = ("search", None)
    assert choice(right) == {
        "correct": 1, "tool_right": 1, "args_right": 1, "over_calls": 0, "distractor": 0, "malformed": 0,
        "notes": {"shown": 0}}  # fmt: skip
    assert (choice(wrong)["correct"], choice(wrong)["distractor"]) == (0, 1)
    assert (choice(broken)["correct"], choice(broken)["malformed"]) == (0, 1)
    assert [choice(right, sample=SILENT)["correct"], choice()["correct"]] == [0, 0]


def test_where_no_call_is_right_words_are_and_silence_and_refusal_are_not():
    said = Trace(key="k", answer="No tool is needed.", stop="answered")
    assert tool_choice(SILENT, said)["correct"] == 1
    assert tool_choice(SILENT, said.model_copy(update={"answer": " "}))["correct"] == 0
    assert tool_choice(SILENT, said.model_copy(update={"stop": "refused"}))["tool_right"] == 0


def test_strict_is_a_setting_of_the_suite():
    calls = ("search", {"query": "lease"}), ("web_search", {})
    assert [choice(*calls, strict=strict)["correct"] for strict in (None, False, True)] == [1, 1, 0]


@pytest.mark.parametrize("stop", ["truncated", "output_tokens"])
@pytest.mark.parametrize("sample", [CHOICE, SILENT], ids=["a call", "no call"])
def test_a_choice_that_was_cut_off_is_no_zero_and_no_one(stop, sample):
    values = choice(sample=sample, stop=stop)
    assert set(values) == {"correct", "tool_right", "args_right", "over_calls", "distractor", "malformed"}
    assert set(values.values()) == {None}


def test_mended_gold_defaults_and_strictness_score_stored_calls_again():
    trace = chose(("search", {"query": "rent"}))

    def judged(strict=False, **changes):
        suite = of("tool_choice", CHOICE.model_copy(update=changes), strict=strict)
        ((name, cell),) = owed(suite, [trace]).items()
        made = verdict(name, cell)
        return name, made.values["correct"], made.notes

    gold = {"call": {"tool": "search", "args": {}}}
    filled = ({"name": "search", "parameters": {"properties": {"query": {"default": "lease"}}}},)
    found = [judged(), judged(gold=gold), judged(gold=gold, strict=True), judged(tools=filled)]
    assert [value for _, value, _ in found] == [0, 1, 0, 0] and found[0][2] == {"shown": 0}
    assert len({name for name, _, _ in found}) == 4
