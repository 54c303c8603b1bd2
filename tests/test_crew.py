"""Several agents: a specialist sees only its brief, what it took is rolled up, and silence is an observation."""

import shutil
import sys
from pathlib import Path

from evalkit import external, load_suite, run
from evalkit.models import Model, Prompt, ProviderError
from evalkit.records import Call, Reply, Usage
from evalkit.scoring import RULES

SUITE = load_suite("refund_desk")
SINGLE, CREW = SUITE.conditions


def calls(*made):
    return Reply(calls=tuple(Call(id=f"{i}-{name}", name=name, args=args) for i, (name, args) in enumerate(made)),
                 usage=Usage(input=10, output=1))  # fmt: skip


class Played(Model):
    """An orchestrator that plays a list of replies, and specialists that read all they can, then answer."""

    name = "played"

    def __init__(self, replies, specialist=None):
        self.replies, self.specialist, self.prompts = list(replies), specialist, []

    def ask(self, prompt: Prompt) -> Reply:
        self.prompts.append(prompt)
        if "specialist" in prompt.system:
            if self.specialist:
                return self.specialist(prompt)
            if len(prompt.said) == 1:
                return calls(*((t.name, {}) for t in prompt.tools))
            return Reply(text=f"I read {len(prompt.said) - 2} things.", usage=Usage(input=10, output=1))
        return self.replies.pop(0)


def decide(sample):
    gold = sample.gold["contract"]
    submit = {"action": gold["outcome"], "reason": gold["reason"], "report": f"Done: {gold['outcome']}."}
    return calls(("take_action", {"action": gold["outcome"]})), calls(("submit", submit))


def crew(*replies, specialist=None, sample=SUITE.samples[0]):
    model = Played([*replies, *decide(sample)], specialist)
    return run(sample, model, CREW), model


def test_the_orchestrator_has_no_reading_tools_and_the_budget_and_system_of_single():
    sample = SUITE.samples[0]
    single, team = ({t.name for t in c.tools(sample)} for c in (SINGLE, CREW))
    assert team - single == {"delegate"} and single - team == {"read_rules", "read_order", "read_history"}
    assert (SINGLE.system, SINGLE.budget) == (CREW.system, CREW.budget)


def test_a_specialist_sees_only_its_brief_and_what_it_took_is_rolled_up():
    trace, model = crew(calls(("delegate", {"specialist": "records", "brief": "Read the order and the history."})))
    (first, *_), inner = trace.steps, [p for p in model.prompts if "specialist" in p.system]
    assert inner[0].said[0] == "Read the order and the history." and SUITE.samples[0].prompt not in str(inner[0])
    assert [t.name for t in inner[0].tools] == ["read_order", "read_history"]
    assert first.result == "I read 2 things." and [s.call.name for s in first.steps] == ["read_order", "read_history"]
    assert trace.usage == Usage(input=50, output=5) and trace.api_calls == 5 and trace.turns == 3
    values = RULES["scenario"](SUITE.samples[0], trace, SUITE)
    assert trace.stop == "submitted" and values["refund_exact"] == 1


def test_an_unknown_specialist_and_one_that_does_not_answer_are_observations():
    def broken(prompt):
        raise ProviderError("http_500", "down")

    trace, _ = crew(calls(("delegate", {"specialist": "oracle", "brief": "?"})))
    assert "There are: records, policy." in trace.steps[0].result and not trace.steps[0].ok
    for specialist, why in ((broken, "http_500"), (lambda prompt: Reply(), "it said nothing")):
        trace, _ = crew(calls(("delegate", {"specialist": "policy", "brief": "?"})), specialist=specialist)
        assert f"policy did not answer ({why})" in trace.steps[0].result and not trace.steps[0].ok
        assert trace.failure is None and trace.stop == "submitted"


def test_two_suites_of_one_name_keep_their_own_worlds(tmp_path):
    folders = [tmp_path / part / "refund_desk" for part in ("one", "two")]
    for folder in folders:
        shutil.copytree(SUITE.path, folder, ignore=shutil.ignore_patterns("__pycache__"))
    world = folders[1] / "world.py"
    world.write_text(world.read_text("utf-8").replace('file["days"] > 30', 'file["days"] > 3'), "utf-8")
    one, _ = (load_suite(folder) for folder in folders)
    scores = []
    for sample in one.samples[:8]:
        trace = run(sample, Played(decide(sample)), one.conditions[0])
        scores.append(RULES["scenario"](sample, trace, one)["refund_exact"])
    assert scores == [1] * 8


def test_somebody_elses_agent_is_told_what_the_tools_would_tell_and_scored_by_its_four_fields():
    agent, sample = (
        external.open_agent(f"command:{sys.executable} {Path(__file__).parent / 'agents' / 'desk.py'}"),
        SUITE.samples[0],
    )
    assert "read_rules: The rules" in SINGLE.brief(sample) and "Outcomes: approve, escalate, refuse." in SINGLE.brief(
        sample
    )
    trace = external.run(sample, agent, SINGLE, SUITE.name)
    values = RULES["scenario"](sample, trace, SUITE)
    assert values["submitted"] == 1 and values["refund_exact"] == values["exact"] in (0, 1)
