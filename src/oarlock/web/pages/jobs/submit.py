"""A job submitted in the browser: a job file in an editor, beside a form for its commonest fields.

Both change one text, which the form carries from answer to answer. A script names the fields that were `changed`, and
they alone are written into the text: it may be newer than the other fields. Without a script, the fields that differ
from those of the page as it came (`was`) are written when the form arrives, which brings an archive of the code along.
The text is checked here, and the API tells when the job would start. The page's number and the text make the
idempotency key, so that many clicks make one job. A text is read once, in a thread, and one at a time for each session:
reading YAML is slow, and the page checks while one types.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import msgspec
from starlette import responses

from oarlock.client import archives, verbs
from oarlock.display import jobfields
from oarlock.display.jobs import forecasts
from oarlock.spec import errors, jobfile, jobs
from oarlock.spec.access import users
from oarlock.spec.input import quantities, validation
from oarlock.web import jobtext, routing, scratch
from oarlock.web.access import multipart, visits
from oarlock.web.rendering import templating, texts

EXAMPLES = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))}
FIRST = "one-process"
COMMON: dict[str, str] = {
    "command": "Command",
    "name": "Name",
    "pool": "Pool",
    "roles.worker.count": "Workers",
    "roles.worker.gpus": "GPUs of each",
    "roles.worker.gpu_type": "Type of GPU",
    "roles.worker.cpus": "Cores of each",
    "roles.worker.memory": "Memory of each",
    "timeout": "Longest run time",
    "priority": "Priority",
}
"""The fields of the form, by their paths."""
LISTS = frozenset({"roles.worker.gpu_type"})
SHOWN_LEFT_OUT = 10
WITHOUT_ARCHIVE = MappingProxyType({"action": "check", "code": "upload", "digest": ""})
"""The fields of a form whose archive was lost: it makes no job before there is an archive again."""
MOST_CHARACTERS = 1 << 16
"""The longest text of this page. The command line reads longer ones."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the form. `number` tells this page from others; `source` is the job that `code` may be of."""

    text: str
    number: str
    code: str = "none"
    source: str = ""
    digest: str = ""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A text as it was read: its fields, None where they cannot be told, and the job or the error with its line."""

    fields: dict[str, Any] | None = None
    spec: jobfile.JobSpec | None = None
    error: errors.OarlockError | None = None
    line: int = 0


class Code(NamedTuple):
    """Code that is stored: its digest, and what is told of it."""

    digest: str
    told: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a text: the fault with its line, or the forecast in lines."""

    error: errors.OarlockError | None = None
    line: int = 0
    when: str = ""
    lines: tuple[str, ...] = ()


async def show(visit: visits.Visit) -> routing.Filled:
    """Show the editor with an example, or with the job file and the code of an earlier job."""
    source, number = visit.asked("from"), secrets.token_hex(8)
    job = await visit.client.job(source) if source else None
    async with visit.turn(keep=True):
        if job is None:
            draft = Draft(text=EXAMPLES.get(visit.asked("example"), EXAMPLES[FIRST]), number=number)
        else:
            text = await asyncio.to_thread(lambda: msgspec.yaml.encode(verbs.fields_of(job)).decode())
            code = "job" if job.snapshot is not None else "none"
            draft = Draft(text=text, number=number, code=code, source=job.id)
        read = await asyncio.to_thread(_read, draft.text)
        return _page(draft, read, await _judged(visit, draft.text, read), job)


async def act(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Check the text, write the form's fields into it, or submit it."""
    if not visit.headers.get("content-type", "").startswith(multipart.MEDIA):
        return await _answered(visit, await visit.form())
    told = ""
    refused: errors.OarlockError | None = None
    with contextlib.ExitStack() as alone:
        async with scratch.folder("oarlock-upload-") as folder:
            archive, limit = folder / "archive", visit.client.settings.snapshot_limit_bytes
            with archive.open("wb") as file:

                def begin() -> BinaryIO | None:
                    nonlocal refused
                    try:
                        alone.enter_context(visit.alone("upload"))
                    except errors.Conflict as error:
                        refused = error
                        return None
                    return file

                form, sent = await visit.form_with_file(begin, limit)
            if sent:
                digest = ""  # without an archive that was taken, `upload` makes no job
                try:
                    if refused is None:
                        digest, told = await _stored(visit, archive, folder)
                except errors.Unauthenticated:
                    raise
                except errors.OarlockError as error:
                    refused = error
                form = {**form, "code": ["upload"], "digest": [digest]}
    return await _answered(visit, form, told=told, refused=refused)


async def _answered(
    visit: visits.Visit, form: Mapping[str, list[str]], *, told: str = "", refused: errors.OarlockError | None = None
) -> routing.Filled | responses.Response:
    """Answer the form. `told` is said of the code that came with it, `refused` why it was not taken."""
    text = visits.one(form, "text").replace("\r\n", "\n").replace("\r", "\n")
    draft = Draft(
        text=text,
        number=visits.one(form, "number")[:64],
        code=visits.one(form, "code") or "none",
        source=visits.one(form, "source"),
        digest=visits.one(form, "digest"),
    )
    source = await visit.client.job(draft.source) if draft.source else None
    action, part, read = visits.one(form, "action"), bool(visits.one(form, "part")), Read()
    try:
        async with visit.turn(keep=action == "submit"):
            read = await asyncio.to_thread(_read, text)
            if action == "set" or any(name == "changed" or name.startswith("was.") for name in form):
                draft = msgspec.structs.replace(draft, text=await asyncio.to_thread(_written, text, read, form))
                read = await asyncio.to_thread(_read, draft.text)
            if refused is not None:
                raise refused
            if action == "submit":
                job = await _submit(visit, draft, read, source)
                return _submitted(draft, job) if part else routing.to(templating.job_path(job.id))
            verdict = await _judged(visit, draft.text, read)
    except errors.Unauthenticated:
        raise
    except errors.OarlockError as error:
        line = read.line if error is read.error else await asyncio.to_thread(_line, draft.text, error)
        verdict = Verdict(error=error, line=line)
    return _page(draft, read, verdict, source, form, part=part, posted=True, told=told)


async def upload(visit: visits.Visit) -> responses.Response:
    """Take an archive of the code, and store it as a snapshot."""
    with visit.alone("upload"):
        async with scratch.folder("oarlock-upload-") as folder:
            archive, limit = folder / "archive", visit.client.settings.snapshot_limit_bytes
            with archive.open("wb") as file:
                async for chunk in visit.chunks(limit):
                    await asyncio.to_thread(file.write, chunk)
            try:
                code = await _stored(visit, archive, folder)
            except errors.Unauthenticated:
                raise
            except errors.OarlockError as error:
                return _json({"error": texts.visible(f"{error.message} {error.hint}")}, error.status)
            return _json({"digest": code.digest, "told": code.told}, 200)


async def _stored(visit: visits.Visit, archive: Path, folder: Path) -> Code:
    """Store the archive, which lies in the folder, as a snapshot. An error does not tell the folder."""
    try:
        limit = visit.client.settings.snapshot_limit_bytes
        packed = await asyncio.to_thread(archives.snapshot, archive, folder, limit)
        await visit.client.upload(packed)
    except errors.OarlockError as error:
        error.message, error.hint = (one.replace(str(folder), "") for one in (error.message, error.hint))
        raise
    left_out = [texts.visible(str(one)) for one in packed.left_out if one.why != "never packed"]
    return Code(packed.digest, _told(packed.count, packed.unpacked_bytes, left_out))


def _told(files: int, size: int, left_out: list[str]) -> str:
    rest = f"; left out: {', '.join(left_out[:SHOWN_LEFT_OUT])}" if left_out else ""
    return f"{files:,} {'file' if files == 1 else 'files'}, {quantities.size_text(size)}{rest}"


def _json(content: Any, status: int) -> responses.Response:
    return responses.Response(msgspec.json.encode(content), status, media_type="application/json")


def _read(text: str) -> Read:
    """Read a text. It takes long: for a thread."""
    fields: dict[str, Any] | None = None
    try:
        if len(text) > MOST_CHARACTERS:
            raise errors.TooLarge(
                f"The text has {len(text):,} characters; this page reads {MOST_CHARACTERS:,} at most.",
                hint="Submit it from a file: oarlock submit FILE",
            )
        raw = validation.plain(text)
        fields = raw if isinstance(raw, dict) else {} if raw is None else None
        return Read(fields=fields, spec=validation.decode(validation.mapping(raw)))
    except errors.OarlockError as error:
        return Read(fields=fields, error=error, line=_line(text, error))


async def _submit(visit: visits.Visit, draft: Draft, read: Read, source: jobs.Job | None) -> jobs.Job:
    digest, shell = None, {}
    if draft.code == "job" and source is not None:
        digest, shell = source.snapshot, source.shell
    elif draft.code == "upload":
        digest = draft.digest
        if not digest:
            raise errors.InvalidInput("No code was sent.", path="code", hint="Choose a folder or an archive.")
    parts = (draft.number, draft.text, digest or "", *sorted(f"{name}={value}" for name, value in shell.items()))
    key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return await visit.client.submit_packed(_job(read), digest, shell=shell, key=key)


def _submitted(draft: Draft, job: jobs.Job) -> routing.Filled:
    """Return the answer to a script, which opens the job's page.

    After a redirection the script would load that page once more than the browser. The script of an earlier version
    shows the content as the verdict: a page stays open while its server is replaced by a newer one.
    """
    place = templating.job_path(job.id)
    facts = {"draft": draft, "name": job.name, "place": place}
    return routing.Filled(template="jobs/submitted.html", facts=facts, status=201, headers=(("location", place),))


def _job(read: Read) -> jobfile.JobSpec:
    if read.spec is None:
        assert read.error is not None, "a text is a job, or has an error"
        raise read.error
    return read.spec


async def _judged(visit: visits.Visit, text: str, read: Read) -> Verdict:
    if read.error is not None:
        return Verdict(error=read.error, line=read.line)
    try:
        forecast = await visit.client.plan(_job(read))
    except errors.Unauthenticated:
        raise
    except errors.OarlockError as error:
        return Verdict(error=error, line=await asyncio.to_thread(_line, text, error))
    lines = tuple(line for line in forecasts.lines(forecast, visit.server.currency) if line)
    return Verdict(when=str(forecast.when), lines=lines)


def _line(text: str, error: errors.OarlockError) -> int:
    """Return the line of the error, 0 for none. It may read the text once more: for a thread."""
    if isinstance(error.detail, Mapping) and isinstance(error.detail.get("line"), int):
        return int(error.detail["line"])
    return jobtext.line_of(text, error.path) if error.path else 0


def _page(
    draft: Draft,
    read: Read,
    verdict: Verdict,
    source: jobs.Job | None,
    form: Mapping[str, list[str]] = MappingProxyType({}),
    *,
    part: bool = False,
    posted: bool = False,
    told: str = "",
) -> routing.Filled:
    """Return the page. The form has the fields of the text; where they cannot be told, those that were typed."""
    if read.fields is None:
        shown, was = ({path: visits.one(form, f"{kind}.{path}") for path in COMMON} for kind in ("field", "was"))
    else:
        shown = was = {path: _shown(read.fields, path) for path in COMMON}
    facts: dict[str, Any] = {
        "draft": draft,
        "verdict": verdict,
        "posted": posted,
        "told": told,
        "readable": read.fields is not None,
        "source": source,
        "common": [(path, word, shown[path], was[path]) for path, word in COMMON.items()],
        "fields": jobfields.fields(),
        "examples": list(EXAMPLES),
        "hidden_lines": texts.hidden_lines(draft.text),
    }
    status = verdict.error.status if verdict.error is not None and not part and posted else 200
    return routing.Filled(template="jobs/submitparts.html" if part else "jobs/submit.html", facts=facts, status=status)


def _shown(raw: Any, path: str) -> str:
    """Return the value of a field as it is typed in the form."""
    value = jobtext.value_at(raw, path)
    if path == "command" and isinstance(value, list):
        return shlex.join(map(str, value))
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or isinstance(value, dict) else str(value)


def _written(text: str, read: Read, form: Mapping[str, list[str]]) -> str:
    """Return the text with the fields of the form that were changed. Raises the error of a text without fields."""
    if (raw := read.fields) is None:
        assert read.error is not None, "a text without fields has an error"
        raise read.error
    for path in COMMON:
        if f"field.{path}" not in form or f"field.{path}" not in form.get("changed", (f"field.{path}",)):
            continue
        typed, shown = _on_one_line(visits.one(form, f"field.{path}")), _on_one_line(_shown(raw, path))
        was = _on_one_line(visits.one(form, f"was.{path}")) if f"was.{path}" in form else shown
        if typed not in (was, shown):
            text, raw = jobtext.changed(text, raw, path, _value(path, typed))
    return text


def _on_one_line(value: str) -> str:
    """Return the value as a field of the form has it: a browser leaves out the ends of its lines."""
    return value.replace("\r", "").replace("\n", "").strip()


def _value(path: str, typed: str) -> Any:
    """Return what a person has typed: a number where it is one, and None for nothing."""
    if not typed:
        return None
    if path in LISTS:
        several = list(_several(typed))
        return several if len(several) > 1 else next(iter(several), None)
    if path in ("command", "name", "pool"):
        return typed
    short = typed.isascii() and len(typed) < 18
    if short and typed.isdigit():
        return int(typed)
    if short and typed.count(".") == 1 and typed.replace(".", "").isdigit():
        return float(typed)
    return typed


def _several(typed: str) -> Iterator[str]:
    return (part.strip() for part in typed.split(",") if part.strip())


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/submit", title="Submit", handler=show, right=users.Right.USER, key="s"),
    routing.Page(
        path="/submit",
        title="Submit",
        handler=act,
        method="POST",
        right=users.Right.USER,
        without_archive=WITHOUT_ARCHIVE,
    ),
    routing.Page(path="/submit/code", handler=upload, method="POST", right=users.Right.USER, script=True),
)
