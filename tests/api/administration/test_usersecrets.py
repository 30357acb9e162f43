"""Secrets have owners: a user's jobs get their own, and those of the server that are shared with the user."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.api import rig as rigs
from tests.api.agents import test_agents

from oarlock.api import application
from oarlock.api.jobs import capabilities
from oarlock.api.security import jobsecrets, secretfiles
from oarlock.spec.access import kubernetessecrets

TOKEN = "hub-token"
HUB = {"secret": "hub", "key": "token"}


@pytest.fixture
def files(rig: rigs.Rig, tmp_path: Path) -> secretfiles.SecretFiles:
    """The secrets as the server has them, in place of the rig's."""
    files = secretfiles.SecretFiles(tmp_path / "secrets")
    for name in ("read", "listed", "put", "remove", "forget"):
        setattr(rig.secrets, name, getattr(files, name))
    return files


async def put(rig: rigs.Rig, who: str, **told: object) -> int:
    async with rig.as_user(who) as http:
        return (await http.put(f"/api/v1/secrets/{TOKEN}", json=told)).status_code


async def submit(rig: rigs.Rig, who: str) -> int:
    async with rig.as_user(who) as http:
        answer = await http.post("/api/v1/jobs", json=rigs.submission(secrets=[{"name": TOKEN}]))
    return answer.status_code


async def given(rig: rigs.Rig, who: str) -> str:
    """Return the secrets that a task of this user's job gets."""
    job = await rig.launch(await rig.submit(who, secrets=[{"name": TOKEN}]))
    return (await test_agents.register(rig, rigs.key_of(job)))["secrets"][TOKEN]["value"]


async def test_ones_own_secret_is_for_ones_own_jobs(
    rig: rigs.Rig, files: secretfiles.SecretFiles, tmp_path: Path
) -> None:
    assert await put(rig, "ann", value="of ann") == 200
    assert await given(rig, "ann") == "of ann"
    assert await submit(rig, "bob") == 422, "another user's"
    assert await submit(rig, "root") == 422, "an administrator's job gets no user's own"
    assert await put(rig, "bob", value="of bob") == 200
    assert (await given(rig, "bob"), await given(rig, "ann")) == ("of bob", "of ann")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "secrets").rglob("*") if path.is_file()} == {0}


async def test_the_servers_are_for_administrators_until_they_are_shared(
    rig: rigs.Rig, files: secretfiles.SecretFiles
) -> None:
    assert await put(rig, "root", value="of the server", server=True) == 200
    assert await given(rig, "root") == "of the server"
    assert await submit(rig, "ann") == 422
    assert await put(rig, "root", server=True, users=["ann"]) == 200, "the value stays"
    assert await given(rig, "ann") == "of the server"
    assert await submit(rig, "bob") == 422
    assert await put(rig, "root", server=True, everyone=True) == 200
    assert await given(rig, "bob") == "of the server"
    assert await put(rig, "bob", value="of bob") == 200
    assert await given(rig, "bob") == "of bob", "one's own comes first"
    assert sorted(files.values(TOKEN, "bob")) == ["of bob", "of the server"], "both are blanked"


async def test_a_secret_that_is_no_longer_shared_is_not_told_again(
    rig: rigs.Rig, files: secretfiles.SecretFiles
) -> None:
    await put(rig, "root", value="of the server", server=True, everyone=True)
    job = await rig.launch(await rig.submit("ann", secrets=[{"name": TOKEN}]))
    await put(rig, "root", server=True)
    async with rig.as_task(rigs.key_of(job)) as http:
        assert (await http.post("/agent/v1/register", json=test_agents.REGISTER)).status_code == 409


async def test_forbidden_uses_of_secrets_are_refused(rig: rigs.Rig, files: secretfiles.SecretFiles) -> None:
    await put(rig, "root", value="of the server", server=True)
    assert await put(rig, "ann", value="mine", server=True) == 403
    assert await put(rig, "ann", value="mine", everyone=True) == 422
    assert await put(rig, "vera", value="mine") == 403
    assert await put(rig, "ann", value="") == 422
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/secrets")).json()["items"] == [], "nobody has shared it"
        assert (await http.delete(f"/api/v1/secrets/{TOKEN}?server=true")).status_code == 403
        refused = await http.delete(f"/api/v1/secrets/{TOKEN}")
        assert refused.status_code == 404
        assert "--of-server" in refused.json()["error"]["hint"]
        refused = await http.put("/api/v1/secrets/..", json={"value": "x"})
        assert refused.status_code in (404, 405, 422)
    async with rig.as_user("root") as http:
        (told,) = (await http.get("/api/v1/secrets")).json()["items"]
        assert (told["name"], told["owner"]) == (TOKEN, "")
        assert "of the server" not in str(told)
        assert (await http.delete(f"/api/v1/secrets/{TOKEN}?server=true")).status_code == 204
    assert await submit(rig, "root") == 422


@pytest.fixture
def pods(rig: rigs.Rig) -> None:
    """Let the rig's tasks see the Secrets of a cluster."""
    words = (*rig.services.about.capabilities, capabilities.Capability.SECRET_REFERENCES)
    about = msgspec.structs.replace(rig.services.about, capabilities=words)
    rig.services = msgspec.structs.replace(rig.services, about=about)
    rig.app = application.make(rig.services)


async def listed(rig: rigs.Rig, who: str) -> list[dict[str, object]]:
    async with rig.as_user(who) as http:
        return list((await http.get("/api/v1/secrets")).json()["items"])


async def test_a_secret_of_the_server_may_refer_to_one_of_the_cluster(
    rig: rigs.Rig, files: secretfiles.SecretFiles, tmp_path: Path, pods: None
) -> None:
    """The server has the name, and no value. The last content that an administrator gives counts."""
    told = kubernetessecrets.Reference("hub", "token")
    assert await put(rig, "root", value="of the server", server=True) == 200
    assert await put(rig, "root", kubernetes=HUB, server=True, everyone=True) == 200
    assert files.read(TOKEN, "ann") == told
    assert files.values(TOKEN, "ann") == [], "the value is gone"
    assert [one["kubernetes"] for one in await listed(rig, "ann")] == [HUB]
    assert await put(rig, "root", server=True, users=["bob"]) == 200
    assert [one["kubernetes"] for one in await listed(rig, "bob")] == [HUB], "the reference stays"
    assert await listed(rig, "ann") == []
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "secrets").iterdir()} == {0}
    assert await put(rig, "root", value="of the server", server=True, users=["bob"]) == 200
    assert files.read(TOKEN, "bob") == "of the server"
    assert await put(rig, "root", kubernetes=HUB, server=True) == 200
    async with rig.as_user("root") as http:
        assert (await http.delete(f"/api/v1/secrets/{TOKEN}?server=true")).status_code == 204
    assert not list((tmp_path / "secrets").iterdir())


async def test_the_backend_must_know_the_secrets_of_a_cluster(rig: rigs.Rig, files: secretfiles.SecretFiles) -> None:
    assert await put(rig, "root", kubernetes=HUB, server=True, everyone=True) == 409
    reference = kubernetessecrets.Reference("hub", "token")
    files.put(TOKEN, reference, "", secretfiles.Sharing(everyone=True))  # the home was that of a server in a cluster
    async with rig.as_user("ann") as http:
        answer = await http.post("/api/v1/jobs", json=rigs.submission(secrets=[{"name": TOKEN}]))
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["path"] == "secrets[0].name"
    assert "tasks of the local backend do not see" in error["message"]
    assert await put(rig, "ann", value="of ann") == 200
    assert await given(rig, "ann") == "of ann", "one's own comes first, and has a value"


async def test_tasks_get_no_value_of_the_server_and_pods_the_reference(
    rig: rigs.Rig, files: secretfiles.SecretFiles, pods: None
) -> None:
    await put(rig, "root", kubernetes=HUB, server=True, users=["ann"])
    job = await rig.launch(await rig.submit("ann", secrets=[{"name": TOKEN, "as": "file"}]))
    answer = await test_agents.register(rig, rigs.key_of(job))
    assert answer["secrets"] == {TOKEN: {"as": "file", "value": None}}
    told = await jobsecrets.references(rig.store, files, job)
    assert list(map(str, told)) == [f"{TOKEN}=hub/token"]
    await put(rig, "root", kubernetes=HUB, server=True, users=["bob"])
    assert await jobsecrets.references(rig.store, files, job) == (), "it is not shared any more"


@pytest.mark.parametrize("name", ["j-01hf7yat00wzvc04bq-1-0f1e2d3c4b", "j-0abc-12-tensorboard"])
async def test_no_secret_of_gangs_can_be_named(
    rig: rigs.Rig, files: secretfiles.SecretFiles, pods: None, name: str
) -> None:
    """Neither over the API nor by a file that was put into the home."""
    async with rig.as_user("root") as http:
        told = {"kubernetes": {"secret": name, "key": "worker-0-1.json"}, "server": True}
        answer = await http.put(f"/api/v1/secrets/{TOKEN}", json=told)
    assert answer.status_code == 422
    assert "tokens of tasks" in answer.json()["error"]["message"]
    files.put(TOKEN, kubernetessecrets.Reference(name, "worker-0-1.json"), "", secretfiles.Sharing(everyone=True))
    assert await submit(rig, "ann") == 422


async def test_only_administrators_refer_to_secrets_of_the_cluster(
    rig: rigs.Rig, files: secretfiles.SecretFiles, pods: None
) -> None:
    assert await put(rig, "ann", kubernetes=HUB, server=True) == 403
    assert await put(rig, "ann", kubernetes=HUB) == 422
    assert await put(rig, "root", kubernetes=HUB) == 422, "it is one of the server's"
    assert await put(rig, "root", kubernetes=HUB, value="x", server=True) == 422
    assert await put(rig, "root", kubernetes={"secret": "hub"}, server=True) == 422
    assert await put(rig, "root", kubernetes={"secret": "../hub", "key": "x"}, server=True) == 422
    assert await listed(rig, "root") == []
