"""Commands on pages: each means the job of its page, also beside other jobs of that name, and for every reader.

A command is read as the command line reads it. Then the API is asked, as the page's reader, for the job that it names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import html5lib
import httpx
import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.jobs import test_continuing, test_outlook
from tests.web import browsers
from tests.web.jobs import test_job

from oarlock.cli import main
from oarlock.spec import events, intents, jobs

SAID = re.compile(r"oarlock ([a-z]+(?: (?!oarlock ).*?)?)(?=\.?$|\. |\.? oarlock )")
NAMES_JOBS = ("job", "jobs", "again", "continues")


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a page that name jobs, each with the names or ids as the command line reads them."""
    for text in html5lib.parse(page, namespaceHTMLElements=False).itertext():
        for said in SAID.findall(" ".join(text.split())):
            words = shlex.split(said)
            found = main.root.get_command(click.Context(main.root), words[0])
            if found is None or isinstance(found, click.Group):
                continue
            context = found.make_context(words[0], [one for one in words[1:] if one != "--help"])
            told = [value for name in NAMES_JOBS if (value := context.params.get(name))]
            named = [one for value in told for one in ([value] if isinstance(value, str) else value)]
            if named:
                yield said, [one.partition("@")[0] for one in named]


def test_a_command_is_found_in_a_sentence_and_in_an_element() -> None:
    page = (
        "<!doctype html><p>Look inside: oarlock exec j-1 -- sh. Then free it: oarlock cancel j-2</p>"
        "<code>oarlock logs j-3 --tail 50 -f</code> and <code>oarlock submit job.yaml --again j-4</code>"
        "<p>To change it: oarlock set j-5 --help</p><code>oarlock run --continue j-6@5</code><code>oarlock ps</code>"
        "<p>It has ended. See it: oarlock show j-7.</p><code>oarlock rm j-8 j-9</code>"
    )
    assert [one for _, several in commands(page) for one in several] == [f"j-{number}" for number in range(1, 10)]


class Reader:
    """A user at the pages, with the verbs of the commands that were seen there."""

    def __init__(self, who: str, browser: httpx.AsyncClient, http: httpx.AsyncClient) -> None:
        self.who = who
        self.verbs: set[str] = set()
        self._browser = browser
        self._http = http

    async def reads(self, job: jobs.Job, path: str, form: dict[str, Any] | None = None) -> None:
        """Open a page of the job, or the answer to a form, and try each of its commands."""
        if form is None:
            answer = await self._browser.get(path)
        else:
            answer = await self._browser.post(path, data=form, headers=browsers.OURS)
        found = list(commands(answer.text))
        assert found, f"{path} {form} answers {answer.status_code} without a command"
        for said, named in found:
            self.verbs.add(said.partition(" ")[0])
            for one in named:
                meant = (await self._http.get(f"/api/v1/jobs/{one}")).json().get("id")
                assert meant == job.id, f"{self.who} reads on {path} {form or ''}: oarlock {said}"

    async def reads_all(self, job: jobs.Job) -> None:
        here = f"/jobs/{job.id}"
        for path in ("?sections=all", "/log", "/log?q=line", "/log?at=start", "/metrics", "/ranks/worker-99"):
            await self.reads(job, f"{here}{path}")
        if job.attempts:
            await self.reads(job, f"{here}/ranks/worker-0")


async def test_commands_on_the_page_of_an_earlier_job_mean_that_job(rig: browsers.WebRig) -> None:
    old = await test_continuing.failed(rig)
    rig.clock.now += 60
    await rig.submit("ann", name=old.name)
    async with rig.browser("ann") as browser, rig.as_user("ann") as http:
        ann = Reader("ann", browser, http)
        await ann.reads_all(old)
        for action in ("halt", "cancel"):
            await ann.reads(old, "/jobs", {"action": action, "job": old.id})
            await ann.reads(old, "/jobs", {"action": action, "job": old.id, "sure": "yes"})
        await ann.reads(old, "/jobs", {"action": "resume", "job": old.id, "sure": "yes"})
        await ann.reads(old, f"/jobs/{old.id}/set", {"min": "1"})
        await ann.reads(old, "/jobs", {"action": "remove", "job": old.id})
    assert ann.verbs >= {"rm", "submit", "run", "logs", "show", "why", "metrics", "download", "halt", "cancel", "set"}


async def test_an_administrators_commands_mean_the_job_of_the_user_whose_page_it_is(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.take_time(monkeypatch)
    test_outlook.stretch(rig)
    names = ("runs", "waits", "rests", "never", "frozen")
    for name in names:
        await rig.end((await rig.launch(await rig.submit("root", name=name))).id)
    runs = await test_outlook.fill(rig, "runs", 1, timeout="1h")
    await rig.logs.append(rigs.key_of(runs), "stdout.0", 0, b"a line\n", at=rig.clock.now)
    waits = await rig.submit("ann", name="waits", roles={"worker": {"count": 2, "gpus": 1}})
    rests = await rig.launch(await rig.submit("ann", name="rests"))
    never = await rig.submit("ann", name="never")
    for one in (rests, never):
        await rig.happen(one.id, events.Intended(intent=intents.Intent.HALT, by="ann"))
    rests = await rig.end(rests.id, code=143)
    frozen = await rig.launch(await rig.submit("ann", name="frozen", freeze="30m"))
    kept = msgspec.structs.replace(frozen.attempts[0], frozen_until=rig.clock.now + 900)
    frozen = await test_job.changed(rig, frozen, attempts=(kept,))
    async with rig.browser("root") as browser, rig.as_user("root") as http:
        root = Reader("root", browser, http)
        for job in (runs, waits, rests, never, frozen):
            await root.reads_all(job)
            await root.reads(job, "/jobs", {"action": "cancel", "job": job.id})
            await root.reads(job, "/jobs", {"action": "remove", "job": job.id, "sure": "yes"})
        await root.reads(runs, "/jobs", {"action": "halt", "job": runs.id})
        await root.reads(rests, "/jobs", {"action": "resume", "job": rests.id})
        await root.reads(rests, "/jobs", {"action": "remove", "job": rests.id})
        await root.reads(runs, f"/jobs/{runs.id}/set", {"priority": "60"})
    assert root.verbs >= {"halt", "resume", "cancel", "rm", "set", "exec", "submit", "logs", "show", "why", "download"}
