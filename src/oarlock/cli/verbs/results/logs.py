"""`oarlock logs`: a job's output, stored or as it arrives."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command, moments
from oarlock.cli.output import terminal
from oarlock.spec import errors, tasklogs

if TYPE_CHECKING:
    from oarlock.cli.following import loglines
    from oarlock.client import requests
    from oarlock.client.synchronous import clients
    from oarlock.spec import jobs

SEARCHED = 10_000
"""Hits that one request asks for: the most that a server gives. It searches the whole log for each request."""
AROUND = 10
MOST_AROUND = 5000
"""Lines before a place, and from it on, that one request asks for: by default, and the most that a server gives."""


@command.verb("logs", short_help="Print a job's output")
@command.job_argument
@command.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Follow until the job has ended. The exit code is the job's. Ctrl-C leaves it running.",
)
@command.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines.")
@command.option("--since", metavar="TIME", help="Print only lines since then: 10m (ago), or 2026-01-31T12:00.")
@command.option("--until", metavar="TIME", help="Print only lines before then, as for --since.")
@command.option("--role", metavar="ROLE", help="Print only tasks of this role.")
@command.option("--index", type=int, metavar="I", help="Print only tasks of this index.")
@command.option("--attempt", type=int, metavar="N", help="Print only this attempt. The first is 1.")
@command.option("--stream", metavar="NAME", help="Print only stdout or stderr; stderr.0 is that of one process.")
@command.option("--search", metavar="TEXT", help="Print only lines with this text. The server searches the whole log.")
@command.option("--regex", is_flag=True, help="Take the text of --search as a regular expression (RE2).")
@command.option("--ignore-case", "-i", is_flag=True, help="Search in any case of letters.")
@command.option("--at", metavar="PLACE", help="Print only lines around this place: the one in a link to a line.")
@command.option(
    "--before",
    type=click.IntRange(0, MOST_AROUND),
    metavar="N",
    show_default=str(AROUND),
    help="With --at: print so many lines before the place.",
)
@command.option(
    "--after",
    type=click.IntRange(0, MOST_AROUND),
    metavar="N",
    show_default=str(AROUND),
    help="With --at: print so many lines from the place on.",
)
@command.json_option
@command.connected
def logs(
    client: clients.Client,
    job: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    until: str | None,
    role: str | None,
    index: int | None,
    attempt: int | None,
    stream: str | None,
    search: str | None,
    regex: bool,
    ignore_case: bool,
    at: str | None,
    before: int | None,
    after: int | None,
    as_json: bool,
) -> int:
    """Print the output of JOB's tasks, in the order of its arrival.

    A PLACE is TASK:ATTEMPT:INCARNATION:STREAM:OFFSET of a line, `start` or `end`.
    """
    from oarlock.client import requests

    choice = requests.LogChoice(
        attempt=attempt,
        role=role,
        index=index,
        stream=stream,
        tail=tail,
        **moments.read(since=since, until=until),
    )
    _check_search(search, choice, follow, wanted=regex or ignore_case)
    _check_place(at, alone=not (follow or tail is not None or search is not None), counted=(before, after))
    found = client.job(job)
    _check(found, choice)
    if search is not None:
        return _searched(
            client, found, choice, tasklogs.LogSearch(text=search, regex=regex, ignore_case=ignore_case), as_json
        )
    if at is not None:
        counts = [AROUND if count is None else count for count in (before, after)]
        return _around(client, found, choice, at, counts[0], counts[1], as_json)
    if as_json:
        return _as_json(client, found, choice, follow)
    if follow:
        from oarlock.cli.following import follower

        return follower.Follower(client, found, choice, watches=True).run()
    return _stored(client, found, choice)


def _check(job: jobs.Job, choice: requests.LogChoice) -> None:
    """Raise NotFound if the job has no such attempt or task: an empty output would look like a silent task."""
    if choice.attempt is not None and not 1 <= choice.attempt <= max(1, len(job.attempts)):
        count = len(job.attempts)
        hint = f"It has the attempts 1 to {count}." if count > 1 else "It has one attempt." if count else "It waits."
        raise errors.NotFound(f"{job.name} has no attempt {choice.attempt}", path="--attempt", hint=hint)
    sizes = {str(name): role.max or role.count for name, role in job.spec.roles.items()}
    for task in (task for attempt in job.attempts for task in attempt.tasks):
        sizes[task.role] = max(sizes.get(task.role, 0), task.index + 1)
    role, index = choice.role, choice.index
    if not any(role in (None, name) and (index is None or 0 <= index < size) for name, size in sizes.items()):
        wanted = "" if role is None else f" {role}" if index is None else f" {role}-{index}"
        told = [f"{name}-0" + (f" to {name}-{size - 1}" if size > 1 else "") for name, size in sizes.items() if size]
        raise errors.NotFound(
            f"{job.name} has no task{wanted or f' with the index {index}'}",
            path="--index" if index is not None else "--role",
            hint=f"Its tasks: {', '.join(told)}.",
        )


def _check_search(search: str | None, choice: requests.LogChoice, follow: bool, *, wanted: bool) -> None:
    if search is None:
        if wanted:
            hint = "Name the text to search for, too."
            raise errors.InvalidInput("--regex and --ignore-case belong to --search", path="--search", hint=hint)
    elif follow or choice.tail is not None:
        hint = "A search goes through the lines that are stored now, from the first one on."
        raise errors.InvalidInput("--search does not go with --follow or --tail", path="--search", hint=hint)


def _check_place(at: str | None, *, alone: bool, counted: tuple[int | None, int | None]) -> None:
    if at is None and counted != (None, None):
        raise errors.InvalidInput(
            "--before and --after belong to --at", path="--at", hint="Name the place, too: a line's, or start or end."
        )
    if at is not None and not alone:
        raise errors.InvalidInput(
            "--at does not go with --follow, --tail or --search",
            path="--at",
            hint="It prints the lines around one place.",
        )


def _around(
    client: clients.Client,
    found: jobs.Job,
    choice: requests.LogChoice,
    at: str,
    before: int,
    after: int,
    as_json: bool,
) -> int:
    """Print the lines around a place."""
    from oarlock.cli.following import loglines

    lines = client.log_page(found.id, choice, at=at, before=before, after=after).lines
    if as_json:
        terminal.json_lines(lines)
        return 0
    writer = loglines.Writer(_style(found, choice))
    for line in lines:
        terminal.write(sys.stdout, writer.piece(line).text)
    for piece in writer.rest():
        terminal.write(sys.stdout, piece.text)
    return 0


def _style(found: jobs.Job, choice: requests.LogChoice) -> loglines.Style:
    from oarlock.cli.following import loglines

    return loglines.style(
        found.spec,
        alone=choice.index is not None,
        colour=terminal.wants_colour(sys.stdout),
        clean=terminal.is_terminal(sys.stdout),
    )


def _searched(
    client: clients.Client, found: jobs.Job, choice: requests.LogChoice, search: tasklogs.LogSearch, as_json: bool
) -> int:
    """Print the lines with a hit. The exit code is 1 where there is none, as grep's."""
    import msgspec

    from oarlock.cli.following import loglines

    writer = loglines.Writer(_style(found, choice))
    at, hits = "start", 0
    while (page := client.search_log(found.id, search, choice, at=at, limit=SEARCHED)).lines:
        hits += len(page.lines)
        for line in page.lines:
            if as_json:
                terminal.json_lines([line])
            else:
                terminal.write(sys.stdout, writer.piece(msgspec.structs.replace(line, partial=False)).text)
        if page.earlier + len(page.lines) >= page.hits:
            break  # an answer may have fewer lines than were asked for, for its size
        at = page.after
    if not page.whole:
        terminal.say(f"There are more than {page.hits:,} such lines: the search stopped there.")
    return 0 if hits else 1


def _stored(client: clients.Client, found: jobs.Job, choice: requests.LogChoice) -> int:
    import msgspec

    from oarlock.cli.following import loglines

    raw = terminal.takes_bytes(sys.stdout)
    writer = loglines.Writer(msgspec.structs.replace(_style(found, choice), raw=raw))
    for item in client.log_items(found.id, choice, blocks=True):
        if isinstance(item, tasklogs.Line):
            terminal.write(sys.stdout, writer.piece(item).text)
    for piece in writer.rest():
        terminal.write(sys.stdout, piece.text)
    return 0


def _as_json(client: clients.Client, found: jobs.Job, choice: requests.LogChoice, follow: bool) -> int:
    """Print one JSON object per line; with --follow the last one is `{"end": ...}`."""
    from oarlock.client import verbs
    from oarlock.spec import bodies

    code = 0
    for item in client.log_items(found.id, choice, follow=follow):
        if isinstance(item, bodies.Ended):
            terminal.json_lines([{"end": item}])
            code = verbs.exit_code(item.phase, item.exit_code)
        else:
            terminal.json_lines([item])
    return code
