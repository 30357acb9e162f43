"""Access to a cluster: its address, its certificate authority, and the identity of the caller.

A kubeconfig names a cluster and a user; inside a pod the service account's mounted files do. Tokens that end are read
again: a service account's from its file, a plugin's by running the plugin. Source: the package `clientcmd` of client-go
and KEP 541 (exec plugins).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from oarlock.backends.kubernetes.apiserver import proxies
from oarlock.spec import errors

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG = "~/.kube/config"
REREAD_S = 60.0
"""How often a token's file is read again: a projected token is replaced long before its end."""
PLUGIN_S = 60.0
"""The longest time that a credential plugin may take."""
EARLY_S = 30.0
"""A plugin's token is replaced so long before its end."""


class Identity(Protocol):
    """The caller, as headers of its requests."""

    async def headers(self) -> Mapping[str, str]: ...

    def refused(self) -> bool:
        """Take note that the server did not accept the headers (401). Return whether the next ones may be others."""
        ...


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`host_name` is the name that the server's certificate must bear, where the address does not say it. `proxy` is
    the URL of an HTTP proxy on the way. `inside` says that this process runs in a pod of the cluster.
    """

    server: str
    identity: Identity
    tls: ssl.SSLContext | None = None
    namespace: str = "default"
    host_name: str | None = None
    proxy: str | None = None
    ca_pem: str = ""
    inside: bool = False


class Fixed:
    """Headers that never change."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def refused(self) -> bool:
        return False


class TokenFile:
    """A token that another program keeps current in a file."""

    def __init__(self, path: Path, more: Mapping[str, str], monotonic: Callable[[], float]) -> None:
        self._path = path
        self._more = more
        self._monotonic = monotonic
        self._token = ""
        self._read_at = 0.0

    async def headers(self) -> Mapping[str, str]:
        if not self._token or self._monotonic() - self._read_at > REREAD_S:
            self._token, self._read_at = _text(self._path).strip(), self._monotonic()
        return {**self._more, "Authorization": f"Bearer {self._token}"}

    def refused(self) -> bool:
        self._token = ""
        return True


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    """The `exec` of a kubeconfig's user."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class _Issued(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: dt.datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _Issued | None = None


class Plugin:
    """A program that prints an ExecCredential: a token, a client certificate, or both."""

    def __init__(
        self,
        said: _Exec,
        cluster: Mapping[str, object],
        *,
        tls: ssl.SSLContext | None,
        environ: Mapping[str, str],
        more: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        self._said = said
        self._cluster = cluster
        self._tls = tls
        self._environ = environ
        self._more = more
        self._clock = clock
        self._issued: _Issued | None = None
        self._one_at_a_time = asyncio.Lock()

    async def headers(self) -> Mapping[str, str]:
        async with self._one_at_a_time:
            if self._issued is None or self._ended(self._issued):
                self._issued = await self._run()
        token = {"Authorization": f"Bearer {self._issued.token}"} if self._issued.token else {}
        return {**self._more, **token}

    def refused(self) -> bool:
        self._issued = None
        return True

    def _ended(self, issued: _Issued) -> bool:
        end = issued.expiration_timestamp
        return end is not None and end.timestamp() - EARLY_S <= self._clock()

    async def _run(self) -> _Issued:
        """Run the command and return what it issued. Raise Unauthenticated."""
        said = self._said
        spec: dict[str, object] = {"interactive": False}
        if said.provide_cluster_info:
            spec["cluster"] = self._cluster
        request = {"apiVersion": said.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**self._environ, **{pair["name"]: pair["value"] for pair in said.env or ()}}
        env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(request).decode()
        try:
            process = await asyncio.create_subprocess_exec(
                said.command,
                *(said.args or ()),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._failed(errors.words(error)) from error
        try:
            async with asyncio.timeout(PLUGIN_S):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise self._failed(f"it did not end within {PLUGIN_S:.0f} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            words = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise self._failed(words[0])
        return self._understood(out)

    def _understood(self, out: bytes) -> _Issued:
        try:
            issued = msgspec.json.decode(out, type=_ExecCredential).status
        except msgspec.MsgspecError as error:
            raise self._failed("its output is not an ExecCredential") from error
        if issued is None:
            raise self._failed("its output has no status")
        if issued.client_certificate_data and issued.client_key_data and self._tls is not None:
            _load_pair(self._tls, issued.client_certificate_data.encode(), issued.client_key_data.encode())
        return issued

    def _failed(self, why: str) -> errors.Unauthenticated:
        hint = self._said.install_hint or "Run it by hand, and see what it lacks."
        return errors.Unauthenticated(f"the credential plugin {self._said.command} failed: {why}", hint=hint)


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, object] | None = None
    act_as: str = msgspec.field(default="", name="as")
    act_as_groups: list[str] | None = msgspec.field(default=None, name="as-groups")


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    name: str = ""
    cluster: _Cluster | None = None
    user: _User | None = None
    context: _Context | None = None


class _Kubeconfig(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None
    current_context: str = ""


class _File(msgspec.Struct, frozen=True):
    """One kubeconfig and its folder: paths in it are relative to that."""

    config: _Kubeconfig
    folder: Path

    def named(self, kind: str, name: str) -> _Named | None:
        return next((one for one in getattr(self.config, kind) or () if one.name == name), None)


def find(
    environ: Mapping[str, str],
    *,
    context: str | None = None,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
    mounted: Path = SERVICE_ACCOUNT,
) -> Access:
    """Return the access that KUBECONFIG names, else the pod's service account, else ~/.kube/config.

    Raises InvalidInput where the credentials cannot be used, NotFound where there are none.
    """
    said = environ.get("KUBECONFIG", "")
    inside = bool(environ.get("KUBERNETES_SERVICE_HOST")) and (mounted / "token").exists()
    if not said and inside:
        return in_cluster(environ, mounted, monotonic)
    names = said.split(os.pathsep) if said else [str(Path(DEFAULT_KUBECONFIG).expanduser())]
    paths = [path for name in names if name and (path := Path(name).expanduser()).exists()]
    if not paths:
        raise errors.NotFound(
            f"no credentials for a cluster: {' and '.join(names)} is not there, and this is not a pod.",
            hint="Name a kubeconfig: export KUBECONFIG=FILE",
        )
    return from_kubeconfig(paths, environ, context=context, clock=clock, monotonic=monotonic)


def in_cluster(environ: Mapping[str, str], mounted: Path, monotonic: Callable[[], float]) -> Access:
    """Return the access of this pod's service account. No proxy is on the way to a Service of its own cluster."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    ca_pem = _text(mounted / "ca.crt")
    namespace = mounted / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        identity=TokenFile(mounted / "token", {}, monotonic),
        tls=_trusting(ca_pem),
        namespace=_text(namespace).strip() if namespace.exists() else "default",
        ca_pem=ca_pem,
        inside=True,
    )


def from_kubeconfig(
    paths: list[Path],
    environ: Mapping[str, str],
    *,
    context: str | None,
    clock: Callable[[], float],
    monotonic: Callable[[], float],
) -> Access:
    """Return the access of a context, by default the current one. The first file that names a thing wins."""
    files = [_File(_parsed(path), path.parent) for path in paths]
    wanted = context or next((file.config.current_context for file in files if file.config.current_context), "")
    chosen, _ = _pick(files, "contexts", wanted)
    if chosen.context is None:
        raise errors.InvalidInput(f"the context {wanted!r} of the kubeconfig is empty", hint="kubectl config view")
    named_cluster, cluster_folder = _pick(files, "clusters", chosen.context.cluster)
    cluster = named_cluster.cluster or _Cluster()
    user, user_folder = _User(), Path()
    if chosen.context.user:
        named_user, user_folder = _pick(files, "users", chosen.context.user)
        user = named_user.user or _User()
    if not cluster.server:
        raise errors.InvalidInput(
            f"the cluster {chosen.context.cluster!r} of the kubeconfig names no server", hint="kubectl config view"
        )
    ca = _data_or_file(cluster.certificate_authority_data, cluster.certificate_authority, cluster_folder)
    tls = None
    if cluster.server.startswith("https://"):
        tls = _trusting(ca.decode() if ca else "", verified=not cluster.insecure_skip_tls_verify)
        certificate = _data_or_file(user.client_certificate_data, user.client_certificate, user_folder)
        key = _data_or_file(user.client_key_data, user.client_key, user_folder)
        if certificate and key:
            _load_pair(tls, certificate, key)
    info = {"server": cluster.server, "certificate-authority-data": base64.b64encode(ca or b"").decode()}
    return Access(
        server=cluster.server.rstrip("/"),
        identity=_identity(user, user_folder, tls, info, environ, clock, monotonic),
        tls=tls,
        namespace=chosen.context.namespace or "default",
        host_name=cluster.tls_server_name or None,
        proxy=_proxy(cluster, environ),
        ca_pem=ca.decode() if ca else "",
    )


def _proxy(cluster: _Cluster, environ: Mapping[str, str]) -> str | None:
    """Return the proxy on the way to the cluster, or None. Raises InvalidInput for one that cannot be used."""
    if cluster.proxy_url:
        return proxies.checked(cluster.proxy_url, "`proxy-url` of the kubeconfig")
    return proxies.of(cluster.server, environ)


def _identity(
    user: _User,
    folder: Path,
    tls: ssl.SSLContext | None,
    cluster: Mapping[str, object],
    environ: Mapping[str, str],
    clock: Callable[[], float],
    monotonic: Callable[[], float],
) -> Identity:
    if user.act_as_groups:
        raise errors.InvalidInput(
            "a kubeconfig that acts as groups is not supported", hint="Name a user that has the rights itself."
        )
    more = {"Impersonate-User": user.act_as} if user.act_as else {}
    if user.token:
        return Fixed({**more, "Authorization": f"Bearer {user.token}"})
    if user.token_file:
        return TokenFile(folder / user.token_file, more, monotonic)
    if user.exec is not None:
        return Plugin(_located(user.exec, folder), cluster, tls=tls, environ=environ, more=more, clock=clock)
    if user.auth_provider is not None:
        raise errors.InvalidInput(
            "the kubeconfig has an `auth-provider`, which Kubernetes removed in 1.26",
            hint="Make a kubeconfig with a credential plugin (`exec`): the cloud's own tool writes one.",
        )
    if user.username:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return Fixed({**more, "Authorization": f"Basic {pair}"})
    return Fixed(more)


def _located(said: _Exec, folder: Path) -> _Exec:
    """Return the command with its whole path: one with a slash is relative to the kubeconfig."""
    if "/" not in said.command:
        return said
    return msgspec.structs.replace(said, command=str(folder / said.command))


def _pick(files: list[_File], kind: str, name: str) -> tuple[_Named, Path]:
    for file in files:
        if (found := file.named(kind, name)) is not None:
            return found, file.folder
    raise errors.InvalidInput(
        f"the kubeconfig has no {name!r} among its {kind}",
        hint="kubectl config get-contexts lists the contexts; kubectl config use-context chooses one.",
    )


def _parsed(path: Path) -> _Kubeconfig:
    try:
        return msgspec.convert(yaml.safe_load(_text(path)) or {}, _Kubeconfig)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise errors.InvalidInput(f"{path} is not a kubeconfig: {error}", hint="kubectl config view") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidInput(
            f"{path} cannot be read: {errors.words(error)}.", hint="Check the file and its rights."
        ) from error


def _data_or_file(data: str, name: str, folder: Path) -> bytes | None:
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise errors.InvalidInput(
                f"the kubeconfig has data that are not base64: {error}", hint="kubectl config view --raw"
            ) from error
    return _text(folder / name).encode() if name else None


def _trusting(ca_pem: str, *, verified: bool = True) -> ssl.SSLContext:
    """Return the settings of TLS: trust in that authority alone, else in the system's."""
    try:
        context = ssl.create_default_context(cadata=ca_pem or None)
    except (ssl.SSLError, ValueError) as error:
        raise errors.InvalidInput(
            "the cluster's certificate authority is not a PEM certificate", hint="kubectl config view --raw"
        ) from error
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate. OpenSSL reads it from files only."""
    with _briefly(certificate) as first, _briefly(key) as second:
        try:
            context.load_cert_chain(first, second)
        except (ssl.SSLError, OSError) as error:
            raise errors.InvalidInput(
                f"the client certificate cannot be used: {errors.words(error)}", hint="kubectl config view --raw"
            ) from error


@contextlib.contextmanager
def _briefly(content: bytes) -> Iterator[str]:
    """Make a file with this content that only its owner can read, and remove it afterwards."""
    fd, name = tempfile.mkstemp(prefix="oarlock-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
