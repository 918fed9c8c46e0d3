# SPDX-License-Identifier: MIT
"""This file is `layernorm explore`: a page on which layer normalization is understood by doing."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from layernorm.spec.errors import ArgumentError, UnsupportedError
from layernorm.spec.files import replacing


def explore(
    tensors: Annotated[
        list[Path] | None, typer.Argument(metavar="[TENSOR]...", help="Arrays to look at: .npy or .safetensors files.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page as one file that needs no server, and end.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDR", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(metavar="N", help="The port; the first free one from 8817.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Answer to this name too, behind a tunnel or a proxy.")
    ] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let other machines ask.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link and open nothing.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Start, ask for the page, say its size, and end.")] = False,
) -> int:
    """Open a page on which layer normalization can be tried, with the installed library behind it."""
    if html is not None:
        if tensors:
            raise ArgumentError(f"--html writes the page alone, without {tensors[0]}; choose the array in the page.")
        return _write(html)
    # loaded here: the server and NumPy are nothing that `layernorm --help` should wait for
    from layernorm.explorer.server import LOOPBACK, Served, allowed_hosts, application, listening, serve

    if host not in LOOPBACK and not allow_remote:
        raise ArgumentError(f"{host} can be reached from other machines; add --allow-remote if they may ask.")
    held = _tensors(tensors or [])
    bound = listening(host, port)
    at = bound.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    served = Served(allowed_hosts(at, [*([] if host in LOOPBACK else [shown]), *(allow_host or [])]), tensors=held)
    link = f"http://{shown}:{at}/#token={served.token}{'&tensor' if held else ''}"
    failed: list[str] = []

    def ready() -> None:
        if check:
            threading.Thread(target=_check, args=(link, served.token, failed), daemon=True).start()
            return
        if host not in LOOPBACK:
            typer.echo("layernorm: whoever has the link below can ask this machine to compute.", err=True)
        typer.echo(link)
        _open(link, at, no_browser)

    with contextlib.suppress(KeyboardInterrupt):
        serve(application(served), bound, ready)
    if failed:
        raise UnsupportedError(f"the page does not come whole: {failed[0]}; install layernorm again.")
    if not check:
        typer.echo("stopped.", err=True)
    return 0


def _write(path: Path) -> int:
    from layernorm.explorer.page import one_file, static_files

    with replacing(path) as aside, aside.open("x", encoding="utf-8", newline="\n") as file:
        file.write(one_file(static_files()))
    typer.echo(f"wrote {path}", err=True)
    return 0


def _tensors(paths: list[Path]) -> dict[str, Any]:
    if not paths:
        return {}
    from layernorm.explorer.tensors import read_tensors

    return {f"t{k}": tensor for k, tensor in enumerate(t for path in paths for t in read_tensors(path))}


def _open(link: str, port: int, no_browser: bool) -> None:
    """Open a browser where someone sits before one."""
    if no_browser:
        return
    away = "SSH_CONNECTION" in os.environ
    blind = sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if away or blind:
        if away:
            tunnel = f"ssh -L {port}:127.0.0.1:{port} THIS_HOST"
            typer.echo(f"from your own machine: {tunnel}, then open the link.", err=True)
        return
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()


def _check(link: str, token: str, failed: list[str]) -> None:
    """Ask this server for all that a page asks for, say how much it is, and stop the server."""
    import signal
    import urllib.request

    from layernorm.explorer.page import static_files

    base = link.partition("#")[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the environment says of proxies
    total = 0
    try:
        for name in static_files():
            with opener.open(f"{base}{name}", timeout=10) as answer:
                size = len(answer.read())
            typer.echo(f"{size:7} {name}")
            total += size
        typer.echo(f"{total:7} in all")
        asked = urllib.request.Request(f"{base}api/about", headers={"X-Token": token})
        with opener.open(asked, timeout=10) as answer:
            typer.echo(answer.read().decode("utf-8"))
    except OSError as error:
        failed.append(str(error))
    finally:
        signal.raise_signal(signal.SIGINT)
