"""Places at the server itself, `oarlock:results/JOB` and `oarlock:files/JOB/worker-0/attempt-1`, for tasks in pods.

A task sends its files with its own token: the server takes those of the task's job only. The assignment in the task's
directory names the server. While the server is away, a file is sent again and again: the agent decides how long that
may last. A refusal, and a certificate that is not valid, end it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from oarlock.spec import errors

PREFIX = "oarlock:"
ANSWER_S = 120.0
PAUSE_FIRST_S, PAUSE_MOST_S = 0.5, 15.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Assignment(msgspec.Struct, frozen=True):
    """The fields of the assignment that tell the server."""

    key: str
    server: str
    token: str
    ca_file: str | None = None


def is_one(url: str) -> bool:
    return url.startswith(PREFIX)


class ServerPlace:
    """One place at the server. Each method may be called from several threads."""

    def __init__(self, url: str, task: str | None, sleep: Callable[[float], object] = time.sleep) -> None:
        if task is None:
            raise errors.InvalidInput(f"{url} is a place of tasks only", hint="use file, s3 or gs", path="results")
        self._told = msgspec.json.decode((Path(task) / "assignment.json").read_bytes(), type=_Assignment)
        self._place = url.removeprefix(PREFIX).strip("/")
        self._sleep = sleep
        self._tls = ssl.create_default_context(cafile=self._told.ca_file) if self._at.scheme == "https" else None

    @property
    def _at(self) -> Any:
        return urlsplit(self._told.server)

    def send(self, path: bytes, key: str) -> None:
        """Store the file under the key below this place. FileNotFoundError or PermissionError if it is unreadable."""
        with open(path, "rb") as file:  # noqa: PTH123  (names are bytes, which Path does not take)
            size = os.fstat(file.fileno()).st_size

            def body() -> Any:
                file.seek(0)
                return file

            self._ask("PUT", f"/files?path={quote(f'{self._place}/{key}', safe='')}", body, size)

    def delete_older(self, left_bytes: int, left_files: int) -> list[str]:
        """Delete earlier lives of this task that no longer fit into the limits; return their names."""
        asked = f"/files/older?bytes={max(0, left_bytes)}&files={max(0, left_files)}"
        found: list[str] = msgspec.json.decode(self._ask("POST", asked, lambda: b"", 0))["removed"]
        return found

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the server's answer to a request without a file."""
        return self._ask(method, path, lambda: body, len(body))

    def _ask(self, method: str, path: str, body: Callable[[], Any], size: int) -> bytes:
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                status, answer = self._ask_once(method, path, body(), size)
            except ssl.SSLCertVerificationError as error:
                raise errors.GivenUp(
                    f"the server's certificate is not valid: {error.verify_message}",
                    hint="name the authority that signed it in the server's setting `tls_ca`",
                ) from error
            except (OSError, http.client.HTTPException):
                status, answer = 503, b""
            if status < 300:
                return answer
            if status not in _AGAIN:
                raise errors.GivenUp(
                    f"the server does not take {path}: {status} {answer[:300].decode('utf-8', 'replace')}",
                    hint="the job's log on the server says more",
                )
            self._sleep(pause_s)
            pause_s = min(PAUSE_MOST_S, 2 * pause_s)

    def _ask_once(self, method: str, path: str, body: Any, size: int) -> tuple[int, bytes]:
        at = self._at
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(at.hostname, at.port, timeout=ANSWER_S, context=self._tls)
        else:
            connection = http.client.HTTPConnection(at.hostname, at.port, timeout=ANSWER_S)
        headers = {
            "Authorization": f"Bearer {self._told.token}",
            "Oarlock-Task": self._told.key,
            "Content-Length": str(size),
            "Content-Type": "application/octet-stream",
        }
        try:
            connection.connect()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it refused the rest, and may say why
                connection.request(method, f"{at.path.rstrip('/')}/agent/v1{path}", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
