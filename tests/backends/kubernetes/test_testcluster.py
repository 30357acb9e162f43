"""The API server of the tests is shared: what one test does to its files must not reach another one's programs."""

from __future__ import annotations

from pathlib import Path

import yaml
from tests.backends.kubernetes.testcluster import apiserver


def test_a_kubeconfig_that_is_written_again_stays_whole_for_its_readers(tmp_path: Path) -> None:
    """The stock scheduler reads it once, while the next tests begin. One that found half of it would end, and all its
    tests would wait.
    """
    server = apiserver.ApiServer(tmp_path / "server")
    with server.kubeconfig().open() as reader:
        again = server.kubeconfig(server="https://127.0.0.1:1").read_text()
        read = reader.read()
    assert yaml.safe_load(read)["clusters"][0]["cluster"]["server"] == server.url
    assert yaml.safe_load(again)["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert sorted(one.name for one in server.folder.iterdir()) == ["kubeconfig-admin-token", "sa.key", "tokens.csv"]
