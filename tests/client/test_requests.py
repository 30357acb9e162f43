"""Requests as values, the errors that come back, and further tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.client import driven

import oarlock
from oarlock.client import answers, failures, places, requests, settings
from oarlock.client.asynchronous import clients as asyncclients
from oarlock.client.synchronous import clients
from oarlock.spec import errors, jobfile, jobs

PLACE = places.Place(url="http://127.0.0.1:1", token="t", local=False)
JOB = jobs.Job(id="j-1", name="n", owner="o", spec=jobfile.JobSpec(command="true"), created_at=1.0)


def _remove_secret(name: str) -> object:
    return requests.remove_secret(name, False)


def test_a_job_s_name_can_never_become_another_path() -> None:
    for name in ("../users?x=1#y", "a/b", "..", ".", "", "a b", "a\n", "%2e%2e", "\x00", "ä"):
        for made in (requests.job, requests.why, requests.remove, requests.remove_pool, _remove_secret):
            with pytest.raises(errors.InvalidInput) as refused:
                made(name)
            assert refused.value.hint
    assert requests.job("01KA-x").target() == "/api/v1/jobs/01KA-x"
    for name in ("../users", "a/b", "..", ".", "", "a\n", "\x00"):
        with pytest.raises(errors.InvalidInput):
            requests.add_token(name)
    assert requests.add_token("CORP\\josé x").path == "/api/v1/users/CORP%5Cjos%C3%A9%20x/tokens"
    assert requests.remove_user("a.b@c").path == "/api/v1/users/a.b@c"
    assert requests.remove_token("a.b@c", "f0/..").path == "/api/v1/users/a.b@c/tokens/f0%2F.."


def test_queries_leave_out_parameters_that_were_not_given() -> None:
    choice = requests.LogChoice(tail=0, role="worker")
    assert requests.logs("j", choice).target() == "/api/v1/jobs/j/logs?role=worker&tail=0"
    assert requests.logs("j", choice, follow=True).query["follow"] == "true"
    assert requests.metrics("j", ["loss", "a&b"], 9).target() == "/api/v1/jobs/j/metrics?name=loss&name=a%26b&points=9"


@pytest.mark.parametrize("code", sorted(errors.tree()))
def test_every_error_comes_back_as_its_own_class(code: str) -> None:
    kind = errors.tree()[code]
    body = msgspec.json.encode({"error": {"code": code, "message": "m", "hint": "h", "path": "p", "detail": [1]}})
    found = failures.from_response(kind.status, body)
    assert type(found) is kind
    assert (found.message, found.hint, found.path, found.detail) == ("m", "h", "p", [1])


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"", errors.Unauthenticated),
        (404, b"<html>nginx</html>", errors.NotFound),
        (413, b'{"error": {"code": "from_the_future"}}', errors.TooLarge),
        (502, b"\xff\xfe", errors.Unavailable),
        (500, b"[" * 100_000, errors.OarlockError),
        (418, b"", errors.OarlockError),
    ],
)
def test_an_error_of_another_server_is_told_by_its_status(status: int, body: bytes, kind: type[Exception]) -> None:
    found = failures.from_response(status, body)
    assert type(found) is kind
    assert found.message


def test_why_no_server_answers_is_said_in_words(new_client: driven.NewClient) -> None:
    """The number of the system's error is its own affair."""
    told = settings.Settings(home=Path("/nowhere"), server="http://127.0.0.1:1", named="--server")
    with new_client(told=told) as asked, pytest.raises(errors.ServerNotFound) as error:
        asked.server()
    assert error.value.message == "no server answers at http://127.0.0.1:1 (Connection refused)"
    assert "--server" in error.value.hint


class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers in order, to both clients: a response, or an exception."""

    def __init__(self, *said: httpx.Response | Exception) -> None:
        self.said = list(said)
        self.heard: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._answer(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.heard.append(request)
        answer = self.said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def connected(
    new_client: driven.NewClient, home: Path, script: Script, pauses: list[float] | None = None
) -> clients.Client:
    told = settings.Settings(home=home, server="http://127.0.0.1:1", token="secret", named="--server")
    return new_client(told=told, transport=script, sleep=(pauses if pauses is not None else []).append)


def ok(value: Any) -> httpx.Response:
    return httpx.Response(200, content=msgspec.json.encode(value))


def test_a_submission_may_be_sent_again_because_it_has_a_key(home: Path, new_client: driven.NewClient) -> None:
    script = Script(httpx.ReadError("gone"), httpx.Response(503), ok(JOB))
    pauses: list[float] = []
    with connected(new_client, home, script, pauses) as sdk:
        assert sdk.submit({"command": "true"}, directory=None).id == "j-1"
    keys = {request.headers["idempotency-key"] for request in script.heard}
    assert len(script.heard) == 3
    assert len(keys) == 1, "another key would make another job"
    assert pauses == list(failures.LOST_PAUSES_S[:2])
    assert script.heard[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(("url", "told"), [("http://127.0.0.1:1", True), ("https://elsewhere.example", False)])
def test_the_shell_is_told_to_this_machine_only(home: Path, url: str, told: bool, new_client: driven.NewClient) -> None:
    script = Script(ok(JOB))
    with new_client(told=settings.Settings(home=home, server=url, token="t"), transport=script) as sdk:
        sdk.submit({"command": "true"}, directory=None)
    assert ("PATH" in msgspec.json.decode(script.heard[0].content)["shell"]) is told


def test_an_unrepeatable_request_is_not_repeated(home: Path, new_client: driven.NewClient) -> None:
    script = Script(httpx.ReadError("gone"))
    with connected(new_client, home, script) as sdk, pytest.raises(errors.Unavailable, match="was lost"):
        sdk.add_token("ann")
    assert len(script.heard) == 1


def test_a_request_that_was_never_sent_may_be_sent_again(home: Path, new_client: driven.NewClient) -> None:
    answer = {"token": "oar_x", "sha256": "", "user": "ann"}
    script = Script(httpx.ConnectError("refused"), ok(answer))
    with connected(new_client, home, script) as sdk:
        assert sdk.add_token("ann").token == "oar_x"


def test_a_missing_server_is_told_with_the_setting_that_named_it(home: Path, new_client: driven.NewClient) -> None:
    script = Script(*[httpx.ConnectError("refused")] * 3)
    with connected(new_client, home, script) as sdk, pytest.raises(errors.ServerNotFound, match="--server"):
        sdk.job("x")


def test_a_refusal_is_not_repeated(home: Path, new_client: driven.NewClient) -> None:
    script = Script(httpx.Response(404, content=b'{"error": {"code": "not_found", "message": "no such job"}}'))
    with connected(new_client, home, script) as sdk, pytest.raises(errors.NotFound, match="no such job"):
        sdk.job("x")


def test_an_answer_that_is_not_ours_is_an_error_with_a_next_step(home: Path, new_client: driven.NewClient) -> None:
    script = Script(httpx.Response(200, content=b"<html>"))
    with connected(new_client, home, script) as sdk, pytest.raises(errors.OarlockError, match="Oarlock server"):
        sdk.job("x")


def test_a_token_that_cannot_stand_in_a_header_is_said(home: Path, new_client: driven.NewClient) -> None:
    told = settings.Settings(home=home, server="http://127.0.0.1:1", token="tok\nen")
    with new_client(told=told, transport=Script()) as sdk, pytest.raises(errors.Unauthenticated):
        sdk.server()


def test_series_with_holes_are_read() -> None:
    found = failures.decoded(
        b'{"series": [{"task": "w", "process": 0, "name": "l", "points": '
        b'[{"step": 1, "at": 2, "value": null}, {"step": 2, "at": 3, "value": 4}]}]}',
        answers.Metrics,
    )
    assert found.series[0].values == [4.0]


def test_the_public_root_has_both_clients() -> None:

    assert oarlock.Client is clients.Client
    assert oarlock.AsyncClient is asyncclients.AsyncClient


def test_both_clients_have_the_same_verbs() -> None:

    def verbs(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert verbs(clients.Client) == verbs(asyncclients.AsyncClient)
