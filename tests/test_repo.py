"""The promises of the repository itself: layering, names, documentation that is complete and runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import kinds

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tablepuppet"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# From the bottom up: a module imports from its own layer and from those below it. A folder that stands here with a dot
# has layers inside.
LAYERS = [
    {"errors", "spelling", "arrays", "pieces", "versions"} | {"store.__init__", "store.files", "store.folder"},
    {"runs"},
    {"privacy", "sql"},
    {"party"},
    {"mapping", "wire"},
    {"operators"},
    {"prep.columns"},
    {"prep.encode"},
    {"prep.explore"},
    {"prep.pipelines", "prep.__init__"},
    {"store"},
    {"algebra"},
    {"session"},
    {"relation"},
    {"learn.__init__", "learn.registry", "learn.rounds", "learn.settings", "learn.threads"},
    {"learn.labels", "learn.loss", "learn.noise"},
    {"learn.tables"},
    {"learn.linear", "learn.trees"},
    {"learn.solve"},
    {"learn.network"},
    {"learn.private"},
    {"learn.split"},
    {"learn.party_ops", "learn.release_table"},
    {"learn.learners"},
    {"learn.selection"},
    {
        "baselines",
        "callbacks",
        "cli",
        "demo",
        "federation",
        "jobs",
        "monitor",
        "privacy_plan",
        "run_folder",
        "__init__",
        "__main__",
    },
]
LEVELS = {part: level for level, layer in enumerate(LAYERS) for part in layer}

# Written so that they do not match themselves.
MACHINE_PATH = re.compile(r"/(?:work|root)/|/tmp/[v]\b")
REGISTRY = re.compile(r"(?:index|find|trusted)-(?:url|links|host)\b|(?:pypi\.org|://\S+)/[s]imple\b|python[h]osted")


def imported_modules(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, wherever in it, also for types only."""
    parents = (package.name, *path.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)


def module_of(name: str, package: Path) -> str | None:
    """The module that has a name, or is it, without the package's own name; `__init__` for the package; else None."""
    first, *parts = name.split(".")
    if first != package.name:
        return None
    while parts and not (package.joinpath(*parts).is_dir() or package.joinpath(*parts).with_suffix(".py").exists()):
        parts.pop()
    return ".".join(parts) or "__init__"


def layer_of(module: str) -> str:
    """The part of the package whose layer a module is in."""
    parts = module.split(".")
    inside = ".".join([parts[0], parts[1] if len(parts) > 1 else "__init__"])
    return inside if inside in LEVELS else parts[0]


def imports_of(package: Path) -> dict[str, list[tuple[int, str]]]:
    """Line and name of the modules of the package that each of its modules imports."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"
        told = [(line, module_of(name, package)) for line, name in sorted(imported_modules(path, package))]
        found[own] = [(line, module) for line, module in told if module is not None and module != own]
    return found


def upward_imports(package: Path) -> list[str]:
    """Every import that points from a layer to a higher one, as text for people."""
    found = []
    for own, imported in imports_of(package).items():
        if layer_of(own) not in LEVELS:
            found.append(f"{own}: has no layer; give it one in tests/test_repo.py")
            continue
        for line, module in imported:
            if LEVELS.get(layer_of(module), len(LAYERS)) > LEVELS[layer_of(own)]:
                found.append(f"{own}:{line}: {layer_of(own)} may not import {layer_of(module)}")
    return found


def circles(package: Path) -> list[str]:
    """Modules that import each other in a circle."""
    left = {own: {module for _, module in imported} for own, imported in imports_of(package).items()}
    while ends := [own for own, imported in left.items() if not imported & left.keys()]:
        for own in ends:
            del left[own]
    return sorted(left)


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


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of the fenced Python and shell blocks of a Markdown text; those marked as no test are left out.

    Each is padded so that its line numbers are those of the text.
    """
    fence = re.compile(r"^( *)```(python|sh) *\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)
    for match in fence.finditer(text):
        if not text[: match.start()].rstrip().endswith("<!-- no-test -->"):
            yield match[2], "\n" * text.count("\n", 0, match.start(3)) + textwrap.dedent(match[3])


def anchors(text: str) -> set[str]:
    """What links may name after `#`: the headings of a Markdown text, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
    """No module imports from a layer above its own, not even for types or inside a function."""
    found = upward_imports(PACKAGE)
    assert not found, "\n".join(found)


def test_no_imports_in_circles() -> None:
    """Whoever reads a module and what it imports comes to an end."""
    assert not circles(PACKAGE)


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


def test_public_names_have_types() -> None:
    """What type checkers are told of public names is where these are loaded from."""
    import tablepuppet

    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    [block] = [node for node in body if isinstance(node, ast.If)]
    told = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    modules = {name: module.rpartition(".")[0] for name, module in tablepuppet._MODULES.items()}
    places = tablepuppet._PLACES | modules
    assert told == {name: f"tablepuppet.{module}".rstrip(".") for name, module in places.items()}


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

    from tablepuppet.cli.commands import app

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    names = list(commands(typer.main.get_command(app), "tablepuppet"))
    found = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not found, "\n".join(found)


def run_blocks(document: Path, folder: Path, languages: set[str]) -> dict[str, Any]:
    """Run the blocks of a document in the working directory, one after the other; the names that Python has then."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, call in (("python3", ""), ("tablepuppet", " -m tablepuppet")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{call} "$@"\n')
        (bin_folder / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for language, block in blocks(document.read_text(encoding="utf-8")):
        if language == "python" and language in languages:
            exec(compile(block, str(document), "exec"), namespace)
        elif language in languages:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block], env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return namespace


@pytest.mark.parametrize("document", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_the_docs_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python and shell blocks of a document run one after the other, in an empty folder.

    Shell blocks of README.md are make's, and `tests/test_deploy.py` runs those of docs/deploy.md.
    """
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("MPLBACKEND", "agg")
    run_blocks(document, tmp_path, {"python"} if document.name in ("README.md", "deploy.md") else {"python", "sh"})


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_first_examples_learn_something(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of README's example and of the tutorial are good ones on rows that were held out."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    namespace = run_blocks(ROOT / name, tmp_path, {"python"})
    assert namespace["model"].evaluate(namespace["test"])["auc"] > 0.8


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *DOCS[1:]], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_in_the_docs_lead_somewhere(document: Path) -> None:
    """Every link to a file of the repository names one that is there, and a heading that it has."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_files_of_the_architecture_are_there() -> None:
    """Every module that ARCHITECTURE.md names is one of ours."""
    names = re.findall(r"`([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    folders = [PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"]
    known = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py")}
    assert not [name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in known)]


def test_readme_fits_a_window_and_shows_pictures() -> None:
    """No line is longer than 88 characters; there is a picture of what is sent and one of a result, and pip's line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if len(line) > 88]
    assert re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text) == ["docs/picture.svg", "docs/profile.png"]
    assert "`pip install .`" in text


def test_the_picture_is_readable_in_the_dark() -> None:
    """Every colour of the picture has another one for dark pages; it says who the coordinator is and what it learns."""
    text = (ROOT / "docs" / "picture.svg").read_text(encoding="utf-8")
    style, drawn = re.findall(r"<style>(.*?)</style>(.*)", text, re.DOTALL)[0]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    names = set(re.findall(r'class="(\w+)"', drawn))
    assert names <= set(re.findall(r"\.(\w+) {", light)) == set(re.findall(r"\.(\w+) {", dark))
    assert not re.search(r'(fill|stroke)="', drawn)
    assert "the analyst's process: the coordinator" in drawn
    assert "the labels" in drawn


def test_tables_of_the_reference_have_no_paragraphs() -> None:
    """A cell of docs/api.md is at most 300 characters long; what needs more stands below its table."""
    lines = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line)]
    assert not [cell for cell in cells if len(cell) > 300]


def test_every_page_is_in_the_index() -> None:
    """docs/README.md says of every page which question it answers."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.name for path in DOCS[1:] if path.name != "README.md"]
    found = [name for name in pages if not re.search(rf"\]\({re.escape(name)}[#)]", text)]
    assert not found, "\n".join(found)


def test_benchmarks_say_what_data_they_need(tmp_path: Path) -> None:
    """One line for each data set that is not there, with where to put it."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data"], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"TABLEPUPPET_DATA": str(tmp_path)},
    )  # fmt: skip
    movielens, mimic, *_ = done.stdout.splitlines()
    assert (
        f"ratings, users and movies_genres of MovieLens-1M as Parquet files into {tmp_path}/movielens-1m" in movielens
    )
    assert "mimic-iii-demo" in mimic
    assert "benchmarks.data" in (ROOT / "Makefile").read_text()


def test_what_was_skipped_is_told_at_the_end() -> None:
    """Where no MariaDB is installed, one line says how many tests that were, and how to have them."""
    code = (
        "import sys, pytest, tests.mariadb_server as server\n"
        "server.SERVER = None\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/party/databases/test_mysql.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    told = [line for line in done.stdout.splitlines() if "tests of MySQL were skipped" in line]
    assert len(told) == 1, done.stdout
    assert re.match(r"\d+ tests of MySQL were skipped: no mariadbd is installed.*apt-get install mariadb", told[0])


def test_core_imports_without_torch() -> None:
    """The package and its command line load without torch, which is an extra."""
    code = "import sys, tablepuppet.federation, tablepuppet.cli.commands; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_slow_tests_are_there() -> None:
    """Every name that `make quick` leaves out as slow is that of a module of tests, or of a test in one."""
    found = []
    for name in sorted(kinds.SLOW):
        module, _, test = name.partition("::")
        path = ROOT / "tests" / module
        if not path.exists() or f"def {test}" not in path.read_text(encoding="utf-8"):
            found.append(name)
    assert not found, f"tests/kinds.py names {', '.join(found)}, which are not there"


def test_quick_has_tests_of_every_package() -> None:
    """Each folder of tests has a module of which `make quick` leaves out no test as slow."""
    slow = {name.partition("::")[0] for name in kinds.SLOW}
    folders: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        folders.setdefault(path.parent.name, set()).add(path.relative_to(ROOT / "tests").as_posix())
    assert not [name for name, modules in folders.items() if modules <= slow]


def test_quick_leaves_out_what_starts_processes() -> None:
    """A function that reaches `subprocess`, by whatever other, is found; one that does not is none."""
    assert kinds.reaches_starter(test_examples_in_the_docs_run, set())  # by run_blocks
    assert kinds.reaches_starter(test_core_imports_without_torch, set())
    assert not kinds.reaches_starter(test_links_in_the_docs_lead_somewhere, set())
