"""Answers to an open page that fetches its content again: nothing but 304 where the content has stayed the same.

The page sends the mark of the content that it has. The mark is a digest of the content itself, so it cannot be out of
date. `Oarlock-Seq` is the last event that the content has.
"""

from __future__ import annotations

import hashlib

from starlette import responses

from oarlock.web import visits

SEQ = "oarlock-seq"


def marked(response: responses.Response, visit: visits.Visit) -> responses.Response:
    """Return the answer with its mark, without its body if the page has that content."""
    if response.status_code != 200 or isinstance(response, responses.StreamingResponse):
        return response
    mark = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    headers = {"etag": mark, SEQ: str(visit.server.seq)}
    if visit.headers.get("if-none-match") == mark:
        return responses.Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response
