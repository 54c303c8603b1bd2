"""The house: imports point upwards in the order the package tells, and what is written about its files is true."""

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import yaml

import evalkit

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "evalkit"
ORDER = re.findall(r"^    (\w+)  +\S", evalkit.__doc__, re.M)
HEAVY = ["anthropic", "openai", "pandas", "matplotlib", "seaborn", "scipy", "statsmodels"]


def home(file):
    """The module of the reading order that a file belongs to; the package's own __init__ is ""."""
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(file):
    """Modules of the reading order that a file imports, at any depth of its code, with the line."""
    folder = list(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "evalkit" and len(parts) > 1:
                yield parts[1], node.lineno


def test_the_reading_order_names_every_module_once_and_no_other():
    there = {home(file) for file in PACKAGE.rglob("*.py")} - {""}
    assert sorted(ORDER) == sorted(there)


def test_every_import_points_to_a_module_above():
    wrong, seen = [], 0
    for file in sorted(PACKAGE.rglob("*.py")):
        mine = home(file)
        for name, line in imported(file):
            seen += 1
            if mine and name != mine and (name not in ORDER or ORDER.index(name) > ORDER.index(mine)):
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []
    assert seen > 20


def test_importing_the_package_loads_nothing_heavy():
    code = "import evalkit, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = done.stdout.split()
    assert "evalkit.records" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_conda_environment_lists_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]
    (pip,) = (entry["pip"] for entry in conda if isinstance(entry, dict))
    extras = chain.from_iterable(
        names for extra, names in project["optional-dependencies"].items() if extra != "chroma"
    )
    assert sorted(pip) == sorted([*project["dependencies"], *extras, "-e ."])
    assert f"python{project['requires-python']}" in conda


def tree():
    """The paths of README.md's commented tree: its first column, a deeper line standing under the folder above it."""
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"^```\w*\n(README\.md\b.*?)^```", text, re.M | re.S)
    above: list[tuple[int, str]] = []
    for line in block.splitlines():
        depth, name = re.match(r"([\s│├└─]*)(\S*)", line).groups()
        if not name or len(depth) > 12:  # a comment that goes on
            continue
        above = [(d, folder) for d, folder in above if d < len(depth)]
        path = (above[-1][1] if above else "") + name
        above += [(len(depth), path)] * name.endswith("/")
        yield path


def test_the_tree_of_the_readme_names_only_what_is_there():
    paths = list(tree())
    assert len(paths) > 8
    gone = [path for path in paths if not list(ROOT.glob(re.sub(r"<\w+>", "*", path).rstrip("/")))]
    assert gone == []
    assert [path for path in paths if path.endswith("/") != (ROOT / path).is_dir() and "<" not in path] == []


def test_the_tree_of_the_readme_names_every_tracked_path_at_the_top():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    assert "evalkit" in top
    assert sorted(top - {path.split("/")[0] for path in tree()}) == []
