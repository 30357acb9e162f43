"""Brings what the task needs onto its disk before it registers: code, data, the environment of its requirements.

Code comes from the server and is unpacked here. Data and environments are the helper's: a command of ours that runs
under our own interpreter, is found by the task's mark like every other child, and whose last words become the detail.
"""

from __future__ import annotations

import os
import shutil
import time

from oarlock.agent import archive, client, environment, files, process
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board
    from oarlock.agent.killing import Reach

DIGEST_TRIES = 3
HELPER_POLL_S = 0.05
DETAIL_EVERY_S = 1.0
DETAIL_CHARACTERS = 500
NOT_FOR_HELPERS = ("PYTHON", "LD_", "PATH", "VIRTUAL_ENV", "OARLOCK_")


class Failed(Exception):
    """`reason` is one of the exit record's; the message says what to look at."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def everything(task: Assignment, server: client.Client, helper: Helper, board: Board) -> None:
    """Code, then data, then the environment; `board.detail` says which, `board.virtual_env` gets the last."""
    if task.snapshot:
        board.detail = "code"
        snapshot(task, server, board)
    if not os.path.isdir(task.code):
        os.makedirs(task.code, mode=0o700)
    for number, download in enumerate(task.downloads, 1):
        what = f"data {number}/{len(task.downloads)}"
        destination = _mount(task, download["mount"])
        helper.run(["fetch", download["source"], destination], what, "download_failed")
    if task.requirements:
        requirements = files.inside(task.code, task.requirements)
        cache = task.environments or task.path("environments")
        arguments = ["environment", "--requirements", requirements, "--cache", cache]
        board.virtual_env = helper.run(arguments, "environment", "environment_failed")


def snapshot(task: Assignment, server: client.Client, board: Board) -> None:
    """The code of the job: fetched to a file, verified against its digest, and only then unpacked."""
    digest = task.snapshot or ""
    packed, partial = task.path("code.tar.gz"), task.path("code.partial")
    try:
        for _ in range(DIGEST_TRIES):
            if _download(server, digest, packed, lambda: board.closing):
                break
        else:
            raise Failed("download_failed", f"the code snapshot does not have its digest {digest}")
        failpoint("fetch.verified")
        shutil_rmtree(partial)
        archive.unpack(packed, partial)
        failpoint("fetch.unpacked")
        shutil_rmtree(task.code)
        os.rename(partial, task.code)
    except archive.Refused as error:
        raise Failed("download_failed", f"the code snapshot was refused: {error}") from error
    except OSError as error:
        raise Failed("download_failed", f"the code snapshot could not be unpacked: {error}") from error
    finally:
        if os.path.exists(packed):
            os.unlink(packed)


def _download(server: client.Client, digest: str, path: str, abandon: Callable[[], bool]) -> bool:
    """Fetch once; False if what came is not what the digest says. A broken connection starts the file again."""
    with open(path, "wb") as file:

        def keep(data: bytes) -> None:
            file.write(data)

        def begin() -> bool:
            file.seek(0)
            file.truncate()
            return abandon()

        answer = server.ask("GET", "/blobs/" + digest, sink=keep, abandon=begin)
    if not answer.ok:
        raise Failed("download_failed", f"the server has no code snapshot {digest} (status {answer.status})")
    algorithm, _, expected = digest.rpartition(":")
    return algorithm in ("", "sha256") and sha256_of(path) == expected


def sha256_of(path: str) -> str:
    digest = _sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 18), b""):
            digest.update(part)
    return str(digest.hexdigest())


def _sha256() -> Any:
    """The interpreter's own SHA-256: hashlib would load OpenSSL, a third of the agent's memory."""
    for name in ("_sha2", "_sha256"):
        try:
            return __import__(name).sha256()
        except (ImportError, AttributeError):
            continue
    import hashlib

    return hashlib.sha256()


def shutil_rmtree(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)


def _mount(task: Assignment, mount: str) -> str:
    """Where a download goes: an absolute path as it is (a volume), any other below the code."""
    try:
        path = mount if os.path.isabs(mount) else files.inside(task.code, mount)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except (ValueError, OSError) as error:
        raise Failed("download_failed", f"data cannot be put at {mount!r}: {error}") from error
    return path


class Helper:
    """Runs the helper command, one call at a time, and turns its last line into the detail or the error."""

    def __init__(self, task: Assignment, board: Board, reach: Reach) -> None:
        self._task, self._board, self._reach = task, board, reach
        self._calls = 0

    def run(self, arguments: list[str], what: str, reason: str, extra_env: dict[str, str] | None = None) -> str:
        """Wait for the helper's end and return the last line of its output; Failed(reason) if it went wrong."""
        self._calls += 1
        out, err = self._task.path(f"helper.{self._calls}.out"), self._task.path(f"helper.{self._calls}.err")
        if not self._task.helper:
            raise Failed(reason, f"{what}: there is no helper command to fetch or store with")
        env = dict(os.environ, **(extra_env or {}))
        env.update({environment.MARK: self._task.key.text, "PYTHONUNBUFFERED": "1"})
        child = self._start(self._task.helper + arguments, env, out, err, reason)
        self._board.detail = what
        said_at = time.monotonic()
        while not child.poll():
            time.sleep(HELPER_POLL_S)
            if time.monotonic() - said_at > DETAIL_EVERY_S:
                said_at = time.monotonic()
                self._board.detail = (f"{what}: {self._last_line(err) or self._last_line(out)}").rstrip(": ")
        self._reach.leaders.remove(child.pid)
        child.reap()
        if child.code != 0:
            said = self._last_line(err) or self._last_line(out) or "it said nothing"
            how = f"signal {child.signal}" if child.signal else f"code {child.code}"
            raise Failed(reason, f"{what} failed with {how}: {said}")
        return self._last_line(out, DETAIL_CHARACTERS * 10)

    def _start(self, argv: list[str], env: dict[str, str], out: str, err: str, reason: str) -> process.Process:
        with self._board.starting:
            if self._board.closing:
                raise client.Abandoned
            try:
                child = process.start(argv, env, self._task.directory, out, err)
            except OSError as error:
                raise Failed(reason, f"the helper {argv[0]!r} cannot be started: {error}") from error
            self._reach.leaders.append(child.pid)
            return child

    def _last_line(self, path: str, characters: int = DETAIL_CHARACTERS) -> str:
        lines = [line for line in tail(path, 16 << 10).replace("\r", "\n").splitlines() if line.strip()]
        text = lines[-1].strip()[-characters:] if lines else ""
        return self._board.blanker.text(text) if self._board.blanker else text


def helper_environment(job_env: dict[str, str], secrets: dict[str, str]) -> dict[str, str]:
    """What storing may need of the job's variables (endpoints, credentials), without what would change our Python."""
    kept = {name: value for name, value in job_env.items() if not name.startswith(NOT_FOR_HELPERS)}
    kept.update({name: value for name, value in secrets.items() if not name.startswith(NOT_FOR_HELPERS)})
    return kept


def tail(path: str, size_bytes: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size_bytes))
            return file.read(size_bytes).decode("utf-8", "replace")
    except OSError:
        return ""
