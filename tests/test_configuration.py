"""The settings of a server that runs its tasks in a cluster: what no pod could live with is refused at the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oarlock import configuration, main
from oarlock.backends.kubernetes import site
from oarlock.spec import errors, holdings
from oarlock.spec.cluster import profiles

CLUSTER = """
[server]
backend = "kubernetes"

[kubernetes]
namespace = "training"
server = "https://oarlock.example:7317"
image = "registry.example/oarlock:1"

[kubernetes.domains]
rack = "example.com/rack"
"""


CLASS = """
[kubernetes.node_classes.large]
cpus = 96
memory = "1Ti"
"""
CLUSTER += CLASS + "max = 3\n"


def told(home: Path, text: str) -> configuration.Settings:
    home.mkdir()
    (home / configuration.CONFIG_FILE).write_text(text)
    return configuration.read()


def test_the_table_of_the_cluster_is_read(home: Path) -> None:
    found = told(home, CLUSTER)
    assert found.backend == "kubernetes"
    assert found.kubernetes.namespace == "training"
    assert found.kubernetes.domain_labels == {**site.DOMAINS, "rack": "example.com/rack"}
    assert found.kubernetes.gpu_resource == "nvidia.com/gpu"


def test_the_scheduler_gets_the_classes_of_nodes_with_their_prices(home: Path) -> None:
    more = 'gpus = 2\ngpu_type = "h100"\ngpu_memory = "80Gi"\ndomains = { zone = "a", rack = 4 }\n'
    found = told(home, CLUSTER + more + "[prices]\nmachines = { large = 32.0 }\n")
    (one,) = found.rules.node_classes
    assert (one.name, one.most, one.shared) == ("large", 3, {"rack": 4})
    assert one.model.capacity == holdings.Resources(96_000, 1 << 40, 2)
    assert [(device.type, device.memory_bytes) for device in one.model.devices] == [("h100", 80 << 30)] * 2
    assert (one.model.price_per_h, one.model.node_class) == (32.0, "large")
    assert [one.node(index).domains for index in (3, 4)] == [
        {"zone": "a", "rack": "large/0"},
        {"zone": "a", "rack": "large/1"},
    ]


def test_the_scheduler_gets_the_constraints_of_the_profiles(home: Path) -> None:
    """It gets only those taints and labels of a class that decide between gangs, and no profile without constraints."""
    text = """
taints = ["team=red:NoSchedule", "nvidia.com/gpu:NoSchedule", "other:NoExecute"]
labels = { disk = "ssd", os = "linux" }

[kubernetes.profiles.red]
pools = ["red"]
tolerate = ["team=red"]
node_labels = { disk = "ssd" }

[kubernetes.profiles.data]
volumes = [{ claim = "data", mount = "/data" }]

[kubernetes.profiles.proxy]
env = { PROXY = "p" }
"""
    found = told(home, CLUSTER + text)
    data = profiles.Profile(claims=("data",))
    red = profiles.Profile(pools=("red",), tolerate=("team=red",), node_labels={"disk": "ssd"})
    assert found.rules.profiles == (data, red)
    model = found.rules.node_classes[0].model
    assert model.labels == {"disk": "ssd"}
    assert [(str(taint), taint.tolerable) for taint in model.taints] == [
        ("team=red:NoSchedule", True),
        ("other:NoExecute", False),
    ]


def test_a_class_of_nodes_serves_only_the_claims_of_devices_that_it_declares(home: Path) -> None:
    """A claim that no declared class serves would be a request for nodes in vain."""
    text = 'device_claims = ["mig"]\n[kubernetes.profiles.p]\ndevice_claims = { a = "mig", b = "gpu" }\n'
    found = told(home, CLUSTER + text)
    assert found.rules.profiles == (profiles.Profile(claims=("devices/mig", "devices/gpu")),)
    assert found.rules.node_classes[0].model.lacks == ("devices/gpu",)


def test_a_server_of_one_machine_has_no_profiles(home: Path) -> None:
    text = CLUSTER + '[kubernetes.profiles.red]\ntolerate = ["team"]\n'
    assert told(home, text.replace('"kubernetes"', '"local"')).rules.profiles == ()


def test_a_server_of_one_machine_adds_no_nodes(home: Path) -> None:
    assert told(home, CLUSTER.replace('"kubernetes"', '"local"')).rules.node_classes == ()


@pytest.mark.parametrize(
    ("change", "path", "hint"),
    [
        (('server = "https://oarlock.example:7317"\n', ""), "kubernetes.server", "inside the cluster"),
        (("https://oarlock", "oarlock"), "kubernetes.server", "http://HOST:PORT"),
        (
            ("[kubernetes]\n", '[kubernetes]\ncheckpoint_claim = "c"\ncheckpoint_url = "s3://b"\n'),
            "kubernetes.checkpoint_url",
            "Leave out",
        ),
        (('"kubernetes"', '"nomad"'), "backend", "local, kubernetes"),
        ((CLASS + "max = 3", CLASS + "max = 0"), "kubernetes.node_classes.large.max", "1 to"),
        (("1Ti", "much"), "kubernetes.node_classes.large", "2Gi"),
        (("max = 3", "max = 3\ndomains = { rack = 0 }"), "kubernetes.node_classes.large.domains", "from 1"),
        (("max = 3", 'max = 3\ntaints = ["team=red"]'), "kubernetes.node_classes.large.taints", "KEY=VALUE:EFFECT"),
        (("max = 3", "max = 3\ngpus = -1"), "kubernetes.node_classes.large.gpus", "0 to"),
        (
            ("max = 3", 'max = 3\n[kubernetes.namespaces.training]\nuser = "ann"'),
            "kubernetes.namespaces.training",
            "a namespace for the user",
        ),
    ],
)
def test_settings_without_which_no_pod_runs_are_refused(
    change: tuple[str, str], path: str, hint: str, home: Path
) -> None:
    with pytest.raises(errors.InvalidInput) as raised:
        told(home, CLUSTER.replace(*change))
    assert raised.value.path == path
    assert hint in (raised.value.hint or "")


def test_an_unknown_setting_of_the_cluster_is_refused_by_its_path(home: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"namespce.*\$\.kubernetes"):
        told(home, CLUSTER.replace("namespace", "namespce"))


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("", "https://oarlock.example:7317"),
        ('[server]\nurl = "https://front.example"', "https://front.example"),
        ('[server]\nhost = "10.0.0.5"\ntls_cert = "CERT"\ntls_key = "CERT"', "https://10.0.0.5:7317"),
    ],
)
def test_pods_get_their_own_url_else_the_one_of_the_server(more: str, url: str, home: Path) -> None:
    text = CLUSTER
    if more:
        text = text.replace("[server]", more).replace('server = "https://oarlock.example:7317"\n', "")
    found = told(home, text.replace("CERT", __file__))
    assert found.pods_url("https://10.0.0.5:7317") == url


@pytest.mark.parametrize(
    ("server", "host"),
    [
        ("http://10.0.0.5:7418", "10.0.0.5"),
        ("https://Front.Example/x", "front.example"),
        ("http://[fd00::1]:80", "[fd00::1]"),
    ],
)
def test_a_server_on_loopback_answers_to_the_name_that_pods_use(server: str, host: str, home: Path) -> None:
    """A proxy or a relay passes the Host header on; any other name is still refused (DNS rebinding)."""
    found = told(home, CLUSTER.replace("https://oarlock.example:7317", server)).hosts
    assert found == {"127.0.0.1", "localhost", "[::1]", host}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://fd00:10:96::1f", "https://[fd00:10:96::1f]"),
        ("https://fd00::1/oarlock", "https://[fd00::1]/oarlock"),
        ("https://[fd00::1]:7317", "https://[fd00::1]:7317"),
        ("https://10.96.0.7:7317", "https://10.96.0.7:7317"),
        ("https://oarlock.example", "https://oarlock.example"),
    ],
)
def test_a_bare_ipv6_address_of_a_service_gets_its_brackets(given: str, url: str, home: Path) -> None:
    """In deploy/ the URL is made from the variable in which Kubernetes tells the address of the Service."""
    assert configuration.read({"OARLOCK_HOME": str(home), "OARLOCK_URL": given}).url == url


def test_without_the_extra_the_server_says_how_to_get_it(home: Path) -> None:
    told(home, CLUSTER)
    program = "import sys; sys.modules['aiohttp'] = None; from oarlock import main; sys.exit(main.main([]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs the package aiohttp" in done.stderr
    assert "pip install 'oarlock[kubernetes]'" in done.stderr


def test_without_credentials_the_server_says_where_it_has_looked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "absent"))
    with pytest.raises(errors.OarlockError, match="absent"):
        main.serve(told(home, CLUSTER))
