"""Generation of the synchronous SDK: `client/asynchronous/` is the source, `client/synchronous/` is made from it.

unasync drops `async` and `await` and replaces the names below; ruff then lays the files out. `waiting.py` is written by
hand on both sides, because there the two really differ. `tests/client/test_generated.py` fails while a file is stale.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).parent.parent
CLIENT = Path("src", "oarlock", "client")
MODULES = (
    "caller",
    "clients",
    "clusterverbs",
    "dataverbs",
    "downloading",
    "jobverbs",
    "sender",
    "serververbs",
    "session",
)
NOTE = "# Made by `make sdk` from `asynchronous/{name}.py`: change that file, not this one.\n"
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncCaller": "Caller",
    "AsyncClient": "Client",
    "AsyncClusterVerbs": "ClusterVerbs",
    "AsyncDataVerbs": "DataVerbs",
    "AsyncDownloads": "Downloads",
    "AsyncExitStack": "ExitStack",
    "AsyncJobVerbs": "JobVerbs",
    "AsyncSender": "Sender",
    "AsyncServerVerbs": "ServerVerbs",
    "AsyncSession": "Session",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "enter_async_context": "enter_context",
    "asynchronous": "synchronous",
    "asyncio": "sync",  # `websockets.asyncio`: nothing else of that name is used there
}


def generate(target: Path) -> None:
    """Write the synchronous modules below `target`, in the folders of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder)
        shutil.copytree(ROOT / CLIENT / "asynchronous", draft / CLIENT / "asynchronous")
        sources = [str(draft / CLIENT / "asynchronous" / f"{name}.py") for name in MODULES]
        unasync.unasync_files(sources, [unasync.Rule("/asynchronous/", "/synchronous/", NAMES)])
        for name in MODULES:
            text = (draft / CLIENT / "synchronous" / f"{name}.py").read_text()
            place = target / CLIENT / "synchronous" / f"{name}.py"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(laid_out(NOTE.format(name=name) + text, name))


def laid_out(text: str, name: str) -> str:
    """Return the text with its imports sorted and its lines laid out."""
    path = str(CLIENT / "synchronous" / f"{name}.py")
    for words in (["check", "--select", "I,UP,F401", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", path, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    generate(ROOT)
