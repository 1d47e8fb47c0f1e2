"""What errors advise, found in the code: a room's ``test_advice.py`` provokes each such error, and does what it says.

A text advises something if a clause of it begins with a verb such as "use" or "select". That a request should be
repeated, or that an operator should be asked, is no advice that a test could follow.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tablepuppet as tp

SOURCE = Path(tp.__file__).parent
VERBS = (
    "add apply call cast change choose clip compare copy decorate del divide filter give group hold import install "
    "issue join learn leave list lower make move multiply name pass pool predict publish put raise remove rename "
    "restore round run save say scale select set take train transform use write"
)
AGAIN = re.compile(
    r"(?:,? or |, and |[;:.,] |else )?"
    r"(?:(?:let |ask )?(?:the party's|its) operator(?:,? (?:and|must|to set|can|for|to raise|to publish) [^;:,(]*)?"
    r"|try again[^;]*|(?:fit|load)(?: and save)? (?:it|the model) again|open (?:it|the relation) again[^;,]*"
    r"|start (?:a new run|the run again)|run the query again|check [^;]*)",
    re.IGNORECASE,
)
_VERB = f"(?:{VERBS.replace(' ', '|')})"
ADVICE = re.compile(rf"^{_VERB}\s\S+\s|(?i:(?:[;:,.!?)]|\bor|\band)\s(?:or |and |then |else )?{_VERB}\b)")


@dataclass(frozen=True)
class Advice:
    """One refusal: what asks for it, and what to do instead, which asserts that this returns what was asked for.

    ``says`` is a part of the refusal as it stands in the code, without what is filled in.
    """

    says: str
    asked: Callable[[Any], object]
    instead: Callable[[Any], object]

    def __str__(self) -> str:
        return self.says

    def follow(self, world: Any) -> None:
        """Provoke the refusal, and do what it says."""
        with pytest.raises((tp.TablePuppetError, AttributeError)) as caught:
            self.asked(world)
        assert self.says in str(caught.value)
        assert self.instead(world) is not False


def said(text: object) -> NoReturn:
    """Let what a report, a summary or a log says count as a refusal."""
    raise tp.TablePuppetError(str(text))


def check_all_are_tried(rooms: Sequence[str], tried: Sequence[Advice], others: Mapping[str, str]) -> None:
    """Each advice of some packages or modules is tried, or among ``others``: part of its text, and why it is not."""
    known = [*(each.says for each in tried), *others]
    texts = {text: where for room in rooms for where, text in advice(SOURCE / room)}
    missing = {where: text for text, where in texts.items() if not any(part in text for part in known)}
    gone = [part for part in others if not any(part in text for text in texts)]
    assert missing == {}, f"provoke the error in a case, and do what it advises: {missing}"
    assert gone == [], f"no error says so any more: {gone}"


def advice(room: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of each text in the code of a folder or file that advises something; {} is what is filled in."""
    for path in sorted(room.rglob("*.py")) if room.is_dir() else [room]:
        tree = ast.parse(path.read_text())
        skipped = set(_no_errors(tree))
        for node in ast.walk(tree):
            text = _text(node) if node not in skipped else ""
            if ADVICE.search(AGAIN.sub(" ", text)):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "{}" for part in parts)
    return ""


def _no_errors(tree: ast.AST) -> Iterator[ast.AST]:
    """Texts that are no errors: docstrings, types, and help of settings; and parts of texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
            yield node.args[0]
        elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in ("help", "description")):
            yield from (each for each in ast.walk(node) if each is not node)
