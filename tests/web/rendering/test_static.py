"""Static files: what is vendored is what was published, and our own scripts stay small."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib

import pytest
from tests.web import browsers

from oarlock.web.rendering import assets

VENDORED = assets.FOLDER / "vendor"
OWN_BYTES = 25_000


def test_vendored_files_match_their_checksums() -> None:
    told = tomllib.loads((VENDORED / "vendored.toml").read_text())
    files = {path.name for path in VENDORED.iterdir() if path.suffix in (".js", ".css")}
    assert {one["file"] for one in told.values()} == files
    for one in told.values():
        assert hashlib.sha256((VENDORED / one["file"]).read_bytes()).hexdigest() == one["sha256"], one["file"]
        assert {"version", "licence", "source"} <= one.keys()
        assert (VENDORED / one["licence_file"]).exists()


def test_our_own_scripts_are_small() -> None:
    own = b"".join(path.read_bytes() for path in sorted(assets.FOLDER.glob("*.js")))
    assert 500 < len(gzip.compress(own)) <= OWN_BYTES


def test_files_that_a_page_loads_as_one_are_whole_strict_and_no_files_of_their_own() -> None:
    found = assets.Assets()
    for whole, parts in assets.TOGETHER.items():
        file = found.find(found.path(whole))
        assert file is not None
        assert file.content == b"".join((assets.FOLDER / part).read_bytes() for part in parts)
        code = [line for line in file.content.decode().splitlines() if not line.startswith("//")]
        assert code[0] == '"use strict";'  # else the browser takes the whole file for sloppy code
        for part in parts:
            with pytest.raises(KeyError):
                found.path(part)


def test_the_script_of_the_live_updates_stops_no_other_one_where_it_fails() -> None:
    """An error in a file ends all that follows in it."""
    assert assets.TOGETHER["frame.js"][-1] == "live.js"


async def test_a_page_loads_few_files(rig: browsers.WebRig) -> None:
    """Each file costs a first visit a request, which other requests wait for."""
    async with rig.browser("ann") as browser:
        page = (await browser.get("/jobs")).text
        assert len(set(re.findall(r'"(/static/[^"]+)"', page))) <= 5


async def test_pages_and_files_are_compressed_and_streams_are_not(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        for path in ("/jobs", assets.Assets().path("htmx.min.js"), assets.Assets().path("oarlock.css")):
            packed = await browser.get(path, headers={"Accept-Encoding": "br, gzip"})
            plain = await browser.get(path, headers={"Accept-Encoding": "br, gzip;q=0"})
            assert packed.headers["content-encoding"] == "gzip"
            assert "content-encoding" not in plain.headers
            assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) == len(plain.content)
            assert packed.text == plain.text
        async with browser.stream("GET", "/live", headers=browsers.OURS | {"Accept-Encoding": "gzip"}) as answer:
            assert "content-encoding" not in answer.headers


def test_no_template_has_inline_code_or_style() -> None:
    found = sorted(assets.FOLDER.parent.glob("templates/**/*.html"))
    assert found
    for path in found:
        text = path.read_text()
        for forbidden in (" style=", "<style", " onclick", " onload", "hx-on", "| safe", "javascript:", "//cdn"):
            assert forbidden not in text, f"{path.name}: {forbidden}"
