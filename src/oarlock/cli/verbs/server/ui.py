"""`oarlock ui`: the server's pages in a browser, through a login link that works once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients


@command.verb("ui", short_help="Open the pages in a browser")
@click.argument("job", required=False, shell_complete=command.complete_jobs)
@command.option("--print", "only_print", is_flag=True, help="Print the login link, and open no browser.")
@command.json_option
@command.connected
def ui(client: clients.Client, job: str | None, only_print: bool, as_json: bool) -> None:
    """Open the server's pages, or the page of JOB, in a browser. The link logs in once, within 60 s."""
    from oarlock.client import verbs

    path = f"/jobs/{client.job(job).id}" if job is not None else "/"
    link = verbs.login_link(client.url, client.login_code().code, path)
    if as_json:
        terminal.json_out({"link": link, "url": client.url + path})
    else:
        terminal.out(link)
    if not (only_print or as_json):
        _open(link)


def _open(link: str) -> None:
    """Open a browser with a window. One of a terminal would take this terminal, and can show no live page."""
    import webbrowser

    windows = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not (windows and webbrowser.open(link)):
        terminal.say("No browser could be opened here. Open the link yourself, within 60 s.")
