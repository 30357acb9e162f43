"""`oarlock up` and `oarlock down`, the start and the end of the local server, and `oarlock version`."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import oarlock
from oarlock.cli import command
from oarlock.cli.launching import localserver
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients


@command.verb("up", short_help="Start the local server")
@command.option("--detach", "-d", is_flag=True, help="In the background; return once it answers.")
@command.option("--host", metavar="ADDRESS", help="Listen there; 127.0.0.1, else.")
@command.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Else the one it had, or a free one.")
@command.option("--virtual-nodes", type=click.IntRange(0, 10_000), metavar="N", help="Pretend to be so many machines.")
@command.option("--virtual-gpus", type=click.IntRange(0, 1024), metavar="N", help="With so many GPUs each.")
@command.option("--backend", type=click.Choice(["local", "kubernetes"]), default="local", help="What runs tasks.")
@command.option("--policy", metavar="NAME", help="Who runs first, and how large: of pools that name none.")
@command.option("--database", metavar="URL", help="postgresql://...; SQLite in the home, else.")
@command.option("--url", metavar="URL", help="Under which others reach it.")
@command.option("--tls-cert", metavar="FILE", help="PEM; with --tls-key it speaks TLS.")
@command.option("--tls-key", metavar="FILE", help="PEM.")
@command.option("--log-level", metavar="LEVEL", help="INFO, else.")
@command.json_option
def up(detach: bool, backend: str, as_json: bool, **given: Any) -> int:
    """Start the server of this OARLOCK_HOME, in the foreground; Ctrl-C ends it, and what runs goes on."""
    if backend == "kubernetes":
        raise errors.Unsupported(
            "this build has no Kubernetes backend", path="--backend", hint="Leave it out: `local` is what there is."
        )
    from oarlock.client import settings

    home = settings.home_directory(os.environ)
    there = localserver.running(home)
    if there is not None and localserver.answers(there.url):
        if not detach:
            raise errors.Conflict(
                f"a server runs for {home} already, at {there.url} (process {there.pid})",
                hint="Use it, or end it first: oarlock down. Another OARLOCK_HOME is another server.",
            )
        terminal.say("It runs already." + (" The options were not heeded." if any(given.values()) else ""))
        return _told(there, as_json)
    if detach:
        return _told(
            localserver.start(home, {name: value for name, value in given.items() if value is not None}), as_json
        )
    return _serve(home, given)


def _told(there: Any, as_json: bool) -> int:
    if as_json:
        terminal.json_out(there)
    else:
        terminal.out(there.url)
    return 0


def _serve(home: Path, given: dict[str, Any]) -> int:
    from oarlock import main

    threading.Thread(target=_announce, args=(home,), daemon=True).start()
    main.serve(main.read_settings(flags=given))
    return 0


def _announce(home: Path) -> None:
    """Say where it listens, once it does."""
    while True:
        there = localserver.running(home)
        if there is not None and there.pid == os.getpid():
            terminal.say(f"Listening at {there.url}. Ctrl-C ends it; what runs goes on. Its log: {home / 'server.log'}")
            return
        time.sleep(0.05)


@command.verb("down", short_help="End the local server; what runs goes on")
@command.json_option
def down(as_json: bool) -> None:
    """End the server of this OARLOCK_HOME. Tasks go on running; the next server takes them over."""
    from oarlock.client import settings

    home = settings.home_directory(os.environ)
    ended = _ended(home)
    if as_json:
        terminal.json_out({"home": str(home), "ended": ended})


def _ended(home: Path) -> bool:
    """End the server of this home and say so; False where there is none."""
    from oarlock.client import settings
    from oarlock.client.synchronous import client as clients

    there = localserver.running(home)
    if there is None:
        terminal.say(f"No server runs for {home}.")
        return False
    told = settings.Settings(home=home)
    try:
        with clients.Client(told=told) as client:
            client.shutdown()
    except errors.Unavailable:
        if not localserver.holds(home):
            terminal.say(f"No server runs for {home}: process {there.pid}, which its file names, is something else.")
            return False
        terminal.say("It does not answer; it is told by a signal.")
    localserver.stop(home, there)
    terminal.say("The server has ended. What runs goes on.")
    return True


@command.verb("version", short_help="Versions of the client and the server")
@command.json_option
@command.connected
def version(client: clients.Client, as_json: bool) -> None:
    """Versions of the client and of the server that answers, if one does."""
    try:
        server: str | None = client.server().version
        url: str | None = client.url
    except errors.ServerNotFound:
        server = url = None
    if as_json:
        terminal.json_out(
            {"client": oarlock.__version__, "python": platform.python_version(), "server": server, "url": url}
        )
        return
    terminal.out(f"oarlock {oarlock.__version__} (Python {platform.python_version()})")
    terminal.out(f"server  {server} at {url}" if server else "server  none answers")
