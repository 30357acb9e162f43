"""The program that the jobs of these tests run: `task.py KIND [ARGUMENT]`, by the standard library alone.

Every process says first, in one O_APPEND write to the file RECORD, its name, and which processes of other lives of its
job it found alive. What it prints is `line 0`, `line 1` and so on: LINES of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

JOB, ATTEMPT = os.environ["OARLOCK_JOB"], int(os.environ["OARLOCK_ATTEMPT"])
LINES = int(os.environ.get("LINES_PRINTED", "20"))


def start_of(pid: int) -> str | None:
    """Its start in clock ticks, which makes the number unmistakable; None where it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - quick to start
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def begin() -> None:
    """Tell which processes run.

    The file is read first: two that start together see each other's line at the latest in the end.
    """
    record = os.environ["RECORD"]
    earlier = []
    if os.path.exists(record):  # noqa: PTH110
        with open(record) as file:  # noqa: PTH123
            earlier = [json.loads(line) for line in file]
    mine = {
        "job": JOB,
        "attempt": ATTEMPT,
        "role": os.environ["OARLOCK_ROLE"],
        "index": int(os.environ["OARLOCK_INDEX"]),
        "incarnation": int(os.environ["OARLOCK_INCARNATION"]),
        "pid": os.getpid(),
        "start": start_of(os.getpid()),
        "at": time.time(),
    }
    task = [mine[name] for name in ("role", "index")]
    mine["alive"] = [
        one["pid"]
        for one in earlier
        if one["job"] == JOB
        and (one["attempt"] != ATTEMPT or [one["role"], one["index"]] == task)
        and start_of(one["pid"]) == one["start"]
    ]
    handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, json.dumps(mine).encode() + b"\n")
    os.close(handle)


def synced(path: str, content: bytes) -> None:
    """In place at once or not at all."""
    with open(f"{path}.part", "wb") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.part", path)  # noqa: PTH105


def tell(event: dict[str, object]) -> None:
    with open(f"{os.environ['OARLOCK_REPORT']}/events-0.jsonl", "a") as file:  # noqa: PTH123
        file.write(json.dumps(event) + "\n")


def save(step: int) -> None:
    """A checkpoint of one rank as docs/agent-protocol.md section 4 describes it, and the word of it."""
    number = int(os.environ["OARLOCK_ROUND"])
    place = f"{os.environ['OARLOCK_CHECKPOINTS']}/attempt-{ATTEMPT}-round-{number}-step-{step}"
    os.makedirs(place)  # noqa: PTH103
    shard = b"weights of step %d" % step
    synced(f"{place}/rank-0.pt", shard)
    shards = [{"file": "rank-0.pt", "bytes": len(shard), "sha256": hashlib.sha256(shard).hexdigest()}]
    manifest = json.dumps(
        {
            "format": 1,
            "step": step,
            "attempt": ATTEMPT,
            "round": number,
            "world_size": 1,
            "time": time.time(),
            "shards": shards,
            "meta": {},
        }
    ).encode()
    synced(f"{place}/manifest.json", manifest)
    told = {
        "event": "checkpoint",
        "time": time.time(),
        "step": step,
        "path": place,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "bytes": len(shard),
    }
    tell(told)


def main(kind: str, argument: str = "") -> int:
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin()
    for number in range(LINES):
        print("line", number)
        if kind == "talks":  # for so many seconds
            sys.stdout.flush()
            time.sleep(float(argument) / LINES)
    sys.stdout.flush()
    match kind:
        case "fails":  # with these codes, one for each attempt, each a step farther
            tell({"event": "progress", "time": time.time(), "step": ATTEMPT})
            codes = [int(code) for code in argument.split(",")]
            return codes[min(ATTEMPT, len(codes)) - 1]
        case "waits" | "stubborn":  # in its first so many attempts, until it is ended
            if int(argument) >= ATTEMPT:
                time.sleep(1000)
        case "sleeps":
            time.sleep(float(argument))
        case "orphaned":  # its agent dies
            if ATTEMPT == 1:
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(1000)
        case "saves":
            for step in range(1, int(argument) + 1):
                save(step)
        case "reads":
            with open(argument) as file:  # noqa: PTH123
                print(file.read())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
