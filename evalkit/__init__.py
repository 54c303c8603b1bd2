"""evalkit: which search tool makes an agent answer better, is the difference real, and what does a right answer cost?

A question goes from data/<suite>/ through an agent with a real search tool to a Trace, through rules to a Verdict,
and from those rows to an interval in a notebook. Read the modules in this order; each imports only from above:

    records      the nouns, JSON lines in and out, key()
    pricing      usd(served, usage); an unknown price raises before money is spent
    stats        intervals, paired gaps, agreement, what a run could have seen
    fetch        packages by name into the cache, locked by hash
    tools        Tool, @tool, execute: everything that goes wrong is an observation for the model
    citations    what an answer names: URLs and places in files; what a run has shown of them
    scoring      tool calls, citations, declining, key facts; rules without a model
    models       open_model("provider:name"): anthropic, openai and its kin, local, extractive, script, replay
    agent        the centre: ask, act, repeat, inside a budget
    transport    bytes to another program and back: in time, capped, nothing left behind
    external     somebody else's agent, by command or HTTP, into the same Trace
    receipts     cases in four fields, and the receipt that may be shown
    search       what agents search: corpus (freeze), pages (grep, read), web (polite fetch),
                 code (ripgrep, read), index (hybrid search of code)
    scenarios    one contract of what is right, one ledger of what was done, one scorer; what was said against it
    worlds       seeded worlds: cases, their one gold rule, the tools that act, specialists; what the controls play
    checks       what a sample of each kind must have, and histories as samples.jsonl writes them
    suites       load_suite, conditions, validation with file:line messages
    sources      samples from elsewhere: CSV, a frame, the Berkeley Function Calling Leaderboard
    provenance   who, what, when, with which versions and hashes
    grid         plan, fill, resume
    guards       before: parameters, prices, corpus, equality, cost; during: faults, money; after: controls
    judge        grade, ground, prefer, agree: a model's verdicts; prompts/*.md are prose
    report       frame(), sentences, figures, the offline HTML
    frontier     cost per correct, who is efficient, tiers, which samples tell apart; the snapshot page
    profile      what a judge prefers, how consistent it is, position and length; profile.md
    browse       the trace browser; static where there is no kernel
    scaffold     a new suite from templates/, verified; what stands between one and publication; missions
    doctor       this machine, and what a model can do
    evaluate     a case file or a suite put to somebody else's agent
    __main__     python -m evalkit: list show start doctor new evaluate challenge corpus export
"""

from .agent import run
from .grid import fill, plan
from .models import Model, open_model
from .records import Budget, Condition, Sample, Suite, Trace, Usage, Verdict
from .suites import load_suite
from .tools import Tool, tool

__all__ = [
    "Budget", "Condition", "Model", "Sample", "Suite", "Tool", "Trace", "Usage", "Verdict",
    "fill", "load_suite", "open_model", "plan", "run", "tool",
]  # fmt: skip
