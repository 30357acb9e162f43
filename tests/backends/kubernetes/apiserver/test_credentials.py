"""Kubeconfigs, service accounts and credential plugins, as kubectl understands them."""

from __future__ import annotations

import base64
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from oarlock.backends.kubernetes.apiserver import credentials
from oarlock.spec import errors


def written(folder: Path, user: object, name: str = "config", **cluster: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def found(path: Path | str, now: list[float] | None = None, **environ: str) -> credentials.Access:
    clock = now if now is not None else [0.0]
    return credentials.find(
        {"KUBECONFIG": str(path), **environ}, clock=lambda: clock[0], monotonic=lambda: clock[0], mounted=Path("/none")
    )


async def headers(access: credentials.Access) -> Mapping[str, str]:
    return await access.identity.headers()


async def test_a_token_and_the_context(tmp_path: Path) -> None:
    access = found(written(tmp_path, {"token": "secret"}))
    assert (access.server, access.namespace) == ("https://10.0.0.1:6443", "team")
    assert await headers(access) == {"Authorization": "Bearer secret"}


async def test_a_password_and_another_user_to_act_as(tmp_path: Path) -> None:
    access = found(written(tmp_path, {"username": "ann", "password": "pw", "as": "bob"}))
    pair = base64.b64encode(b"ann:pw").decode()
    assert await headers(access) == {"Authorization": f"Basic {pair}", "Impersonate-User": "bob"}


async def test_a_token_file_is_relative_to_the_kubeconfig_and_read_again(tmp_path: Path) -> None:
    now = [0.0]
    path = written(tmp_path / "there", {"tokenFile": "token"})
    (tmp_path / "there" / "token").write_text("first\n")
    access = found(path, now)
    assert await headers(access) == {"Authorization": "Bearer first"}
    (tmp_path / "there" / "token").write_text("second\n")
    assert await headers(access) == {"Authorization": "Bearer first"}
    now[0] += credentials.REREAD_S + 1
    assert await headers(access) == {"Authorization": "Bearer second"}
    (tmp_path / "there" / "token").write_text("third\n")
    assert access.identity.refused(), "a refused token is read again at once"
    assert await headers(access) == {"Authorization": "Bearer third"}


PLUGIN = """\
import json, os, sys
count = int(open("count").read()) + 1 if os.path.exists("count") else 1
open("count", "w").write(str(count))
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["kind"] == "ExecCredential" and info["spec"]["interactive"] is False
status = {"token": os.environ["WHO"] + str(count), "expirationTimestamp": "1970-01-01T00:10:00Z"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


async def test_a_plugin_is_run_again_before_its_token_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    said = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": [str(tmp_path / "plugin.py")],
        "env": [{"name": "WHO", "value": "ann"}],
    }
    now = [0.0]
    access = found(written(tmp_path, {"exec": said}), now)
    assert await headers(access) == {"Authorization": "Bearer ann1"}
    assert await headers(access) == {"Authorization": "Bearer ann1"}
    now[0] = 600.0 - credentials.EARLY_S + 1
    assert await headers(access) == {"Authorization": "Bearer ann2"}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('not logged in')", "not logged in"),
        ("print('hello')", "not an ExecCredential"),
        ("print('{}')", "no status"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_its_words(tmp_path: Path, script: str, words: str) -> None:
    said = {"apiVersion": "v1", "command": sys.executable, "args": ["-c", script], "installHint": "Install it."}
    access = found(written(tmp_path, {"exec": said}))
    with pytest.raises(errors.Unauthenticated, match=words) as refused:
        await headers(access)
    assert refused.value.hint == "Install it."


async def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    access = found(written(tmp_path, {"exec": {"apiVersion": "v1", "command": "./no-such-plugin"}}))
    with pytest.raises(errors.Unauthenticated, match="No such file"):
        await headers(access)


async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    authority = ssl.create_default_context().get_ca_certs(binary_form=True)[0]
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(authority))
    (tmp_path / "namespace").write_text("training")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = credentials.find(environ, clock=lambda: 0.0, monotonic=lambda: 0.0, mounted=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "training")
    assert await headers(access) == {"Authorization": "Bearer mounted"}


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    first = written(tmp_path, {"token": "a"}, "first")
    second = written(tmp_path, {"token": "b"}, "second", **{"tls-server-name": "ignored"})
    assert found(f"{tmp_path / 'missing'}:{first}:{second}").host_name is None


def test_names_of_proxy_and_server(tmp_path: Path) -> None:
    cluster = {
        "tls-server-name": "kube.example.com",
        "proxy-url": "http://proxy:3128",
        "insecure-skip-tls-verify": True,
    }
    access = found(written(tmp_path, {}, **cluster))
    assert (access.host_name, access.proxy) == ("kube.example.com", "http://proxy:3128")
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_NONE


BAD = {
    "a missing context": ("current-context: x", "no 'x' among its contexts"),
    "no YAML": ("{", "is not a kubeconfig"),
    "another shape": ("clusters: 3", "is not a kubeconfig"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=list(BAD))
def test_a_kubeconfig_that_cannot_be_used_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(errors.InvalidInput, match=words):
        found(tmp_path / "config")


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "removed in 1.26"),
        ({"as": "bob", "as-groups": ["g"]}, {}, "acts as groups"),
        ({"tokenFile": "missing"}, {"certificate-authority": "missing"}, "missing cannot be read"),
        ({}, {"certificate-authority-data": "?"}, "not base64"),
        ({}, {"certificate-authority-data": base64.b64encode(b"text").decode()}, "not a PEM certificate"),
        (
            {
                "client-certificate-data": base64.b64encode(b"a").decode(),
                "client-key-data": base64.b64encode(b"b").decode(),
            },
            {},
            "client certificate cannot be used",
        ),
    ],
)
def test_a_user_that_cannot_be_used_is_said(tmp_path: Path, user: object, cluster: dict, words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        found(written(tmp_path, user, **cluster))


def test_without_any_credentials_the_next_step_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match="no credentials"):
        found(tmp_path / "missing")
