"""The trace browser: filters and one trace at a time in a live kernel, the same traces as static HTML without one."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .records import Sample, Trace, Verdict
from .report import rows
from .scoring import same_page

Row = tuple[Trace, Sample | None, Mapping[str, Verdict]]
STYLE = """<style>
.evalkit { font-size: 13px; line-height: 1.5; max-width: 60rem }
.evalkit table { border-collapse: collapse } .evalkit td, .evalkit th { text-align: left; padding: 2px 8px }
.evalkit pre { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 18rem; overflow: auto; padding: 6px;
  background: rgba(128, 128, 128, .12) }
.evalkit summary { cursor: pointer } .evalkit .soft { opacity: .65 }
.evalkit mark { background: rgba(70, 160, 90, .35); color: inherit }
.evalkit mark.off { background: rgba(220, 80, 60, .3) }
</style>"""


def esc(text: Any) -> str:
    return html.escape(str(text))


def trace_html(row: Row, limit: int = 100_000) -> str:
    """One trace: question, gold, steps behind folds (each to `limit` characters), the answer marked, its verdicts."""
    trace, sample, said = row
    gold = sample.gold if sample else {}
    steps = "".join(
        f"<details><summary>{s.turn}. <b>{esc(s.call.name)}</b> <span class=soft>{esc(s.call.args)}"
        f"{'' if s.executed else ' · not run'}{'' if s.ok else ' · fault'}{' · cut' * s.truncated}</span></summary>"
        f"<pre>{esc(s.result[:limit])}{'…' * (len(s.result) > limit)}</pre></details>"
        for s in trace.steps
    )
    verdicts = "".join(
        f"<tr><td>{esc(by)}</td><td>{esc(', '.join(f'{k} {v:g}' for k, v in v.values.items() if v is not None))}"
        f"{esc(' · ' + v.failure.kind) if v.failure else ''}</td><td>{esc(v.why)}</td></tr>"
        for by, v in said.items()
    )
    facts = (
        f"{trace.stop} · {trace.turns} turns · {trace.usage.total} tokens · {trace.usd:.4f} USD · {trace.seconds:.1f} s"
    )
    return (
        f"{STYLE}<div class=evalkit><p><b>{esc(trace.sample_id)}</b> · {esc(trace.condition)} · {esc(trace.model)}"
        f" <span class=soft>· {esc(facts)}</span></p>"
        f"<p>{esc(sample.prompt) if sample else '<i>the suite no longer holds this sample</i>'}</p>"
        f"{steps}<pre>{marked(trace, gold)}</pre>"
        f"<p class=soft>gold: {esc(sample.expected if sample else '')}</p><table>{verdicts}</table></div>"
    )


def marked(trace: Trace, gold: Mapping[str, Any]) -> str:
    """The answer with every cited URL marked: green when it is a gold page, red when it is not."""
    if trace.failure:
        return esc(f"{trace.failure.where} failed, {trace.failure.kind}: {trace.failure.detail}")
    right = {same_page(url) for url in gold.get("urls", [])}
    text = esc(trace.answer or "(empty answer)")
    urls = {esc(c.url): c.url for c in trace.citations if c.url}
    if not urls:
        return text

    def mark(match: re.Match[str]) -> str:
        return f"<mark{'' if same_page(urls[match[0]]) in right else ' class=off'}>{match[0]}</mark>"

    return re.sub("|".join(re.escape(url) for url in sorted(urls, key=len, reverse=True)), mark, text)


def correct(row: Row) -> str:
    values = [v.values.get("correct") for v in row[2].values()]
    return next((f"{v:g}" for v in values if v is not None), "")


def label(row: Row) -> str:
    trace = row[0]
    return f"{trace.sample_id} · {trace.condition} · {trace.model} · {trace.stop} · correct {correct(row) or '–'}"


def table_html(found: Sequence[Row], limit: int) -> str:
    """The traces as a static table, each behind a fold; what a notebook without a kernel shows."""
    folds = "".join(
        f"<details><summary>{esc(label(row))}</summary>{trace_html(row, 1_500).removeprefix(STYLE)}</details>"
        for row in found[:limit]
    )
    more = f", the first {limit} of them here" if len(found) > limit else ""
    return f"{STYLE}<details class=evalkit><summary>{len(found)} traces as a table{more}</summary>{folds}</details>"


def browser(run_dirs: Any, limit: int = 60) -> Any:
    """The traces of runs behind filters; below them the same as a static table, for a reader without a kernel."""
    import ipywidgets as w
    from IPython.display import HTML, display

    found = rows(run_dirs)

    choices: dict[str, Callable[[Row], str]] = {
        "condition": lambda r: r[0].condition, "model": lambda r: r[0].model, "outcome": lambda r: r[0].stop,
        "correct": correct, "suite": lambda r: r[0].suite,
    }  # fmt: skip
    tags = sorted({tag for _, sample, _ in found if sample for tag in sample.tags})
    for tag in tags:
        choices[tag] = lambda r, tag=tag: str(r[1].tags.get(tag, "")) if r[1] else ""  # type: ignore[misc]
    values = {name: sorted({value(row) for row in found}) for name, value in choices.items()}
    style = {"description_width": "6.5rem"}
    menus = {
        name: w.Dropdown(description=name, options=["all", *options], style=style)
        for name, options in values.items() if len(options) > 1
    }  # fmt: skip
    search = w.Text(
        description="text", placeholder="in question, answer, results", continuous_update=False, style=style
    )
    pick = w.Select(description="trace", rows=8, layout=w.Layout(width="100%", max_width="60rem"))
    one, side = w.HTML(), w.HTML()

    def matches(row: Row) -> bool:
        if any(menu.value not in ("all", choices[name](row)) for name, menu in menus.items()):
            return False
        said = " ".join([row[0].answer, row[1].prompt if row[1] else "", *(s.result for s in row[0].steps)])
        return search.value.lower() in said.lower()

    def filtered(change: Any = None) -> None:
        shown = [i for i, row in enumerate(found) if matches(row)]
        one.value, side.value = "" if shown else "<i>no trace matches; widen the filters</i>", ""
        pick.options = [(label(found[i]), i) for i in shown]
        opened()

    def opened(change: Any = None) -> None:
        if pick.value is None:
            return
        row = found[pick.value]
        one.value = trace_html(row)
        beside = [
            r for r in found if r[0].sample_id == row[0].sample_id and r[0].model == row[0].model and r is not row
        ]
        cells = "".join(f"<td style='vertical-align: top; width: 30rem'>{trace_html(r)}</td>" for r in beside)
        side.value = (
            f"<p>the same question under the other conditions</p><table><tr>{cells}</tr></table>" if beside else ""
        )

    for menu in (*menus.values(), search):
        menu.observe(filtered, "value")
    pick.observe(opened, "value")
    filtered()
    grid = w.GridBox([*menus.values(), search], layout=w.Layout(grid_template_columns="repeat(auto-fill, 21rem)"))
    widget = w.VBox([grid, pick, one, side])
    display(widget)
    display(HTML(table_html(found, limit)))
    return widget
