"""Whatever is sent, no answer is a 5xx and none is missing: requests made by Hypothesis out of our own /openapi.json.

The server is the whole API over a real SQLite store; requests come with every kind of token, most of them nearly right,
and refer to the objects that earlier ones have made. A stream is left after a moment, and must then end.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests.api import rig as rigs

from oarlock.api import application, openapi
from oarlock.spec import attempts
from oarlock.spec.protocol import tasktokens
from oarlock.store.sql import database

REQUESTS = 20  # in one example
ANSWER_S = 240.0
LOOK_S = 0.05

DOCUMENT = msgspec.json.decode(openapi.document(application.TABLE, "0"))
SCHEMAS = DOCUMENT["components"]["schemas"]
BLOBS = (b"one", b"two")
DIGESTS = ["sha256:" + hashlib.sha256(blob).hexdigest() for blob in BLOBS]
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in sorted(DOCUMENT["paths"].items())
    for method, operation in sorted(methods.items())
    if path != "/api/v1/shutdown"
]

JUNK_TEXT = st.one_of(
    st.sampled_from(
        [
            "",
            "\0",
            "a\0b",
            "..",
            "../../etc/passwd",
            "%00",
            "\ud7ff\ue000",
            "\u202e",
            "a" * 70,
            "a" * 5000,
            "NaN",
            "-1",
            "1e400",
            "9" * 40,
            "true",
            "null",
            "\x1b[31m",
            "' OR 1=1 --",
            "{}",
        ]
    ),
    st.text(max_size=12),
)
JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**40, -(10**40), 0.5, 1e308, -0.0]),
        JUNK_TEXT,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "command", "name", "\0"]), inner, max_size=3)
    ),
    max_leaves=5,
)


class Pick(msgspec.Struct, frozen=True):
    """Something that earlier requests have made, or that was there: resolved when the request is sent."""

    pool: str
    number: int


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    values: dict[str, Any]
    query: dict[str, Any]
    body: Any
    mangle: int
    who: int


@functools.cache
def made_of(reference: str) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: value(SCHEMAS[reference.rpartition("/")[2]]))


@st.composite
def mostly(draw: st.DrawFn, good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any], of: int = 16) -> Any:
    return draw(bad if draw(st.integers(0, of - 1)) == of // 2 else good)


GOOD: dict[str, list[Any]] = {
    "pool": ["default"],
    "cpus": [0.1, "500m"],
    "memory": ["64Mi", 1],
    "gpus": [0, 1],
    "count": [1, 2],
    "min": [None],
    "max": [None],
    "nproc": [1, 2],
    "mount": ["data/a", "data/b"],
    "source": ["file:///tmp/none"],
    "env": [{}, {"A": "b"}],
    "shell": [{}, {"PATH": "/bin"}],
    "priority": [0, 50],
    "right": ["user", "viewer"],
    "keep": [1, 3],
    "intent": ["halt", "run", "cancel"],
    "address": ["127.0.0.1"],
    "ports": [[20000]],
    "phase": ["PROCESSING", "DOWNLOADING"],
    "attempt": [1],
    "step": [1, 2],
    "snapshot": [None],
    "size": [None],
    "image": [None],
    "dependencies": [None],
    "form": ["env"],
    "grace": ["10s"],
    "timeout": ["10m"],
    "continues": [None],
    "tensorboard": [False],
    "since": [0],
    "until": [2e9],
}
"""Valid values by the name of a field, where the schema alone does not tell them."""


def value(schema: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Nearly a value of the schema."""
    if name in GOOD:
        return mostly(st.sampled_from(GOOD[name]), JUNK)
    if "$ref" in schema:
        return made_of(schema["$ref"])
    if "enum" in schema:
        return mostly(st.sampled_from(schema["enum"]), JUNK)
    if "anyOf" in schema:
        return st.one_of([value(kind) for kind in schema["anyOf"]])
    kinds = {
        "string": lambda: mostly(st.one_of(pick("jobs"), st.sampled_from(["true", "10m", "a", "b", "c"])), JUNK_TEXT),
        "integer": lambda: mostly(st.integers(schema.get("minimum", 0), schema.get("minimum", 0) + 3), JUNK),
        "number": lambda: mostly(st.floats(0, 2), JUNK),
        "boolean": lambda: mostly(st.booleans(), JUNK),
        "null": st.none,
        "array": lambda: st.lists(value(items(schema)), max_size=2),
        "object": lambda: thing(schema),
    }
    return kinds[schema["type"]]() if "type" in schema else JUNK


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return schema["items"] if isinstance(schema.get("items"), dict) else {}


def thing(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """An object with all that it needs and a few of the fields that it may have; sometimes with one that it may not."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not properties:
        inner = schema.get("additionalProperties")
        return st.dictionaries(JUNK_TEXT, value(inner) if isinstance(inner, dict) else JUNK, max_size=2)
    fields = {name: value(field, name) for name, field in properties.items()}

    @st.composite
    def some(draw: st.DrawFn) -> dict[str, Any]:
        optional = [name for name in fields if name not in required]
        chosen = draw(st.lists(st.sampled_from(optional), max_size=3, unique=True)) if optional else []
        return {name: draw(fields[name]) for name in [*required, *chosen]}

    extra = st.builds(lambda base, name, junk: {**base, name: junk}, some(), st.sampled_from([*fields, "x", ""]), JUNK)
    return mostly(some(), st.one_of(extra, JUNK))


def pick(pool: str) -> st.SearchStrategy[Pick]:
    return st.builds(Pick, st.just(pool), st.integers(0, 50))


def parameter(told: dict[str, Any]) -> st.SearchStrategy[Any]:
    pools = {"job": "jobs", "digest": "digests", "name": "users", "sha256": "hashes", "stream": "streams"}
    pools["pool"] = "pools"
    if told["in"] == "path":
        return mostly(pick(pools.get(told["name"], "numbers")), JUNK_TEXT)
    if told["name"] == "after":
        return mostly(st.one_of(pick("seqs"), pick("jobs")), JUNK_TEXT, of=4)
    if told["name"] in ("path", "under"):
        return mostly(st.sampled_from(["results/model.pt", "results", "files/worker-0/.."]), JUNK_TEXT)
    if told["name"] == "wait":
        return mostly(st.just(0.01), JUNK_TEXT, of=4)
    return mostly(value(told["schema"], told["name"]), JUNK_TEXT, of=8)


def request_of(method: str, path: str, operation: dict[str, Any]) -> st.SearchStrategy[Request]:
    parameters = operation["parameters"]
    content = operation.get("requestBody", {}).get("content", {})
    body: st.SearchStrategy[Any] = st.none()
    if "application/json" in content:
        body = mostly(value(content["application/json"]["schema"]), JUNK)
    elif content:
        body = mostly(st.sampled_from(BLOBS), st.binary(max_size=30))
    query = {one["name"]: parameter(one) for one in parameters if one["in"] == "query"}
    must = {one["name"]: query.pop(one["name"]) for one in parameters if one["in"] == "query" and one["required"]}
    return st.builds(
        Request,
        method=mostly(st.just(method), st.sampled_from(["GET", "PUT", "PATCH", "OPTIONS", "HEAD", "X"])),
        path=st.just(path),
        values=st.fixed_dictionaries({one["name"]: parameter(one) for one in parameters if one["in"] == "path"}),
        query=mostly(st.fixed_dictionaries(must, optional=query), st.dictionaries(JUNK_TEXT, JUNK_TEXT, max_size=2)),
        body=body,
        mangle=mostly(st.just(0), st.integers(1, 3)),
        who=st.integers(0, 11),
    )


REQUEST = st.one_of([request_of(*operation) for operation in OPERATIONS])


class Fuzz:
    """A server with a few jobs in every state, and its known objects."""

    def __init__(self, home: Path) -> None:
        store = database.open_store(f"sqlite:///{home / 'fuzz.db'}")
        self.rig = rigs.Rig(home, store=store)
        self.pools: dict[str, list[str]] = {
            "jobs": [],
            "digests": [*DIGESTS, "sha256:" + "0" * 64],
            "users": ["ann", "bob", "root"],
            "hashes": ["0" * 64],
            "streams": ["stdout.0", "stderr.1"],
            "pools": ["default", "research", "vision", "a"],
            "numbers": ["0", "1"],
            "seqs": ["0", "1", "5", "1000000"],
        }
        self.keys: list[attempts.TaskKey] = []
        self.statuses: dict[int, int] = {}
        self.met: set[str] = set()
        self.sent = 0

    async def prepare(self) -> None:
        await self.rig.prepare()
        async with self.rig.as_user("ann") as http:
            await http.put(f"/api/v1/blobs/{DIGESTS[0]}", content=BLOBS[0])
        for number in range(4):
            roles = {"worker": {"count": 2, "cpus": 0.1}}
            job = await self.rig.submit("ann", name=f"job-{number}", roles=roles, snapshot=DIGESTS[0])
            self.pools["jobs"] += [job.id, job.name]
            left = Path(self.rig.services.about.home, "results", job.id)
            left.mkdir(parents=True)
            (left / "model.pt").write_bytes(b"weights")
            if number:
                job = await self.rig.launch(job)
                self.keys += [rigs.key_of(job, 0), rigs.key_of(job, 1)]
            if number == 3:
                await self.rig.end(job.id)

    def resolve(self, told: Any) -> Any:
        if isinstance(told, Pick):
            pool = self.pools[told.pool]
            return pool[told.number % len(pool)]
        if isinstance(told, dict):
            return {name: self.resolve(inner) for name, inner in told.items()}
        if isinstance(told, list):
            return [self.resolve(inner) for inner in told]
        return told

    def headers(self, request: Request) -> dict[str, str]:
        if request.path.startswith("/agent/") and request.who < 10:
            key = self.keys[request.who % len(self.keys)]
            return {"authorization": f"Bearer {tasktokens.derive(rigs.SECRET, key)}", "oarlock-task": str(key)}
        name = ["root", "root", "root", "root", "ann", "ann", "ann", "bob", "vera", "vera"][request.who % 10]
        return {"authorization": f"Bearer {self.rig.tokens[name]}"} if request.who < 11 else {}

    async def send(self, request: Request) -> None:
        path = request.path
        for name, told in request.values.items():
            path = path.replace("{" + name + "}", quote(str(self.resolve(told)), safe="", errors="replace"))
        query = "&".join(
            f"{quote(str(name), errors='replace')}={quote(said(one), errors='replace')}"
            for name, told in self.resolve(request.query).items()
            for one in (told if isinstance(told, list) else [told])
        )
        body = mangled(request.body if isinstance(request.body, bytes) else self.encoded(request), request.mangle)
        status, answer = await self.exchange(request.method, path, query, self.headers(request), body)
        self.sent += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        shown = f"{request.method} {path}?{query}\n{body[:2000]!r}\n{status} {answer[:2000]!r}\n{self.rig.reports[-1:]}"
        assert status < 500 or (status, path) == (503, "/readyz"), shown
        if status >= 400 and request.method != "HEAD":
            error = json.loads(answer).get("error")
            assert error is None or (error["code"] and error["message"]), shown
            assert error is not None or status == 409, shown
        if status < 300:
            self.met.add(f"{request.method} {request.path}")
        self.learn(status, answer)

    def encoded(self, request: Request) -> bytes:
        return b"" if request.body is None else json.dumps(self.resolve(request.body)).encode("utf-8", "replace")

    def learn(self, status: int, answer: bytes) -> None:
        """Later requests speak of the objects that this one made."""
        if status not in (200, 201) or not answer.startswith(b"{") or b"\n" in answer.strip():
            return
        made = json.loads(answer)
        for name, pool in (("id", "jobs"), ("digest", "digests"), ("sha256", "hashes")):
            if isinstance(made.get(name), str) and len(self.pools[pool]) < 50:
                self.pools[pool].append(made[name])

    async def exchange(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Return the bytes of a socket. After a moment the client leaves; the answer must then come to its end."""
        from urllib.parse import unquote

        left = asyncio.Event()
        status, parts = 0, []
        incoming = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            for message in incoming:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        told = {"host": "127.0.0.1", "content-length": str(len(body)), **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in told.items()],
            "client": ("127.0.0.1", 1),
        }
        answering = asyncio.create_task(self.rig.app(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.wait((answering,), timeout=LOOK_S)
        left.set()
        done, _ = await asyncio.wait((answering,), timeout=ANSWER_S)
        assert done, f"{method} {path}?{query} hangs"
        await answering
        assert status, f"{method} {path}?{query} was not answered"
        return status, b"".join(parts)


def said(told: Any) -> str:
    return told if isinstance(told, str) else json.dumps(told)


def mangled(body: bytes, how: int) -> bytes:
    return {0: body, 1: body[: len(body) // 2], 2: body + b"}", 3: body.replace(b'"', b"\xff", 1)}[how]


@pytest.fixture
def fuzz(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Fuzz]]:
    with asyncio.Runner() as runner:
        made = Fuzz(tmp_path)
        living = made.rig.running()
        runner.run(living.__aenter__())
        runner.run(made.prepare())
        yield runner, made
        runner.run(living.__aexit__(None, None, None))


def run(fuzz: tuple[asyncio.Runner, Fuzz], examples: int, seed: int = 0) -> None:
    runner, made = fuzz
    print(f"SEED={seed}")

    @hypothesis.seed(seed)
    @hypothesis.settings(
        derandomize=False,
        database=None,
        max_examples=examples,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],  # the server remembers: the same request may be answered otherwise
    )
    @hypothesis.given(st.lists(REQUEST, min_size=REQUESTS, max_size=REQUESTS))
    def send(requests: list[Request]) -> None:
        async def all_of_them() -> None:
            for request in requests:
                await made.send(request)

        runner.run(all_of_them())

    send()
    assert made.sent >= examples * REQUESTS
    told = dict(sorted(made.statuses.items()))
    print(f"{made.sent} requests: {told}")
    good = sum(count for status, count in told.items() if status < 300)
    assert good > made.sent // 20, f"hardly one was good: {told}"
    # Without an object store its routes cannot answer well: tests/api/agents/test_checkpoint_objects.py has one.
    able = {f"{method} {path}" for method, path, _ in OPERATIONS if "/checkpoints/objects" not in path}
    unmet = able - made.met
    print(f"{len(unmet)} of {len(able)} operations were never answered well")
    # Hypothesis also draws constants of the modules that are loaded, so the number differs from run to run.
    assert len(unmet) <= len(able) // 3, f"these never answered well: {unmet}"


@pytest.mark.long
def test_three_thousand_requests_and_no_5xx(fuzz: tuple[asyncio.Runner, Fuzz]) -> None:
    run(fuzz, 3_000 // REQUESTS)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_twenty_thousand_requests_and_no_5xx(fuzz: tuple[asyncio.Runner, Fuzz]) -> None:
    run(fuzz, 20_000 // REQUESTS, seed=int(os.environ.get("SEED") or secrets.randbits(32)))
