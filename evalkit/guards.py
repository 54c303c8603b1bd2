"""A notebook's banner and parameters, checked before anything is paid."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import psutil
from pydantic import TypeAdapter

from .records import ROOT

CONTROLS = ("script:null", "script:random", "script:oracle")  # floor, chance, ceiling
BANNER = "**NOT FINISHED.** This notebook is running, or stopped before its last cell; rows of finished cells are safe."
SECRET = re.compile(r"\b(sk|pk|gsk|xai|hf|ghp)[-_][\w-]{10,}|\bBearer\s+\S+", re.I)
TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
EXAMPLES = {"int": "3", "float": "0.5", "bool": "true", "list": "a,b", "dict": "'{\"a\": 1}'"}


def banner(done: str = "") -> None:
    """Show NOT FINISHED at the top; called again with a text at the end, it replaces the warning."""
    from IPython.display import Markdown, display

    display(Markdown(done or BANNER), display_id="banner", update=bool(done))


def run_dir(run_id: str) -> Any:
    """The folder of a run; raises ValueError when the id cannot be a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", run_id):
        raise ValueError(f"run_id {run_id!r}: write letters, digits, dot, dash and underscore")
    return ROOT / "results" / run_id


def parameters(scope: dict[str, Any]) -> Any:
    """Check a notebook's parameters against its `name: type = default` cell, write the typed values into `scope`.

    The declared type decides; the exact text of papermill's -p values is read back from its command line. Returns
    the values as a frame; raises ValueError for an unknown name, a wrong type and what looks like a secret.
    """
    import pandas as pd

    declared = {name: getattr(kind, "__name__", str(kind)) for name, kind in scope["__annotations__"].items()}
    typed, lost = _command_line()
    for name, value in _injected(scope.get("In", [])).items():
        if name not in declared:
            known = ", ".join(f"{n}: {kind}" for n, kind in declared.items())
            raise ValueError(f"unknown parameter {name!r}; this notebook has {known}")
        value = typed.get(name, value)
        if SECRET.search(str(value)):
            raise ValueError(f"parameter {name!r} looks like a secret, and papermill has written it into its output: "
                             f"delete that notebook. Keys are read from the environment or .env")  # fmt: skip
        if declared[name] == "str" and lost and not isinstance(value, str):
            raise ValueError(f"parameter {name!r} is text, papermill has made {value!r} of it; write -r {name} TEXT")
        scope[name] = typed_value(name, declared[name], value)
    return pd.DataFrame({"value": {name: str(scope[name]) for name in declared}}).rename_axis("parameter")


def _injected(cells: list[str]) -> dict[str, Any]:
    """What papermill wrote into its `# Parameters` cell."""
    cell = next((c for c in cells if c.lstrip().startswith("# Parameters\n")), "")
    found: dict[str, Any] = {}
    for line in ast.parse(cell).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:  # float('inf') and the like
                found[line.targets[0].id] = float("inf")
    return found


def _command_line() -> tuple[dict[str, str], bool]:
    """The text of papermill's -p and -r options, and whether the text of other values is lost.

    Called from Python, papermill hands values over as they are; its command makes numbers of what looks like one.
    """
    try:
        words = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):
        return {}, True
    if not any(word.endswith("papermill") for word in words[:3]):
        return {}, False
    flags = ("-p", "--parameters", "-r", "--parameters_raw")
    return {words[i + 1]: words[i + 2] for i, word in enumerate(words[:-2]) if word in flags}, True


def typed_value(name: str, kind: str, value: Any) -> Any:
    """The value as the declared type; text is read as one would write it on a command line."""
    try:
        if kind in ("list", "dict") and isinstance(value, str):
            comma = kind == "list" and not value.lstrip().startswith("[")
            value = [part.strip() for part in value.split(",") if part.strip()] if comma else json.loads(value)
        return TypeAdapter(TYPES[kind]).validate_python(str(value) if kind == "str" else value)
    except ValueError:
        example = f"-p {name} {EXAMPLES.get(kind, 'text')}"
        raise ValueError(f"parameter {name!r} is {value!r}, which is not {kind}; for example {example}") from None
