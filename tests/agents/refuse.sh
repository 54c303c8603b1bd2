#!/bin/sh
# An agent that refuses every request. Run it with: command:sh tests/agents/refuse.sh
read -r request
echo "asked: ${#request} characters" >&2
echo '{"outcome": "refuse", "actions_attempted": [], "actions_executed": [], "submitted": true}'
