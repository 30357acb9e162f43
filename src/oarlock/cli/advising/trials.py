"""Trials: a training script runs for some seconds with so many processes, and tells the times of its steps.

The processes are those that torchrun would start on this machine. `oarlock.train` writes its measurements into a folder
of the trial (docs/agent-protocol.md, section 3). Checkpoints go into that folder too, so a trial leaves nothing behind
and begins at the first step. After the seconds the script is asked to stop, as by a preemption.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oarlock.cli.advising import scaling
from oarlock.spec import errors

LOOK_EVERY_S = 0.1
START_S = 300.0
GRACE_S = 30.0
SHOWN_LINES = 20


def run(
    command: Sequence[str],
    workers: int,
    *,
    seconds: float,
    strategy: Mapping[str, object] | None = None,
    threads: int | None = None,
) -> scaling.Trial:
    """Run the command with so many processes for some seconds after its first measured steps.

    Raises InvalidInput where the script cannot be started, fails, or tells of no steps.
    """
    with _ending(), tempfile.TemporaryDirectory(prefix="oarlock-advise-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            port = _free_port()
            for rank in range(workers):
                env = _environment(folder, rank, workers, port, strategy or {}, threads)
                with (folder / f"output-{rank}").open("wb") as output:
                    processes.append(
                        subprocess.Popen(
                            command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, process_group=0
                        )
                    )
            _watch(processes, folder, seconds)
        except OSError as cause:
            raise errors.InvalidInput(
                f"`{command[0]}` cannot be started ({cause.strerror})", hint="Write the command as you type it."
            ) from cause
        finally:
            for process in processes:
                _kill(process)
        return _mean(folder, workers, int(str((strategy or {}).get("servers", 0))))


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Let SIGTERM, and the SIGHUP of a closed terminal, end the trial with its processes, as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(
    folder: Path, rank: int, workers: int, port: int, strategy: Mapping[str, object], threads: int | None
) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OARLOCK_PROCESS": str(rank),
        "OARLOCK_REPORT": str(folder),
        "OARLOCK_CHECKPOINTS": str(folder / "checkpoints"),
        "OARLOCK_CHECKPOINT_EVERY_S": "86400",
        "OARLOCK_RESTORE": "",
        "OARLOCK_STRATEGY": json.dumps(dict(strategy)),
        "OARLOCK_SHARED_MEMORY": "0",  # between machines there is none
    }
    return ours | place | ({"OMP_NUM_THREADS": str(threads)} if threads is not None else {})


def _watch(processes: Sequence[subprocess.Popen[bytes]], folder: Path, seconds: float) -> None:
    """Wait until the steps were measured for long enough, then ask for the end and wait for it.

    Raises InvalidInput where a process fails before that, or tells of no steps within START_S.
    """
    began, first = time.monotonic(), None
    while None in [process.poll() for process in processes]:  # `poll` of each sets its `returncode`
        now = time.monotonic()
        if any(process.returncode not in (None, 0) for process in processes):
            break
        if first is None and _told(folder, 0):
            first = now
        if first is None and now - began > START_S:
            raise _refusal(folder, 0, f"the script told of no steps within {START_S:g} s, so its trial was ended")
        if first is not None and now - first > seconds:
            break
        time.sleep(LOOK_EVERY_S)
    for rank, process in enumerate(processes):
        if process.poll() not in (None, 0):
            when = "in the trial" if _told(folder, rank) else "before its steps were measured"
            happened = f"process {rank} of {len(processes)} ended with code {process.returncode} {when}"
            raise _refusal(folder, rank, happened)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children, which are a group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _told(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return the progress events of a process that hold measurements."""
    with contextlib.suppress(OSError):
        lines = (folder / f"events-{rank}.jsonl").read_text().splitlines()
        events = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be half written
                events.append(json.loads(line))
        return [event for event in events if event.get("event") == "progress" and "step_s" in event]
    return []


def _refusal(folder: Path, rank: int, happened: str) -> errors.InvalidInput:
    """Return the error of a trial that measured nothing, with the last lines of this process."""
    said = (folder / f"output-{rank}").read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    need = "the script needs a Session of oarlock.train, and more than ten steps"
    if not said:
        return errors.InvalidInput(happened, hint=f"It wrote nothing ({need}).")
    return errors.InvalidInput(happened, hint="\n".join([f"Its last lines ({need}):", *said]))


def _mean(folder: Path, workers: int, servers: int) -> scaling.Trial:
    """Return the means over all steps but the first report's, which has the slow first ones."""
    ranks = [_told(folder, rank) for rank in range(workers)]
    for rank, told in enumerate(ranks):
        if not told:
            raise _refusal(folder, rank, f"process {rank} of {workers} ended before its steps were measured")
    means = [_of_rank(told) for told in ranks]
    chief = means[0]
    return scaling.Trial(
        workers=workers,
        steps=int(chief["steps"]),
        step_s=max(each["step_s"] for each in means),
        sync_s=min(each["sync_s"] for each in means),
        data_s=max(each["data_s"] for each in means),
        sent_bytes=max(each["sent_bytes"] for each in means),
        examples=next(
            (int(told["local"]) * int(told.get("accumulate") or 1) for told in ranks[0] if told.get("local")), None
        ),
        servers=servers,
    )


def _of_rank(told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    later = list(itertools.pairwise(told)) or [({"step": told[0]["step"] - 1}, told[0])]
    counts = [max(1, int(event["step"]) - int(before["step"])) for before, event in later]
    names = ("step_s", "sync_s", "data_s", "sent_bytes")
    total = sum(counts)
    means = {
        name: sum(count * float(event.get(name) or 0.0) for count, (_, event) in zip(counts, later, strict=True))
        / total
        for name in names
    }
    return {"steps": total, **means}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
