"""Builders of requests for both clients. A request is a value, and a sender carries it out.

docs/rest-api.md describes the paths. A job is named by its id or its name. A text that can be neither is refused here,
because `a/b`, `..` or an empty text would lead to another path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from oarlock.client import answers
from oarlock.spec import bodies, errors, intents, jobfile, jobs, plans, tasklogs
from oarlock.spec.access import users
from oarlock.spec.cluster import poolchanges
from oarlock.spec.cluster import pools as pool_nouns
from oarlock.spec.input import edits
from oarlock.spec.simulator import simulations

T = TypeVar("T")

_V1 = "/api/v1"
FILES_PAGE = 5000
AS_IT_IS = {"Accept-Encoding": "identity"}
"""The header of requests whose answers are read as raw bytes: nothing on the way may compress them."""
SEARCHING_S = 600.0
READING_S = 3600.0
"""The longest that a server may take to read a checkpoint."""


class Request(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A request. A `repeatable` request has the same effect when it is sent twice, so it is repeated after a loss."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, str | tuple[str, ...]] = {}
    body: Any = None
    upload: Path | bytes | None = None
    headers: Mapping[str, str] = {}
    repeatable: bool = True
    patience_s: float = 0.0  # the longest wait for the answer, if longer than usual

    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query, doseq=True)}" if self.query else self.path

    def content(self) -> bytes | None:
        return None if self.body is None else msgspec.json.encode(self.body)


def _query(**values: Any) -> dict[str, str | tuple[str, ...]]:
    """Return a query without the values that are None; booleans are `true` and `false`, a tuple is repeated."""
    return {name: _queried(value) for name, value in values.items() if value is not None}


def _queried(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(map(str, value))
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._@-]+")
"""The characters of names of jobs, pools and secrets. The server checks more."""
_USER = re.compile(r"(?!\.+$)[^/\x00-\x1f\x7f]+")
"""The first administrator has the name of the system's account: `CORP\\ada`, `josé`."""
_SHOWN = 60


def _job(name: str, rest: str = "") -> str:
    hint = "Names have lower-case letters, digits and dashes; `oarlock ps` lists the jobs."
    return f"{_V1}/jobs/{_typed(name, 'job', hint)}{rest}"


def _pool(name: str) -> str:
    hint = "Names have lower-case letters, digits and dashes; `oarlock pools` lists the pools."
    return f"{_V1}/pools/{_typed(name, 'pool', hint)}"


def _user(name: str, rest: str) -> str:
    hint = "`oarlock users list` lists the users."
    return f"{_V1}/users/{_typed(name, 'user', hint, _USER)}{rest}"


def _secret(name: str) -> str:
    hint = "Names have lower-case letters, digits and dashes; `oarlock secrets list` lists the secrets."
    return f"{_V1}/secrets/{_typed(name, 'secret', hint)}"


def _typed(name: str, of: str, hint: str, names: re.Pattern[str] = _NAME) -> str:
    """Return a typed name as a part of a path. Raises InvalidInput for a text that cannot be a name."""
    if not names.fullmatch(name):
        shown = name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "..."
        raise errors.InvalidInput(f"{shown!r} is not a valid name of a {of}", hint=hint)
    return quote(name, safe="@")


def submit(submission: jobfile.Submission, key: str) -> Request[jobs.Job]:
    """Submit a job. Before it answers, the server reads the whole checkpoint of a job that is continued."""
    return Request(
        method="POST",
        path=f"{_V1}/jobs",
        answer=jobs.Job,
        body=submission,
        headers={"Idempotency-Key": key},
        patience_s=READING_S if submission.continues is not None else 0.0,
    )


def plan(submission: jobfile.Submission) -> Request[plans.Forecast]:
    return Request(method="POST", path=f"{_V1}/plan", answer=plans.Forecast, body=submission)


def manifests(submission: jobfile.Submission) -> Request[bodies.Manifests]:
    return Request(method="POST", path=f"{_V1}/plan/manifests", answer=bodies.Manifests, body=submission)


def list_jobs(**query: Any) -> Request[bodies.JobPage]:
    """Request a page of jobs. `query` has the parameters of the route."""
    return Request(method="GET", path=f"{_V1}/jobs", answer=bodies.JobPage, query=_query(**query))


def summaries(**query: Any) -> Request[bodies.SummaryPage]:
    """Request a page of jobs in short, as `list_jobs` does."""
    return Request(method="GET", path=f"{_V1}/summaries", answer=bodies.SummaryPage, query=_query(**query))


def job(name: str) -> Request[jobs.Job]:
    return Request(method="GET", path=_job(name), answer=jobs.Job)


def remove(name: str) -> Request[answers.Nothing]:
    return Request(method="DELETE", path=_job(name), answer=answers.Nothing)


def intend(name: str, intent: intents.Intent, reason: str = "") -> Request[jobs.Job]:
    return Request(method="PUT", path=_job(name, "/intent"), answer=jobs.Job, body=bodies.Wanted(intent, reason))


def edit(name: str, change: edits.Edit) -> Request[jobs.Job]:
    return Request(method="PATCH", path=_job(name), answer=jobs.Job, body=change)


def why(name: str) -> Request[bodies.Why]:
    return Request(method="GET", path=_job(name, "/why"), answer=bodies.Why)


def decisions(name: str) -> Request[bodies.DecisionList]:
    return Request(method="GET", path=_job(name, "/decisions"), answer=bodies.DecisionList)


def speed(name: str) -> Request[bodies.Speed]:
    return Request(method="GET", path=_job(name, "/speed"), answer=bodies.Speed)


def job_events(
    name: str, after: int | None = None, limit: int | None = None, kinds: tuple[str, ...] = ()
) -> Request[bodies.RecordPage]:
    query = _query(after=after, limit=limit, kind=kinds)
    return Request(method="GET", path=_job(name, "/events"), answer=bodies.RecordPage, query=query)


class LogChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of log lines. Times are in Unix seconds; `tail` is the number of last lines over all streams.

    `stream` is `stdout` or `stderr`, or `stderr.0` for one process of each task.
    """

    attempt: int | None = None
    role: str | None = None
    index: int | None = None
    stream: str | None = None
    tail: int | None = None
    since: float | None = None
    until: float | None = None

    def query(self, **more: Any) -> dict[str, str | tuple[str, ...]]:
        return _query(**msgspec.structs.asdict(self), **more)


def logs(name: str, choice: LogChoice, *, follow: bool = False, blocks: bool = False) -> Request[answers.LogItem]:
    query = choice.query(follow=follow or None, blocks=blocks or None)
    return Request(method="GET", path=_job(name, "/logs"), answer=answers.LogItem, query=query, headers=AS_IT_IS)


def log_page(name: str, choice: LogChoice, at: str, before: int, after: int) -> Request[tasklogs.LogPage]:
    query = choice.query(at=at, before=before, after=after)
    return Request(method="GET", path=_job(name, "/logs/page"), answer=tasklogs.LogPage, query=query)


def search_log(
    name: str, choice: LogChoice, search: tasklogs.LogSearch, at: str, limit: int
) -> Request[tasklogs.LogHits]:
    """Request a search. It reads the whole log, so that the answer may take long."""
    query = choice.query(**_flags(search), at=at, limit=limit)
    path = _job(name, "/logs/search")
    return Request(method="GET", path=path, answer=tasklogs.LogHits, query=query, patience_s=SEARCHING_S)


def _flags(search: tasklogs.LogSearch) -> dict[str, Any]:
    return {"text": search.text, "regex": search.regex or None, "ignore_case": search.ignore_case or None}


def metrics(
    name: str,
    names: Sequence[str] = (),
    points: int | None = None,
    steps: tuple[int | None, int | None] = (None, None),
    ranks: int | None = None,
) -> Request[answers.Metrics]:
    query = _query(name=tuple(names), points=points, first_step=steps[0], last_step=steps[1], ranks=ranks)
    return Request(method="GET", path=_job(name, "/metrics"), answer=answers.Metrics, query=query)


def new_metrics(name: str, after: str, points: int | None, group: int = 0) -> Request[answers.Metrics]:
    query = _query(after=after, points=points, group=group or None)
    return Request(method="GET", path=_job(name, "/metrics"), answer=answers.Metrics, query=query)


def metric_names(name: str) -> Request[answers.Metrics]:
    return Request(method="GET", path=_job(name, "/metrics"), answer=answers.Metrics, query=_query(series=False))


def tensorboard(name: str) -> Request[bodies.TensorBoard]:
    return Request(method="GET", path=_job(name, "/tensorboard"), answer=bodies.TensorBoard)


def tensorboard_target(name: str) -> str:
    """Return the path of the websocket of a connection to the job's TensorBoard."""
    return _job(name, "/tensorboard/connection")


def checkpoints(name: str) -> Request[bodies.CheckpointList]:
    return Request(method="GET", path=_job(name, "/checkpoints"), answer=bodies.CheckpointList)


def files(name: str, under: str = "", after: str | None = None) -> Request[answers.FileList]:
    query = _query(under=under or None, after=after, limit=FILES_PAGE)
    return Request(method="GET", path=_job(name, "/files"), answer=answers.FileList, query=query)


def file(name: str, path: str, headers: Mapping[str, str]) -> Request[answers.Nothing]:
    """Request the bytes of one file, for the senders' `content`."""
    return Request(
        method="GET",
        path=_job(name, "/file"),
        answer=answers.Nothing,
        query=_query(path=path),
        headers={**AS_IT_IS, **headers},
    )


def event_log(after: int | None = None, wait_s: float | None = None) -> Request[bodies.RecordPage]:
    query = _query(after=after, wait=wait_s)
    return Request(method="GET", path=f"{_V1}/events", answer=bodies.RecordPage, query=query)


def has_blob(digest: str) -> Request[answers.Nothing]:
    """Ask whether the server has a snapshot. The answer is NotFound where it lacks it."""
    return Request(method="HEAD", path=f"{_V1}/blobs/{quote(digest, safe=':')}", answer=answers.Nothing)


def put_blob(digest: str, content: Path | bytes) -> Request[answers.Nothing]:
    return Request(
        method="PUT",
        path=f"{_V1}/blobs/{quote(digest, safe=':')}",
        answer=answers.Nothing,
        upload=content,
        headers={"Content-Type": "application/octet-stream"},
    )


def nodes() -> Request[bodies.NodeList]:
    return Request(method="GET", path=f"{_V1}/nodes", answer=bodies.NodeList)


def queue() -> Request[bodies.Queue]:
    return Request(method="GET", path=f"{_V1}/queue", answer=bodies.Queue)


def forecasts() -> Request[bodies.Forecasts]:
    return Request(method="GET", path=f"{_V1}/forecasts", answer=bodies.Forecasts)


def history(since: float | None, until: float | None, limit: int) -> Request[bodies.History]:
    query = _query(since=since, until=until, limit=limit)
    return Request(method="GET", path=f"{_V1}/history", answer=bodies.History, query=query)


def pools() -> Request[bodies.PoolList]:
    return Request(method="GET", path=f"{_V1}/pools", answer=bodies.PoolList)


def set_pool(name: str, change: poolchanges.Change) -> Request[pool_nouns.Pool]:
    """Change a pool. With a version it is not repeatable: the first request changes the version."""
    return Request(
        method="PATCH", path=_pool(name), answer=pool_nouns.Pool, body=change, repeatable=change.version is None
    )


def preview_pool(name: str, change: poolchanges.Change) -> Request[bodies.PoolPreview]:
    """Request the effects of a change. The change is not made, so that the request is repeatable."""
    return Request(method="POST", path=f"{_pool(name)}/preview", answer=bodies.PoolPreview, body=change)


def remove_pool(name: str) -> Request[answers.Nothing]:
    return Request(method="DELETE", path=_pool(name), answer=answers.Nothing)


def samples(since: float | None, until: float | None, limit: int) -> Request[bodies.Samples]:
    query = _query(since=since, until=until, limit=limit)
    return Request(method="GET", path=f"{_V1}/samples", answer=bodies.Samples, query=query)


def usage(since: float | None = None, by: str | None = None) -> Request[bodies.UsageList]:
    query = _query(since=since, by=by)
    return Request(method="GET", path=f"{_V1}/usage", answer=bodies.UsageList, query=query)


def workloads() -> Request[simulations.Choices]:
    return Request(method="GET", path=f"{_V1}/workloads", answer=simulations.Choices)


def recorded(since: float | None, until: float | None) -> Request[simulations.Workload]:
    query = _query(since=since, until=until)
    return Request(method="GET", path=f"{_V1}/workloads/recorded", answer=simulations.Workload, query=query)


def simulate(asked: simulations.Request) -> Request[jobs.Job]:
    """Run a simulation. It is not repeated after a loss: the second request would meet the first one's job."""
    return Request(method="POST", path=f"{_V1}/simulations", answer=jobs.Job, body=asked, repeatable=False)


def simulation(job: str) -> Request[simulations.Simulation]:
    hint = "`oarlock ps --all` lists the jobs."
    path = f"{_V1}/simulations/{_typed(job, 'job', hint)}"
    return Request(method="GET", path=path, answer=simulations.Simulation)


def server() -> Request[bodies.Server]:
    return Request(method="GET", path=f"{_V1}/server", answer=bodies.Server)


def list_users() -> Request[bodies.UserList]:
    return Request(method="GET", path=f"{_V1}/users", answer=bodies.UserList)


def list_tokens(user: str) -> Request[bodies.TokenList]:
    return Request(method="GET", path=_user(user, "/tokens"), answer=bodies.TokenList)


def server_state() -> Request[bodies.ServerState]:
    return Request(method="GET", path=f"{_V1}/server/state", answer=bodies.ServerState)


def add_user(name: str, right: users.Right) -> Request[users.User]:
    return Request(
        method="POST", path=f"{_V1}/users", answer=users.User, body=bodies.NewUser(name, right), repeatable=False
    )


def remove_user(name: str) -> Request[answers.Nothing]:
    return Request(method="DELETE", path=_user(name, ""), answer=answers.Nothing)


def add_token(user: str, note: str = "") -> Request[bodies.ShownToken]:
    """Make a token. It is not repeatable: a second request would make a second token."""
    path = _user(user, "/tokens")
    return Request(method="POST", path=path, answer=bodies.ShownToken, body=bodies.NewToken(note), repeatable=False)


def remove_token(user: str, sha256: str) -> Request[answers.Nothing]:
    path = _user(user, f"/tokens/{quote(sha256, safe='')}")
    return Request(method="DELETE", path=path, answer=answers.Nothing)


def make_login_code() -> Request[bodies.LoginCode]:
    return Request(method="POST", path=f"{_V1}/login-codes", answer=bodies.LoginCode)


def begin_session(wanted: bodies.NewSession) -> Request[bodies.ShownSession]:
    """Begin a session. It is not repeatable: a login code is good for one."""
    return Request(method="POST", path=f"{_V1}/sessions", answer=bodies.ShownSession, body=wanted, repeatable=False)


def list_sessions() -> Request[bodies.SessionList]:
    return Request(method="GET", path=f"{_V1}/sessions", answer=bodies.SessionList)


def end_session(sha256: str) -> Request[answers.Nothing]:
    return Request(method="DELETE", path=f"{_V1}/sessions/{quote(sha256, safe='')}", answer=answers.Nothing)


def secrets() -> Request[bodies.SecretList]:
    return Request(method="GET", path=f"{_V1}/secrets", answer=bodies.SecretList)


def set_secret(name: str, told: bodies.NewSecret) -> Request[bodies.SecretInfo]:
    return Request(method="PUT", path=_secret(name), answer=bodies.SecretInfo, body=told)


def remove_secret(name: str, server: bool) -> Request[answers.Nothing]:
    query = _query(server=server or None)
    return Request(method="DELETE", path=_secret(name), answer=answers.Nothing, query=query)


def shutdown() -> Request[answers.Nothing]:
    return Request(method="POST", path=f"{_V1}/shutdown", answer=answers.Nothing, repeatable=False)


def exec_target(name: str, *, role: str | None, index: int | None, tty: bool, rows: int, columns: int) -> str:
    """Return the path of the websocket of `exec`."""
    query = _query(role=role, index=index, tty=tty, rows=rows, columns=columns)
    return f"{_job(name, '/exec')}?{urlencode(query)}"
