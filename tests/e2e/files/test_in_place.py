"""`run --in-place`: the job runs in the very directory, finds what is ignored there and leaves its files there."""

from __future__ import annotations

from tests.e2e import shell as shells


def test_a_job_runs_in_the_directory_itself(shell: shells.Shell) -> None:
    shell.write(".gitignore", "data/\n")
    shell.write("data/rows.csv", "1,2,3\n")
    shell.write("requirements.txt", "")
    shell.write(
        "reads.py",
        """
        import os, sys
        rank = os.environ["RANK"]
        open(f"out-{rank}.txt", "w").write(open("data/rows.csv").read() + os.getcwd())
        sys.exit(int(sys.argv[1]))
        """,
    )
    done = shell.do("run", "--in-place", "--workers", "2", "--name", "there", "--", "python", "reads.py", "0")
    for rank in (0, 1):
        assert (shell.work / f"out-{rank}.txt").read_text() == f"1,2,3\n{shell.work}"
    assert f"files        where the job wrote them: {shell.work}" in done.stderr
    assert "Not sent" not in done.stderr
    job = shell.job("there")
    assert job["directory"] == str(shell.work)
    assert job["snapshot"], "the code is recorded"
    assert f"runs in place in {shell.work}" in shell.do("show", "there").stdout
    (shell.work / "out-0.txt").unlink()
    shell.do("run", "--in-place", "--name", "fails", "--", "python", "reads.py", "3", code=3)
    assert (shell.work / "out-0.txt").exists(), "a failure deletes nothing either"
    assert (shell.work / "reads.py").exists()
    shell.do("rm", "there", "fails")
    assert (shell.work / "data" / "rows.csv").exists()


def test_a_directory_that_cannot_be_packed_is_not_recorded_and_that_is_said(shell: shells.Shell) -> None:
    shell.write("ok.py", "print(len(open('big.bin').read()))")
    shell.write("big.bin", "b" * 2000)
    done = shell.do("run", "--in-place", "--snapshot-limit", "1000", "--name", "big", "--", "python", "ok.py")
    assert done.stdout == "2000\n"
    assert "The code is not recorded: the directory holds" in done.stderr
    assert shell.job("big")["snapshot"] is None
    (shell.work / "big.bin").unlink()


def test_two_jobs_may_share_a_directory_and_are_told(shell: shells.Shell) -> None:
    shell.write("waits.py", "import time; print('up', flush=True); time.sleep(600)")
    shell.do("run", "--in-place", "--detach", "--name", "first", "--", "python", "waits.py")
    done = shell.do("run", "--in-place", "--detach", "--name", "second", "--", "python", "waits.py")
    assert f"first runs in {shell.work} too: they share its files." in done.stderr
    shell.do("cancel", "first", "second", "--wait")


def test_a_directory_that_no_job_can_run_in_is_refused(shell: shells.Shell) -> None:
    shell.write("ok.py", "")
    done = shell.do("run", "--in-place", "--no-snapshot", "--", "python", "ok.py", code=2)
    assert "the job has no directory to run in" in done.stderr
    done = shell.do("run", "--in-place", "--dir", "nowhere", "--", "python", "-c", "1", code=2)
    assert "nowhere is not a directory" in done.stderr


def test_the_data_of_a_job_goes_beside_its_code(shell: shells.Shell) -> None:
    """Data is fetched to where the code looks for it; requirements are found there."""
    shell.write("elsewhere/rows.csv", "4,5\n")
    shell.write("requirements.txt", "")
    shell.write("uses.py", "import os; print(open('brought/rows.csv').read(), os.environ['VIRTUAL_ENV'])")
    brings = "--data", f"{shell.work}/elsewhere:brought", "--dependencies", "requirements.txt"
    done = shell.do("run", "--in-place", *brings, "--name", "brings", "--", "python", "uses.py")
    assert done.stdout.startswith(f"4,5\n {shell.home}/environments/")


def test_a_file_that_was_left_out_is_named_with_the_ways_to_it(shell: shells.Shell) -> None:
    shell.write(".gitignore", "data/\n")
    shell.write("data/rows.csv", "1,2,3\n")
    shell.write("lacks.py", "print(open('data/rows.csv').read())")
    done = shell.do("run", "--name", "lacks", "--", "python", "lacks.py", code=1)
    said = "data/rows.csv is not in the job's copy of your directory: data/ was left out (.gitignore)."
    assert said in done.stderr
    assert said in " ".join(shell.do("show", "lacks").stdout.split())
    shell.write(".oarlockignore", "!data/\n")
    assert shell.do("run", "--", "python", "lacks.py").stdout == "1,2,3\n\n"
    (shell.work / ".oarlockignore").unlink()
    assert shell.do("run", "--in-place", "--", "python", "lacks.py").stdout == "1,2,3\n\n"
