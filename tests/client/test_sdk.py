"""Both clients against a server that listens: every verb, a lost server, exec."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client import driven, live

from oarlock.client import connection, requests
from oarlock.client.asynchronous import jobverbs as asynchronous
from oarlock.client.synchronous import jobverbs as synchronous
from oarlock.spec import bodies, errors, phases, plans


def code(directory: Path) -> Path:
    place = directory / "code"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    return place


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_a_job_from_its_submission_to_its_end(
    server: live.LiveServer, tmp_path: Path, new_client: driven.NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = code(tmp_path)
    with new_client() as client:
        assert client.plan({"command": "true"}).when == "now"
        job = client.run("python train.py", name="digits", roles={"worker": {"count": 2}}, directory=place)
        assert (job.name, job.phase, job.owner) == ("digits", phases.Phase.QUEUED, "root")
        assert job.snapshot is not None
        assert job.shell["PATH"], "a local job runs in this shell's environment"
        server.launch(job.id)
        server.process(job.id)
        server.print(job.id, "one\ntwo\n")
        assert [line.text for line in client.logs("digits")] == ["one", "two"]
        assert [line.text for line in client.logs("digits", tail=1)] == ["two"]
        assert [one.id for one in client.jobs()] == [job.id]
        assert client.jobs(phase="COMPLETED") == []
        events = client.events(job.id)
        assert client.events(job.id, kinds=("launched",)) == [one for one in events if one.kind == "launched"] != []
        for module in (asynchronous, synchronous):
            monkeypatch.setattr(module, "_PAGE", 1)
        assert client.events(job.id) == events, "page by page"
        assert client.why(job.id).lines
        server.end(job.id)
        assert client.wait(job.id, timeout_s=5).phase is phases.Phase.COMPLETED
        assert client.checkpoints(job.id) == []
        client.remove(job.id)
        with pytest.raises(errors.NotFound):
            client.job(job.id)


def test_a_job_is_changed_while_it_waits(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        client.run("true", name="digits", directory=None)
        after = client.set("digits", priority=80, pool="default")
        assert (after.spec.priority, after.pool) == (80, "default")
        assert client.job("digits").spec.priority == 80
        with pytest.raises(errors.InvalidInput, match="out of range"):
            client.set("digits", priority=-1)


def test_the_same_snapshot_is_sent_once(server: live.LiveServer, tmp_path: Path, new_client: driven.NewClient) -> None:
    from oarlock.client import packing

    with new_client() as client:
        packed = packing.pack(code(tmp_path), client.settings)
        assert client.upload(packed) is True
        assert client.upload(packed) is False


def test_the_same_key_is_the_same_job(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        one, other = (client.submit({"command": "true"}, directory=None, key="k") for _ in range(2))
        assert one.id == other.id
        with pytest.raises(errors.Conflict):
            client.submit({"command": "false"}, directory=None, key="k")


def test_intents_and_the_cluster(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        job = client.submit({"command": "true"}, directory=None)
        assert client.halt(job.id, "lunch").phase is phases.Phase.HALTED
        assert client.resume(job.id).phase is phases.Phase.QUEUED
        assert client.cancel(job.id).phase is phases.Phase.CANCELED
        with pytest.raises(errors.Conflict):
            client.resume(job.id)
        assert client.nodes()[0].node.capacity.gpus == 2
        assert [view.pool.name for view in client.pools()] == ["default"]
        assert client.usage(by="pool") == []
        assert client.server().user == "root"
        client.add_user("dora", "viewer")
        made = client.add_token("dora")
        with new_client(server.url, made.token) as dora:
            assert dora.server().user == "dora"
            begun = dora.begin_session(dora.login_code().code, "Firefox")
        with new_client(server.url, begun.secret) as pages:
            assert [(one.note, one.current) for one in pages.sessions()] == [("Firefox", True)]
            pages.end_session()
        client.remove_token("dora", made.sha256)
        assert {user.name for user in client.users()} >= {"root", "dora"}
        client.remove_user("dora")
        assert "dora" not in {user.name for user in client.users()}
        assert client.metrics(job.id).series[0].values == []
        client.shutdown()
        assert server.rig.shutdowns == 1


def test_secrets_the_queue_and_a_job_s_history(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        assert client.set_secret("hub-token", "hf_x").name == "hub-token"
        assert [secret.name for secret in client.secrets()] == ["hub-token"]
        client.remove_secret("hub-token")
        assert client.secrets() == []
        job = client.submit({"command": "true", "name": "digits"}, directory=None)
        assert [(row.name, row.phase) for row in client.queue()] == [("digits", phases.Phase.QUEUED)]
        assert (client.history().items, client.usage(by="day")) == ((), [])
        found = client.forecasts()
        assert [(one.name, one.when) for one in found.starts] == [("digits", plans.When.NOW)]
        server.launch(job.id)
        assert [decision.what for decision in client.decisions(job.id).items] == [bodies.What.ADMITTED]
        assert client.speed(job.id) == bodies.Speed(())


def test_errors_of_the_server_are_the_same_classes_here(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        with pytest.raises(errors.NotFound, match="oarlock ps"):
            client.job("nobody")
        with pytest.raises(errors.Unsupported) as raised:
            client.submit({"command": "true", "image": "x"}, directory=None)
        assert raised.value.path == "image"
        with pytest.raises(errors.Impossible, match=r"gpus|GPU"):
            client.submit({"command": "true", "roles": {"worker": {"gpus": 64}}}, directory=None)
    with new_client(server.url, "wrong") as stranger, pytest.raises(errors.Unauthenticated):
        stranger.jobs()


def test_a_followed_log_goes_on_after_a_lost_server(server: live.LiveServer, new_client: driven.NewClient) -> None:
    """The server dies in the middle of a line and comes back: every line once, and the return is told."""
    contacts: list[errors.OarlockError | None] = []
    texts: list[str] = []
    with new_client() as client:
        job = client.submit({"command": "true", "max_restarts": 0}, directory=None)
        server.launch(job.id)
        server.process(job.id)
        server.print(job.id, "one\ntwo\nthr")

        def follow() -> None:
            for line in client.logs(job.id, follow=True, on_contact=contacts.append):
                texts.append(line.text + ("" if line.partial else "\n"))

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        until(lambda: "".join(texts) == "one\ntwo\nthr")
        port = server.port
        server.stop()
        server.print(job.id, "ee\nfour\n")
        until(lambda: len(contacts) == 1)
        server.start(port)
        server.end(job.id)
        reader.join(10)
    assert not reader.is_alive()
    assert "".join(texts) == "one\ntwo\nthree\nfour\n"
    assert isinstance(contacts[0], errors.Unavailable)
    assert contacts[-1] is None


def test_a_stream_without_news_is_opened_again_without_a_word(
    server: live.LiveServer, monkeypatch: pytest.MonkeyPatch, new_client: driven.NewClient
) -> None:
    """A job that prints nothing for a minute is no lost server."""
    monkeypatch.setattr(connection, "STREAM_PAUSE_S", 0.2)
    contacts: list[errors.OarlockError | None] = []
    with new_client() as client:
        job = client.submit({"command": "true", "max_restarts": 0}, directory=None)
        opened = 0
        real = client._sender.content

        def counted(request: Any) -> Any:
            nonlocal opened
            opened += 1
            if opened == 3:
                server.end(job.id)
            return real(request)

        monkeypatch.setattr(client._sender, "content", counted)
        server.launch(job.id)
        server.process(job.id)
        assert list(client.logs(job.id, follow=True, on_contact=contacts.append)) == []
    assert opened >= 3
    assert contacts == []


def test_a_local_server_that_comes_back_elsewhere_is_found(
    server: live.LiveServer, new_client: driven.NewClient
) -> None:
    with new_client() as client:
        before = client.server().home
        port = server.port
        server.stop()
        server.start(0)
        assert server.port != port
        assert client.server().home == before


def test_following_ends_with_how_the_job_ended(server: live.LiveServer, new_client: driven.NewClient) -> None:

    with new_client() as client:
        job = client.submit({"command": "true", "max_restarts": 0}, directory=None)
        server.launch(job.id)
        server.process(job.id)
        server.end(job.id, 3)
        *_, last = client.log_items(job.id, requests.LogChoice(), follow=True)
        assert isinstance(last, bodies.Ended)
        assert last.phase is phases.Phase.FAILED


def test_a_refused_command_is_no_error_of_the_server(
    server: live.LiveServer, caplog: pytest.LogCaptureFixture, new_client: driven.NewClient
) -> None:
    with new_client() as client:
        job = client.submit({"command": "true"}, directory=None)
        with pytest.raises(errors.Conflict):
            client.exec(job.id, ["ls"])
    server.do(asyncio.sleep(0))  # the server has turned to something else since
    assert "handshake" not in caplog.text


def test_a_command_inside_a_task(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        job = client.submit({"command": "true"}, directory=None)
        with pytest.raises(errors.Conflict):
            client.exec(job.id, ["ls"])
        server.launch(job.id)
        server.process(job.id)
        found = client.exec(job.id, ["tr", "a"], stdin=b"x" * 100_000)
        assert (found.code, found.stdout, found.stderr) == (7, b"x" * 100_000, b"tr a")
        with client.exec_session(job.id, ["sh"], tty=True, rows=10, columns=20) as session:
            session.resize(5, 6)
            session.close_stdin()
            assert list(session.output())[-1].code == 7
        assert server.rig.executed[-1].sizes == [(5, 6)]
        with pytest.raises(errors.NotFound):
            client.exec("nobody", ["ls"])
    with new_client(server.url, "wrong") as stranger, pytest.raises(errors.Unauthenticated):
        stranger.exec(job.id, ["ls"])


def test_a_command_and_a_followed_log_end_with_their_token(
    server: live.LiveServer, caplog: pytest.LogCaptureFixture, new_client: driven.NewClient
) -> None:
    with new_client() as client:
        client.add_user("guest", "admin")
        token = client.add_token("guest")
        job = client.submit({"command": "true"}, directory=None)
        server.launch(job.id)
        server.process(job.id)
        server.print(job.id, "first\n")
        with new_client(server.url, token.token) as guest, guest.exec_session(job.id, ["cat"]) as session:
            said = iter(session.output())
            lines = iter(guest.log_items(job.id, requests.LogChoice(), follow=True))
            assert next(said).data == b"cat"
            assert next(lines).text == "first"
            client.remove_token("guest", token.sha256)
            with pytest.raises(errors.Unauthenticated):
                next(said)
            with pytest.raises(errors.Unauthenticated):
                next(lines)
            assert server.rig.executed[-1].killed
    assert "ASGI" not in caplog.text


def test_the_event_log_is_watched(server: live.LiveServer, new_client: driven.NewClient) -> None:
    with new_client() as client:
        job = client.submit({"command": "true"}, directory=None)
        seen = list(client.watch(after=0, timeout_s=0.2))
        assert ("submitted", job.id) in [(record.kind, record.job) for record in seen]
        assert list(client.watch(after=seen[-1].seq, timeout_s=0.1)) == []
