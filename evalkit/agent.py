"""The centre: ask, act, repeat, inside a budget."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from . import pricing, scoring
from .models import Model, ProviderError
from .records import Budget, Call, Condition, Failure, Message, Note, Reply, Sample, Step, Stop, Trace, Usage
from .tools import Tool, execute

CLOSE = "The budget for searching is used up. Answer now, from what you have read; say so if it is not enough."
AGAIN = "Your reply was empty. Answer now, from what you have read; say so if it is not enough."
OVER = "Budget reached: this call was not run. Answer from what you have read."


def run(sample: Sample, model: Model, condition: Condition, key: str = "", repeat: int = 0) -> Trace:
    """One sample under one condition, as a Trace; a provider's fault is a failure in it, never an exception."""
    started, waited = time.monotonic(), 0.0
    tools, budget = condition.tools(sample), condition.budget
    system = "\n\n".join(text.strip() for text in (condition.system, condition.instructions) if text.strip())
    messages = [*sample.history, Message(role="user", text=sample.prompt)]
    steps: list[Step] = []
    notes: list[Note] = []
    usage, usd, turns, api_calls = Usage(), 0.0, 0, 0
    reply, failure, submission = Reply(), None, None
    closing = ""  # why no tool may be called any more: a spent budget, or an empty reply
    stop: Stop | None = None
    try:
        player = model.for_cell(sample, repeat)
        while stop is None:
            closing = closing or spent(budget, turns, steps, tools, usage, usd, time.monotonic() - started - waited)
            if closing:
                messages.append(Message(role="user", text=AGAIN if closing == "empty" else CLOSE))
            allowance = min(budget.reply_tokens, max(1, budget.output_tokens - usage.output))
            reply = player.ask(system, messages, tools, max_tokens=allowance, closing=bool(closing))
            turns, api_calls, waited = turns + 1, api_calls + reply.attempts, waited + reply.waited
            usage, usd = usage + reply.usage, usd + price(model, reply.served, reply.usage, notes)
            notes += reply.notes
            calls = unique(reply.calls, steps, notes)
            messages.append(Message(role="assistant", text=reply.text, calls=calls, wire=reply.wire))
            if reply.refused:
                stop = "refused"
            elif reply.truncated:  # a call that was cut off is never run
                stop = "output_tokens" if usage.output >= budget.output_tokens else "truncated"
            elif calls and not closing:
                for call in calls:
                    step = act(tools, budget, steps, call, turns, over=stop is not None)
                    steps.append(step)
                    messages.append(Message(role="tool", text=step.result, call_id=call.id, ok=step.ok))
                    if step.ok and any(t.final and t.name == call.name for t in tools):
                        stop, submission = "submitted", call.args
            elif not reply.text.strip() and not closing:
                notes.append(Note(name="asked_again", value="empty reply"))
                closing = "empty"
            elif closing and closing != "empty":
                stop = closing  # type: ignore[assignment]
            else:
                stop = "abstained" if scoring.declined(reply.text) else "answered"
    except ProviderError as error:
        failure = Failure(where="provider", kind=error.kind, detail=error.detail)
        api_calls, waited, usage = api_calls + error.attempts, waited + error.waited, usage + error.usage
        usd += price(model, reply.served, error.usage, notes)
    except Exception as error:  # a fault of ours is a missing measurement too, and must not end the run
        failure = Failure(where="agent", kind=type(error).__name__, detail=str(error)[:600])
    answer = "" if failure else reply.text.strip()
    return Trace(
        key=key, sample_id=sample.id, condition=condition.name, model=model.name, options=model.options, repeat=repeat,
        served=reply.served, answer=answer, citations=tuple(scoring.find_citations(answer)), steps=tuple(steps),
        turns=turns, api_calls=api_calls, stop="failed" if failure else stop or "failed", provider_stop=reply.stop,
        submission=submission, usage=usage, usd=usd, seconds=time.monotonic() - started - waited, waited=waited,
        failure=failure, notes=tuple(notes), at=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def spent(
    budget: Budget, turns: int, steps: list[Step], tools: tuple[Tool, ...], usage: Usage, usd: float, seconds: float
) -> str:
    """The name of the first budget that is used up, or ""."""
    counted = counting(steps, tools) >= budget.tool_calls and all(t.counts for t in tools)
    limits = {
        "turns": turns >= budget.turns,
        "tool_calls": bool(tools) and counted,
        "output_tokens": usage.output >= budget.output_tokens,
        "usd": bool(budget.usd) and usd >= budget.usd,
        "seconds": bool(budget.seconds) and seconds >= budget.seconds,
    }
    return next((name for name, over in limits.items() if over), "")


def counting(steps: list[Step], tools: tuple[Tool, ...]) -> int:
    """Executed calls of tools that count; a call that named no tool counts too."""
    free = {t.name for t in tools if not t.counts}
    return sum(step.executed and step.call.name not in free for step in steps)


def act(tools: tuple[Tool, ...], budget: Budget, steps: list[Step], call: Call, turn: int, over: bool) -> Step:
    """Run one call, unless the run was submitted earlier in this turn or the call is over the budget."""
    counts = all(t.counts for t in tools if t.name == call.name)
    if over or (counts and counting(steps, tools) >= budget.tool_calls):
        return Step(turn=turn, call=call, result=OVER, ok=False, executed=False)
    return execute(tools, call, turn)


def unique(calls: tuple[Call, ...], steps: list[Step], notes: list[Note]) -> tuple[Call, ...]:
    """The calls under ids that occur once in the conversation; a renamed id is noted."""
    seen = {step.call.id for step in steps} | {""}
    renamed = []
    for n, call in enumerate(calls):
        new = call.id if call.id not in seen else f"{call.id or 'call'}-{len(steps) + n}"
        if new != call.id:
            notes.append(Note(name="call_id_renamed", value=[call.id, new]))
        seen.add(new)
        renamed.append(call.model_copy(update={"id": new}))
    return tuple(renamed)


def price(model: Model, served: str, usage: Usage, notes: list[Note]) -> float:
    """USD of a reply at the served model, else at the requested one, which is noted."""
    requested = model.name.partition(":")[2]
    try:
        return pricing.usd(served or requested, usage, model.provider)
    except pricing.UnknownPrice:
        notes.append(Note(name="priced_as_requested", value=served))
        return pricing.usd(requested, usage, model.provider)
