"""Prices: the worked values, exact ids with one date stripped, own rows first, and unknown models refused."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit import pricing
from evalkit.pricing import UnknownPrice, usd
from evalkit.records import Usage

OWN = """
["house-sonnet"]
input = 3.0
cache_read = 0.30
cache_write = 3.75
output = 15.0
as_of = 2026-11-30
source = "a price page"
["claude-haiku-4-5"]
input = 1
output = 5
["house-4.1"]
input = 2
output = 8
["house-4.1-mini"]
input = 0.4
output = 1.6
["house-dated-20250101"]
input = 7
output = 7
"""
BILL = Usage(input=1000, output=200)  # of case usage-cost-05
MIXED = Usage(input=1000, cache_read=2000, cache_write=3000, output=500)  # of case usage-cost-01


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Point the price table at a file of the test's own; returns a writer of it."""
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()

    def write(text):
        (root / "data" / "prices.toml").write_text(text, "utf-8")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pricing, "ROOT", root)
        yield write


@pytest.fixture
def own(rows):
    rows(OWN)


@pytest.fixture
def none_of_my_own(rows):
    rows("# no rows\n")


def test_the_worked_value_with_both_caches_by_own_rows(own):
    assert usd("house-sonnet", MIXED) == pytest.approx(0.02235, abs=1e-12)


def test_the_worked_value_with_both_caches_by_the_package(none_of_my_own):
    assert usd("claude-sonnet-4-5", MIXED, "anthropic") == pytest.approx(0.02235, abs=1e-12)


def test_cached_tokens_of_a_prompt_are_not_charged_twice(own):
    openai = Usage(input=1000 - 600, cache_read=600, output=200)
    assert usd("house-sonnet", openai) == pytest.approx(0.00438, abs=1e-12)


def test_reasoning_tokens_are_part_of_the_output_and_not_charged_again(own):
    assert usd("house-sonnet", Usage(output=200, reasoning=150)) == usd("house-sonnet", Usage(output=200))


def test_no_tokens_cost_nothing(own):
    assert usd("house-sonnet", Usage()) == 0


@pytest.mark.parametrize(
    ("served", "cost"),
    [
        ("claude-haiku-4-5", 0.002),
        ("claude-haiku-4-5-20251001", 0.002),
        ("house-4.1", 0.0036),
        ("house-4.1-2025-04-14", 0.0036),
        ("house-4.1-mini-2025-04-14", 0.00072),
    ],
)
def test_a_served_id_is_matched_exactly_or_without_its_date(own, served, cost):
    assert usd(served, BILL) == pytest.approx(cost, abs=1e-12)


@pytest.mark.parametrize(
    "served",
    [
        "claude-haiku-4-50",
        "house-4.1-nano",
        "house-4",
        "house-4.1-20250101-20250102",
        "house-4.1-2025-04-14-mini",
        "house-4.1-2025-4-14",
        "house-4.1-202504",
        "house-4.1-latest",
        "HOUSE-4.1",
        "my/house-4.1",
        "house-dated",
        "",
    ],
)
def test_a_model_is_never_matched_by_a_part_of_its_name(own, served):
    with pytest.raises(UnknownPrice):
        usd(served, BILL)


@given(st.text("abc019.-", min_size=1, max_size=9))
def test_no_ending_but_a_date_is_stripped(rows, ending):
    rows(OWN)
    with pytest.raises(UnknownPrice):
        usd("house-4.1" + ending, BILL)


@given(st.dates(min_value=date(2000, 1, 1)))
def test_any_date_is_stripped_in_both_spellings(rows, day):
    rows(OWN)
    assert usd(f"house-4.1-{day:%Y%m%d}", BILL) == usd("house-4.1", BILL)
    assert usd(f"house-4.1-{day.isoformat()}", BILL) == usd("house-4.1", BILL)


def test_a_dated_row_goes_before_the_plain_one(rows):
    rows(OWN + '["house-4.1-2025-04-14"]\ninput = 100\noutput = 0\n')
    assert usd("house-4.1-2025-04-14", Usage(input=1_000_000)) == 100
    assert usd("house-4.1-2025-04-15", Usage(input=1_000_000)) == 2


def test_own_rows_go_before_those_of_the_package(rows):
    rows('["claude-sonnet-4-5"]\ninput = 100\noutput = 200\n')
    assert usd("claude-sonnet-4-5", Usage(input=1_000_000, output=1_000_000), "anthropic") == 300
    assert usd("claude-sonnet-4-5-20250929", Usage(input=1_000_000), "anthropic") == 100


def test_a_row_without_cache_prices_charges_cached_tokens_as_input(own):
    assert usd("house-4.1", Usage(cache_read=500_000, cache_write=500_000)) == 2


def test_the_package_is_asked_by_the_same_rule(none_of_my_own):
    assert usd("claude-haiku-4-5-20251001", BILL, "anthropic") == usd("claude-haiku-4-5", BILL, "anthropic") > 0
    assert usd("gpt-4.1-mini-2025-04-14", BILL, "openai") == pytest.approx(0.00072, abs=1e-12)
    for name, provider in [("claude-haiku-4-50", "anthropic"), ("gpt-4.1-mininano", "openai"), ("gpt-4.1", "nobody")]:
        with pytest.raises(UnknownPrice):
            usd(name, BILL, provider)


def test_an_unknown_model_is_refused_with_the_lines_to_add(own, rows):
    with pytest.raises(UnknownPrice) as refusal:
        usd("brand.new-1", BILL, "anthropic")
    said = str(refusal.value)
    assert "brand.new-1" in said and "data/prices.toml" in said and '["brand.new-1"]' in said
    rows(OWN + '["brand.new-1"]\ninput = 1\noutput = 1\n')  # as the message says
    assert usd("brand.new-1", BILL, "anthropic") == pytest.approx(0.0012)


def test_the_source_of_prices_names_the_package_and_its_version():
    assert pricing.source().startswith("genai-prices 0.")
