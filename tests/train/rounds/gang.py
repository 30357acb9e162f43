"""An elastic gang whose rounds a test decides, in the place of the server and the agents."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.train import crew


class Gang:
    """Members by name. Each has a folder of reports; the test kills them, starts new ones and makes rounds."""

    def __init__(self, folder: Path, target: Callable[..., None], *args: Any) -> None:
        self.folder, self._target, self._args = folder, target, args
        self.number, self.attempt = 0, 1
        self.ports: dict[str, int] = {}
        self.addresses: dict[str, str] = {}  # of members that are not on this machine
        self.least = 1  # the members without which none makes a step
        self.lost = 0  # the newest round of which the server knows that it cannot go on
        self.processes: dict[str, Any] = {}
        self.codes: dict[str, int] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start the first round with these members."""
        self.number = 1
        for name in names:
            self.ports[name] = crew.free_port()
        for name in names:
            self._launch(name, self._place(name, names))

    def begin(self, name: str) -> None:
        """Start a process that is to join. It waits for a round with it."""
        self.ports[name] = crew.free_port()
        self._launch(name, {**self._place(name, [*self.processes, name]), "OARLOCK_JOINS": "1"})

    def round(self, names: Sequence[str], tell: Sequence[str] | None = None) -> None:
        """Make a new round with these members, and tell it to them, or to `tell`."""
        self.number += 1
        for name in names if tell is None else tell:
            env = self._place(name, names) if name in names else {}
            file = self.folder / name / "rendezvous.json"
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps({"round": self.number, "lost": self.lost, "processes": [{"env": env}]}))
            fresh.rename(file)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.join()

    def meet_again(self, names: Sequence[str]) -> None:
        """Do as the server does: the same members go on in another round, once one tells that this one is lost."""
        self.wait(lambda: any(event.get("lost_round") == self.number for name in names for event in self.told(name)))
        self.lost = self.number
        self.round(names)

    def told(self, name: str) -> list[dict[str, Any]]:
        return self.events(name, "hello")

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def rounds(self, name: str) -> list[int]:
        """Return the rounds that the member has gone into."""
        return [event["number"] for event in self.events(name, "round")]

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        file = self.folder / name / "events-0.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last one may be half written
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds. A member that has failed meanwhile fails the test."""
        while not condition():
            for name, process in list(self.processes.items()):
                assert process.exitcode in (None, 0), f"{name} ended with {process.exitcode}\n{self.output()}"
            time.sleep(0.002)

    def ready(self, name: str) -> bool:
        """Whether the member has said that it can go on in another round."""
        told = self.told(name)
        return bool(told) and bool(told[-1]["can_rejoin"])

    def end(self) -> None:
        """Wait for the ends of all members, all of them good."""
        for name, process in self.processes.items():
            process.join()
            assert process.exitcode == 0, f"{name} ended with {process.exitcode}\n{self.output()}"

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()

    def output(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(self.folder.glob("*/output.txt")))

    def _place(self, name: str, names: Sequence[str]) -> dict[str, str]:
        return {
            "RANK": str(names.index(name)),
            "WORLD_SIZE": str(len(names)),
            "MASTER_ADDR": self.addresses.get(names[0], "127.0.0.1"),
            "MASTER_PORT": str(self.ports[names[0]]),
            "OARLOCK_LEAST_RANKS": str(self.least),
        }

    def _launch(self, name: str, place: dict[str, str]) -> None:
        folder = self.folder / name
        folder.mkdir()
        env = {
            **place,
            "LOCAL_RANK": "0",
            "OARLOCK_ELASTIC": "1",
            "OARLOCK_ATTEMPT": str(self.attempt),
            "OARLOCK_ROUND": str(self.number),
            "OARLOCK_REPORT": str(folder),
        }
        member = crew._CONTEXT.Process(
            target=crew._member, args=(self._target, (folder, *self._args), env, folder / "output.txt")
        )
        member.start()
        self.processes[name] = member
