"""The server's settings: flags, then OARLOCK_* variables, then `$OARLOCK_HOME/config.toml`. Read once, by main.

[server]
virtual_nodes = 4

[scheduler]
policy = "las"
round_s = 60

[scheduler.las]              # a policy's own parameters
first = 57600

[prices]                     # per hour, see `oarlock.spec.cluster.prices`
gpus = { h100 = 3.9 }

[kubernetes]                 # the cluster of `backend = "kubernetes"`, see `oarlock.backends.kubernetes.site`
namespace = "training"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from oarlock.backends.kubernetes import site
from oarlock.spec import errors, plans
from oarlock.spec.checkpoints import checkpointlocations
from oarlock.spec.cluster import nodes, prices, profiles
from oarlock.spec.input import quantities

DEFAULT_HOME = "~/.oarlock"
CONFIG_FILE = "config.toml"
TABLES = (
    "server",
    "scheduler",
    "prices",
    "kubernetes",
    "client",
)  # the last one is the client's: `client.settings` reads it
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PORT = re.compile(r":\d*$")
_URL = re.compile(r"https?://[^\s/]\S*", re.IGNORECASE)
_BARE = re.compile(r"(https?://)([0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*)(/.*)?", re.IGNORECASE)
"""An IPv6 address without brackets and without a port. Kubernetes tells the address of a Service so."""
LOCAL, KUBERNETES = "local", "kubernetes"
BACKENDS = (LOCAL, KUBERNETES)
_NO_FLAGS = ("home", "policies", "prices", "kubernetes")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Each field but the last three and `home` is also a flag (`--virtual-nodes`), a variable (OARLOCK_VIRTUAL_NODES)
    and a line of a table in config.toml: `[server]`, or `[scheduler]` for fields that `plans.Rules` has too.
    """

    home: Path
    backend: str = LOCAL
    host: str = "127.0.0.1"
    port: int = 0  # 0: the one it had before, else a free one
    database: str | None = None  # postgresql://...; else SQLite in the home
    standby: bool = False  # may lead a database after a server of another home, nothing of which runs any more
    virtual_nodes: int = 0
    virtual_gpus: int = 0
    cgroups: bool = True  # false: the local backend makes and uses no control groups
    tls_cert: str | None = None  # PEM; with `tls_key` the server speaks TLS
    tls_key: str | None = None
    tls_ca: str | None = None  # PEM that agents are to trust, where the system's authorities will not do
    url: str | None = None  # under which others reach it, where that is not http://HOST:PORT
    log_level: str = "INFO"
    snapshot_limit_bytes: int = 10 << 30
    private_jobs: bool = False  # users do not see the names of other users' jobs
    keep_jobs: str = "30d"  # after their end; then they go to the archive
    policy: str = plans.Rules().policy  # of pools that name none
    round_s: float = plans.Rules().round_s
    min_runtime_s: float = plans.Rules().min_runtime_s
    restart_s: float = plans.Rules().restart_s
    backfill: bool = plans.Rules().backfill
    policies: dict[str, dict[str, float]] = {}  # the tables `[scheduler.NAME]`
    prices: prices.Prices = prices.Prices()  # the table `[prices]`
    kubernetes: site.Site = site.Site()  # the table `[kubernetes]`

    @property
    def rules(self) -> plans.Rules:
        """How jobs are to be scheduled."""
        return plans.Rules(**{name: getattr(self, name) for name in plans.Rules.__struct_fields__})

    @property
    def node_classes(self) -> tuple[nodes.NodeClass, ...]:
        """The nodes that an autoscaler of the cluster may add, with their prices."""
        if self.backend != KUBERNETES:
            return ()
        declared = (one.declared(name, self.kubernetes) for name, one in self.kubernetes.node_classes.items())
        return tuple(msgspec.structs.replace(one, model=self.prices.priced(one.model)) for one in declared)

    @property
    def profiles(self) -> tuple[profiles.Profile, ...]:
        """The constraints of gangs on their nodes, by pool and owner."""
        return self.kubernetes.planned if self.backend == KUBERNETES else ()

    @property
    def shown(self) -> dict[str, str]:
        """Return the settings as text for administrators; a database without its password."""
        told = {name: getattr(self, name) for name in FLAGS}
        told["database"] = _without_password(self.database) if self.database else "SQLite in the home"
        return {name: str(value) for name, value in told.items() if value is not None}

    @property
    def hosts(self) -> frozenset[str] | None:
        """The host names that requests may use; None: any. On loopback this prevents DNS rebinding."""
        if self.host not in LOOPBACK:
            return None
        named = (urlsplit(url).netloc.rpartition("@")[2] for url in (self.url, self.kubernetes.server) if url)
        return frozenset({"127.0.0.1", "localhost", "[::1]", *(_PORT.sub("", name).lower() for name in named)})

    @property
    def claimed_checkpoints(self) -> str | None:
        """The path at which tasks in pods see the installation's volume for checkpoints, if there is one."""
        return self.kubernetes.checkpoint_path if self.kubernetes.checkpoint_claim else None

    @property
    def store_authorities(self) -> str:
        """The private authorities of object stores, as PEM."""
        return site.authorities_of_stores(self.kubernetes)

    @property
    def stored_checkpoints(self) -> str | None:
        """The name of the installation's place for checkpoints in an object store, if there is one."""
        return checkpointlocations.STORED if self.kubernetes.checkpoint_url else None

    def own_url(self, port: int, hostname: str) -> str:
        """Return the URL of a server that listens at this port of the machine `hostname`."""
        scheme = "https" if self.tls_cert else "http"
        host = hostname if self.host in ("0.0.0.0", "::") else self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def pods_url(self, own: str) -> str:
        """Return the URL by which pods reach the server. `own` is made from its host and port."""
        return self.kubernetes.server or self.url or own


def _without_password(url: str) -> str:
    """Return a URL of which only scheme, host and path are left: user and password may stand elsewhere, too."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:
        return "a URL that cannot be read"


FLAGS = tuple(name for name in Settings.__struct_fields__ if name not in _NO_FLAGS)
"""The fields that can be said by a flag or a variable."""


def read(environ: Mapping[str, str] = os.environ, flags: Mapping[str, str | int | None] | None = None) -> Settings:
    """Return the settings. Raises InvalidInput, with the place of an invalid value."""
    home = Path(environ.get("OARLOCK_HOME") or DEFAULT_HOME).expanduser().absolute()
    values: dict[str, Any] = _file(home / CONFIG_FILE)
    values |= {name: environ[f"OARLOCK_{name.upper()}"] for name in FLAGS if environ.get(f"OARLOCK_{name.upper()}")}
    values |= {name: value for name, value in (flags or {}).items() if value is not None}
    values["home"] = str(home)
    try:
        told = msgspec.convert(values, Settings, strict=False, dec_hook=lambda kind, raw: kind(raw))
    except msgspec.ValidationError as error:
        raise errors.InvalidInput(
            f"The server's settings cannot be used: {error}", hint=f"There are: {', '.join(FLAGS)}."
        ) from error
    if told.url is not None:
        told = msgspec.structs.replace(told, url=_BARE.sub(r"\1[\2]\3", told.url))
    _check(told)
    return told


def check_policies(rules: plans.Rules) -> None:
    """Check the policies. Raises InvalidInput for an unknown policy, or a parameter that it does not have."""
    from oarlock.scheduler.policies import contract, registry
    from oarlock.spec import holdings

    registry.named(rules.policy)
    for name, parameters in rules.policies.items():
        registry.named(name).wishes((), contract.Budget(amount=holdings.Resources()), 0.0, rules, parameters)


def _check_file(name: str, path: str | None) -> None:
    """Read now, or the server would fall over it later."""
    if path is None:
        return
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise errors.InvalidInput(
            f"{path} cannot be read: {errors.words(error)}.", path=name, hint="Name a PEM file, and check its rights."
        ) from error


def _check(told: Settings) -> None:
    if (told.tls_cert is None) != (told.tls_key is None):
        raise errors.InvalidInput("tls_cert and tls_key belong together.", hint="Give both, or none.")
    for name in ("tls_cert", "tls_key", "tls_ca"):
        _check_file(name, getattr(told, name))
    _check_file("kubernetes.store_ca", told.kubernetes.store_ca or None)
    if told.url is not None and not _URL.fullmatch(told.url):
        raise errors.InvalidInput(
            f"{told.url!r} is not the URL of a server.",
            path="url",
            hint="Write it as https://HOST or http://HOST:PORT.",
        )
    quantities.seconds(told.keep_jobs)
    if not 0 <= told.port < 65536:
        raise errors.InvalidInput(
            f"{told.port} is not a port.", path="port", hint="Use 1 to 65535, or 0 for a free one."
        )
    if told.log_level.upper() not in LOG_LEVELS:
        raise errors.InvalidInput(
            f"{told.log_level!r} is not a log level.", path="log_level", hint=f"There are: {', '.join(LOG_LEVELS)}."
        )
    for name in ("round_s", "min_runtime_s", "restart_s"):
        if not 0 <= getattr(told, name) <= quantities.MAX_SECONDS:
            raise errors.InvalidInput(f"{getattr(told, name)} is not a time.", path=name, hint="Give seconds, from 0.")
    if not (told.host in LOOPBACK or told.tls_cert or (told.url or "").startswith("https://")):
        raise errors.InvalidInput(
            f"At {told.host} other machines would send their tokens for everybody on the way to read.",
            path="host",
            hint="Give --tls-cert and --tls-key, or --url https://... where something in front of it speaks TLS.",
        )
    told.prices.check()
    check_policies(told.rules)
    if told.backend not in BACKENDS:
        raise errors.InvalidInput(
            f"{told.backend!r} is not a backend.", path="backend", hint=f"There are: {', '.join(BACKENDS)}."
        )
    if told.backend == KUBERNETES:
        _check_cluster(told)


def _check_cluster(told: Settings) -> None:
    """Refuse settings with which no pod could start or reach the server."""
    cluster = told.kubernetes
    told.node_classes  # noqa: B018  (it is checked when it is read)
    cluster.check_namespaces()
    cluster.check_profiles()
    if cluster.checkpoint_claim and cluster.checkpoint_url:
        raise errors.InvalidInput(
            "Checkpoints have one default place, a claim or an object store.",
            path="kubernetes.checkpoint_url",
            hint="Leave out `checkpoint_claim` or `checkpoint_url`.",
        )
    if cluster.server and not _URL.fullmatch(cluster.server):
        raise errors.InvalidInput(
            f"{cluster.server!r} is not a URL of a server.",
            path="kubernetes.server",
            hint="Write it as https://HOST or http://HOST:PORT.",
        )
    if told.host in LOOPBACK and not (cluster.server or told.url):
        raise errors.InvalidInput(
            f"Pods cannot reach a server that listens at {told.host} alone.",
            path="kubernetes.server",
            hint="Run the server inside the cluster (docs/kubernetes.md). Or let it listen at an address that pods "
            "reach, and name its URL: `server` in the table [kubernetes].",
        )


def _file(path: Path) -> dict[str, Any]:
    """Return the values in the tables of the file, by field."""
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise errors.InvalidInput(
            f"{path} cannot be read: {errors.words(error)}", hint="Correct it, or take it away."
        ) from error
    for name in tables:
        if name not in TABLES:
            raise errors.InvalidInput(
                f"{path}: {name!r} stands where only tables may stand, and there is no such table.",
                hint=f"Tables: {', '.join(f'[{table}]' for table in TABLES)}. A server's settings go below [server].",
            )
        if not isinstance(tables[name], dict):
            raise errors.InvalidInput(
                f"{path}: `{name}` is not a table.", hint=f"Write [{name}], then one setting a line."
            )
    scheduler = tables.get("scheduler", {})
    said = {name: value for name, value in scheduler.items() if not isinstance(value, dict)}
    known = [name for name in plans.Rules.__struct_fields__ if name in FLAGS]
    unknown = sorted(said.keys() - set(known))
    if unknown:
        raise errors.InvalidInput(
            f"{path}: the table `scheduler` has no {unknown[0]!r}.",
            hint=f"There are: {', '.join(known)}; and a table for each policy's own.",
        )
    policies = {name: value for name, value in scheduler.items() if isinstance(value, dict)}
    own = {"policies": policies, **{name: tables.get(name, {}) for name in ("prices", "kubernetes")}}
    return {**tables.get("server", {}), **said, **{name: table for name, table in own.items() if table}}
