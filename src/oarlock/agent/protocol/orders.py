"""The long poll for orders. It carries out those that need no decision of main: stacks, a new round, a batch size."""

from __future__ import annotations

import os
import threading
import time

from oarlock.agent import files
from oarlock.agent.protocol import client, rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from oarlock.agent.agentstate import AgentState
    from oarlock.agent.assignment import Assignment
    from oarlock.agent.journal import Journal
    from oarlock.agent.processes.killing import TaskProcesses

WAIT_S = 25
UNEXPECTED_S = 5.0


class Orders:
    """The thread that keeps `AgentState.orders` current as long as the agent lives."""

    def __init__(
        self,
        task: Assignment,
        connect: Callable[[], client.Client],
        state: AgentState,
        task_processes: TaskProcesses,
        journal: Journal,
    ) -> None:
        self._task, self._connect, self._state, self._task_processes, self._journal = (
            task,
            connect,
            state,
            task_processes,
            journal,
        )
        self._stacks_done: object = None
        self._batch_told: object = None
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="orders", daemon=True).start()

    def _run(self) -> None:
        server = self._connect()
        while True:
            try:
                self._poll(server)
            except client.Stale:
                self._state.mark_stale()
                return
            except Exception as error:  # noqa: BLE001 - the journal tells; without this thread no stop would arrive
                self._journal.say(f"orders stumbled: {type(error).__name__}: {error}")
                time.sleep(UNEXPECTED_S)

    def _poll(self, server: client.Client) -> None:
        seen = self._state.orders.get("version", "")
        answer = server.ask("GET", f"/orders?seen={seen}&wait={WAIT_S}", wait_s=WAIT_S)
        if answer.status == 200:
            self._state.take_orders(answer.json())
        self._follow(server)
        if answer.status != 204 and self._state.orders.get("version", "") == seen:
            time.sleep(UNEXPECTED_S)  # answers without news must not become a busy loop

    def _follow(self, server: client.Client) -> None:
        orders, current = self._state.orders, self._state.rendezvous
        request = orders.get("stacks")
        if request is not None and request != self._stacks_done and self._state.phase is not None:
            self._stacks_done = request
            threading.Thread(target=self._send_stacks, args=(request,), name="stacks", daemon=True).start()
        batch = orders.get("batch")
        if isinstance(batch, dict) and batch != self._batch_told:
            self._tell_batch(batch)
        if current is not None and int(orders.get("round") or 0) > current.round:
            self._next_round(server, int(orders["round"]))

    def _tell_batch(self, batch: dict[str, object]) -> None:
        """Write the batch size to a file. The library in the user's process reads it, if the script wants that."""
        told = {name: batch[name] for name in ("local", "accumulate") if isinstance(batch.get(name), int)}
        try:
            files.write_json(os.path.join(self._task.report, "batch.json"), told)
            self._batch_told = batch
        except OSError as error:
            self._journal.say(f"the batch size could not be written: {error}")

    def _send_stacks(self, request: object) -> None:
        from oarlock.agent.processes import stacks  # rarely needed

        try:
            found = stacks.collect(self._task.report, self._task_processes)
            blanker = self._state.blanker
            texts = {name: blanker.text(text) if blanker else text for name, text in found.items()}
            server = self._connect()
            server.ask("POST", "/stacks", {"request": request, "stacks": texts})
            server.close()
        except client.Stale:
            self._state.mark_stale()

    def _next_round(self, server: client.Client, number: int) -> None:
        """Write the new round of the membership to a file, which the library in the surviving processes reads."""
        answer = server.ask("GET", f"/rendezvous?round={number}&wait=5", wait_s=5)
        if answer.status != 200:
            return
        try:
            newer = rendezvous.Rendezvous(answer.json())
            if any(not path.startswith("/") for path in newer.restore):
                from oarlock.agent.transfers import restoring  # few jobs keep their checkpoints elsewhere

                newer.restore = restoring.local_paths(self._task, newer.restore)
            newer.announce(self._task)
            self._state.rendezvous = newer
        except (OSError, ValueError) as error:
            self._journal.say(f"round {number} could not be written: {error}")
