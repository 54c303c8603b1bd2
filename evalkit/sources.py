"""Samples from elsewhere as rows of samples.jsonl: a CSV, a frame, the Berkeley Function Calling Leaderboard (BFCL)."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

from .fetch import fetch
from .records import ROOT, clean, key

CATEGORIES = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple",
              "irrelevance", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
              "live_irrelevance")  # fmt: skip
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
Row = dict[str, Any]
SPEC = """kind = "{kind}"
rules = ["{kind}"]

[[conditions]]
name = "{condition}"
"""


class SourceError(ValueError):
    """Rows that cannot be used; the message says where, what was found and what to type."""


def make(source: str, n: int = 200, seed: int = 0, out: str = "") -> tuple[Path, list[str]]:
    """The folder of a suite made of a source (bfcl, a .csv file, a folder of .arrow or .parquet), and what is left out.

    Without `out` it stands in data/ under the source's name. A suite of a table has one condition, closed_book, and no
    corpus yet: add both to its suite.toml.
    """
    name = Path(source).stem
    if source == "bfcl":
        rows, left_out = bfcl(n, seed)
        spec = SPEC.format(kind="tool_choice", condition="own_tools") + "\n[budget]\nturns = 1\n"
    elif Path(source).is_dir() or Path(source).suffix.lower() == ".csv":
        rows, left_out = (frame(source) if Path(source).is_dir() else table(source)), []
        spec = SPEC.format(kind="docs_qa", condition="closed_book")
        if not all(r["gold"].get("urls") for r in rows):
            spec += "\n[settings]\npages = false  # no sample needs a page to cite\n"
        bare = [
            r for r in rows if not r["gold"].get("answer") or not (r["gold"].get("key_fact") or r["gold"].get("trap"))
        ]
        if bare:
            first = bare[0]["prompt"][:60]
            raise SourceError(
                f"{source}: {len(bare)} of {len(rows)} rows have no answer or no key_fact, the first {first!r}; a "
                "table needs the columns question, answer and key_fact (the words that make an answer right, several "
                "parted by |), and may have id, urls, trap and tags"
            )
    else:
        raise SourceError(f"source {source!r} is not bfcl, no .csv file, and no folder of .arrow or .parquet files")
    return write(ROOT / (out or f"data/{name}"), rows, spec), left_out


def bfcl(n: int = 200, seed: int = 0) -> tuple[list[Row], list[str]]:
    """n tool_choice rows of BFCL, one from each category in turn, and a sentence for each sort of row left out."""
    drawn: list[tuple[int, Row]] = []
    out: dict[str, list[str]] = {}
    with zipfile.ZipFile(fetch("bfcl")) as wheel:
        for category in CATEGORIES:
            asked, answers = (f"bfcl_eval/data/{folder}BFCL_v4_{category}.json" for folder in ("", "possible_answer/"))
            known = [] if "irrelevance" in category else wheel.read(answers).splitlines()
            truth = {row["id"]: row["ground_truth"] for row in map(json.loads, known)}
            rows = []
            for row in (json.loads(line, object_hook=schema) for line in wheel.read(asked).splitlines()):
                try:
                    rows.append(tool_choice(row, truth[row["id"]] if truth else [], category))
                except SourceError as why:
                    out.setdefault(str(why), []).append(row["id"])
            random.Random(seed).shuffle(rows)
            drawn += enumerate(rows)
    left_out = [f"{len(ids)} left out, the first {ids[0]}: {why}." for why, ids in out.items()]
    return [row for _, row in sorted(drawn, key=lambda turn: turn[0])[:n]], left_out


def schema(node: Row) -> Row:
    """An object of BFCL's JSON, its type written as JSON schema has it; "any" is no type."""
    return {k: TYPES.get(str(v), v) if k == "type" else v for k, v in node.items() if (k, v) != ("type", "any")}


def tool_choice(asked: Row, truth: list[Row], category: str) -> Row:
    """The row of a question and its ground truth, which is empty where no call is right; SourceError says why not."""
    if category in ("simple_java", "simple_javascript"):
        raise SourceError("arguments are source text of another language, not JSON")
    tools = {tool["name"]: tool | {"name": re.sub(r"[^A-Za-z0-9_-]", "_", tool["name"])} for tool in asked["function"]}
    if not tools:
        raise SourceError("no tool is offered")
    if len({tool["name"] for tool in tools.values()}) < len(asked["function"]):
        raise SourceError("two tools have one name as providers take it")
    if not all(name.isascii() for tool in tools.values() for name in tool["parameters"]["properties"]):
        raise SourceError("an argument has a name that providers refuse")
    turns = asked["question"][0]
    words = [{"text": turn["content"]} if turn["role"] == "assistant" else turn["content"] for turn in turns]
    if turns[0]["role"] == "system":
        words[:2] = [f"{words[0]}\n\n{words[1]}"]
    calls = [accepted(tools[name], args) for call in truth for name, args in call.items()]
    gold: Row = {"call": calls[0][0], "alternatives": calls[0][1:]} if calls else {"no_call": True}
    if len(calls) > 1:
        gold = {"parallel": [first | {"alternatives": others} for first, *others in calls]}
    return {"id": asked["id"], "prompt": words[-1], "history": words[:-1], "tools": list(tools.values()), "gold": gold,
            "tags": {"category": category}}  # fmt: skip


def accepted(tool: Row, args: dict[str, list[Any]]) -> list[Row]:
    """The calls that BFCL's lists of accepted values allow, as gold writes them; 64 at most.

    An accepted "" says that an argument may be left out, if the schema does not require it. Gold does not list it then:
    as unlisted arguments are ignored, the call without it covers those with it.
    """
    required, known = tool["parameters"]["required"], tool["parameters"]["properties"]
    listed = {k: [v for v in values if v != ""] for k, values in args.items() if k in required or "" not in values}
    if listed.keys() - known:
        raise SourceError("gold has an argument that the tool has not")
    ways = {key(way): {k: {"type": "exact", "value": v} for k, v in way.items()} for way in plain(listed)}
    if not 1 <= len(ways) <= 64:
        raise SourceError("gold accepts over 64 calls" if ways else "gold accepts no value of an argument")
    return [{"tool": tool["name"], "args": way} for way in ways.values()]


def plain(value: Any) -> list[Any]:
    """The values that an accepted one stands for: each key of an object lists its own, "" where it may be left out."""
    if isinstance(value, list):
        return [list(way) for way in product(*map(plain, value))]
    if not isinstance(value, dict):
        return [value]
    lists = [[(k, v) for one in (vs if isinstance(vs, list) else [vs]) for v in plain(one)] for k, vs in value.items()]
    return [{k: v for k, v in way if v != ""} for way in product(*lists)]


def table(path: str | Path) -> list[Row]:
    """docs_qa rows of a CSV: id, prompt or question, answer, key_fact, urls (parted by |); other columns are tags."""
    data = Path(path).read_bytes()
    utf8 = data.decode("utf-8", "ignore").encode() == data
    text = data.decode("utf-8-sig" if utf8 else "cp1252", "replace")
    separator, rows, line = max(",;", key=text.partition("\n")[0].count), [], 2
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, restkey="", strict=True)
    try:
        for cells in reader:
            rows += docs_qa(f"{path}:{line}", cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{path}:{line}: {error}; close the quotes, and double a quote inside them") from None
    return rows


def frame(df: Any) -> list[Row]:
    """The same of a pandas frame, or of the folder of a dataset on disk (.arrow, .parquet); NaN and NA are blank."""
    import pandas as pd

    place = f"{df}, row" if isinstance(df, str | Path) else "row"
    if isinstance(df, str | Path):
        try:
            from pyarrow import ipc

            read = {".parquet": pd.read_parquet, ".arrow": lambda f: ipc.open_stream(f.read_bytes()).read_pandas()}
            files = [f for f in sorted(Path(df).iterdir()) if f.suffix in read and not f.name.startswith("cache-")]
            df = pd.concat([read[f.suffix](f) for f in files], ignore_index=True)
        except (ImportError, OSError, ValueError) as error:
            package = isinstance(error, ImportError)
            how = "type: pip install pyarrow" if package else "name a split's folder of .arrow or .parquet files"
            raise SourceError(f"{df}: {error}; {how}") from None
    df = df.convert_dtypes().astype(object)
    rows = df.where(df.notna(), None).to_dict("records")
    return [row for n, cells in zip(df.index, rows, strict=True) for row in docs_qa(f"{place} {n}", cells)]


def docs_qa(place: str, cells: dict[Any, Any]) -> list[Row]:
    """The row of named cells; blank cells are left out, and of blank cells alone there is none."""
    full = {str(k).strip(): v for k, v in cells.items() if v is not None and str(v).strip()}
    if "" in full:
        raise SourceError(f"{place}: {full['']!r} has no column; name it, or quote the cell that holds a separator")
    prompt = full.pop("prompt", full.pop("question", None))
    if full and prompt is None:
        raise SourceError(f"{place}: no question; write it under prompt or question, or delete the row")
    row: Row = {"id": str(full.pop("id")).strip()} if "id" in full else {}
    gold: Row = {"answer": str(full.pop("answer")).strip()} if "answer" in full else {}
    for name in [name for name in ("key_fact", "urls") if name in full]:
        cell = full.pop(name)
        parts = str(cell).split("|") if isinstance(cell, str | int | float) else map(str, cell)
        gold[name] = [part.strip() for part in parts if part.strip()]
    if str(full.pop("trap", "")).strip().lower() in ("1", "true", "yes"):
        gold["trap"] = True
    tags = {k: v if isinstance(v, bool | int) else str(v).strip() for k, v in full.items()}
    return [row | {"prompt": str(prompt).strip(), "gold": gold, "tags": tags}] if prompt is not None else []


def write(folder: str | Path, rows: list[Row], spec: str) -> Path:
    """samples.jsonl and suite.toml in a folder, each whole; raises SourceError where something else stands already."""
    lines = "".join(json.dumps(clean(row), ensure_ascii=False) + "\n" for row in rows)
    files = {Path(folder, "samples.jsonl"): lines.encode(), Path(folder, "suite.toml"): spec.encode()}
    for file, data in files.items():
        if file.exists() and file.read_bytes() != data:
            raise SourceError(f"{file} holds something else; name another folder, or delete the file")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        file.with_suffix(".draft").write_bytes(data)
        file.with_suffix(".draft").replace(file)
    return Path(folder)
