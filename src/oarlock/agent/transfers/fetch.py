"""The fetching of code, data and the environment of the requirements, before the task registers.

The code comes from the server and is unpacked here. The helper command fetches data. The environment is made by the
agent's own program, started again: it needs the job's Python, which a helper in another container does not see.
"""

from __future__ import annotations

import os
import sys

from oarlock.agent import files
from oarlock.agent.failpoints import failpoint
from oarlock.agent.protocol import client
from oarlock.agent.transfers import digests, helpercommand, unpacking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment

DIGEST_TRIES = 3


def everything(
    task: Assignment,
    server: client.Client,
    helper: helpercommand.HelperCommand,
    state: AgentState,
    secret_env: dict[str, str],
) -> None:
    """Fetch code, then data, then the environment, whose path goes to `state.virtual_env`.

    `state.detail` names the step.
    """
    if task.snapshot:
        state.detail = "code"
        snapshot(task, server, state)
    os.makedirs(task.code, mode=0o700, exist_ok=True)
    env = helpercommand.helper_environment(task.env, secret_env)
    for number, download in enumerate(task.downloads, 1):
        purpose = f"data {number}/{len(task.downloads)}"
        destination = _mount(task, download["mount"])
        helper.run(["fetch", download["source"], destination], purpose, "download_failed", env)
    if task.requirements:
        requirements = files.inside(task.workdir, task.requirements)
        cache = task.environments or task.path("environments")
        making, known = [*own_command(), "--environment", requirements, cache], {**task.path_env, **env}
        state.virtual_env = helper.run(making, "environment", "environment_failed", known, beside=True)


def own_command() -> list[str]:
    """Return the words that started this agent, less its task: in pods the loader of our interpreter comes first."""
    words = files.read_bytes("/proc/self/cmdline").split(b"\0")[:-2]
    return [os.fsdecode(word) for word in words] or [sys.executable, "-I", "-S", sys.argv[0]]


def snapshot(task: Assignment, server: client.Client, state: AgentState) -> None:
    """Fetch the job's code to a file, verify its digest, and only then unpack it."""
    digest = task.snapshot or ""
    packed, partial = task.path("code.tar.gz"), task.path("code.partial")
    try:
        for _ in range(DIGEST_TRIES):
            if _download(server, digest, packed, lambda: state.closing):
                break
        else:
            raise helpercommand.Failed("download_failed", f"the code snapshot does not have its digest {digest}")
        failpoint("fetch.verified")
        _remove_tree(partial)
        unpacking.unpack(packed, partial)
        failpoint("fetch.unpacked")
        _remove_tree(task.code)
        os.rename(partial, task.code)
    except unpacking.Refused as error:
        raise helpercommand.Failed("download_failed", f"the code snapshot was refused: {error}") from error
    except OSError as error:
        raise helpercommand.Failed("download_failed", f"the code snapshot could not be unpacked: {error}") from error
    finally:
        if os.path.exists(packed):
            os.unlink(packed)


def _download(server: client.Client, digest: str, path: str, abandon: Callable[[], bool]) -> bool:
    """Fetch once; return whether the content has the digest. A broken connection starts the file again."""
    with open(path, "wb") as file:

        def keep(data: bytes) -> None:
            file.write(data)

        def begin() -> bool:
            file.seek(0)
            file.truncate()
            return abandon()

        answer = server.ask("GET", "/blobs/" + digest, sink=keep, abandon=begin)
    if not answer.ok:
        raise helpercommand.Failed(
            "download_failed", f"the server has no code snapshot {digest} (status {answer.status})"
        )
    algorithm, _, expected = digest.rpartition(":")
    return algorithm in ("", "sha256") and digests.sha256_of(path) == expected


def _remove_tree(path: str) -> None:
    """Remove a tree. Only a second try finds one, so only that loads shutil."""
    if os.path.lexists(path):
        import shutil

        shutil.rmtree(path)


def _mount(task: Assignment, mount: str) -> str:
    """Return the path of a download: an absolute mount as it is (a volume), any other below the working directory."""
    try:
        path = mount if os.path.isabs(mount) else files.inside(task.workdir, mount)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except (ValueError, OSError) as error:
        raise helpercommand.Failed("download_failed", f"data cannot be put at {mount!r}: {error}") from error
    return path
