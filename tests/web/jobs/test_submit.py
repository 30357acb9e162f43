"""The page that submits a job: one text under form and editor, the verdict, the code, one job for many clicks."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import random
import re
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import html5lib
import httpx
import pytest
import yaml
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.api.services import turns
from oarlock.client import archives
from oarlock.spec import errors
from oarlock.web import application
from oarlock.web.access import visits
from oarlock.web.pages.jobs import submit
from oarlock.web.rendering import texts

TEXT = "command: python train.py  # mine\nroles:\n  worker: {count: 1}\n"


async def send(rig: browsers.WebRig, who: str = "ann", **form: Any) -> httpx.Response:
    async with rig.browser(who) as browser:
        answer = await browser.post("/submit", data={"number": "n1", "text": TEXT, **form}, headers=browsers.OURS)
    if answer.status_code != 303 and not form.get("part"):
        browsers.elements(answer.text)
    return answer


async def jobs(rig: browsers.WebRig) -> list[Any]:
    async with rig.as_user("root") as http:
        return list((await http.get("/api/v1/jobs")).json()["items"])


async def test_the_first_page_has_an_example_and_its_verdict(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        page = (await browser.get("/submit")).text
        other = (await browser.get("/submit?example=two-workers")).text
    browsers.elements(page)
    assert "Now:" in browsers.text(page)
    assert "command: python train.py" in page
    assert 'name="field.roles.worker.count" value="2"' in other


async def test_many_clicks_make_one_job_and_another_text_another(rig: browsers.WebRig) -> None:
    first, second = await send(rig, action="submit"), await send(rig, action="submit")
    assert (first.status_code, first.headers["location"]) == (303, second.headers["location"])
    assert len(await jobs(rig)) == 1
    script = await send(rig, action="submit", part="yes")
    assert (script.status_code, script.headers["location"]) == (201, first.headers["location"])
    assert browsers.links(script.text) == [first.headers["location"]], "for a script that does not know this answer"
    third = await send(rig, action="submit", text=TEXT + "priority: 60\n")
    assert third.headers["location"] != first.headers["location"]
    fourth = await send(rig, action="submit", number="n2")
    assert fourth.headers["location"] not in (first.headers["location"], third.headers["location"])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("command: a\nroles:\n  worker:\n    gpu: 1\n", 4, "gpus"),
        ("command: a\npriority: many\n", 2, "a whole number"),
        ("command: a\n  bad: [\n", 2, "not valid YAML"),
        ("name: a\n", 0, "command"),
        ("- a\n", 0, "not a mapping"),
        ("command: a\ndata:\n- {source: file:///a, mount: x}\n- {source: file:///b, mount: /x}\n", 4, "mount"),
        ("command: a\npool: nowhere\n", 2, "nowhere"),
        ("command: a\nsecrets:\n- {name: none-such}\n", 3, "none-such"),
    ],
)
async def test_an_error_stands_at_its_line_with_the_next_step(
    rig: browsers.WebRig, text: str, line: int, said: str
) -> None:
    for action in ("check", "submit"):
        answer = await send(rig, action=action, text=text)
        assert 400 <= answer.status_code < 500
        assert f'data-line="{line}"' in answer.text
        assert said in browsers.text(answer.text)
        assert texts.typed(text) in answer.text, "the typed text is kept"
    assert await jobs(rig) == []


async def test_the_verdict_says_now_later_and_never(rig: browsers.WebRig) -> None:
    gpus = TEXT.replace("count: 1", "gpus: N")
    now = await send(rig, action="check", part="yes", text=gpus.replace("N", "1"))
    assert 'data-when="now"' in now.text
    assert "(GPU 0)" in now.text
    await test_outlook.fill(rig, "big", 2, roles={"worker": {"gpus": 2}})
    later = await send(rig, action="check", part="yes", text=gpus.replace("N", "1"))
    assert 'data-when="later"' in later.text
    assert "Held by big (2 GPUs)." in later.text
    never = await send(rig, action="check", part="yes", text=gpus.replace("N", "9"))
    assert 'data-when="never"' in never.text
    refused = await send(rig, action="submit", text=gpus.replace("N", "9"))
    assert refused.status_code == 422
    assert [job["name"] for job in await jobs(rig)] == ["big"]


async def test_the_form_changes_the_text_and_keeps_its_comments(rig: browsers.WebRig) -> None:
    changed = {"field.roles.worker.gpus": "1", "field.roles.worker.gpu_type": "h100, a100", "field.timeout": "2h"}
    answer = await send(rig, action="set", **{"field.command": "python train.py", **changed})
    text = (
        "command: python train.py  # mine\nroles:\n  worker: {count: 1, gpus: 1, gpu_type: [h100, a100]}\ntimeout: 2h\n"
    )
    assert texts.typed(text) in answer.text
    back = await send(rig, action="set", text=text, **{"field.timeout": "", "field.roles.worker.gpu_type": "h100"})
    assert texts.typed(text.replace("timeout: 2h\n", "").replace("[h100, a100]", "h100")) in back.text


WAS = {"was.command": "python train.py", "was.roles.worker.count": "1", "was.roles.worker.gpus": "", "was.pool": ""}


@pytest.mark.parametrize("action", ["submit", "check", "set"])
@pytest.mark.parametrize(
    ("text", "typed", "wanted"),
    [
        (TEXT, {"roles.worker.gpus": "1"}, TEXT.replace("1}", "1, gpus: 1}")),
        (TEXT.replace("1}", "2}"), {"roles.worker.count": "1"}, TEXT.replace("1}", "2}")),  # only the text was changed
        (
            TEXT + "pool: default\n",
            {"pool": "", "command": "python b.py"},
            TEXT.replace("train", "b") + "pool: default\n",
        ),
        ("command: |\n  a\n  b\n", {"command": "ab"}, "command: |\n  a\n  b\n"),  # as a browser sends these lines
    ],
)
async def test_fields_count_without_a_script_that_writes_them_into_the_text(
    rig: browsers.WebRig, action: str, text: str, typed: dict[str, str], wanted: str
) -> None:
    was = {**WAS, "was.command": "a\r\nb\r\n"} if "|" in text else WAS
    answer = await send(rig, action=action, text=text, **was, **{f"field.{path}": one for path, one in typed.items()})
    if action != "submit":
        assert texts.typed(wanted) in answer.text
        return
    await send(rig, action="submit", number="n2", text=wanted)
    made, alike = await jobs(rig)
    assert made["spec"] == alike["spec"]


async def test_a_field_without_a_script_waits_until_the_text_can_be_read(rig: browsers.WebRig) -> None:
    broken = await send(rig, action="submit", text="command: [", **WAS, **{"field.pool": "default"})
    assert broken.status_code == 422
    assert '<input type="hidden" name="was.pool" value="">' in broken.text
    assert 'name="field.pool" value="default"' in broken.text, "what was typed is kept, and is still a change"


async def test_an_earlier_job_is_edited_and_run_again_with_its_code(rig: browsers.WebRig) -> None:
    digest = await stored(rig, b"code")
    async with rig.as_user("ann") as http:
        body = {"spec": {"command": "python a.py", "priority": 70}, "snapshot": digest, "shell": {"PATH": "/mine"}}
        earlier = (await http.post("/api/v1/jobs", json=body)).json()
    async with rig.browser("ann") as browser:
        page = (await browser.get(f"/submit?from={earlier['id']}")).text
    browsers.elements(page)
    assert "priority: 70" in page
    assert "name:" not in page.partition("<textarea")[2].partition("</textarea>")[0]
    answer = await send(rig, action="submit", code="job", source=earlier["id"])
    made = next(job for job in await jobs(rig) if job["id"] in answer.headers["location"])
    assert (made["snapshot"], made["shell"]) == (digest, {"PATH": "/mine"})
    assert (await send(rig, who="bob", action="submit", code="job", source=earlier["id"])).status_code == 404
    async with rig.browser("bob") as browser:
        assert (await browser.get(f"/submit?from={earlier['id']}")).status_code == 404


async def stored(rig: browsers.WebRig, content: bytes) -> str:
    import hashlib

    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    async with rig.as_user("ann") as http:
        assert (await http.put(f"/api/v1/blobs/{digest}", content=content)).status_code < 300
    return digest


async def test_typed_text_outlives_the_session(rig: browsers.WebRig) -> None:
    async with rig.browser() as browser:
        answer = await browser.post("/submit", data={"text": "a\r\n\u202e<b>", "x": ["1", "2"]}, headers=browsers.OURS)
    assert answer.status_code == 401
    assert browsers.elements(answer.text)["textarea aria-hidden class name readonly tabindex"] == 3
    assert "\u202e&lt;b&gt;</textarea>" in answer.text, "it is sent again as it was typed"
    assert 'action="/submit"' in answer.text


async def test_hidden_characters_are_told_and_kept(rig: browsers.WebRig) -> None:
    answer = await send(rig, action="check", text="command: a\nname: a\u202eb\n# \x08\x00\ufffe\n")
    assert "Hidden characters stand on 2 lines: 2, 3." in browsers.text(answer.text)


async def test_forecasts_in_flight_are_limited(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_WAITING", -1)
    answer = await send(rig, action="check", part="yes")
    assert "of your forecasts wait already" in answer.text


class Reads:
    """The texts of this page that are parsed, with the thread of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        for name in ("load", "compose"):
            monkeypatch.setattr(yaml, name, self._watched(getattr(yaml, name)))

    def _watched(self, read: Any) -> Any:
        def watched(*args: Any, **more: Any) -> Any:
            self.threads.append(threading.get_ident())
            return read(*args, **more)

        return watched


@pytest.mark.parametrize(
    ("action", "text", "most"),
    [
        ("check", TEXT, 1),
        ("check", TEXT + "priority: many\n", 2),  # the second one finds the line of the error
        ("check", TEXT + "pool: nowhere\n", 2),
        ("submit", TEXT, 1),
        ("set", TEXT, 4),
    ],
)
async def test_a_text_is_parsed_once_and_away_from_the_event_loop(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch, action: str, text: str, most: int
) -> None:
    reads = Reads(monkeypatch)
    await send(rig, action=action, text=text, **({"field.priority": "7"} if action == "set" else {}))
    assert 1 <= len(reads.threads) <= most
    assert threading.get_ident() not in reads.threads, "the server answers others meanwhile"


async def test_the_first_page_parses_its_text_away_from_the_event_loop(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    async with rig.browser("ann") as browser:
        assert (await browser.get("/submit")).status_code == 200
    assert len(reads.threads) == 1
    assert threading.get_ident() not in reads.threads


@pytest.mark.parametrize("action", ["check", "set", "submit"])
async def test_a_text_above_the_limit_is_refused_unread(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    text = TEXT + "#" * submit.MOST_CHARACTERS
    reads = Reads(monkeypatch)
    answer = await send(rig, action=action, text=text)
    assert (answer.status_code, reads.threads) == (413, [])
    assert "oarlock submit" in browsers.text(answer.text)
    assert texts.typed(text) in answer.text, "the typed text is kept"


async def test_a_newer_check_of_a_session_takes_the_place_of_a_waiting_one(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), asyncio.Event()
    loop, read = asyncio.get_running_loop(), submit._read
    asked: list[str] = []
    pages = rig.app
    assert isinstance(pages, application.Pages)

    def slow(text: str) -> Any:
        asked.append(text)
        loop.call_soon_threadsafe(entered.set)
        assert gate.wait(200)
        return read(text)

    monkeypatch.setattr(submit, "_read", slow)
    async with rig.browser("ann") as browser:

        def check(name: str) -> asyncio.Task[httpx.Response]:
            form = {"number": "n1", "text": f"command: {name}\n", "action": "check", "part": "yes"}
            return asyncio.create_task(browser.post("/submit", data=form, headers=browsers.OURS))

        tasks = [check("first")]
        await entered.wait()
        for name in ("second", "third"):
            tasks.append(check(name))
            while sum(line.length for line in pages._turns._lines.values()) < len(tasks):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        gate.set()
        told = [browsers.text((await task).text) for task in tasks]
    assert asked == ["command: first\n", "command: third\n"]
    assert ["A newer check" in one for one in told] == [False, True, False]


# Code from the browser


def tar(*files: tuple[str, bytes], zipped: bool = True, **more: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if zipped else "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in more.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(*files: tuple[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return out.getvalue()


async def sent(rig: browsers.WebRig, content: bytes) -> httpx.Response:
    async with rig.browser("ann") as browser:
        return await browser.post("/submit/code", content=content, headers=browsers.OURS)


CODE = (("train.py", b"print(1)\n"), ("src/a.py", b"a"), ("data.bin", b"x" * 100), (".gitignore", b"*.bin\n"))


@pytest.mark.parametrize("make", [tar, zipped, lambda *files: tar(*files, zipped=False)])
async def test_an_archive_becomes_a_snapshot_with_the_rules_of_the_command_line(
    rig: browsers.WebRig, make: Any
) -> None:
    answer = await sent(rig, make(*CODE, (".git/config", b"secret"), ("node_modules/x.js", b"x")))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["told"].startswith("3 files")
    assert "data.bin (.gitignore)" in told["told"]
    with tarfile.open(rig.blobs.path(told["digest"])) as archive:
        assert sorted(archive.getnames()) == [".gitignore", "src", "src/a.py", "train.py"]
    made = await send(rig, action="submit", code="upload", digest=told["digest"])
    assert made.status_code == 303
    assert (await jobs(rig))[0]["snapshot"] == told["digest"]


async def posted(rig: browsers.WebRig, archive: bytes | None, **form: Any) -> httpx.Response:
    """The answer to the form as a browser without scripts sends it; None: no file was chosen."""
    file = ("", b"") if archive is None else ('code of "mine".tar.gz', archive)
    async with rig.browser("ann") as browser:
        typed = {"number": "n1", "text": TEXT, "source": "", "digest": "", **form}
        return await browser.post("/submit", data=typed, files={"archive": file}, headers=browsers.OURS)


async def test_without_scripts_an_archive_comes_with_the_form(rig: browsers.WebRig) -> None:
    """Checked first, or submitted at once: the job has its files, by the rules of the command line."""
    content = tar(*CODE, (".git/config", b"secret"))
    checked = await posted(rig, content, action="check", code="none")
    browsers.elements(checked.text)
    assert "The server has the archive: 3 files" in browsers.text(checked.text)
    assert "data.bin (.gitignore)" in browsers.text(checked.text)
    (digest,) = re.findall(r'name="digest" value="([^"]+)"', checked.text)
    assert re.search(r'value="upload" checked', checked.text)
    later = await posted(rig, None, action="submit", code="upload", digest=digest)
    at_once = await posted(rig, content, action="submit", code="none")
    assert (later.status_code, at_once.headers["location"]) == (303, later.headers["location"]), "many clicks, one job"
    (job,) = await jobs(rig)
    assert job["snapshot"] == digest
    with tarfile.open(rig.blobs.path(digest)) as archive:
        assert sorted(archive.getnames()) == [".gitignore", "src", "src/a.py", "train.py"]
    plain = await posted(rig, None, action="submit", code="none", number="n2")
    assert plain.status_code == 303
    assert (await jobs(rig))[0]["snapshot"] is None
    fields = {"was.name": "", "field.name": "mine"}
    written = await posted(rig, content, action="set", **fields)
    assert "name: mine" in written.text


async def test_the_names_of_fields_count_as_their_content_does(rig: browsers.WebRig) -> None:
    """An archive may be large, the rest of its form not: it is held in memory."""
    fields = {f"{number}{'x' * 10_000}": "" for number in range(200)}
    answer = await posted(rig, zipped(*CODE), action="check", **fields)
    assert (answer.status_code, "The form is too large." in browsers.text(answer.text)) == (413, True)


@pytest.mark.parametrize("archive", [None, random.Random(1).randbytes(5000)])
async def test_two_forms_at_the_same_time_make_one_job(rig: browsers.WebRig, archive: bytes | None) -> None:
    """The second comes while the first arrives. An archive is taken once at a time; the form with another is kept."""
    typed = {"number": "n1", "text": TEXT, "action": "submit", "code": "none"}
    file = {"archive": ("", b"") if archive is None else ("a.zip", zipped(("a", archive)))}
    second: list[httpx.Response] = []
    async with rig.browser("ann") as browser:
        form = browser.build_request("POST", "/submit", data=typed, files=file)
        body = form.read()

        async def slowly() -> AsyncIterator[bytes]:
            yield body[:-20]
            second.append(await browser.post("/submit", data=typed, files=file, headers=browsers.OURS))
            yield body[-20:]

        headers = {"Content-Type": form.headers["content-type"], **browsers.OURS}
        first = await browser.post("/submit", content=slowly(), headers=headers)
        again = await browser.post("/submit", data=typed, files=file, headers=browsers.OURS)
    assert first.status_code == 303
    assert len(await jobs(rig)) == 1
    assert again.headers["location"] == first.headers["location"], "the next archive is taken"
    if archive is None:
        assert second[0].headers["location"] == first.headers["location"]
    else:
        browsers.elements(second[0].text)
        assert (second[0].status_code, "Another upload" in browsers.text(second[0].text)) == (409, True)
        assert texts.typed(TEXT) in second[0].text, "the typed text is kept"
        assert re.search(r'value="upload" checked', second[0].text), "sent again without an archive, it makes no job"


async def test_without_scripts_a_refused_archive_leaves_the_form_as_it_was_typed(rig: browsers.WebRig) -> None:
    for content, said in HOSTILE.values():
        answer = await posted(rig, content, action="submit", code="upload", text=TEXT + "# typed\n")
        browsers.elements(answer.text)
        assert (answer.status_code, said in browsers.text(answer.text)) == (422, True), answer.text
        assert "# typed" in answer.text
        assert "oarlock-upload" not in answer.text, "no path of the server"
    missing = await posted(rig, None, action="submit", code="upload")
    assert (missing.status_code, "Choose a folder or an archive" in browsers.text(missing.text)) == (422, True)
    assert await jobs(rig) == []


async def test_a_form_with_an_archive_outlives_the_session(rig: browsers.WebRig) -> None:
    async with rig.browser() as browser:
        file = {"archive": ("a.zip", zipped(("a", bytes(range(256)))))}
        answer = await browser.post("/submit", data={"text": "typed before"}, files=file, headers=browsers.OURS)
    assert (answer.status_code, "typed before" in answer.text) == (401, True)


async def test_a_form_with_an_archive_outlives_a_session_that_ends_while_it_arrives(rig: browsers.WebRig) -> None:
    """The whole form is read by then: the answer has what was typed, and does not wait for more of it."""
    async with rig.browser("ann") as browser:
        typed = {"text": "typed before", "action": "submit", "code": "none"}
        form = browser.build_request("POST", "/submit", data=typed, files={"archive": ("a.zip", zipped(*CODE))})
        body = form.read()

        async def slowly() -> AsyncIterator[bytes]:
            yield body[:200]
            async with rig.browser() as other:
                other.cookies.update(browser.cookies)
                assert (await other.post("/logout", headers=browsers.OURS)).status_code == 303
            yield body[200:]

        headers = {"Content-Type": form.headers["content-type"], **browsers.OURS}
        answer = await asyncio.wait_for(browser.post("/submit", content=slowly(), headers=headers), 120)
    assert (answer.status_code, "typed before" in answer.text) == (401, True)


async def test_a_script_learns_that_its_session_has_ended_whatever_type_its_archive_has(rig: browsers.WebRig) -> None:
    """The body is read by then: it is no form that could be kept, and sent again."""
    async with rig.browser("ann") as browser:

        async def slowly() -> AsyncIterator[bytes]:
            yield b""
            async with rig.browser() as other:
                other.cookies.update(browser.cookies)
                assert (await other.post("/logout", headers=browsers.OURS)).status_code == 303
            yield zipped(*CODE)

        headers = {"Content-Type": "application/x-www-form-urlencoded", **browsers.OURS}
        answer = await asyncio.wait_for(browser.post("/submit/code", content=slowly(), headers=headers), 60)
    assert answer.status_code == 401
    assert "error" in answer.json()


@pytest.mark.parametrize("archive", [zipped(*CODE), tar(*CODE, zipped=False), random.Random(1).randbytes(3 << 20)])
async def test_a_form_that_is_sent_again_without_its_archive_makes_no_job(rig: browsers.WebRig, archive: bytes) -> None:
    """A job without the code that was chosen would run, and fail on its node. A tar of texts is text itself."""
    typed = {"number": "n1", "text": TEXT, "action": "submit", "code": "none", "digest": "a" * 64}
    async with rig.browser() as browser:
        ended = await browser.post("/submit", data=typed, files={"archive": ("a", archive)}, headers=browsers.OURS)
        browsers.elements(ended.text)
        assert (ended.status_code, "Only the archive is not kept" in browsers.text(ended.text)) == (401, True)
        plain = await browser.post("/submit", data=typed, files={"archive": ("", b"")}, headers=browsers.OURS)
        assert (plain.status_code, "archive" in browsers.text(plain.text)) == (401, False)
    kept = kept_fields(ended.text)
    assert kept == {**typed, "action": "check", "code": "upload", "digest": ""}
    assert kept_fields(plain.text) == {**typed, "archive": ""}, "nothing was chosen"
    checked = await posted(rig, None, **kept)
    assert (checked.status_code, "Now:" in browsers.text(checked.text)) == (200, True)
    assert re.search(r'value="upload" checked', checked.text)
    assert (await posted(rig, None, **{**kept, "action": "submit"})).status_code == 422, "it needs its archive"
    assert await jobs(rig) == []


def kept_fields(page: str) -> dict[str, str]:
    tree = html5lib.parse(page, namespaceHTMLElements=False)
    return {one.get("name"): one.text or "" for one in tree.iter("textarea")}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a way out": (tar(("../../evil", b"x")), "is refused"),
    "an absolute path": (tar(("/etc/passwd", b"x")), "is refused"),
    "a way out of a zip": (zipped(("a/../../evil", b"x")), "is refused"),
    "a backslash": (tar(("a\\..\\evil", b"x")), "is refused"),
    "a drive": (zipped(("C:/evil", b"x")), "is refused"),
    "a line break": (tar(("a\nb", b"x")), "is refused"),
    "a long name": (tar(("a" * 300, b"x")), "is refused"),
    "a symbolic link": (tar(("a", b""), type=tarfile.SYMTYPE, linkname="/etc"), "is a link"),
    "a hard link": (tar(("a", b""), type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is a link"),
    "a device": (tar(("a", b""), type=tarfile.CHRTYPE), "is a device"),
    "a link of a zip": (zipped(("a", b"/etc"), mode=0o120777), "is a link"),
    "a name twice": (tar(("a", b"1"), ("a", b"2")), "stands twice"),
    "a file that is a folder": (tar(("a", b"1"), ("a/b", b"2")), "stands twice"),
    "a text": (b"hello", "neither a zip nor a tar"),
    "nothing": (b"", "neither a zip nor a tar"),
    "a cut archive": (tar(("a", b"x" * 100_000))[:-40], "damaged"),
    "a cut zip": (zipped(("a", b"x" * 100_000))[:-10], "damaged"),
    "no archive within": (gzip.compress(b"hello" * 1000), "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_archive_is_refused_in_one_sentence(rig: browsers.WebRig, name: str) -> None:
    content, said = HOSTILE[name]
    answer = await sent(rig, content)
    assert 400 <= answer.status_code < 500, answer.text
    assert said in answer.json()["error"]
    assert "oarlock-upload" not in answer.text, "no path of the server"


def test_the_bounds_hold_for_the_bytes_that_are_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 3)
    monkeypatch.setattr(archives, "_HEADERS_BYTES", 20_000)
    many = tuple((f"f{number}", b"") for number in range(4))
    long = tarfile.TarInfo("a")
    long.pax_headers = {"comment": "x" * 50_000}
    pax = io.BytesIO()
    with tarfile.open(fileobj=pax, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(long, io.BytesIO())
    cases = {
        "bomb": zipped(("a", b"0" * 100_000)),
        "tarred": tar(("a", b"0" * 2000)),
        "many": tar(*many),
        "pax": pax.getvalue(),
    }
    for name, content in cases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "archive").write_bytes(content)
        with pytest.raises(errors.TooLarge):
            archives.snapshot(tmp_path / name / "archive", tmp_path / name, 1000)


def refused(folder: Any, content: bytes, limit_bytes: int = 1 << 30) -> errors.OarlockError:
    """The refusal of an archive, of which nothing but the named part may be at fault."""
    folder.mkdir()
    (folder / "archive").write_bytes(content)
    with pytest.raises(errors.OarlockError) as found:
        archives.snapshot(folder / "archive", folder, limit_bytes)
    return found.value


@pytest.mark.parametrize("make", [tar, zipped])
def test_folders_are_bounded_as_files_are(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    assert "folders" in refused(tmp_path / "deep", make(("d/" * 32 + "f", b""))).message
    monkeypatch.setattr(archives, "MOST_FILES", 10)
    error = refused(tmp_path / "wide", make(*((f"{number}/a/b/f", b"") for number in range(3))))
    assert isinstance(error, errors.TooLarge)
    assert len(list((tmp_path / "wide" / "code").rglob("*"))) <= 11
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "archive").write_bytes(make(*((f"a/{name}/f", b"") for name in "bcd"), ("a/e", b"")))
    archives.snapshot(tmp_path / "few" / "archive", tmp_path / "few", 1000)


def test_entries_that_are_folders_are_counted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 3)
    names = tuple((f"d{number}/", b"") for number in range(7))
    made = zipped(*names)
    monkeypatch.setattr(zipfile, "ZipInfo", NoInfo)
    assert isinstance(refused(tmp_path / "zip", made), errors.TooLarge), "before an object of each entry is made"
    dirs = tar(*names, type=tarfile.DIRTYPE, size=0)
    assert isinstance(refused(tmp_path / "tar", dirs), errors.TooLarge)


class NoInfo(zipfile.ZipInfo):
    def __init__(self, *args: Any, **more: Any) -> None:
        raise AssertionError("the directory is in memory already")


def long_header(kind: bytes, size: int) -> bytes:
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = kind, size
    content = b"x" * size
    if kind in (tarfile.XHDTYPE, tarfile.XGLTYPE):
        content = f"{size} comment=".encode().ljust(size - 1, b"x") + b"\n"
    padding = b"\0" * (-size % 512)
    return head.tobuf(tarfile.GNU_FORMAT) + content + padding


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_long_header_of_a_tar_is_not_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: bytes) -> None:
    read: list[int] = []
    made = archives.Bounded.read

    def watched(self: archives.Bounded, size: int = -1) -> bytes:
        block = made(self, size)
        read.append(len(block))
        return block

    monkeypatch.setattr(archives.Bounded, "read", watched)
    error = refused(tmp_path / "a", long_header(kind, 1_000_000) + tar(("a", b""), zipped=False))
    assert isinstance(error, errors.TooLarge)
    assert sum(read) < 200_000
    (tmp_path / "short").mkdir()
    short = b"".join(long_header(one, 900) for one in (tarfile.XGLTYPE, tarfile.XHDTYPE))
    (tmp_path / "short" / "archive").write_bytes(short + tar(("a", b"x"), zipped=False))
    assert archives.snapshot(tmp_path / "short" / "archive", tmp_path / "short", 1000).count == 1


def test_attributes_for_all_files_do_not_add_up(tmp_path: Any) -> None:
    parts = []
    for number in range(4):
        content = f"40000 key{number}=".encode().ljust(39_999, b"x") + b"\n"
        parts.append(long_header(tarfile.XGLTYPE, 40_000)[:512] + content + b"\0" * (-40_000 % 512))
    assert isinstance(refused(tmp_path / "a", b"".join(parts) + tar(("a", b""), zipped=False)), errors.TooLarge)


def sparse(version: str) -> bytes:
    """A file with holes and a map of them that has no end: that of old GNU tar, or of its pax form 1.0."""
    info = tarfile.TarInfo("a")
    if version == "old":
        info.type = tarfile.GNUTYPE_SPARSE
        block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        block[482] = 1  # the map goes on in the next block
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
        more = bytearray(512)
        more[504] = 1
        return bytes(block) + bytes(more) * 4000
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    info.size = 512 * 4000
    return info.tobuf(tarfile.PAX_FORMAT) + b"9" * info.size


@pytest.mark.parametrize("version", ["old", "1.0"])
def test_the_map_of_a_sparse_file_is_not_read(tmp_path: Any, version: str) -> None:
    assert "is a sparse file" in refused(tmp_path / "a", sparse(version)).message


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_zip_by_another_method_is_refused(tmp_path: Any, method: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a", b"x" * 1000)
    damaged = bytearray(out.getvalue())
    damaged[44:54] = b"\xff" * 10
    assert "another method" in refused(tmp_path / "a", bytes(damaged)).message


@pytest.mark.parametrize("make", [tar, zipped, lambda *files: tar(*files, zipped=False)])
def test_damaged_archives_are_refused_or_read(tmp_path: Any, make: Any) -> None:
    chance = random.Random(7)
    good = make(("a/b", b"0123456789" * 50), ("c" * 120, b"x"))
    for number in range(400):
        content = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.choice((0, 255, chance.randrange(256)))
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "archive").write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
        with contextlib.suppress(errors.InvalidInput, errors.TooLarge):
            archives.snapshot(folder / "archive", folder, 100_000)


async def test_the_scratch_folder_is_removed_away_from_the_event_loop(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    cleanup = tempfile.TemporaryDirectory.cleanup

    def watched(self: Any) -> None:
        threads.append(threading.get_ident())
        cleanup(self)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", watched)
    assert (await sent(rig, tar(*CODE))).status_code == 200
    assert (await sent(rig, b"hello")).status_code == 422
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_an_archive_is_cut_off_at_the_limit(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock.client import settings

    made = settings.Settings
    monkeypatch.setattr(settings, "Settings", lambda **told: made(**{"snapshot_limit_bytes": 1000, **told}))
    answer = await sent(rig, b"PK\x03\x04" + b"x" * 2000)
    assert (answer.status_code, "too large" in answer.json()["error"]) == (413, True)
    with_form = await posted(rig, b"PK\x03\x04" + b"x" * (visits.FORM_LIMIT_BYTES + 1000), action="check")
    assert (with_form.status_code, "The form is too large" in browsers.text(with_form.text)) == (413, True)


async def test_the_fields_beside_an_archive_are_bounded(rig: browsers.WebRig) -> None:
    """The limit of an archive is a hundred times that of a form, whose fields are kept in memory."""
    long = "x" * (visits.FORM_LIMIT_BYTES + 1)
    answer = await posted(rig, tar(*CODE), action="check", text=long)
    assert (answer.status_code, "The form is too large" in browsers.text(answer.text)) == (413, True)


def test_every_example_is_a_job_file() -> None:
    from oarlock.spec.input import validation

    for text in submit.EXAMPLES.values():
        validation.load(text)
