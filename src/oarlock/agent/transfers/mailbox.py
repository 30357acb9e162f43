"""Requests to a helper that runs in another container of the pod, through a folder that both see.

    helper.lock       held by the helper while it lives
    requests/N.json   the arguments, the variables, and the files for its output; appears as a whole
    answers/N.json    the code or the signal of its end; appears as a whole
    cancels/N         asks for its end

docs/agent-protocol.md describes the folder; `oarlock.data.transfers.mailboxes` is the other side.
"""

from __future__ import annotations

import fcntl
import json
import os

from oarlock.agent import files
from oarlock.agent.protocol import client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.agentstate import AgentState

LOCK, REQUESTS, ANSWERS, CANCELS = "helper.lock", "requests", "answers", "cancels"


class Gone(Exception):
    """The helper has ended, and will not answer."""


class Errand:
    """One run of the helper command in the other container. `code` or `signal` is set once it has ended."""

    def __init__(
        self, folder: str, name: str, arguments: list[str], env: dict[str, str], output: tuple[str, str]
    ) -> None:
        self._folder, self._name = folder, name
        self.code: int | None = None
        self.signal: int | None = None
        for each in (REQUESTS, ANSWERS, CANCELS):
            os.makedirs(os.path.join(folder, each), mode=0o700, exist_ok=True)
        request = {"arguments": arguments, "env": env, "stdout": output[0], "stderr": output[1]}
        files.write_json(os.path.join(folder, REQUESTS, name + ".json"), request)

    def poll(self, state: AgentState) -> bool:
        """Return whether it has ended. Raises Abandoned where the task ends, Gone where the helper has ended."""
        gone = helper_gone(self._folder)  # before the look: its last answer counts
        text = files.read_text(os.path.join(self._folder, ANSWERS, self._name + ".json"))
        if text:
            answer = json.loads(text)
            self.code, self.signal = answer["code"], answer["signal"]
            return True
        if state.closing:
            self.cancel()
            raise client.Abandoned
        if gone:
            raise Gone("the helper container has ended")
        return False

    def cancel(self) -> None:
        with open(os.path.join(self._folder, CANCELS, self._name), "w", encoding="utf-8"):
            pass


def helper_gone(folder: str) -> bool:
    """Return whether the helper has lived and lives no more."""
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # its image may still be pulled
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
