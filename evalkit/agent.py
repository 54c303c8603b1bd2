"""The centre: ask, act, repeat, inside a budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from . import scoring
from .models import Model, Prompt, ProviderError, cost
from .records import Budget, Call, Condition, Failure, Reply, Said, Sample, Step, Trace, Usage, redact
from .tools import Tool, execute

CLOSE = "The budget for searching is used up. Answer now, from what you have read; say so if it is not enough."
AGAIN = "Your reply was empty. Answer now, from what you have read; say so if it is not enough."
NOTHING = Usage()
OVER = "Budget reached: this call was not run. Answer from what you have read."


def run(sample: Sample, model: Model, condition: Condition, key: str = "", repeat: int = 0) -> Trace:
    """One sample under one condition, as a Trace; a fault of the provider is a failure in it, never an exception."""
    started, waited = time.monotonic(), 0.0
    budget: Budget = condition.budget
    system = "\n\n".join(text for text in (condition.system, condition.instructions) if text)
    said: list[Said] = sample.said
    steps: list[Step] = []
    notes: dict[str, Any] = {}  # named facts: what was repaired, asked again
    usage, usd, turns, api_calls, reply = Usage(), 0.0, 0, 0, Reply()
    failure, submission, ledger = None, None, None
    stop, closing = "", ""  # closing: why no tool may be called any more, a spent budget or an empty reply
    try:
        box = condition.tools(sample)
        ledger = getattr(box, "ledger", None)  # a scenario's tools write down what they did
        if bind := getattr(box, "bind", None):  # a crew's specialists are played by the same model
            bind(model)
        tools, player = model.fit(box), model.for_cell(sample, repeat, condition.name)
        choice = bool(tools) and not any(t.run for t in tools)  # offered and not run: the choice is what is measured
        while not stop:
            working = time.monotonic() - started - waited
            if closing := closing or spent(budget, tools, steps, turns, usage, usd, working):
                said.append(AGAIN if closing == "empty" else CLOSE)
            reply = player.ask(Prompt(system, said, tools, allowance(budget, usage), bool(closing)))
            turns, api_calls, waited = turns + 1, api_calls + reply.attempts, waited + reply.waited
            usage, usd = usage + reply.usage, usd + cost(model, reply.served, reply.usage, notes)
            reply = unique(reply, said, notes)
            said.append(reply)
            notes |= reply.notes
            if reply.refused:
                stop = "refused"
            elif reply.truncated:  # a call that was cut off is never run
                stop = "output_tokens" if spent(budget, usage=usage) else "truncated"
            elif choice:
                steps = [unrun(call, turns, "") for call in reply.calls]
                stop, notes["offered"] = "answered" if steps else said_so(reply), [t.name for t in tools]
            elif closing:  # its last words count; calls in it are stored and not run
                steps += [unrun(call, turns) for call in reply.calls]
                stop = said_so(reply) if closing == "empty" else closing
            elif reply.calls:
                for call in reply.calls:
                    free = any(t.name == call.name and not t.counts for t in tools)
                    over = stop or (not free and used(steps, tools) >= budget.tool_calls)
                    over = over or spent(budget, usage=usage, usd=usd) in ("output_tokens", "usd")
                    steps.append(unrun(call, turns) if over else execute(tools, call, turns))
                    said.append(steps[-1])
                    usage, usd = usage + steps[-1].usage, usd + steps[-1].usd
                    api_calls += steps[-1].api_calls
                    if steps[-1].ok and any(t.final and t.name == call.name for t in tools):
                        stop, submission = "submitted", call.args
            elif reply.text.strip():
                stop = said_so(reply)
            elif not spent(budget, tools, steps, turns, usage, usd):  # an empty reply
                closing, notes["asked_again"] = "empty", "empty reply"
    except ProviderError as error:
        api_calls, waited, usage = api_calls + error.attempts, waited + error.waited, usage + error.usage
        usd += cost(model, error.served, error.usage, notes)
        failure = Failure(where="provider", kind=error.kind, detail=error.detail)
    except Exception as error:  # a fault of ours is a missing measurement too, and must not end the run
        failure = Failure(where="agent", kind=type(error).__name__, detail=redact(str(error))[:600])
    answer = "" if failure else reply.text.strip()
    return Trace(
        key=key, sample_id=sample.id, condition=condition.name, model=model.name, options=model.options, repeat=repeat,
        served=reply.served, answer=answer, citations=tuple(scoring.find_citations(answer)), steps=tuple(steps),
        turns=turns, api_calls=api_calls, stop="failed" if failure else stop, provider_stop=reply.stop,
        submission=submission, ledger=vars(ledger) if ledger else None, usage=usage, usd=usd,
        seconds=time.monotonic() - started - waited, waited=waited, failure=failure,
        notes=notes, at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def spent(budget: Budget, tools: tuple[Tool, ...] = (), steps: Sequence[Step] = (), turns: int = 0,
          usage: Usage = NOTHING, usd: float = 0.0, seconds: float = 0.0) -> str:  # fmt: skip
    """The name of a budget that is used up, or "". Tools that do not count outlive the tool-call budget."""
    over = {
        "turns": turns >= budget.turns,
        "tool_calls": bool(tools) and all(t.counts for t in tools) and used(steps, tools) >= budget.tool_calls,
        "output_tokens": 0 < budget.output_tokens <= usage.output,
        "usd": 0 < budget.usd <= usd,
        "seconds": 0 < budget.seconds <= seconds,
    }
    return next((name for name, is_over in over.items() if is_over), "")


def said_so(reply: Reply) -> str:
    return "abstained" if scoring.declined(reply.text.strip()) else "answered"


def unrun(call: Call, turn: int, why: str = OVER) -> Step:
    return Step(turn=turn, call=call, result=why, ok=False, executed=False)


def allowance(budget: Budget, usage: Usage) -> int:
    """Output tokens the next reply may have; a closing answer always gets some."""
    left = budget.output_tokens - usage.output
    return min(budget.reply_tokens, left) if left > 0 else budget.reply_tokens


def used(steps: Sequence[Step], tools: tuple[Tool, ...]) -> int:
    """Executed calls that count; a call of no known tool does."""
    free = {t.name for t in tools if not t.counts}
    return sum(step.executed and step.call.name not in free for step in steps)


def unique(reply: Reply, said: Sequence[Said], notes: dict[str, Any]) -> Reply:
    """The reply with call ids that occur once in the conversation; a renamed id is noted."""
    seen, calls = {step.call.id for step in said if isinstance(step, Step)} | {""}, []
    taken = seen | {call.id for call in reply.calls}
    for call in reply.calls:
        if call.id in seen:
            notes["call_ids_renamed"] = [*notes.get("call_ids_renamed", []), call.id]
            new = next(name for n in count(len(taken)) if (name := f"{call.id or 'call'}-{n}") not in taken)
            call = call.model_copy(update={"id": new})
        seen.add(call.id)
        taken.add(call.id)
        calls.append(call)
    return reply.model_copy(update={"calls": tuple(calls)})
