"""The command that installs an extra of this installation: every hint that names an extra takes it from here.

Oarlock is on no package index, so `pip install 'oarlock[torch]'` finds nothing. An installation remembers where it came
from (PEP 610), and the same place with the extra's name is what works.
"""

from __future__ import annotations

import json
from urllib.parse import unquote, urlparse


def command(extra: str, *, python: str = "") -> str:
    """Return a command line for a shell. `python` is the interpreter to install for; the shell's own, else."""
    import importlib.metadata  # 15 ms, which no command has to spare that needs no hint

    try:
        origin = importlib.metadata.distribution("oarlock").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        origin = None
    pip = f"{python} -m pip" if python else "pip"
    return f"{pip} install {requirement(extra, origin)}"


def requirement(extra: str, origin: str | None) -> str:
    """Return the arguments of `pip install`. `origin` is the text of direct_url.json, None where there is none."""
    told = json.loads(origin) if origin else {}
    url = told.get("url", "")
    if "vcs_info" in told:
        vcs = told["vcs_info"]
        return f"'oarlock[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}'"
    if "dir_info" in told and url.startswith("file:"):
        place = unquote(urlparse(url).path)
        return f"{'-e ' if told['dir_info'].get('editable') else ''}'{place}[{extra}]'"
    return f"'.[{extra}]' in a clone of Oarlock" if not url else f"'oarlock[{extra}] @ {url}'"
