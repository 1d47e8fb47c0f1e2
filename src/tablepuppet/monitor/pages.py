"""What all pages share: the application, their frame, and parts that are sent to the browser again when they change.

A part is a function that returns HTML, or the options of a chart; it is called once a second as long as somebody looks,
and sent if it has changed. What fails in one part is said in its place, and the others go on.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.monitor.charts import height
from tablepuppet.monitor.markup import Markup, link, tag

if TYPE_CHECKING:
    from fastapi import FastAPI

EVERY = 1.0  # seconds
SLOWLY = 3.0
STYLE, SCRIPT = (Path(__file__).with_name(name).read_text("utf-8") for name in ("style.css", "page.js"))
_LOG = logging.getLogger("tablepuppet")
_NONE = tag("span", "")
Build = TypeVar("Build", bound=Callable[..., None])


def new_app(title: str, files: Mapping[str, Callable[[Mapping[str, str]], Any]] | None = None) -> tuple[Any, FastAPI]:
    """NiceGUI's elements, and an application that serves pages made of them; ConfigError where it is not installed.

    ``files`` are functions of what a request asks, by address; each returns a response of Starlette.
    """
    try:
        ui: Any = importlib.import_module("nicegui").ui
    except ImportError as error:
        raise ConfigError("the monitor needs the extra `monitor`: pip install 'tablepuppet[monitor]'") from error
    from fastapi import FastAPI

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for address, answer in (files or {}).items():
        app.router.add_route(address, _endpoint(answer))
    ui.run_with(app, title=title, dark=None, tailwind=False, show_welcome_message=False, language="en-US")
    return ui, app


def page(ui: Any, address: str, title: str) -> Callable[[Build], Build]:
    """Make a function build the page of an address, anew for everybody who opens it."""

    def built(build: Build) -> Build:
        ui.page(address, title=f"{title} · TablePuppet")(build)
        return build

    return built


def _endpoint(answer: Callable[[Mapping[str, str]], Any]) -> Callable[[Any], Any]:
    return lambda request: answer(request.query_params)


class Live:
    """The parts of one open page."""

    def __init__(self, ui: Any):
        self._ui = ui
        self._parts: list[Callable[[], None]] = []

    def html(self, read: Callable[[], Markup | None]) -> None:
        """A part of HTML."""
        shown = _html_of(read)
        element = self._ui.html(shown, sanitize=False)
        before = [shown]

        def again() -> None:
            now = _html_of(read)
            if now != before[0]:
                before[0] = now
                element.set_content(now)

        self._parts.append(again)

    def slow_html(self, read: Callable[[], Markup | None]) -> None:
        """A part of HTML that asks somebody: made in a thread, every few seconds."""
        shown = [tag("p", "…", cls="empty")]
        asked = [0.0, 0.0]  # when it was last begun, and whether it is under way

        def work() -> None:
            shown[0] = _html_of(read)
            asked[1] = 0.0

        def now() -> Markup:
            if not asked[1] and time.monotonic() - asked[0] > SLOWLY:
                asked[:] = time.monotonic(), 1.0
                threading.Thread(target=work, name="page", daemon=True).start()
            return shown[0]

        self.html(now)

    def chart(self, read: Callable[[], dict[str, Any]], label: str, *, tall: bool = False) -> None:
        """A chart, with a label for those who do not see it; hidden while it has nothing to show."""
        options = read()
        with self._ui.element("div") as around:
            element = self._ui.echart(options)
        element.props(f'role=img aria-label="{label}"')
        around.set_visibility(_has_data(options))
        if tall:
            element.style(f"height: {height(options)}px")
        before = [options]

        def again() -> None:
            now = read()
            if now != before[0]:
                if tall and height(now) != height(before[0]):
                    element.style(f"height: {height(now)}px")
                before[0] = now
                element.options.clear()
                element.options.update(now)
                element.update()
                around.set_visibility(_has_data(now))

        self._parts.append(again)

    def refresh(self) -> None:
        """Send what has changed."""
        for part in self._parts:
            try:
                part()
            except Exception as error:  # the other parts go on
                _LOG.warning("a part of a page cannot be made: %s", type(error).__name__)


@contextmanager
def framed(ui: Any, pages: Mapping[str, str], current: str | None, title: str = "TablePuppet") -> Iterator[Live]:
    """A page with its links to the others; ``pages`` are titles by address."""
    prefix = ui.context.client.request.headers.get("x-forwarded-prefix", "")
    ui.add_head_html(f'<base href="{prefix}/"><style>{STYLE}</style><script>{SCRIPT}</script>')
    links = [
        link(name, address or "./", aria_current="page" if address == current else None)
        for address, name in pages.items()
    ]
    live = Live(ui)
    with ui.element("div").classes("tp"):
        ui.html(tag("nav", tag("b", title), links, aria_label="pages"), sanitize=False)
        yield live
    ui.timer(EVERY, live.refresh)


def _html_of(read: Callable[[], Markup | None]) -> Markup:
    try:
        return read() or _NONE
    except TablePuppetError as error:
        return tag("p", str(error), cls="needs")
    except Exception as error:
        _LOG.warning("a part of a page cannot be made: %s", type(error).__name__)
        return tag("p", f"This part cannot be shown ({type(error).__name__}); the others go on.", cls="needs")


def _has_data(options: Mapping[str, Any]) -> bool:
    return any(each.get("data") for each in options.get("series", ()))
