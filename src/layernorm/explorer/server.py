# SPDX-License-Identifier: MIT
"""This file serves the page on this machine alone, and refuses whoever else asks.

A page of another site can send requests to 127.0.0.1, and by DNS rebinding even read answers under its own name: so
every request must name this host and port exactly, and what computes must also show the token that was printed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layernorm import __version__
from layernorm.explorer.computing import computed, plain
from layernorm.explorer.page import START, TYPES, static_files
from layernorm.explorer.tensors import Held, names, uploaded
from layernorm.spec.errors import ArgumentError, LayerNormError, MissingExtraError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError(
        f"starlette and uvicorn serve the page, and {error.name} is not installed; pip install starlette uvicorn."
    ) from None

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PORT, TRIES = 8817, 20
MOST_BYTES = 64 * 2**20
MOST_FILES = 4
SECONDS = 30
"""How long a request may take to arrive: its head, and then its body."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass
class Served:
    """What is served where: the names by which it may be asked, the secret, the tensors that someone brought."""

    hosts: frozenset[str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    most_bytes: int = MOST_BYTES
    seconds: float = SECONDS
    tensors: dict[str, Held] = field(default_factory=dict)
    brought: list[list[str]] = field(default_factory=list)
    """The ids of each file that was uploaded, the oldest first."""
    counted: int = 0

    def take(self, arrays: list[Held]) -> list[str]:
        """Keep the arrays of one more file, under ids that say nothing of it; of many files the oldest goes."""
        ids = [f"u{self.counted + k}" for k in range(len(arrays))]
        self.counted += len(arrays)
        self.tensors.update(zip(ids, arrays, strict=True))
        self.brought.append(ids)
        if len(self.brought) > MOST_FILES:
            for gone in self.brought.pop(0):
                del self.tensors[gone]
        return ids


def allowed_hosts(port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """Give each host by which this server may be asked: with its port, and as it is written where someone wrote it."""
    names = [name.lower() for name in ("127.0.0.1", "localhost", "[::1]", *more)]
    return frozenset([*(f"{name}:{port}" for name in names), *names[3:]])


# -- who may ask --------------------------------------------------------------------------------------------


class Guard:
    """Lets through what names this host, and to what computes only what has the token; says so in every answer."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self.app, self.served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refused = self._refused(scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                # what is left of a body that is not read must not be taken for another request
                if refused is not None or message["status"] in (408, 413):
                    more.append((b"connection", b"close"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if refused is not None:
            await refused(scope, receive, answer)
            return
        await self.app(scope, receive, answer)

    def _refused(self, scope: Scope) -> Response | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value.decode("latin-1"))
        host = headers.get(b"host", [])
        if len(host) != 1 or host[0].lower() not in self.served.hosts:
            return _error(421, "this server answers to its own address only; open the link that was printed.")
        if not scope["path"].startswith("/api/"):
            return None
        origin = headers.get(b"origin", [f"http://{host[0]}"])
        site = headers.get(b"sec-fetch-site", ["none"])
        token = headers.get(b"x-token", [""])
        # a proxy in front may speak https; which host it speaks for was compared already
        ours = {f"{scheme}://{host[0].lower()}" for scheme in ("http", "https")}
        if len(origin) != 1 or origin[0].lower() not in ours or site not in (["same-origin"], ["none"]):
            return _error(403, "another site may not ask this server; open the link that was printed.")
        if len(token) != 1 or not hmac.compare_digest(token[0].encode(), self.served.token.encode()):
            return _error(403, "the token is missing or of another run; open the link that was printed.")
        length = headers.get(b"content-length", ["0"])[0]
        if length.isdecimal() and int(length[:20]) > self.served.most_bytes:
            return _too_much(self.served)
        return None


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status)


def _too_much(served: Served) -> Response:
    return _error(413, f"the request is larger than {served.most_bytes} bytes; name the file when you start layernorm.")


# -- what is answered ---------------------------------------------------------------------------------------


def application(served: Served) -> ASGIApp:
    """Make the application that answers for the page."""
    held = static_files()

    async def page(request: Request) -> Response:
        name = request.scope["path"].removeprefix("/") or START
        if name not in held:
            return _error(404, "there is no such file.")
        return Response(held[name], media_type=TYPES[name.rpartition(".")[2]])

    async def about(_: Request) -> Response:
        return JSONResponse({"version": __version__, **names(served.tensors)})

    async def compute(request: Request) -> Response:
        try:
            calls = json.loads(await _body(request, served))
        except (ValueError, RecursionError):
            return _error(400, "the request is no JSON; reload the page.")
        return JSONResponse({"results": await asyncio.to_thread(computed, calls)})

    async def bring(request: Request) -> Response:
        arrays = await asyncio.to_thread(uploaded, await _body(request, served))
        ids = served.take(arrays)
        return JSONResponse(names({key: served.tensors[key] for key in ids}), 201)

    async def look(request: Request) -> Response:
        tensor = served.tensors.get(request.path_params["id"])
        if tensor is None:
            return _error(404, "the server does not hold that array any more; choose the file again.")
        asked = request.query_params
        try:
            eps, whole = float(asked.get("eps", "1e-5")), asked.get("whole", "1") == "1"
            token, feature = int(asked.get("token", "0")[:20]), int(asked.get("feature", "0")[:20])
        except ValueError:
            return _error(400, "eps, token and feature are numbers; reload the page.")
        return JSONResponse(plain(await asyncio.to_thread(tensor.look, eps, token, feature, whole)))

    async def refuse(_: Request, error: Exception) -> Response:
        return _error(400, str(error))

    async def too_long(_: Request, __: Exception) -> Response:
        return _too_much(served)

    async def gone(_: Request, __: Exception) -> Response:
        return _error(408, f"the request took longer than {served.seconds:g} seconds; send it again.")

    async def broken(_: Request, error: Exception) -> Response:
        return _error(500, f"the server could not answer: {type(error).__name__}; its terminal says more.")

    async def no_such(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        return _error(status, "that cannot be asked of this address; reload the page.")

    routes = [
        Route("/api/about", about, methods=["GET"]),
        Route("/api/tensors", bring, methods=["POST"]),
        Route("/api/tensors/{id}", look, methods=["GET"]),
        Route("/api/compute", compute, methods=["POST"]),
        Route("/{path:path}", page, methods=["GET", "HEAD"]),
    ]
    handlers: Mapping[Any, Callable[[Request, Exception], Any]] = {
        LayerNormError: refuse, TooLong: too_long, TimeoutError: gone, ClientDisconnect: gone, Exception: broken,
        HTTPException: no_such,
    }  # fmt: skip
    return Guard(Starlette(routes=routes, exception_handlers=handlers), served)


class TooLong(Exception):
    """A body went on beyond what is taken."""


async def _body(request: Request, served: Served) -> bytes:
    """Read a body that says no length, or a false one, and stop where it is too long."""
    read = bytearray()
    async with asyncio.timeout(served.seconds):
        async for part in request.stream():
            read += part
            if len(read) > served.most_bytes:
                raise TooLong
    return bytes(read)


# -- on this machine ----------------------------------------------------------------------------------------


def listening(host: str, port: int | None) -> socket.socket:
    """Bind a port: the one asked for, else the first that is free of some, else any.

    Raises:
        ArgumentError: the port that was asked for is taken, or the address is none of this machine.
    """
    if port is not None and not 0 <= port < 2**16:
        raise ArgumentError(f"{port} is no port; give --port a number from 0 to 65535, 0 for any that is free.")
    wanted = [port] if port is not None else [*range(PORT, PORT + TRIES), 0]
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in wanted:
        made = socket.socket(kind)
        if os.name == "posix":  # elsewhere this would take a port from whoever listens there
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, number))
            made.listen(64)
        except OSError as error:
            made.close()
            reason = error.strerror or str(error)
            if port is not None or not _in_use(error):
                raise ArgumentError(f"{host}:{number}: {reason}; choose another with --port.") from None
            continue
        return made
    raise AssertionError("port 0 is always free")


def _in_use(error: OSError) -> bool:
    import errno

    return error.errno in (errno.EADDRINUSE, errno.EACCES)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


class _Protocol(H11Protocol):
    """Closes a connection on which the head of a request does not come to its end."""

    seconds: float = SECONDS
    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._forget()
        elif self.late is None:
            self.late = self.loop.call_later(self.seconds, self.transport.close)

    def _forget(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None


def made(app: ASGIApp, ready: Callable[[], None], seconds: float = SECONDS) -> uvicorn.Server:
    """Make a server; `ready` is called once it answers."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, lifespan="off",
        # one parser, the strict one, whatever else is installed; nothing here speaks through sockets or proxies
        http=type("_Protocol", (_Protocol,), {"seconds": seconds}), ws="none", proxy_headers=False,
        limit_concurrency=64, timeout_keep_alive=10, timeout_graceful_shutdown=2, h11_max_incomplete_event_size=16_384,
    )  # fmt: skip
    return _Server(config, ready)


def serve(app: ASGIApp, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until it is interrupted."""
    made(app, ready).run(sockets=[bound])
