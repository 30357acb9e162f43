"""Names and lines of a megabyte, and lines that are not UTF-8: clear pages of a moderate size, from a real server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.e2e import shell as shells
from tests.web import browsers

LONG = 1_000_000
MOST_CHARACTERS = 3 * LONG
"""A page may have the megabyte that was typed, or as much text of a log."""
PROGRAM = f"""
    import sys

    out = sys.stdout.buffer
    out.write(b"before\\n" + b"x" * {LONG} + b" the end\\n")
    out.write(b"bad \\xff\\xfe\\x80 \\xed\\xa0\\x80 <b>bytes</b>\\n")
    out.write(b"\\xc3" * {LONG} + b"\\n")
    out.flush()
    sys.stderr.buffer.write(b"failed \\xff " + b"y" * {LONG} + b"\\n")
    sys.stderr.buffer.flush()
    sys.exit(3)
"""


class Loud(NamedTuple):
    """A browser that is logged in as an administrator, and a job whose output is oversized."""

    browser: httpx.Client
    job: str
    name: str


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loud]:
    shell = shells.Shell(tmp_path_factory.mktemp("user"))
    shell.do("up", "--detach")
    try:
        shell.write("loud.py", PROGRAM)
        made = shell.do("run", "--detach", "--name", "loud", "--max-restarts", "0", "--", "python", "loud.py")
        job = shell.wait_phase(made.stdout.strip(), "FAILED", "COMPLETED")
        assert (job["phase"], job["exit_code"]) == ("FAILED", 3)
        link = urlsplit(shell.do("ui", "--print").stdout.strip())
        url = f"{link.scheme}://{link.netloc}"
        ours = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
        with httpx.Client(base_url=url, headers=ours, timeout=240) as browser:
            code = parse_qs(link.fragment)["code"][0]
            assert browser.post("/login", data={"secret": code}).status_code == 303
            yield Loud(browser, job["id"], "n" * LONG)
    finally:
        shell.end_server()


def read(answer: httpx.Response) -> str:
    """The text of a page, which is valid and not too long."""
    assert len(answer.text) < MOST_CHARACTERS
    browsers.elements(answer.text)
    return browsers.text(answer.text)


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/", ["loud", "worker-0 exited with code 3", "yyy… (300 characters)"]),
        ("/jobs?column=where", ["loud"]),
        ("/jobs/{job}?sections=all", ["failed \ufffd yyy", "bad \ufffd\ufffd\ufffd ", "… (65,536 characters)"]),
        ("/jobs/{job}/ranks/worker-0", ["failed \ufffd yyy", "bad \ufffd\ufffd\ufffd ", "… (65,536 characters)"]),
        ("/jobs/{job}/log", ["failed \ufffd yyy", "… (65,536 characters)"]),
        ("/jobs/{job}/log?at=start", ["before", "bad \ufffd\ufffd\ufffd ", "<b>bytes</b>", "… (65,536 characters)"]),
        (
            "/jobs/{job}/log?q=the+end&wrap=yes&times=yes&apart=yes",
            ["Line 1 of 1 with this text.", "… (65,536 characters)"],
        ),
        ("/jobs/{job}/log?q=bytes%3C", ["Line 1 of 1 with this text.", "<b>bytes</b>"]),
        ("/jobs/{job}/log/lines?before=2000", ["bad \ufffd\ufffd\ufffd ", "… (65,536 characters)"]),
    ],
)
def test_a_page_shows_lines_of_a_megabyte_and_lines_that_are_not_utf_8(loud: Loud, path: str, texts: list[str]) -> None:
    answer = loud.browser.get(path.format(job=loud.job))
    assert answer.status_code == 200, answer.text[:2000]
    told = read(answer) if "/lines" not in path else answer.text
    assert [one for one in texts if one not in told] == []
    assert "<b>" not in answer.text.replace("<b>worker-0</b>", "").replace("<b>0</b>", "").replace("<b>1</b>", "")


def test_a_server_with_the_engine_offers_regular_expressions(loud: Loud) -> None:
    assert 'name="regex"' in loud.browser.get(f"/jobs/{loud.job}/log").text


def test_the_file_of_the_log_has_these_lines_whole(loud: Loud) -> None:
    answer = loud.browser.get(f"/jobs/{loud.job}/log.txt?stream=stdout")
    assert answer.status_code == 200
    first, long, bad, *_ = answer.content.split(b"\n")
    assert (first, long) == (b"before", b"x" * LONG + b" the end")
    assert bad.decode(errors="replace") == "bad \ufffd\ufffd\ufffd \ufffd\ufffd\ufffd <b>bytes</b>"


@pytest.mark.parametrize(
    ("path", "field", "form", "status"),
    [
        ("/jobs", "job", {"action": "cancel"}, 422),
        ("/jobs", "job", {"action": "remove", "sure": "yes"}, 422),
        ("/jobs", "action", {}, 422),
        ("/submit", "text", {"action": "check"}, 413),
        ("/submit", "text", {"action": "submit"}, 413),
        ("/users", "user", {"action": "add"}, 422),
        ("/users", "user", {"action": "token"}, 422),
        ("/users", "note", {"action": "token", "user": "nobody-here", "number": "another"}, 422),
        ("/pools/edit", "pool", {"action": "preview", "version": "0"}, 422),
        ("/pools/edit", "parent", {"action": "preview", "version": "0", "pool": "new"}, 422),
        ("/pools/remove", "pool", {}, 422),
        ("/simulate", "nodes", {"workload": "small-first"}, 422),
        ("/sessions", "sha256", {}, 422),
    ],
)
def test_a_name_of_a_megabyte_is_refused_on_a_clear_page(
    loud: Loud, path: str, field: str, form: dict[str, str], status: int
) -> None:
    answer = loud.browser.post(path, data={**form, field: loud.name})
    told = read(answer)
    assert answer.status_code == status, told[:2000]
    assert "This page has failed" not in told


@pytest.mark.parametrize("path", ["/jobs/{name}", "/jobs/{name}/log", "/jobs?name={name}", "/compare?job={name}"])
def test_an_address_that_is_too_long_is_refused_and_the_server_goes_on(loud: Loud, path: str) -> None:
    """A long one by a page. One of a megabyte is refused before the pages; the connection may end before its answer."""
    answer = loud.browser.get(path.format(name="n" * 20_000))
    told = read(answer)
    assert (400 <= answer.status_code < 500, "This page has failed" in told) == (True, False), told[:2000]
    assert len(answer.text) < LONG
    where = urlsplit(str(loud.browser.base_url))
    with contextlib.suppress(ConnectionError), socket.create_connection((where.hostname, where.port), 240) as raw:
        raw.sendall(f"GET {path.format(name=loud.name)} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        assert raw.recv(12)[9:10] in (b"", b"4")
    assert loud.browser.get("/jobs").status_code == 200
