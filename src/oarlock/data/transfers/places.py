"""The sources of data and the destinations of results: URLs of the allowed schemes, read through fsspec.

`weblinks.py` handles http and https, because it must check addresses and redirects; fsspec handles all other schemes.
Every error of the libraries behind fsspec becomes one of Oarlock's errors here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from oarlock.data.transfers import schemes
from oarlock.spec import errors
from oarlock.spec.hints import extras

EXTRAS = {"s3": "s3", "gs": "gs"}


class Item(msgspec.Struct, frozen=True):
    """A file at the source. `name` is relative to the source; `version` changes when the content changes."""

    name: str
    path: str
    size: int | None
    version: str


class Listing(msgspec.Struct, frozen=True):
    """The files at a source. `single`: the source is one file, not a directory or prefix."""

    items: tuple[Item, ...]
    single: bool

    @property
    def bytes(self) -> int | None:
        sizes = [item.size for item in self.items if item.size is not None]
        return sum(sizes) if len(sizes) == len(self.items) else None


def local(url: str) -> Path:
    """Return the path of a `file` URL."""
    if url.startswith("/"):
        return Path(url)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise errors.InvalidInput(
            f"{url!r} does not name an absolute path", hint="write file:///absolute/path", path="source"
        )
    from urllib.parse import unquote

    return Path(unquote(parts.path))


def filesystem(url: str, task: str | None = None) -> tuple[Any, str]:
    """Return fsspec's file system for the URL, and the path in it. fsspec reads its own settings (FSSPEC_*, AWS_*).

    `task` is the directory of the task, for the installation's own place for checkpoints.

    Each call opens a new one, so open it once for many files. fsspec's own cache of file systems would keep the
    credentials of the first call for the whole process, also after a change of the environment.
    """
    if schemes.signed(url):
        from oarlock.data.transfers import signedplaces

        return signedplaces.SignedPlace(task), url.removeprefix(f"{schemes.SIGNED}/").strip("/")
    import fsspec

    kind = schemes.of(url)
    if kind == "file":
        return fsspec.filesystem("file"), str(local(url))
    try:
        with foreign(url):
            return fsspec.filesystem(kind, skip_instance_cache=True), url.removeprefix(f"{kind}://").strip("/")
    except ImportError as error:
        extra = EXTRAS[kind]
        raise errors.InvalidInput(
            f"{kind}:// needs a library that is not installed ({error})",
            hint=f"On the server's machine: {extras.command(extra)}",
        ) from error


@contextlib.contextmanager
def foreign(url: str) -> Iterator[None]:
    """Turn the errors of the libraries behind fsspec into Oarlock's errors."""
    try:
        yield
    except (errors.OarlockError, ImportError):
        raise
    except FileNotFoundError as error:
        raise errors.NotFound(
            f"there is nothing at {url}", hint="check the URL, and the permission to list it"
        ) from error
    except PermissionError as error:
        raise forbidden(url, error) from error
    except OSError as error:
        raise errors.Unavailable(f"{url}: {error}", hint="try again, or check the disk and the network") from error
    except Exception as error:  # botocore, aiohttp and google's libraries share no root
        if "Credentials" in type(error).__name__:
            raise forbidden(url, error) from error
        raise errors.Unavailable(
            f"{url}: {type(error).__name__}: {error}", hint="check the URL and the network"
        ) from error


def forbidden(url: str, error: Exception) -> errors.Forbidden:
    return errors.Forbidden(
        f"{url} may not be read or written: {error}",
        hint="give the job credentials with `secrets:` (such as AWS_ACCESS_KEY_ID), or the machine a role",
    )


def listing(url: str, task: str | None = None) -> Listing:
    """Return every file at the URL, ordered by name. `task` as in `filesystem`.

    NotFound if there is none; InvalidInput for a name that leads out of the target.
    """
    system, path = filesystem(url, task)
    with foreign(url):
        info = system.info(path)
        if info["type"] == "file" and not url.endswith("/"):
            return Listing((item(info, PurePosixPath(path).name),), single=True)
        found = system.find(path, detail=True)
    items = tuple(
        item(info, relative(name, path, url)) for name, info in sorted(found.items()) if not name.endswith("/")
    )
    if not items:
        raise errors.NotFound(f"there are no files at {url}", hint="check the URL")
    return Listing(items, single=False)


def item(info: dict[str, Any], name: str) -> Item:
    version = info.get("ETag") or info.get("mtime") or info.get("LastModified") or info.get("updated") or ""
    return Item(name, str(info["name"]), info.get("size"), str(version))


def relative(name: str, root: str, url: str) -> str:
    """Return the name below `root`. InvalidInput if it leads out of the target: objects may have any name."""
    below = name.removeprefix(f"{root.rstrip('/')}/")
    if below == name or "\0" in below or any(part in ("", ".", "..") for part in below.split("/")):
        raise errors.InvalidInput(
            f"{url} has an object called {name!r}, which is not a valid file name", hint="rename it"
        )
    return below
