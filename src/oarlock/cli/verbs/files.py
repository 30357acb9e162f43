"""`oarlock files` and `oarlock download`: what a job left, as one tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client import answers
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import jobs

BAR_WIDTH = 30
BAR_AFTER_S = 0.5
BAR_EVERY_S = 0.1


@command.verb("files", short_help="List the files that a job left")
@command.job_argument
@click.argument("path", default="")
@command.json_option
@command.connected
def files(client: clients.Client, job: str, path: str, as_json: bool) -> None:
    """List the files of JOB, or those at and below PATH.

    files/TASK has what is new or changed in a task's working directory, earlier/ the same of its earlier attempts;
    results/, checkpoints/ and logs/ have the rest.
    """
    found = client.job(job)
    listed = client.files(found.id, path)
    if as_json:
        terminal.json_out(listed)
        return
    _table(listed)
    _tell(found, listed, path)


@command.verb(
    "download",
    short_help="Fetch files that a job left",
    epilog="Example: oarlock download train files/worker-0/ckpt.pt --to models",
)
@command.job_argument
@click.argument("path", default="")
@command.option(
    "--to",
    metavar="DIR",
    type=click.Path(),
    help="The directory to fetch to. [default: JOB-files, or this one for a PATH]",
)
@command.option("--overwrite", is_flag=True, help="Replace other files that are there.")
@command.json_option
@command.connected
def download(client: clients.Client, job: str, path: str, to: str | None, overwrite: bool, as_json: bool) -> None:
    """Fetch what JOB left in its working directories and results, or the files at and below PATH.

    `oarlock files JOB` lists the paths. What is there already is not fetched again, and what was interrupted goes on.
    """
    bar = Bar()
    try:
        done = client.download(job, path, to, overwrite=overwrite, progress=bar.show)
    finally:
        bar.close()
    if as_json:
        terminal.json_out(done)
        return
    from oarlock.data import sizes

    there = f"; {done.present:,} {'was' if done.present == 1 else 'were'} there already" if done.present else ""
    noun = "file" if done.files == 1 else "files"
    terminal.out(f"Downloaded {done.files:,} {noun}, {sizes.text(done.bytes)}, to {terminal.clean(done.to)}{there}.")


class Bar:
    """A line that shows how much has come, where a terminal shows it and it takes a while."""

    def __init__(self) -> None:
        from oarlock.cli.output import screen

        self._screen = screen.Screen()
        self._began = time.monotonic()
        self._drawn_at = self._began + BAR_AFTER_S - BAR_EVERY_S

    def show(self, done: int, total: int) -> None:
        from oarlock.cli.output import progress
        from oarlock.data import sizes

        now = time.monotonic()
        if now - self._drawn_at < BAR_EVERY_S or not total:
            return
        self._drawn_at = now
        drawn = progress.bar(done / total, BAR_WIDTH, unicode=self._screen.unicode)
        speed = sizes.text(done / max(1e-3, now - self._began))
        row = f"{drawn}  {sizes.text(done)} of {sizes.text(total)}  {speed}/s"
        self._screen.rows([terminal.cut(row, self._screen.columns - 1)])

    def close(self) -> None:
        self._screen.close()


def _table(listed: answers.FileList) -> None:
    from oarlock.cli.output import tables
    from oarlock.data import sizes
    from oarlock.spec import quantities

    now = time.time()
    columns = [
        tables.Column("PATH", weight=1, least=20),
        tables.Column("SIZE", right=True),
        tables.Column("AGE", right=True),
    ]
    rows = [
        [
            one.path,
            sizes.text(one.bytes),
            quantities.duration_text(max(0.0, now - one.modified_at)) if one.modified_at else "",
        ]
        for one in listed.items
    ]
    if rows:
        tables.show(columns, rows)


def _tell(job: jobs.Job, listed: answers.FileList, path: str) -> None:
    """How much that is, what lies elsewhere, and what was not kept."""
    from oarlock.cli.output import kept
    from oarlock.data import sizes

    noun = "file" if listed.files == 1 else "files"
    terminal.say(f"{listed.files:,} {noun}, {sizes.text(listed.bytes)}." if listed.files else "No files.")
    for part in listed.elsewhere:
        why = f": {part.failure}" if part.failure else ""
        terminal.say(terminal.clean(f"{part.path}/ lies at {part.url}{why}"))
    if not path:
        for line in kept.lines(job, caches=True):
            if not line.endswith(f"oarlock download {job.name}"):
                terminal.say(f"{line[0].upper()}{line[1:]}.")
