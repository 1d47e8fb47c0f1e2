"""HTML of pages: every text that is not markup already is escaped, since parties and callers write names and errors.

>>> tag("p", "a < b", tag("b", "c"), title='"')
'<p title="&quot;">a &lt; b<b>c</b></p>'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tablepuppet.errors import without_controls

LONGEST = 4000


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; ``cls`` is its class, and an attribute that is None is left out."""
    written = "".join(
        f' {_name(key)}="{escape(without_controls(str(value)[:LONGEST]))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("input", "br", "path", "line", "circle", "rect"):
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def _name(key: str) -> str:
    return "class" if key == "cls" else key.rstrip("_").replace("_", "-")


def joined(children: Iterable[object]) -> Markup:
    """Children of an element, one after the other; None is nothing."""
    texts = [each if isinstance(each, Markup) else _text(each) for each in children if each is not None]
    return Markup("".join(texts))


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return joined(value)
    return escape(without_controls(str(value)[:LONGEST]))


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> Markup:
    """A table with a caption; the last ``numbers`` columns are aligned to the right. The first cell names its row."""
    left = len(heads) - numbers
    classes = [None if at < left else "number" for at in range(len(heads))]
    head = tag("tr", [tag("th", each, scope="col", cls=classes[at]) for at, each in enumerate(heads)])
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", cls=classes[0]),
            [tag("td", cell, cls=classes[at]) for at, cell in enumerate(row[1:], 1)],
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", whole, cls="scrolls", tabindex="0", role="region", aria_label=caption)


def ago(moment: float) -> Markup:
    """When something was; the browser says how long ago that is, and keeps it right."""
    return tag("time", "…", data_since=f"{moment:.1f}") if moment else Markup("never")


def link(text: object, address: str, **attributes: object) -> Markup:
    """A link to a page; ``address`` is ours, without the door's prefix, which the page puts before it."""
    return tag("a", text, href=address, **attributes)
