"""The attempt to use the installation's place for checkpoints, for `oarlock doctor`.

One small object is written and read by signed URLs, as tasks do it, and listed and removed by the server's credentials.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import ssl
from pathlib import Path

from oarlock.data.checkpoints import signing
from oarlock.data.transfers import authorities
from oarlock.spec import errors

BOUND_S = 20.0
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")


async def finding(url: str, trusted: str = "") -> tuple[str, str]:
    """Return whether the place at this URL can keep checkpoints, and the repair where it cannot, else an empty text.

    `trusted` are private authorities of the store, as PEM. They are told to the clients of the store alone: programs
    that run meanwhile, such as one that makes a token for the cluster, see nothing of them.
    """
    try:
        with authorities.bundled(trusted) as bundle, contextlib.closing(signing.SignedObjects(url, bundle)) as place:
            why, fix = await attempt(place, bundle), signing.CREDENTIALS
    except errors.OarlockError as error:  # the URL, or a library that is missing
        why, fix = error.message, error.hint or signing.CREDENTIALS
    if why:
        return f"{url} cannot keep checkpoints: {why}", fix
    said = "from here an object was written, listed, read and removed; pods have to reach the same address"
    return f"{url} can keep checkpoints: {said}", ""


async def attempt(place: signing.SignedObjects, bundle: Path | None = None) -> str:
    """Return why this place cannot keep checkpoints, as far as this machine can tell; empty where it can.

    The place may be slow: each request waits up to `BOUND_S`. The object is removed again as far as possible.
    """
    key = f"doctor-{secrets.token_hex(8)}/attempt"
    content = key.encode()
    try:
        if why := await _sent("PUT", await place.url(key, signing.WRITE), content, bundle):
            return f"an object cannot be written: {why}"
        why = await _read(place, key, content, bundle)
        await place.remove([key])
        return why or ("an object cannot be removed" if await place.listed(key) else "")
    except errors.OarlockError as error:
        return error.message


async def _read(place: signing.SignedObjects, key: str, content: bytes, bundle: Path | None) -> str:
    try:
        if [(one.key, one.bytes) for one in await place.listed(key)] != [(key, len(content))]:
            return "an object that was written is not listed"
        why = await _sent("GET", await place.url(key, signing.READ), content, bundle)
    except errors.OarlockError as error:
        return error.message
    return f"an object cannot be read: {why}" if why else ""


async def _sent(method: str, url: str, content: bytes, bundle: Path | None) -> str:
    """Return why the store does not take the object, or does not give it back. No word of it names the URL."""
    import httpx

    own = bundle is not None and not os.environ.get("SSL_CERT_FILE")
    verify = ssl.create_default_context(cafile=str(bundle)) if own else True
    async with httpx.AsyncClient(timeout=BOUND_S, verify=verify) as http:
        try:
            answer = await http.request(method, url, content=content if method == "PUT" else None)
        except httpx.TransportError as error:
            return f"{type(error).__name__}: the store's address does not answer"
    if not answer.is_success:
        code = _CODE.search(answer.text)
        return f"status {answer.status_code}{f', {code[1]}' if code else ''}"
    return "it has another content" if method == "GET" and answer.content != content else ""
