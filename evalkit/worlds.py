"""Seeded worlds: data/<suite>/world.py draws cases, decides what is right and lends the tools to act on them.

A world defines FAMILY, SYSTEM, PHRASES (the forms that name each consequential event in a report) and

    record(rng, index) -> {"face", "file"}    what the prompt may tell, and the facts, which only tools tell
    gold(record) -> Contract                  what is right, decided from the file alone; generator and scorer call it
    prompt(record) -> str                     reads the face alone
    tools(record, ledger) -> tuple            the desk's tools and those that read the file
    gap(record, calls) -> calls               the oracle's calls with a deliberate gap

The same seed gives the same bytes under every Python: of a seeded Random only `.random()` is used, through `drawn`.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, create_model

from . import agent
from .models import Model
from .receipts import Case
from .receipts import scenario as decided
from .records import ROOT, Budget, Condition, Sample, Suite, Trace, key
from .scenarios import FAMILIES, Contract, Ledger, fidelity, score
from .scoring import RULES, Values
from .tools import Delegated, Tool, ToolError

ARCHETYPES = ("ready", "one_missing", "transfer_trap", "conjunctive_gate", "notice_or_deadline", "record_conflict",
              "outside_scope", "authority_trap")  # fmt: skip
SPECIALIST = "You are a specialist. Do what the brief asks with your tools, and answer with what you found, no more."
NEEDS = ("FAMILY", "SYSTEM", "PHRASES", "record", "gold", "prompt", "tools", "gap")
_named: dict[str, ModuleType] = {}  # by the name of its folder, for samples without their suite
_loaded: dict[tuple[Path, str], ModuleType] = {}  # by folder and what it holds
Calls = list[tuple[str, dict[str, Any]]]  # tool and arguments
T = TypeVar("T")


class Toolbox(tuple[Tool, ...]):
    """The tools of one cell, with the ledger they write to and the model that plays its specialists."""

    ledger: Ledger
    model: Model

    def bind(self, model: Model) -> None:
        self.model = model


def drawn(rng: random.Random, items: Sequence[T]) -> T:
    """One of the items; a range is a sequence too."""
    return items[int(rng.random() * len(items))]


def load_world(path: str | Path) -> ModuleType:
    """The world of a suite's folder, or of the suite of that name in data/; raises ValueError. Its code is run."""
    folder = Path(path) if (Path(path) / "world.py").exists() else ROOT / "data" / path
    place = folder.resolve(), content(folder)
    if place in _loaded:
        return _loaded[place]
    spec = importlib.util.spec_from_file_location(folder.resolve().name, folder / "world.py")
    assert spec and spec.loader
    world = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(world)
    if lacks := [name for name in NEEDS if not hasattr(world, name)]:
        raise ValueError(f"{folder / 'world.py'}: no {', '.join(lacks)}; a world defines {', '.join(NEEDS)}")
    if world.FAMILY not in FAMILIES:
        raise ValueError(f"{folder / 'world.py'}: no family {world.FAMILY!r}; known: {', '.join(FAMILIES)}")
    _named[world.__name__] = world
    return _loaded.setdefault(place, world)


def content(folder: Path) -> str:
    """The hash of all that a world may read: every file of its folder but prose, suite.toml and missions.toml."""
    parts = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix not in (".md", ".pyc"))
    return key(*((p.name, p.read_bytes().hex()) for p in parts if p.name not in ("suite.toml", "missions.toml")))


def samples(world: ModuleType, seed: int, count: int) -> list[Sample]:
    """Cases drawn by seed, archetypes in turn; a case does not depend on the count. Bad contracts raise."""
    made = []
    for index in range(count):
        drew = world.record(random.Random(f"{world.FAMILY}/{seed}/{index}"), index)
        record = json.loads(json.dumps({"index": index, "archetype": ARCHETYPES[index % 8], **drew}))
        contract, tools = world.gold(record), world.tools(record, Ledger())
        looks: Calls = [(t.name, {}) for t in tools if not t.schema.get("properties")]
        calls = play(contract, tools, world.PHRASES)
        plays = {"oracle": [looks, calls], "gap": [looks, world.gap(record, calls)]}
        gold = {"world": world.__name__, "record": record, "contract": contract.model_dump(mode="json"), "plays": plays}
        name = f"{world.__name__}-{index:03d}"
        made.append(Sample(id=name, prompt=world.prompt(record), gold=gold, cluster=name,
                           tags={"archetype": record["archetype"]}))  # fmt: skip
    return made


def written(made: Sequence[Sample]) -> bytes:
    """The samples as JSON lines; the sha256 of these bytes is what `frozen` in suite.toml names."""
    kept = {"id", "prompt", "gold", "cluster", "tags"}
    rows = (json.dumps(s.model_dump(mode="json", include=kept), sort_keys=True, separators=(",", ":")) for s in made)
    return "".join(row + "\n" for row in rows).encode()


def _world(sample: Sample) -> ModuleType:
    return _named.get(sample.gold["world"]) or load_world(sample.gold["world"])


def toolbox(
    sample: Sample, specialists: Mapping[str, Sequence[str]] | None = None, world: ModuleType | None = None
) -> Toolbox:
    """Condition.tools of a scenario suite: the world's tools over a fresh ledger.

    With `specialists` ({name: its tools}) the agent is an orchestrator: those tools are theirs, and it has `delegate`.
    """
    ledger = Ledger()
    tools = (world or _world(sample)).tools(sample.gold["record"], ledger)
    theirs = {name for names in (specialists or {}).values() for name in names}
    box = Toolbox(t for t in tools if t.name not in theirs)
    if specialists:
        parts = {who: tuple(t for t in tools if t.name in names) for who, names in specialists.items()}
        box = Toolbox((delegate(parts, lambda: box.model, ledger), *box))
    box.ledger = ledger
    return box


def delegate(specialists: Mapping[str, tuple[Tool, ...]], model: Callable[[], Model], ledger: Ledger) -> Tool:
    """A tool that puts a brief to a specialist, which sees nothing else; it answers, or the orchestrator is told."""

    def ask(specialist: str, brief: str) -> Delegated:
        if specialist not in specialists:
            raise ToolError(f"There is no specialist {specialist!r}. There are: {', '.join(specialists)}.")
        ledger.note("brief", specialist, text=brief)
        condition = Condition(name=specialist, system=SPECIALIST, tools=lambda _: specialists[specialist],
                              budget=Budget(turns=6))  # fmt: skip
        trace = agent.run(Sample(id=specialist, prompt=brief), model(), condition)
        why = trace.failure.kind if trace.failure else "it said nothing"
        return Delegated(trace.answer or f"{specialist} did not answer ({why}). Ask again, or go on without it.", trace)

    about = "Put a brief to a specialist; it sees only what you write here. " + " ".join(
        f"{who} can use: {', '.join(t.name for t in tools)}." for who, tools in specialists.items()
    )
    return strict("delegate", about, ask, {"specialist": str, "brief": str})


def brief(sample: Sample, world: ModuleType | None = None) -> str:
    """What an agent without the world's tools is told: the prompt, what the reading tools say, and the outcomes."""
    tools = toolbox(sample, world=world)
    told = [f"{t.name}: {t.run()}" for t in tools if t.run and not t.schema.get("properties")]
    acts: list[str] = next((t.schema["properties"]["action"]["enum"] for t in tools if t.name == "take_action"), [])
    return "\n\n".join([sample.prompt, *told, f"Outcomes: {', '.join(acts)}."])


def scenario(sample: Sample, trace: Trace, suite: Suite | None = None) -> Values:
    """The rule of every scenario suite: the family's components from the ledger, and the report held against it.

    An agent of somebody else's has no ledger: what it says it did is scored by the four fields of receipts.
    """
    world = (suite and suite.world) or _world(sample)
    if trace.ledger is None and isinstance(trace.submission, dict) and "actions_executed" in trace.submission:
        contract = world.gold(sample.gold["record"])
        case = Case(id=sample.id, input=None, expected_outcome=contract.outcome, forbidden_actions=contract.forbidden)
        told = {
            name: value for name, value in decided(case, trace).items() if name != "latency"
        }  # no share; in seconds
        return told | {FAMILIES[world.FAMILY][1]: told["exact"]}
    ledger = Ledger(**(trace.ledger or {}))
    values = score(world.FAMILY, world.gold(sample.gold["record"]), ledger)
    report = f"{trace.answer}\n{(ledger.submission or {}).get('report', '')}"
    return {**values, **fidelity(report, values[FAMILIES[world.FAMILY][1]] == 1, ledger, world.PHRASES)}


def strict(
    name: str, about: str, run: Callable[..., str | Delegated], fields: dict[str, Any], final: bool = False
) -> Tool:
    """A tool whose arguments are all required, with codes enumerated and nothing else accepted."""
    kinds: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    form = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **kinds)
    schema = form.model_json_schema()
    for part in (schema, *schema["properties"].values()):
        part.pop("title", None)
    return Tool(name, about, schema, lambda **args: run(**form(**args).model_dump()), final=final)


def desk(ledger: Ledger, contract: Contract, locked: Sequence[str] = (), **codes: Sequence[str]) -> tuple[Tool, ...]:
    """The tools that act, one for each kind of code a world has; each writes to the ledger what was done.

    Kinds: action, reason, evidence, gate, duty, channel, power; node with trigger, clock, recipient and route. What is
    locked is attempted and blocked. The contract tells only how far an obligation gets.
    """
    literal: Any = Literal

    def one(kind: str, *more: str) -> Any:
        return literal[(*codes[kind], *more)] if kind in codes else None

    def many(kind: str) -> Any:
        return list[one(kind)] if kind in codes else None  # type: ignore[misc]

    def note(kind: str, what: str, **args: Any) -> str:
        ledger.note(kind, what, what not in locked, **args)
        return f"{what}: " + ("blocked, nothing was done." if what in locked else "done.")

    def request(evidence: list[str]) -> str:
        return "\n".join([note("request", name) for name in evidence]) or "Nothing was asked for."

    def meet(obligation: str, after: str, **args: str) -> str:
        node = next((n for n in contract.nodes if n.id == obligation), None)
        receipt, status = ("none", "waiting") if after != "none" else ("sent", "done")
        if node and after == "none":
            receipt, status = node.receipt, node.status
        note("node", obligation, **args, receipt=receipt, status=status)
        return f"{obligation}: {status}; receipt stage reached: {receipt}."

    def submit(**said: Any) -> str:
        ledger.submission = said
        return "Submitted."

    def noted(kind: str, name: str) -> Callable[..., str]:
        return lambda **args: note(kind, args.pop(name), **args)

    rows: list[tuple[str, str, str, Callable[..., str], dict[str, Any]]] = [  # kind, tool, about, run, fields
        ("evidence", "request_evidence", "Ask the person for evidence.", request, {"evidence": many("evidence")}),
        ("gate", "confirm_gate", "Put on record that a gate is met.", noted("gate", "gate"), {"gate": one("gate")}),
        ("node", "meet_obligation", "Carry out an obligation: now, or once the one named `after` is done.", meet,
         {"obligation": one("node"), "trigger": one("trigger"), "clock": one("clock"),
                "started_by": one("trigger"), "recipient": one("recipient"), "channel": one("route"),
                "after": one("node", "none")}),
        ("duty", "perform_duty", "Do a duty that goes with the case.", noted("duty", "duty"), {"duty": one("duty")}),
        ("channel", "deliver", "Send the person a letter.", noted("delivery", "channel"),
         {"channel": one("channel"), "text": str}),
        ("power", "use_power", "Do something else the system offers; `text` goes to whom it concerns.",
         noted("power", "power"), {"power": one("power"), "text": str}),
        ("action", "take_action", "Take the action that decides the case.", noted("action", "action"),
         {"action": one("action"), "relied": many("evidence")}),
        ("action", "submit", "End the case: say by code what was done, and report it in plain words.", submit,
         {"action": one("action", "none"), "reason": one("reason"), "relied": many("evidence"),
          "requested": many("evidence"), "gates": many("gate"), "duties": many("duty"),
          "receipts": dict[one("node"), str] if "node" in codes else None, "report": str}),  # type: ignore[misc]
    ]  # fmt: skip
    return tuple(strict(name, about, run, {n: t for n, t in fields.items() if t}, final=name == "submit")
                 for kind, name, about, run, fields in rows if kind in codes)  # fmt: skip


def play(contract: Contract, tools: Sequence[Tool], phrases: Mapping[str, Sequence[str]]) -> Calls:
    """The oracle's calls: what the contract asks for and no more, then a submission and a report that say so."""
    c, takes = contract, {tool.name: tool.schema.get("properties", {}) for tool in tools}
    done = [name for name in (*(n.id for n in c.nodes), *c.duties, c.outcome) if name in phrases]
    calls: Calls = [
        *[("request_evidence", {"evidence": [*c.missing]})] * bool(c.missing),
        *[("confirm_gate", {"gate": gate}) for gate in c.gates],
        *[("meet_obligation", {"obligation": n.id, "started_by": n.trigger, "after": "none", **n.model_dump()})
          for n in c.nodes],
        *[("perform_duty", {"duty": duty}) for duty in c.duties],
        *[("deliver", {"channel": c.channel, "text": "Your case is decided."})] * bool(c.channel),
        ("take_action", {"action": c.outcome, "relied": [*c.held]}),
        ("submit", {"action": c.outcome, "reason": c.reason, "relied": [*c.held], "requested": [*c.missing],
                    "gates": [*c.gates], "duties": [*c.duties], "receipts": {n.id: n.receipt for n in c.nodes},
                    "report": f"The case is complete: {'; '.join(phrases[name][0] for name in done)}."}),
    ]  # fmt: skip
    return [(name, {key: args[key] for key in takes[name]}) for name, args in calls]


def spoilt(calls: Calls, name: str = "", change: dict[str, Any] | None = None, more: bool = False) -> Calls:
    """The calls with one gap: those of a tool left out, or made with other arguments, or one `more`; nothing: none."""
    if more:
        at = [n for n, _ in calls].index("take_action")
        return [*calls[:at], (name, change or {}), *calls[at:]]
    return [(n, args | (change or {}) if n == name else args) for n, args in calls if n != name or change]


RULES["scenario"] = scenario
