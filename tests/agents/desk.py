"""An agent of twenty lines: it reads one request on stdin, decides, and writes one response to stdout.

Run it with: command:python tests/agents/desk.py
"""

import json
import re
import sys

request = json.load(sys.stdin)
print("deciding", request["sample_id"], file=sys.stderr)  # stdout is for the response alone
text = request["input"]
amount = int((re.search(r"Till entries: (\d+)", text) or re.search(r"(\d+)", text))[1])
outcome = "approve" if amount <= 100 else "escalate"
actions = ["look_up_order", "issue_refund" if outcome == "approve" else "open_ticket"]
response = {
    "outcome": outcome,
    "actions_attempted": actions,
    "actions_executed": actions,
    "submitted": True,
}
json.dump(response, sys.stdout)
