"""`oarlock files` and `oarlock download`: the files that a job left, as one tree."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    from oarlock.client import answers
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs

BAR_AFTER_S = 0.5
BAR_EVERY_S = 0.1


@command.verb("files", short_help="List the files that a job left")
@command.job_argument
@click.argument("path", default="")
@command.json_option
@command.connected
def files(client: clients.Client, job: str, path: str, as_json: bool) -> None:
    """List the files of JOB, or only those at and below PATH.

    files/TASK has the new and changed files of a task's working directory, and earlier/ those of its earlier attempts.
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
    short_help="Fetch the files that a job left",
    epilog="Example: oarlock download train files/worker-0/ckpt.pt --to models",
)
@command.job_argument
@click.argument("path", default="")
@command.option(
    "--to",
    metavar="DIR",
    type=click.Path(),
    show_default="JOB-files; with PATH, this one",
    help="Directory to fetch to.",
)
@command.option("--overwrite", is_flag=True, help="Replace files that differ.")
@command.json_option
@command.connected
def download(client: clients.Client, job: str, path: str, to: str | None, overwrite: bool, as_json: bool) -> None:
    """Fetch the files in JOB's working directories and results, or the files at and below PATH.

    `oarlock files JOB` lists the paths. Files that were fetched before are skipped, and an interrupted download
    continues.
    """
    bar = Bar()
    try:
        done = client.download(job, path, to, overwrite=overwrite, progress=bar.show)
    finally:
        bar.close()
    if as_json:
        terminal.json_out(done)
        return
    from oarlock.display import amounts

    there = f"; {done.present:,} {'was' if done.present == 1 else 'were'} there already" if done.present else ""
    fetched = f"{amounts.counted(done.files, 'file')}, {quantities.size_text(done.bytes)}"
    terminal.out(f"Downloaded {fetched}, to {terminal.clean(done.to)}{there}.")


class Bar:
    """A line with the progress of a download that takes a while, on a terminal."""

    def __init__(self) -> None:
        from oarlock.cli.output import screen

        self._screen = screen.Screen()
        self._began = time.monotonic()
        self._drawn_at = self._began + BAR_AFTER_S - BAR_EVERY_S

    def show(self, done: int, total: int) -> None:
        from oarlock.display import bars

        now = time.monotonic()
        if now - self._drawn_at < BAR_EVERY_S or not total:
            return
        self._drawn_at = now
        drawn = bars.progress(done / total, bars.WIDEST, unicode=self._screen.unicode)
        speed = quantities.size_text(done / max(1e-3, now - self._began))
        row = f"{drawn}  {quantities.size_text(done)} of {quantities.size_text(total)}  {speed}/s"
        self._screen.rows([terminal.cut(row, self._screen.columns - 1)])

    def close(self) -> None:
        self._screen.close()


def _table(listed: answers.FileList) -> None:
    from oarlock.cli.output import tables
    from oarlock.display import durations
    from oarlock.display.tables import columns

    now = time.time()
    rows = [
        [one.path, quantities.size_text(one.bytes), durations.text(now - one.modified_at) if one.modified_at else ""]
        for one in listed.items
    ]
    if rows:
        tables.show(columns.FILES, rows)


def _tell(job: jobs.Job, listed: answers.FileList, path: str) -> None:
    """Print the total, the folders that are stored elsewhere, and the files that were not kept."""
    from oarlock.display import amounts
    from oarlock.display.jobs import keptfiles

    total = f"{amounts.counted(listed.files, 'file')}, {quantities.size_text(listed.bytes)}."
    terminal.say(total if listed.files else "No files.")
    for part in listed.elsewhere:
        why = f": {part.failure}" if part.failure else ""
        terminal.say(terminal.clean(f"{part.path}/ is stored at {part.url}{why}"))
    for line in keptfiles.lines(job, caches=True) if not path else ():
        if not line.endswith(keptfiles.fetch(job.name)):
            terminal.say(terminal.clean(f"{line[0].upper()}{line[1:]}."))
