"""Files that scripts write into their working directory are kept, listed and fetched, however the job ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.e2e import shell as shells

from oarlock.client import downloads
from oarlock.spec import bodies

WRITES = """
    import os, pathlib, sys, time
    rank = os.environ["RANK"]
    pathlib.Path("lightning_logs/version_0").mkdir(parents=True, exist_ok=True)
    pathlib.Path("lightning_logs/version_0/metrics.csv").write_text("step,loss\\n")
    pathlib.Path("ckpt.pt").write_bytes(b"w" * 600_000 + rank.encode())
    pathlib.Path(os.fsdecode(b"odd-\\xff.bin")).write_bytes(b"1")
    pathlib.Path(os.environ["OARLOCK_RESULTS"], "score.txt").write_text("0.9")
    print("written", flush=True)
    if "wait" in sys.argv:
        time.sleep(600)
    sys.exit(int(sys.argv[1]))
"""


def files(shell: shells.Shell, job: str) -> dict[str, int]:
    return {one["path"]: one["bytes"] for one in shell.json("files", job)["items"]}


def test_a_good_job_names_its_new_files_and_gives_them(shell: shells.Shell) -> None:
    shell.write("writes.py", WRITES)
    done = shell.do("run", "--workers", "2", "--name", "good", "--", "python", "writes.py", "0")
    assert "6 new files, 1.2 MB: oarlock download good" in done.stderr
    found = files(shell, "good")
    assert {path: size for path, size in found.items() if path.startswith(("files/", "results/", "earlier/"))} == {
        **{f"files/worker-{rank}/ckpt.pt": 600_001 for rank in (0, 1)},
        **{f"files/worker-{rank}/lightning_logs/version_0/metrics.csv": 10 for rank in (0, 1)},
        **{f"files/worker-{rank}/odd-%FF.bin": 1 for rank in (0, 1)},
        "results/score.txt": 3,
        "results/worker-1/score.txt": 3,
    }
    assert found["logs/attempt-1/worker-0/stdout.0"] == len("written\n")
    said = shell.do("download", "good").stdout
    assert said == "Downloaded 8 files, 1.2 MB, to good-files.\n"
    fetched = shell.work / "good-files" / "files"
    assert [(fetched / f"worker-{rank}" / "ckpt.pt").read_bytes()[-1:] for rank in (0, 1)] == [b"0", b"1"]
    assert (fetched / "worker-0" / os.fsdecode(b"odd-\xff.bin")).read_text() == "1"
    again = json.loads(shell.do("download", "good", "--json").stdout)
    assert (again["files"], again["present"]) == (0, 8)
    shell.do("download", "good", "logs", "--to", "copies")
    assert (shell.work / "copies" / "logs" / "attempt-1" / "worker-1" / "stdout.0").read_text() == "written\n"


def test_each_attempt_of_a_failing_job_leaves_its_own(shell: shells.Shell) -> None:
    shell.write(
        "fails.py",
        """
        import os, sys
        open("ckpt.pt", "w").write("attempt " + os.environ["OARLOCK_ATTEMPT"])
        os.kill(os.getpid(), 9)
        """,
    )
    code = "--max-restarts", "1", "--name", "fails"
    done = shell.do("run", *code, "--", "python", "fails.py", code=None)
    assert "1 new file, 9 B: oarlock download fails" in done.stderr
    attempts = shell.job("fails")["attempts"]
    *before, last = [one["number"] for one in attempts if one["verdict"]["cause"] == "signal"]
    shell.do("download", "fails", "files/worker-0/ckpt.pt", "--to", "last")
    assert (shell.work / "last" / "ckpt.pt").read_text() == f"attempt {last}"
    for number in before:  # others have failed without the program, by the platform
        shell.do("download", "fails", f"earlier/attempt-{number}/worker-0/ckpt.pt", "--to", f"kept-{number}")
        assert (shell.work / f"kept-{number}" / "ckpt.pt").read_text() == f"attempt {number}", attempts


def test_a_canceled_job_keeps_its_files_and_they_go_with_its_record(shell: shells.Shell) -> None:
    shell.write("writes.py", WRITES)
    job = shell.do("run", "--detach", "--name", "waits", "--ignore-files", "light*/", "--", "python", "writes.py", "0",
                   "wait").stdout.strip()  # fmt: skip
    shell.wait_for("waits", lambda _: "written" in shell.do("logs", "waits").stdout)
    shell.do("cancel", "waits", "--wait")
    assert "files/worker-0/ckpt.pt" in files(shell, "waits")
    told = shell.do("files", "waits").stderr
    assert "Not kept: lightning_logs/ (ignored by files.ignore; 1 file, 10 B)." in told
    assert (shell.home / "files" / job).is_dir()
    shell.do("rm", "waits")
    assert not (shell.home / "files" / job).exists()


def test_files_over_the_limit_are_named_and_none_is_kept_where_that_is_not_wanted(shell: shells.Shell) -> None:
    shell.write("writes.py", WRITES)
    done = shell.do("run", "--name", "small", "--files-limit", "1000", "--", "python", "writes.py", "0")
    assert "2 new files, 11 B: oarlock download small" in done.stderr
    assert "not kept: ckpt.pt (over the limit of 1.0 kB; 1 file, 600.0 kB)" in done.stderr
    done = shell.do("run", "--name", "none", "--no-keep-files", "--", "python", "writes.py", "0")
    assert "download none" not in done.stderr
    assert not [path for path in files(shell, "none") if path.startswith("files/")]


@pytest.mark.long
def test_a_download_goes_on_after_the_server_was_killed(fresh: shells.Shell) -> None:
    """A part that came from a server that is gone is gone on with by the next one."""
    fresh.write("big.py", 'import os; open("big.bin", "wb").write(os.urandom(3_000_000))')
    fresh.do("run", "--name", "big", "--", "python", "big.py")
    (listed,) = fresh.json("files", "big", "files")["items"]
    stored = next((fresh.home / "files").rglob("big.bin")).read_bytes()
    target = downloads.Target(bodies.JobFile(**listed), Path("big.bin"))
    part = fresh.work / downloads.Draft(target).path
    part.write_bytes(stored[:1_000_000])
    os.kill(fresh.server_pid(), signal.SIGKILL)
    fresh.do("up", "--detach")
    fresh.do("download", "big", "files/worker-0/big.bin")
    assert (fresh.work / "big.bin").read_bytes() == stored
    assert not part.exists()
