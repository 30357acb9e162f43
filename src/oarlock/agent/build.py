"""The command `python -m oarlock.agent.build OUT.pyz`: pack the agent into a file."""

from __future__ import annotations

import sys

from oarlock.agent import zipapp


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m oarlock.agent.build OUT.pyz\n")
        return 64
    sys.stdout.write(f"{zipapp.build(arguments[1])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
