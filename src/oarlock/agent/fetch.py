"""Brings what the task needs onto its disk before it registers: code, data, the environment of its requirements.

Code comes from the server and is unpacked here; data and environments are errands.
"""

from __future__ import annotations

import os

from oarlock.agent import archive, client, digests, errand, files
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board

DIGEST_TRIES = 3


def everything(
    task: Assignment, server: client.Client, errands: errand.Errands, board: Board, secret_env: dict[str, str]
) -> None:
    """Code, then data, then the environment; `board.detail` says which, `board.virtual_env` gets the last."""
    if task.snapshot:
        board.detail = "code"
        snapshot(task, server, board)
    os.makedirs(task.code, mode=0o700, exist_ok=True)
    env = errand.helper_environment(task.env, secret_env)
    for number, download in enumerate(task.downloads, 1):
        what = f"data {number}/{len(task.downloads)}"
        destination = _mount(task, download["mount"])
        errands.run(["fetch", download["source"], destination], what, "download_failed", env)
    if task.requirements:
        requirements = files.inside(task.workdir, task.requirements)
        cache = task.environments or task.path("environments")
        arguments = ["environment", "--requirements", requirements, "--cache", cache]
        board.virtual_env = errands.run(arguments, "environment", "environment_failed", task.path_env)


def snapshot(task: Assignment, server: client.Client, board: Board) -> None:
    """The code of the job: fetched to a file, verified against its digest, and only then unpacked."""
    digest = task.snapshot or ""
    packed, partial = task.path("code.tar.gz"), task.path("code.partial")
    try:
        for _ in range(DIGEST_TRIES):
            if _download(server, digest, packed, lambda: board.closing):
                break
        else:
            raise errand.Failed("download_failed", f"the code snapshot does not have its digest {digest}")
        failpoint("fetch.verified")
        _remove_tree(partial)
        archive.unpack(packed, partial)
        failpoint("fetch.unpacked")
        _remove_tree(task.code)
        os.rename(partial, task.code)
    except archive.Refused as error:
        raise errand.Failed("download_failed", f"the code snapshot was refused: {error}") from error
    except OSError as error:
        raise errand.Failed("download_failed", f"the code snapshot could not be unpacked: {error}") from error
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
        raise errand.Failed("download_failed", f"the server has no code snapshot {digest} (status {answer.status})")
    algorithm, _, expected = digest.rpartition(":")
    return algorithm in ("", "sha256") and digests.sha256_of(path) == expected


def _remove_tree(path: str) -> None:
    """Only a second try finds anything to remove, so only it pays for shutil."""
    if os.path.lexists(path):
        import shutil

        shutil.rmtree(path)


def _mount(task: Assignment, mount: str) -> str:
    """Where a download goes: an absolute path as it is (a volume), any other below the working directory."""
    try:
        path = mount if os.path.isabs(mount) else files.inside(task.workdir, mount)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except (ValueError, OSError) as error:
        raise errand.Failed("download_failed", f"data cannot be put at {mount!r}: {error}") from error
    return path
