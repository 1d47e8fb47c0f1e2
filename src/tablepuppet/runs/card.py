"""Cards for notebooks: what a federation or a relation is, at a glance, and text that keeps its columns.

What comes in are texts that this process has already: nobody is asked for the sake of a card. Everything is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from tablepuppet.errors import without_controls

_MONOSPACE = "font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"
_PREFORMATTED = (
    f"overflow-x: auto; line-height: 1.25; {_MONOSPACE} color: inherit; background: none; border: none; white-space: "
)
_CARD = (
    "display: inline-block; max-width: 100%; box-sizing: border-box; padding: 0.6em 1em; color: inherit; "
    "border: 1px solid rgba(128, 128, 128, 0.45); border-radius: 8px;"
)
_FACTS = "display: grid; grid-template-columns: max-content 1fr; gap: 0.2em 1em; margin: 0.5em 0 0;"


def preformatted(text: str, *, wrapped: bool = False) -> str:
    """Text line by line, in letters of one width; a long line may be ``wrapped``, if its columns mean nothing.

    >>> "monospace" in preformatted("a < b"), "a &lt; b</pre>" in preformatted("a < b")
    (True, True)
    """
    lines = "\n".join(map(without_controls, text.split("\n")))
    return f'<pre style="{_PREFORMATTED}{"pre-wrap" if wrapped else "pre"};">{escape(lines)}</pre>'


def card(title: str, facts: Mapping[str, str], sql: str = "") -> str:
    """A title, the SQL if there is some, and facts by name.

    >>> shown = card("Shop <b>", {"rows": "12"})
    >>> "Shop &lt;b&gt;" in shown, "<span>12</span>" in shown, "pre-wrap" in card("Shop", {}, "SELECT a FROM t")
    (True, True, True)
    """
    lines = "".join(
        f'<span style="opacity: 0.65;">{escape(without_controls(name))}</span>'
        f"<span>{escape(without_controls(fact))}</span>"
        for name, fact in facts.items()
    )
    head = f"<div><b>{escape(without_controls(title))}</b></div>"
    query = preformatted(sql, wrapped=True) if sql else ""
    return f'<div style="{_CARD}">{head}{query}<div style="{_FACTS}">{lines}</div></div>'
