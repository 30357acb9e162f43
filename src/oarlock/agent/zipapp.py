"""The packing of the agent into one file for Python 3.8 or newer. The same sources give the same bytes.

The file holds each module as source and as bytecode of the Python that builds it. Another version of Python ignores the
bytecode and compiles the source. Nothing is compressed, because every task reads the file when it starts.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent
NOT_INSIDE = {"zipapp.py", "build.py", "hook/sitecustomize.py"}
# Newer formats share equal objects by their reference counts, which differ from one run to the next.
MARSHAL_WITHOUT_REFERENCES = 2
LONG_AGO = (1980, 1, 1, 0, 0, 0)
UNCHECKED_HASH = (1).to_bytes(4, "little")

MAIN = """import sys
from oarlock.agent import __main__ as agent
import os
status = agent.main(sys.argv)
os._exit(status)
"""


def build(path: str | os.PathLike[str]) -> Path:
    """Write the zipapp to `path` and return the path. A file that already has the content is not written again."""
    target = Path(path)
    content = _content()
    if target.exists() and target.read_bytes() == content:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + f".{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(target)
    return target


def hook_directory() -> Path:
    """Return the directory of the stack hook, for `hook_path`."""
    return PACKAGE / "hook"


def _content() -> bytes:
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, source in sorted(_sources().items()):
            _add(file, name + "c", _bytecode(name, source))
            _add(file, name, source)
    return buffer.getvalue()


def _sources() -> dict[str, bytes]:
    found = {"__main__.py": MAIN.encode(), "oarlock/__init__.py": b""}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in NOT_INSIDE:
            found["oarlock/agent/" + name] = path.read_bytes()
    return found


def _bytecode(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    digest = importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + digest + marshal.dumps(code, MARSHAL_WITHOUT_REFERENCES)


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, LONG_AGO)
    entry.external_attr = 0o644 << 16
    file.writestr(entry, data)
