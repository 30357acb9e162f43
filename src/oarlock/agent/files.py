"""Small files, written so that a reader sees either the whole old file or the whole new file."""

from __future__ import annotations

import json
import os


def write_atomically(path: str, text: str, mode: int = 0o600, before_rename: object = None) -> None:
    """Write beside `path`, fsync, rename, and fsync the directory. After a crash the file is whole or absent."""
    partial = path + ".partial"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    if callable(before_rename):
        before_rename()
    os.rename(partial, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: str, value: object, before_rename: object = None) -> None:
    write_atomically(path, json.dumps(value, sort_keys=True) + "\n", before_rename=before_rename)


def read_text(path: str, limit_bytes: int = 1 << 20) -> str:
    """Return the file's beginning as text.

    A file that cannot be read counts as empty: files under /proc come and go.
    """
    return read_bytes(path, limit_bytes).decode("utf-8", "replace")


def read_bytes(path: str, limit_bytes: int = 1 << 20) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while limit_bytes > 0:
            part = os.read(fd, min(limit_bytes, 65536))
            if not part:
                break
            parts.append(part)
            limit_bytes -= len(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def inside(directory: str, relative: str) -> str:
    """Return `relative` below `directory`. ValueError if it could lead anywhere else."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if relative.startswith("/") or not parts or ".." in parts or "\0" in relative:
        raise ValueError(f"{relative!r} is not a path inside the task's directory")
    return os.path.join(directory, *parts)
