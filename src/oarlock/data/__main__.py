"""The helper command of the agent, `python -m oarlock.data`. It runs under Oarlock's interpreter, not in the user's
image.

    [--home DIR] fetch SOURCE DEST
    [--home DIR] store DIR URL
    prune URL --keep N [--memory FILE]
    complete DIR URL [--memory FILE]
    keep DIR URL --baseline FILE [--ignore PATTERN]...
    --task DIR serve MAILBOX

The result is the last line on stdout; `reporting.py` describes stderr. The exit code is the error's: 2 if the request
can never work as written, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from oarlock.data.transfers import reporting
from oarlock.spec import errors


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    try:
        reporting.result(answer(asked))
    except errors.OarlockError as error:
        reporting.failed(error)
        return error.exit_code
    return 0


def answer(asked: argparse.Namespace) -> str:
    """Carry out the command and return its result. Each command imports its own libraries, because they are large."""
    if asked.command == "fetch":
        from oarlock.data.transfers import fetch

        return str(fetch.run(asked.source, asked.dest, home=asked.home, task=asked.task))
    if asked.command == "serve":
        from oarlock.data.transfers import mailboxes

        return mailboxes.run(asked.mailbox, asked.task)
    if asked.command == "store":
        from oarlock.data.transfers import homeguard, upload

        if asked.home is not None:
            homeguard.check_destination(asked.url, asked.home, homeguard.OWN)
        return str(upload.run(asked.directory, asked.url, asked.task))
    if asked.command == "keep":
        from oarlock.data.transfers import workfiles

        bounds = workfiles.Bounds(asked.limit_bytes, asked.limit_files)
        return workfiles.run(asked.directory, asked.url, asked.baseline, asked.ignore, bounds, asked.task)
    if asked.command == "prune":
        from oarlock.data.checkpoints import pruning

        return json.dumps(msgspec.to_builtins(pruning.run(asked.url, asked.keep, asked.memory, asked.task)))
    from oarlock.data.checkpoints import completing

    return str(completing.run(asked.directory, asked.url, asked.memory, asked.task))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m oarlock.data", description="Fetch data, store results and checkpoints."
    )
    top.add_argument(
        "--home",
        metavar="DIR",
        help="the server's home, which can be neither a source of data nor a destination of results",
    )
    top.add_argument(
        "--task", metavar="DIR", help="the directory of the task: its assignment names the server of `oarlock:` places"
    )
    commands = top.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="run the requests of the agent in another container")
    serving.add_argument("mailbox", metavar="MAILBOX")
    fetching = commands.add_parser("fetch", help="copy a file, directory or prefix to a path")
    fetching.add_argument("source", metavar="SOURCE")
    fetching.add_argument("dest", metavar="DEST")
    storing = commands.add_parser("store", help="copy a directory's files to a URL")
    storing.add_argument("directory", metavar="DIR")
    storing.add_argument("url", metavar="URL")
    keeping = commands.add_parser("keep", help="copy the new and changed files of a working directory to a URL")
    keeping.add_argument("directory", metavar="DIR")
    keeping.add_argument("url", metavar="URL")
    keeping.add_argument("--baseline", metavar="FILE", required=True, help="the list of the earlier files")
    keeping.add_argument("--ignore", metavar="PATTERN", action="append", default=[], help="as in .gitignore")
    keeping.add_argument("--limit-bytes", metavar="N", type=int, required=True)
    keeping.add_argument("--limit-files", metavar="N", type=int, required=True)
    pruning = commands.add_parser("prune", help="remove all but the best checkpoints from a URL")
    pruning.add_argument("url", metavar="URL")
    pruning.add_argument("--keep", metavar="N", type=int, required=True)
    pruning.add_argument("--memory", metavar="FILE", type=Path, help="file that records which copies were read")
    completing = commands.add_parser("complete", help="store a checkpoint, once the shards of other tasks are there")
    completing.add_argument("directory", metavar="DIR")
    completing.add_argument("url", metavar="URL")
    completing.add_argument("--memory", metavar="FILE", type=Path, help="file that records which copies were read")
    return top


if __name__ == "__main__":
    sys.exit(main())
