"""The rest of docs/kubernetes.md against the server inside the cluster: jobs and pools by `kubectl`, secrets.

`tests/e2e/kubernetes/test_page.py` reads the same blocks with a server beside an API server. Here `kubectl apply` gives
the new settings to the Deployment, and `rollout status` waits for the pod that has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.documentation import blocks
from tests.node import conftest
from tests.node.conftest import Site

pytestmark = pytest.mark.node

TEAM = "team-a"


def part(begin: str, end: str) -> list[blocks.Block]:
    text = conftest.PAGE.read_text(encoding="utf-8")
    return [one for one in blocks.of(text[text.index(begin) : text.index(end)]) if one.language != "text"]


@pytest.fixture
def team(site: Site) -> Iterator[str]:
    """The namespace that the page makes. It is taken away afterwards."""
    yield TEAM
    site.kubectl("delete", "--ignore-not-found", "namespace", TEAM, check=False)


def test_the_page_is_read_on_against_the_server_inside(site: Site, team: str) -> None:
    settings, *rest = part("## Jobs by `kubectl`", "## Clusters of IPv6")
    generation = deployed(site)
    site.reads([settings], site.reader.clone / "examples" / "01-digits")
    assert deployed(site) > generation, "the new settings have replaced the pod of the server"
    site.forward()  # as the page says: a forwarded port ends with the pod
    said = site.reads(rest, site.reader.clone)
    assert re.search(r"^ranks +COMPLETED ", said, re.MULTILINE), said
    assert re.search(r"^research .* 16 ", said, re.MULTILINE), said
    (job,) = [one for one in site.json("ps", "--all")["items"] if (one["name"], one["owner"]) == ("ranks", "ann")]
    assert job["pool"] == "default"
    assert "this is rank 1 of 2" in site.do("logs", job["id"]).stdout
    assert [one["metadata"]["name"] for one in site.objects("oarlockjobs", "--namespace", team)] == []


def test_a_secret_of_the_cluster_reaches_a_job(site: Site) -> None:
    """By the commands of the page, with the output of the page."""
    begin, end = "## Secrets of the cluster", "## Profiles"
    text = conftest.PAGE.read_text(encoding="utf-8")
    (output,) = [one.text for one in blocks.of(text[text.index(begin) : text.index(end)]) if one.language == "text"]
    assert output in site.reads([one for one in part(begin, end) if one.language == "sh"], site.reader.work)


def deployed(site: Site) -> int:
    """Return how often the Deployment was changed, as far as its controller has seen it."""
    (found,) = site.objects("deployments", "--namespace", conftest.SERVER)
    return int(found["status"]["observedGeneration"])


def test_the_server_is_stopped_and_started_as_the_page_says(site: Site) -> None:
    (stop,) = re.findall(r"`kubectl ([^`]* scale deployment/oarlock --replicas 0)`", conftest.PAGE.read_text())
    site.kubectl(*stop.split())
    site.until(lambda: not site.objects("pods", "--namespace", conftest.SERVER), "the server has stopped")
    site.kubectl(*stop.split()[:-1], "1")
    site.forward()
    assert "digits" in site.do("ps", "--all").stdout, "nothing is lost"


def test_the_installation_is_removed_as_the_page_says(site: Site) -> None:
    """The last test of all: nothing of the installation is left in the cluster."""
    (delete,) = re.findall(r"`kubectl (delete --kustomize) \.` removes all of it", conftest.PAGE.read_text())
    site.kubectl(*delete.split(), str(site.reader.clone))
    kinds = "namespaces,clusterroles,clusterrolebindings,customresourcedefinitions"
    left = [one["metadata"]["name"] for one in site.objects(kinds)]
    assert left, "a cluster has some of its own"
    assert [name for name in left if "oarlock" in name] == []
