"""Before: the notebook's parameters, prices, the corpus, the equality of conditions. After: the controls."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import Any

import psutil
from dotenv import load_dotenv

from . import pricing
from .models import Model
from .records import ROOT, Suite
from .suites import pages

BANNER = "**NOT FINISHED.** This notebook is running, or stopped before its last cell; rows of finished cells are safe."
SECRET = re.compile(r"\b(sk|pk|gsk|xai|hf|ghp|AKIA)[-_]?[A-Za-z0-9][\w-]{10,}|\bBearer\s+\S+", re.I)
READ = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def banner(done: str = "") -> None:
    """Show NOT FINISHED at the top; called again with a text at the end, it replaces the warning."""
    from IPython.display import Markdown, display, update_display

    if done:
        update_display(Markdown(done), display_id="banner")
    else:
        display(Markdown(BANNER), display_id="banner")


def parameters(scope: dict[str, Any]) -> None:
    """Check a notebook's parameters against its `name: type = default` cell and write the typed values into `scope`.

    Declared types decide; the exact text of `-p` values is read back from papermill's own command line. Raises
    ValueError for an unknown name, a value that is not of its type, and whatever looks like a secret.
    """
    declared = {name: getattr(kind, "__name__", str(kind)) for name, kind in scope.get("__annotations__", {}).items()}
    injected = _injected(scope.get("In", []))
    typed, lost = _command_line()
    for name, value in injected.items():
        if name not in declared:
            known = ", ".join(f"{n}: {kind}" for n, kind in declared.items())
            raise ValueError(f"unknown parameter {name!r}; this notebook has: {known}")
        text = typed.get(name, value)
        if SECRET.search(str(text)) or re.search(r"api_?key|password|secret", name, re.I):
            raise ValueError(
                f"parameter {name!r} looks like a secret; papermill has written it into its output notebook: delete that "
                f"file. Keys are read from the environment or from .env"
            )
        scope[name] = _typed(name, declared[name], text, lost and name not in typed)


def table(scope: dict[str, Any]) -> Any:
    """The parameters as they are used, for display: a report without code shows them too."""
    import pandas as pd

    return pd.DataFrame({"value": {name: str(scope[name]) for name in scope["__annotations__"]}}).rename_axis("parameter")


def _injected(cells: list[str]) -> dict[str, Any]:
    """What papermill wrote into its `# Parameters` cell."""
    cell = next((c for c in cells if c.lstrip().startswith("# Parameters\n")), "")
    found = {}
    for line in ast.parse(cell).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:  # float('inf') and the like
                found[line.targets[0].id] = ast.unparse(line.value)
    return found


def _command_line() -> tuple[dict[str, str], bool]:
    """The text of papermill's -p and -r options by name, and whether text of other values is lost.

    It is lost when the process that started this kernel cannot be read or is papermill's command; called from
    Python, papermill hands values over as they are.
    """
    try:
        words = psutil.Process().parent().cmdline()  # type: ignore[union-attr]
    except (psutil.Error, AttributeError):
        return {}, True
    if not any(word.endswith("papermill") for word in words[:3]):
        return {}, False
    options = ("-p", "--parameters", "-r", "--parameters_raw")
    return {words[i + 1]: words[i + 2] for i, word in enumerate(words[:-2]) if word in options}, True


def _typed(name: str, kind: str, value: Any, lost: bool) -> Any:
    fault = ValueError(f"parameter {name!r} is {value!r}, which is not {kind}; for example: -p {name} {_example(kind)}")
    if kind == "str":
        if lost and not isinstance(value, str):
            raise ValueError(f"parameter {name!r} is text, and papermill has made {value!r} of it; write -r {name} TEXT")
        return str(value)
    if isinstance(value, str):
        words = {"true": True, "false": False, "yes": True, "no": False}
        if kind == "bool":
            value = words.get(value.lower(), value)
        elif kind == "list" and not value.lstrip().startswith("["):
            value = [word.strip() for word in value.split(",") if word.strip()]
        else:
            try:
                value = READ[kind](value) if kind in ("int", "float") else json.loads(value)
            except ValueError:
                try:
                    value = ast.literal_eval(value)
                except (ValueError, SyntaxError):
                    raise fault from None
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, READ[kind]) or (kind == "int" and isinstance(value, bool)):
        raise fault
    return value


def _example(kind: str) -> str:
    return {"int": "3", "float": "0.5", "bool": "true", "list": "a,b", "dict": shlex.quote('{"a": 1}')}.get(kind, "text")


def preflight(suite: Suite, model: Model, owed: int) -> Any:
    """What stands between this call and its first paid request, as a table; raises where something is missing."""
    import pandas as pd

    if model.provider not in ("script", "extractive"):
        from .records import Usage

        pricing.usd(model.name.partition(":")[2], Usage(), model.provider)
    rows = {
        "model": model.name,
        "cells owed": str(owed),
        "prices": pricing.source(),
        "corpus": f"{suite.corpus}, {len(pages(suite.corpus).pages)} pages, {suite.corpus_sha[:16]}" if suite.corpus else "none",
        "conditions differ in": ", ".join(differences(suite)) or "nothing",
        "samples": f"{len(suite.samples)}, sha256 {suite.sha[:16]}" + "".join(f"; {note}" for note in suite.notes),
    }
    return pd.DataFrame({"": rows})


def differences(suite: Suite) -> list[str]:
    """The fields in which the arms of a suite differ; anything but tools and instructions spoils the comparison."""
    first = suite.conditions[0]
    fields = [f for f in ("system", "budget") if any(getattr(c, f) != getattr(first, f) for c in suite.conditions)]
    return ["tools and their instructions", *(f"{field.upper()} (must not)" for field in fields)]


def load_env() -> None:
    """Read the git-ignored .env of the project; it never overrides the environment."""
    load_dotenv(ROOT / ".env", override=False)
