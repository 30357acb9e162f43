"""Secrets have owners: a user's jobs get their own, and those of the server that are shared with the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api import rig as rigs
from tests.api.agents import test_agents

from oarlock.api.security import secretfiles

TOKEN = "hub-token"


@pytest.fixture
def files(rig: rigs.Rig, tmp_path: Path) -> secretfiles.SecretFiles:
    """The secrets as the server has them, in place of the rig's."""
    files = secretfiles.SecretFiles(tmp_path / "secrets")
    for name in ("read", "listed", "put", "remove"):
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
        assert (await http.delete(f"/api/v1/secrets/{TOKEN}")).status_code == 404
        refused = await http.put("/api/v1/secrets/..", json={"value": "x"})
        assert refused.status_code in (404, 405, 422)
    async with rig.as_user("root") as http:
        (told,) = (await http.get("/api/v1/secrets")).json()["items"]
        assert (told["name"], told["owner"]) == (TOKEN, "")
        assert "of the server" not in str(told)
        assert (await http.delete(f"/api/v1/secrets/{TOKEN}?server=true")).status_code == 204
    assert await submit(rig, "root") == 422
