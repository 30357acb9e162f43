"""`oarlock tensorboard`: TensorBoard over a job's metrics, written as event files."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from oarlock.cli import command
from oarlock.cli.following import results, tunnels
from oarlock.cli.output import terminal
from oarlock.spec import bodies, errors
from oarlock.spec.hints import extras

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs

POINTS = 10_000


@command.verb("tensorboard", short_help="Open a job's metrics in TensorBoard")
@command.job_argument
@command.option(
    "--dir", "directory", metavar="DIR", show_default="in the home's cache", help="Directory for event files."
)
@command.option("--write-only", is_flag=True, help="Write event files and print their directory, without TensorBoard.")
@command.option("--port", type=int, metavar="N", show_default="6006", help="Port of TensorBoard.")
@command.option("--local", is_flag=True, help="Use the TensorBoard of this machine, even if one runs beside the job.")
@command.json_option
@command.connected
def tensorboard(
    client: clients.Client,
    job: str,
    directory: str | None,
    write_only: bool,
    port: int | None,
    local: bool,
    as_json: bool,
) -> int:
    """Show JOB's metrics in TensorBoard.

    A job in a cluster may have a TensorBoard beside it (`tensorboard: true`): then a port of this machine leads there.
    Else TensorBoard runs here, with the event files in the job's results, or else files made from its metrics.
    """
    found = client.job(job)
    here = local or write_only or as_json or directory is not None
    if not here and found.spec.tensorboard and tunnels.await_running(client, found.id):
        return _through(client, found, port)
    if not here and found.spec.tensorboard and not found.terminal and _lacks_image(client):
        terminal.say(
            "The cluster runs none beside the job: the settings name no image, [kubernetes.images] tensorboard."
        )
    logdir = own_files(client, found) if directory is None else None
    if logdir is None:
        logdir = Path(directory) if directory is not None else client.settings.home / "cache" / "tensorboard" / found.id
        count = write(client, found, logdir)
        terminal.say(f"Wrote {count} series of {terminal.clean(found.name)}.")
    if as_json:
        terminal.json_out({"logdir": str(logdir)})
    elif write_only:
        terminal.out(str(logdir))
    if write_only:
        return 0
    words = [*starter(), "--logdir", str(logdir), *(["--port", str(port)] if port is not None else [])]
    try:
        return subprocess.run(words, check=False).returncode
    except KeyboardInterrupt:
        return 0  # Ctrl-C is the way to leave TensorBoard


def _lacks_image(client: clients.Client) -> bool:
    about = client.server()
    return about.backend == "kubernetes" and "image:tensorboard" not in about.capabilities


def _through(client: clients.Client, job: jobs.Job, port: int | None) -> int:
    with tunnels.opened(client, job.id, port) as number:
        terminal.out(f"http://localhost:{number}/")
        terminal.say(f"This is the TensorBoard of {terminal.clean(job.name)}, until Ctrl-C or the end of the job.")
        try:
            while client.tensorboard(job.id).state is not bodies.TensorBoardState.NONE:
                time.sleep(tunnels.LOOK_S)
        except KeyboardInterrupt:
            return 0
    terminal.say(f"{terminal.clean(job.name)} runs no more. Its metrics stay: oarlock tensorboard {job.name}")
    return 0


def own_files(client: clients.Client, job: jobs.Job) -> Path | None:
    """Return the directory of the job's results, if it is on this machine and has event files."""
    place = results.folder(results.place(client, job))
    if place is None or not place.is_dir():
        return None
    return place if next(place.rglob("events.out.tfevents.*"), None) is not None else None


def write(client: clients.Client, job: jobs.Job, logdir: Path) -> int:
    """Write an event file for each process of each task. Return the number of series. Raises NotFound."""
    from oarlock.client import answers, eventfiles

    series = client.metrics(job.id, points=POINTS).series
    if not series:
        raise errors.NotFound(
            f"{job.name} has no metrics",
            hint="A script reports them with `oarlock.train`. To see its output: oarlock logs " + job.name,
        )
    by_process: dict[str, list[answers.Series]] = {}
    for one in series:
        by_process.setdefault(f"{one.task}.{one.process}", []).append(one)
    try:
        for name, of_process in by_process.items():
            place = logdir / job.name / name
            place.mkdir(parents=True, exist_ok=True)
            (place / f"events.out.tfevents.{int(job.created_at)}.oarlock").write_bytes(eventfiles.encoded(of_process))
    except OSError as error:
        raise errors.Unavailable(
            f"{error.filename}: {error.strerror}", hint="Name another directory with --dir."
        ) from error
    return len(series)


def starter() -> list[str]:
    """Return the command that starts TensorBoard here. Raises NotFound."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    if found is None:
        raise errors.NotFound(
            "TensorBoard is not installed",
            hint=f"{extras.command('tensorboard')}\nOr write only the event files: --write-only",
        )
    return [found]
