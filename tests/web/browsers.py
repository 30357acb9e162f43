"""A browser for the tests of the pages: cookies, and the headers that a browser adds, without an engine."""

from __future__ import annotations

import contextlib
import functools
import html.parser
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import html5lib
import httpx
import msgspec
from tests.api import rig as rigs

from oarlock.api import application as api
from oarlock.spec import jobs, roles
from oarlock.web import application, routing, settings
from oarlock.web.access import transport

URL = "http://127.0.0.1:1"
SERVER = "0123456789ab"
API = frozenset(route.path.split("/")[1] for route in api.TABLE)
OURS = {"Origin": URL, "Sec-Fetch-Site": "same-origin"}


class WebRig(rigs.Rig):
    """The server in this process, with its pages."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.api = self.app
        self.failures: list[object] = []
        self.app = application.Pages(
            self.api,
            settings.Settings(
                server=SERVER, api=API, hosts=frozenset({"127.0.0.1"}), secure=False, report=self._failed
            ),
        )

    async def job(self, job: str) -> jobs.Job:
        found = await self.store.read(lambda view: view.job(job))
        assert found is not None
        return found

    async def submit_elastic(self, who: str = "ann", **spec: Any) -> jobs.Job:
        """Submit a job of 2 workers and make it elastic, which the local backend refuses."""
        job = await self.submit(who, roles={"worker": {"count": 2}}, **spec)
        worker = msgspec.structs.replace(
            job.spec.roles[roles.RoleName.WORKER], min=1, max=4, on_failure=roles.OnFailure.RESTART
        )
        spread = msgspec.structs.replace(job.spec, roles={roles.RoleName.WORKER: worker})
        changed = msgspec.structs.replace(job, spec=spread)
        return await self.store.write(lambda tx: tx.put_job(changed, (), at=self.clock()))

    def tell(self, *more: routing.Page, **facts: Any) -> None:
        """Let the server have other facts about itself, and more pages."""
        about = msgspec.structs.replace(self.services.about, **facts)
        self.services = msgspec.structs.replace(self.services, about=about)
        self.api = api.make(self.services)
        self.app = application.Pages(self.api, self.app._settings, (*application.PAGES, *more))

    def _failed(self, event: str, facts: object) -> None:
        self.failures.append((event, facts))

    @contextlib.asynccontextmanager
    async def browser(self, who: str = "", **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A browser, logged in as `who`; no redirect is followed."""
        streaming = transport.StreamingTransport(self.app, ("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=streaming, base_url=URL, headers=headers, timeout=280) as made:
            if who:
                answer = await made.post("/login", data={"secret": self.tokens[who]}, headers=OURS)
                assert answer.status_code == 303, answer.text
            yield made
        assert self.failures == []


def elements(page: str) -> Counter[str]:
    """Each element of a page with the names of its attributes, counted. Raises for a page that is not valid HTML."""
    _valid(_ORDINARY.sub(lambda found: "x" if found[0].strip() else found[0], page))
    found = _read(page)
    ids = [one for one, count in found.ids.items() if count > 1]
    assert not ids, f"one id for several elements: {ids}"
    return found.counted


_ORDINARY = re.compile(r"""(?<=[">])(?:[\w \n.,:;()/+?#%*!|~^{}\[\]'-]|&(?:lt|gt|amp|#34|#39);)++(?=["<])""")
"""A whole text or value of an attribute, of characters that are valid wherever text is, and of Jinja's escapes."""


@functools.cache
def _valid(page: str) -> None:
    """Parse a page strictly. Pages that differ in ordinary text alone are parsed once: a parse takes long."""
    html5lib.HTMLParser(strict=True).parse(page)


def text(page: str) -> str:
    """The text of a page, as it is read."""
    tree = html5lib.parse(page, namespaceHTMLElements=False)
    return "".join(tree.itertext())


class _Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counted[f"{tag} {' '.join(sorted(name for name, _ in attrs))}"] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("href", "action") and value:
                self.links.append(value)


def links(page: str) -> list[str]:
    return _read(page).links


@functools.lru_cache(maxsize=1)
def _read(page: str) -> _Elements:
    found = _Elements()
    found.feed(page)
    return found
