"""The promises of the repository itself: layering, names, documentation that is complete and runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tablepuppet"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# From the bottom up: a module imports from its own layer and from those below it.
LAYERS = [
    {"errors", "arrays", "pieces"},
    {"runs"},
    {"privacy", "sql"},
    {"party"},
    {"mapping", "wire"},
    {"operators"},
    {"learn", "prep"},
    {
        "baselines",
        "pooled",
        "pooled_networks",
        "cli",
        "cli_keys",
        "cli_output",
        "cli_party",
        "demo",
        "demo_parties",
        "federation",
        "jobs",
        "relation",
        "__init__",
        "__main__",
    },
]
LEVELS = {part: level for level, layer in enumerate(LAYERS) for part in layer}

# Written so that they do not match themselves.
MACHINE_PATH = re.compile(r"/(?:work|root)/|/tmp/[v]\b")
REGISTRY = re.compile(r"(?:index|find|trusted)-(?:url|links|host)\b|(?:pypi\.org|://\S+)/[s]imple\b|python[h]osted")


def imported_modules(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, except under `if TYPE_CHECKING:`."""
    parents = (package.name, *path.relative_to(package).parent.parts)
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            pending += node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def part_of(module: str, package: Path) -> str:
    """The folder or file of the package that holds a module; `__init__` for names of the package itself."""
    _, _, inner = module.partition(".")
    part = inner.split(".")[0]
    is_module = part and ((package / part).is_dir() or (package / f"{part}.py").exists())
    return part if is_module else "__init__"


def upward_imports(package: Path) -> list[str]:
    """Every import that points from a layer to a higher one, as text for people."""
    found = []
    for path in sorted(package.rglob("*.py")):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        if own not in LEVELS:
            found.append(f"{path.relative_to(package)}: {own} has no layer; give it one in tests/test_repo.py")
            continue
        for line, module in sorted(imported_modules(path, package)):
            if module.split(".")[0] != package.name:
                continue
            part = part_of(module, package)
            if LEVELS.get(part, len(LAYERS)) > LEVELS[own]:
                found.append(f"{path.relative_to(package)}:{line}: {own} may not import {part}")
    return found


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file that is, or would be, under version control."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    for path in (ROOT / name for name in sorted(filter(None, listing.stdout.split("\0")))):
        try:
            yield path, path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue


def python_blocks(text: str) -> Iterator[str]:
    """The fenced Python blocks of a Markdown text, each padded so that its line numbers are those of the text."""
    fence = re.compile(r"^( *)```python *\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)
    for match in fence.finditer(text):
        if not text[: match.start()].rstrip().endswith("<!-- no-test -->"):
            yield "\n" * text.count("\n", 0, match.start(2)) + textwrap.dedent(match[2])


def commands(command: Any, path: str) -> Iterator[str]:
    """The full name of every command below this one; hidden ones are left out."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path
        return
    for name, inner in below.items():
        if not inner.hidden:
            yield from commands(inner, f"{path} {name}")


def test_imports_point_one_way() -> None:
    """No module imports from a layer above its own."""
    found = upward_imports(PACKAGE)
    assert not found, "\n".join(found)


def test_no_file_without_a_real_name() -> None:
    """A helper lives beside its user or has a name of its own."""
    vague = {"utils.py", "helpers.py", "common.py"}
    found = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name in vague]
    assert not found, "\n".join(found)


def test_public_names_are_documented() -> None:
    """Every public name is in the README or in the API reference."""
    import tablepuppet

    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/api.md"))
    found = [name for name in tablepuppet.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_nothing_of_one_machine(pattern: re.Pattern[str]) -> None:
    """No file names a path of the machine it was written on, or a package registry."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_commands_are_documented() -> None:
    """Every command stands in docs/cli.md with its full name, such as `tablepuppet party serve`."""
    import typer

    from tablepuppet.cli import app

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    names = list(commands(typer.main.get_command(app), "tablepuppet"))
    found = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_examples_in_the_docs_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a document run one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(document.read_text(encoding="utf-8")):
        exec(compile(block, str(document), "exec"), namespace)


def test_core_imports_without_torch() -> None:
    """The package and its command line load without torch, which is an extra."""
    code = "import sys, tablepuppet, tablepuppet.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
