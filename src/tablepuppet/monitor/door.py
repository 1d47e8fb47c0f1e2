"""The door before a page: who has no token gets nothing, and nothing is loaded from elsewhere.

Input: an ASGI application, and a token. Whoever opens ``/?token=TOKEN``, or an address below ``/TOKEN/``, gets in; the
token is compared in constant time, also for web sockets. There are no cookies, which other programs of this machine
would get too. Requests that name another host than the one served are refused, against DNS rebinding.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from tablepuppet.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LOCAL = ("127.0.0.1", "localhost", "::1")
REFUSED = (
    b"This address lacks its token, or has a wrong one: open the one that the monitor printed when it was started.\n"
)
HEADERS = {
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
}


class Door:
    """Lets requests with the token through to the application, as if it stood behind a proxy at ``/TOKEN``."""

    def __init__(self, app: Any, token: str, hosts: tuple[str, ...]):
        self._app, self._token, self._hosts = app, token.encode(), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        inner = self._inner(scope)
        if inner is None:
            await _refuse(scope, send)
            return

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(inner, receive, sent)

    def _inner(self, scope: Scope) -> Scope | None:
        """The request as the application sees it; None if it may not."""
        headers = [(name, value) for name, value in scope["headers"] if name != b"x-forwarded-prefix"]
        named = dict(headers)
        if not self._is_ours(named.get(b"host", b"").decode("latin-1")):
            return None
        origin = named.get(b"origin")
        if origin not in (None, b"null") and not self._is_ours(origin.decode("latin-1").rpartition("//")[2]):
            return None
        _, first, *rest = (
            [*scope["path"].split("/", 2), ""][:3] if scope["path"].count("/") > 1 else ["", scope["path"][1:]]
        )
        query = scope.get("query_string", b"")
        if hmac.compare_digest(first.encode("utf-8", "replace"), self._token):
            path = "/" + (rest[0] if rest else "")
        else:
            given = parse_qsl(query.decode("latin-1"))
            tokens = [value for name, value in given if name == "token"] or [""]
            if not hmac.compare_digest(tokens[-1].encode("utf-8", "replace"), self._token):
                return None
            path, query = scope["path"], urlencode([each for each in given if each[0] != "token"]).encode()
        headers.append((b"x-forwarded-prefix", b"/" + self._token))
        return {**scope, "path": path, "raw_path": path.encode(), "headers": headers, "query_string": query}

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        return name.strip("[]") in self._hosts


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 4403})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})


def serve(app: FastAPI, port: int, *, open_browser: bool, what: str, host: str = "127.0.0.1") -> None:
    """Serve pages until the process is stopped; prints one line, the address. Port 0 takes a free one."""
    import uvicorn

    token = secrets.token_urlsafe(24)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # so that the address can be opened as soon as it is printed
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} cannot be listened at ({error.strerror}): name another with --port") from error
    address = f"http://{host}:{listener.getsockname()[1]}/?token={token}"
    door = Door(app, token, LOCAL)
    config = uvicorn.Config(door, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=1)
    print(f"{what}: {address}", flush=True)
    if open_browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[listener])
