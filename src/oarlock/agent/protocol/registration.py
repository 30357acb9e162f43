"""The way to the barrier: fetch, register, wait for the rendezvous. Its thread ends when the processes may start."""

from __future__ import annotations

import os
import sys
import threading
import time

from oarlock.agent.failpoints import failpoint
from oarlock.agent.protocol import client, gpus, jobsecrets, ports, rendezvous
from oarlock.agent.transfers import helpercommand, workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment

VERSION = "1"
RENDEZVOUS_WAIT_S = 25
NOT_YET_S = 0.5
UNEXPECTED_S = 2.0


class Registration:
    """The thread that writes a rendezvous, a failure or staleness into the agent's state, and wakes main."""

    def __init__(
        self, task: Assignment, server: client.Client, state: AgentState, helper: helpercommand.HelperCommand
    ) -> None:
        self._task, self._server, self._state, self._helper = task, server, state, helper

    def start(self) -> None:
        threading.Thread(target=self._run, name="registration", daemon=True).start()

    def _run(self) -> None:
        try:
            self._fetch()
            if self._task.keep:
                self._write_baseline()
            answer = self._register()
            if not answer:
                answer = self._await_rendezvous()
            failpoint("rendezvous.received")
            self._state.rendezvous = rendezvous.Rendezvous(answer)
            self._state.wake()
        except client.Stale:
            self._state.mark_stale()
        except client.Abandoned:
            pass
        except helpercommand.Failed as error:
            self._state.fail(error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - main must hear of every error
            self._state.fail("download_failed", f"{type(error).__name__}: {error}")

    def _fetch(self) -> None:
        if not self._task.needs_fetching:
            os.makedirs(self._task.code, mode=0o700, exist_ok=True)
            return
        from oarlock.agent.transfers import fetch  # many tasks have nothing to fetch

        env = self._ask_secrets() if self._task.downloads else {}
        fetch.everything(self._task, self._server, self._helper, self._state, env)

    def _write_baseline(self) -> None:
        """Record the files of the working directory, before the processes can change them."""
        try:
            workdir.write_baseline(self._task)
        except OSError as error:
            raise helpercommand.Failed("download_failed", f"the task's directory cannot be written: {error}") from error

    def _ask_secrets(self) -> dict[str, str]:
        """Return the secrets' variables, which downloads may need. 409: the server does not have all of them yet."""
        while True:
            answer = self._server.ask("GET", "/secrets", abandon=self._closing)
            if answer.ok:
                break
            time.sleep(NOT_YET_S if answer.status == 409 else UNEXPECTED_S)
        self._state.secrets = jobsecrets.received(answer.json().get("secrets"), self._task, os.environ)
        return jobsecrets.place(self._task, self._state)

    def _register(self) -> dict[str, object]:
        """Register at the server, which may refuse; return the rendezvous if it exists already."""
        free = ports.free(self._task.ports, self._task.nproc)
        if self._task.ports and not free:
            raise helpercommand.Failed("port_taken", f"none of the held ports {self._task.ports} is free")
        body = {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "address": self._task.address,
            "ports": free,
            "agent_version": VERSION,
            "python": sys.version.split()[0],
            "gpu_uuids": gpus.uuids(self._task.plugged_gpus, os.environ),
        }
        failpoint("register.before")
        while True:
            answer = self._server.ask("POST", "/register", body, abandon=self._closing)
            if answer.ok:
                break
            time.sleep(NOT_YET_S if answer.status == 409 else UNEXPECTED_S)
        failpoint("register.after")
        fields = answer.json()
        self._state.secrets = jobsecrets.received(fields.get("secrets"), self._task, os.environ)
        self._state.take_orders(fields.get("orders"))
        return fields.get("rendezvous") or {}

    def _await_rendezvous(self) -> dict[str, object]:
        self._state.detail = "waiting for the other tasks" if self._state.detail else None
        while True:
            number = max(1, int(self._state.orders.get("round") or 1))
            path = f"/rendezvous?round={number}&wait={RENDEZVOUS_WAIT_S}"
            answer = self._server.ask("GET", path, wait_s=RENDEZVOUS_WAIT_S, abandon=self._closing)
            if answer.status == 200 and answer.json():
                return answer.json()
            if answer.status != 204:
                time.sleep(UNEXPECTED_S)

    def _closing(self) -> bool:
        return self._state.closing
