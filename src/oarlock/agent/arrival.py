"""The way to the barrier: fetch, register, wait for the rendezvous. One thread, gone once the processes may start."""

from __future__ import annotations

import os
import sys
import threading
import time

from oarlock.agent import client, errand, jobsecrets, ports, rendezvous, workdir
from oarlock.agent.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.board import Board

VERSION = "1"
RENDEZVOUS_WAIT_S = 25
NOT_YET_S = 0.5
UNEXPECTED_S = 2.0


class Arrival:
    """Leaves on the board a rendezvous, or a failure, or that the task is stale; and wakes main."""

    def __init__(self, task: Assignment, server: client.Client, board: Board, errands: errand.Errands) -> None:
        self._task, self._server, self._board, self._errands = task, server, board, errands

    def start(self) -> None:
        threading.Thread(target=self._run, name="arrival", daemon=True).start()

    def _run(self) -> None:
        try:
            self._fetch()
            if self._task.keep:
                self._remember()
            answer = self._register()
            if not answer:
                answer = self._await_rendezvous()
            failpoint("rendezvous.received")
            self._board.rendezvous = rendezvous.Rendezvous(answer)
            self._board.wake()
        except client.Stale:
            self._board.mark_stale()
        except client.Abandoned:
            pass
        except errand.Failed as error:
            self._board.fail(error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, main must hear of it
            self._board.fail("download_failed", f"{type(error).__name__}: {error}")

    def _fetch(self) -> None:
        if not self._task.needs_fetching:
            os.makedirs(self._task.code, mode=0o700, exist_ok=True)
            return
        from oarlock.agent import fetch  # many tasks have nothing to fetch

        env = self._ask_secrets() if self._task.downloads else {}
        fetch.everything(self._task, self._server, self._errands, self._board, env)

    def _remember(self) -> None:
        """What is in the working directory now is not the processes' doing."""
        try:
            workdir.remember(self._task)
        except OSError as error:
            raise errand.Failed("download_failed", f"the task's directory cannot be written: {error}") from error

    def _ask_secrets(self) -> dict[str, str]:
        """Data may need them. A server that has not got them all yet says 409."""
        while True:
            answer = self._server.ask("GET", "/secrets", abandon=self._closing)
            if answer.ok:
                break
            time.sleep(NOT_YET_S if answer.status == 409 else UNEXPECTED_S)
        self._board.secrets = answer.json().get("secrets") or {}
        return jobsecrets.place(self._task, self._board)

    def _register(self) -> dict[str, object]:
        """The fence. Returns the rendezvous if it is there already."""
        free = ports.free(self._task.ports)
        if self._task.ports and not free:
            raise errand.Failed("port_taken", f"none of the held ports {self._task.ports} is free")
        body = {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "address": self._task.address,
            "ports": free,
            "agent_version": VERSION,
            "python": sys.version.split()[0],
        }
        failpoint("register.before")
        while True:
            answer = self._server.ask("POST", "/register", body, abandon=self._closing)
            if answer.ok:
                break
            time.sleep(NOT_YET_S if answer.status == 409 else UNEXPECTED_S)
        failpoint("register.after")
        fields = answer.json()
        self._board.secrets = fields.get("secrets") or {}
        self._board.take_orders(fields.get("orders"))
        return fields.get("rendezvous") or {}

    def _await_rendezvous(self) -> dict[str, object]:
        self._board.detail = "waiting for the other tasks" if self._board.detail else None
        while True:
            number = max(1, int(self._board.orders.get("round") or 1))
            path = f"/rendezvous?round={number}&wait={RENDEZVOUS_WAIT_S}"
            answer = self._server.ask("GET", path, wait_s=RENDEZVOUS_WAIT_S, abandon=self._closing)
            if answer.status == 200 and answer.json():
                return answer.json()
            if answer.status != 204:
                time.sleep(UNEXPECTED_S)

    def _closing(self) -> bool:
        return self._board.closing
