"""Pages of a job's log, before and after a place, and the search through all of it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.api import routes
from oarlock.api.data import logs
from oarlock.spec import tasklogs

MAX_LINES = 5000
MAX_HITS = 10_000
MAX_TEXT = 1000
_Place = Annotated[str, msgspec.Meta(min_length=1, max_length=routes.MAX_QUERY_BYTES)]


class PageQuery(logs.Choice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: _Place = "end"
    before: Annotated[int, msgspec.Meta(ge=0, le=MAX_LINES)] = 0
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_LINES)] = 0


class SearchQuery(logs.Choice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
    regex: bool = False
    ignore_case: bool = False
    at: _Place = "start"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HITS)] = 1


async def page(call: routes.Call) -> tasklogs.LogPage:
    query = call.query(PageQuery)
    job = await call.access.job(call.path["job"])
    logs.check(job, query)
    return await call.services.logs.page(query.asked(job.id), query.at, before=query.before, after=query.after)


async def search(call: routes.Call) -> tasklogs.LogHits:
    """Search, one search of a user at a time: each reads the whole log."""
    query = call.query(SearchQuery)
    job = await call.access.job(call.path["job"])
    logs.check(job, query)
    wanted = tasklogs.LogSearch(text=query.text, regex=query.regex, ignore_case=query.ignore_case)
    async with call.services.turns.of(call.access.user.name):
        work = call.services.logs.search(query.asked(job.id), query.at, wanted, limit=query.limit)
        return await call.while_there(work)


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/logs/page",
        page,
        "the lines of the log before and after a place",
        tasklogs.LogPage,
        query=PageQuery,
    ),
    routes.look(
        "/api/v1/jobs/{job}/logs/search",
        search,
        "the lines of the whole log that have a text",
        tasklogs.LogHits,
        query=SearchQuery,
        long=True,
    ),
)
