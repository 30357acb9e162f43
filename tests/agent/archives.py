"""Code snapshots, good ones and evil ones."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable


def packed(files: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    def fill(archive: tarfile.TarFile) -> None:
        for name, data in files.items():
            add(archive, name, data)

    return made(fill, format)


def made(fill: Callable[[tarfile.TarFile], None], format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped:
        with tarfile.open(mode="w|", fileobj=zipped, format=format) as archive:
            fill(archive)
    return out.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    archive.addfile(info, io.BytesIO(data))
