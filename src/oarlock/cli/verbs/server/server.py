"""`oarlock up` and `oarlock down`, the start and the end of the local server, and `oarlock version`."""

from __future__ import annotations

import contextlib
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
    from oarlock.client.synchronous import clients


@command.verb("up", short_help="Start the local server")
@command.option("--detach", "-d", is_flag=True, help="Start in the background, and return once the server answers.")
@command.option("--host", metavar="ADDRESS", show_default="127.0.0.1", help="Address to listen on.")
@command.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    show_default="the last one, or a free one",
    help="Port to listen on.",
)
@command.option(
    "--virtual-nodes",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Number of virtual machines to show instead of this one.",
)
@command.option(
    "--virtual-gpus", type=click.IntRange(0, 1024), metavar="N", help="Number of virtual GPUs of each of them."
)
@command.option(
    "--backend",
    type=click.Choice(["local", "kubernetes"]),
    show_default="local",
    help="Backend that runs the tasks: this machine, or the cluster of the kubeconfig.",
)
@command.option("--policy", metavar="NAME", help="Scheduling policy of pools without one of their own.")
@command.option("--database", metavar="URL", show_default="SQLite in the home", help="Database: postgresql://...")
@command.option("--url", metavar="URL", help="URL by which others reach the server.")
@command.option("--tls-cert", metavar="FILE", help="PEM file of the certificate. Needs --tls-key.")
@command.option("--tls-key", metavar="FILE", help="PEM file of the certificate's key.")
@command.option("--log-level", metavar="LEVEL", show_default="INFO", help="Lowest level to log.")
@command.json_option
def up(detach: bool, as_json: bool, **given: Any) -> int:
    """Start the server of this OARLOCK_HOME in the foreground. Ctrl-C stops it, and running jobs go on."""
    from oarlock.client import settings

    home = settings.home_directory(os.environ)
    there = localserver.running(home)
    if there is not None and localserver.answers(there.url):
        if not detach:
            raise errors.Conflict(
                f"the server of {home} runs already, at {there.url} (process {there.pid})",
                hint="Use it, or stop it first: oarlock down. Each OARLOCK_HOME has its own server.",
            )
        terminal.say("The server runs already." + (" The options were ignored." if any(given.values()) else ""))
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
        _invite()
    return 0


def _invite() -> None:
    """Print a link to the pages that logs in once."""
    from oarlock.client import settings, verbs
    from oarlock.client.synchronous import clients

    told = settings.Settings(home=settings.home_directory(os.environ))
    with contextlib.suppress(errors.OarlockError), clients.Client(told=told) as client:
        link = verbs.login_link(client.url, client.login_code().code)
        terminal.say(f"Pages: {link}\nThe link logs in once, within 60 s. For another one: oarlock ui")


def _serve(home: Path, given: dict[str, Any]) -> int:
    from oarlock import main

    threading.Thread(target=_announce, args=(home,), daemon=True).start()
    main.serve(main.read_settings(flags=given))
    return 0


def _announce(home: Path) -> None:
    """Say where the server listens, as soon as it does."""
    while True:
        there = localserver.running(home)
        if there is not None and there.pid == os.getpid():
            terminal.say(
                f"Listening at {there.url}. Ctrl-C stops the server; running jobs go on. Log: {home / 'server.log'}"
            )
            _invite()
            return
        time.sleep(0.05)


@command.verb("down", short_help="Stop the local server; running jobs go on")
@command.json_option
def down(as_json: bool) -> None:
    """Stop the server of this OARLOCK_HOME. Running jobs go on, and the next server takes them over."""
    from oarlock.client import settings

    home = settings.home_directory(os.environ)
    ended = _ended(home)
    if as_json:
        terminal.json_out({"home": str(home), "ended": ended})


def _ended(home: Path) -> bool:
    """Stop the server of this home and say so. Return False if there is none."""
    from oarlock.client import settings
    from oarlock.client.synchronous import clients

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
            terminal.say(
                f"No server runs for {home}: process {there.pid}, which server.json names, is another program."
            )
            return False
        terminal.say("The server does not answer. Stopping it with a signal.")
    localserver.stop(home, there)
    terminal.say("The server has stopped. Running jobs go on.")
    return True


@command.verb("version", short_help="Print the versions of the client and the server")
@command.option("--state", is_flag=True, help="Print settings, health and leader of the server, as an administrator.")
@command.json_option
@command.connected
def version(client: clients.Client, state: bool, as_json: bool) -> None:
    """Print the versions of the client and of the server, if one answers."""
    if state:
        _print_state(client, as_json)
        return
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


def _print_state(client: clients.Client, as_json: bool) -> None:
    found = client.server_state()
    if as_json:
        terminal.json_out(found)
        return
    terminal.out(f"leader  {terminal.clean(found.leader) or 'none'}, term {found.epoch}")
    for part, problem in found.problems.items():
        terminal.out(f"problem {part}: {terminal.clean(problem)}")
    for name, value in found.settings.items():
        terminal.out(f"{name} = {terminal.clean(value)}")
