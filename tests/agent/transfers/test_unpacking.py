"""Archives that no snapshot may be: each is refused, and nothing is written outside."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import stat
import tarfile
from pathlib import Path

import pytest
from tests.agent.archives import add, made, packed

from oarlock.agent.transfers import unpacking


def header(**changes: object) -> bytes:
    info = tarfile.TarInfo("file")
    for name, value in changes.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def two(*entries: tuple) -> bytes:
    return made(lambda a: [add(a, *entry) for entry in entries])


def pax(name: str, records: dict[str, str]) -> bytes:
    info = tarfile.TarInfo(name)
    info.pax_headers = records
    return made(lambda a: a.addfile(info, io.BytesIO()), tarfile.PAX_FORMAT)


EVIL = {
    "absolute": two(("/etc/oarlock-evil", b"x")),
    "dot dot": two(("../evil", b"x")),
    "dot dot inside": two(("a/../../evil", b"x")),
    "dot dot, harmless": two(("a/../b", b"x")),
    "backslashes": two(("..\\evil", b"x")),
    "absolute by pax": pax("good", {"path": "/etc/oarlock-evil"}),
    "dot dot by pax": pax("good", {"path": "../evil"}),
    "dot dot by a long name": packed({"a/" * 60 + "../" * 70 + "evil": b"x"}),
    "dot dot by a ustar prefix": packed({"../" + "a" * 90 + "/" + "b" * 60: b"x"}, tarfile.USTAR_FORMAT),
    "symbolic link": two(("link", b"", tarfile.SYMTYPE, "/etc")),
    "link, then through it": two(("link", b"", tarfile.SYMTYPE, "/tmp"), ("link/evil", b"x")),
    "link inside": two(("a", b"x"), ("link", b"", tarfile.SYMTYPE, "a")),
    "hard link": two(("link", b"", tarfile.LNKTYPE, "/etc/passwd")),
    "character device": two(("null", b"", tarfile.CHRTYPE)),
    "block device": two(("disk", b"", tarfile.BLKTYPE)),
    "fifo": two(("pipe", b"", tarfile.FIFOTYPE)),
    "contiguous": two(("file", b"x", tarfile.CONTTYPE)),
    "sparse": two(("file", b"x", tarfile.GNUTYPE_SPARSE)),
    "sparse by pax": pax("good", {"GNU.sparse.major": "1", "GNU.sparse.name": "../evil"}),
    "long link name": gzip.compress(header(type=b"K", size=5) + b"/etc\0".ljust(512, b"\0") + header()),
    "two of one name": two(("a", b"x"), ("a", b"y")),
    "two of one name, spelt differently": two(("a", b"x"), ("./a", b"y")),
    "file over directory": two(("a", b"", tarfile.DIRTYPE), ("a", b"x")),
    "directory over file": two(("a", b"x"), ("a", b"", tarfile.DIRTYPE)),
    "through a file": two(("a", b"x"), ("a/b", b"y")),
    "an empty name": two(("", b"x")),
    "only a dot, as a file": two((".", b"x")),
    "a name too long for a file system": two(("n" * 256, b"x")),
    "too deep": two(("a/" * 200 + "b", b"x")),
    "too many": made(lambda a: [add(a, str(number)) for number in range(1001)]),
    "too many directories": two(*[("/".join(f"{n}-{d}" for d in range(90)), b"") for n in range(20)]),
    "a bomb": packed({"zeros": bytes(11_000_000)}),
    "ends early": gzip.compress(header(size=1000) + b"x" * 512),
    "ends within the gzip": packed({"a": random.Random(1).randbytes(5000)})[:-1000],
    "not gzip": b"PK\x03\x04" + bytes(100),
    "not tar": gzip.compress(b"hello" * 1000),
    "a wrong checksum": gzip.compress(b"x" + header()[1:] + bytes(1024)),
    "a size that is no number": gzip.compress(header()[:124] + b"00000x" + header()[130:] + bytes(1024)),
    "a size in base 256 of more than the limit": gzip.compress(header(size=1 << 34) + bytes(1024)),
    "a negative size": gzip.compress(header(size=-1) + bytes(1024)),
    "pax damaged": gzip.compress(header(type=b"x", size=8) + b"99 a=b\n\n".ljust(512, b"\0") + header()),
    "a directory with content": gzip.compress(header(type=b"5", size=5) + bytes(512)),
}  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_an_evil_archive_is_refused(tmp_path, name):
    path = tmp_path / "in" / "deep" / "archive"
    path.parent.mkdir(parents=True)
    path.write_bytes(EVIL[name])
    outside = set(tmp_path.rglob("*"))
    with pytest.raises(unpacking.Refused):
        unpacking.unpack(str(path), str(path.parent / "code"), limit_bytes=10_000_000, limit_entries=1000)
    written = set(tmp_path.rglob("*")) - outside
    assert all(path.parent / "code" in (p, *p.parents) for p in written)
    assert not any(p.is_symlink() for p in written)
    assert not Path("/etc/oarlock-evil").exists()


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_good_archive_is_unpacked_as_tar_would(tmp_path, format):
    files = {
        "train.py": b"print(1)\n",
        "./pkg/deep/er/module.py": b"x" * 700_001,
        "empty": b"",
        "n" * 90 + "/" + "m" * 90: b"long",
    }
    if format != tarfile.USTAR_FORMAT:
        files |= {"long/" * 40 + "name": b"longer", "ünïcode/名前": b"text", "raw-\udcff": b"bytes"}

    def fill(a: tarfile.TarFile) -> None:
        add(a, "folder/", b"", tarfile.DIRTYPE)
        for name, data in files.items():
            add(a, name, data)
        script = tarfile.TarInfo("run.sh")
        script.mode = 0o4777
        a.addfile(script)

    path = tmp_path / "archive"
    path.write_bytes(made(fill, format))
    unpacking.unpack(str(path), str(tmp_path / "code"))
    for name, data in files.items():
        assert (tmp_path / "code" / name).read_bytes() == data
    assert (tmp_path / "code/folder").is_dir()
    assert stat.S_IMODE((tmp_path / "code/run.sh").stat().st_mode) & 0o7111 == 0o111, "executable, and never setuid"
    assert stat.S_IMODE((tmp_path / "code/train.py").stat().st_mode) & 0o111 == 0


def checked(block: bytes) -> bytes:
    """Return the header with the checksum that its bytes have."""
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return block[:148] + b"%06o\0 " % total + block[156:]


def test_a_size_in_base_256_is_read(tmp_path: Path) -> None:
    """GNU tar writes large sizes like that, and may write any."""
    block = header(size=0)
    block = checked(block[:124] + b"\x80" + (300).to_bytes(11, "big") + block[136:])
    path = tmp_path / "archive"
    path.write_bytes(gzip.compress(block + b"x" * 300 + bytes(212) + header(name="next") + bytes(1024)))
    unpacking.unpack(str(path), str(tmp_path / "code"))
    assert (tmp_path / "code/file").read_bytes() == b"x" * 300
    assert (tmp_path / "code/next").exists()


def test_a_comment_of_the_whole_archive_is_passed_over(tmp_path: Path) -> None:
    """`git archive` writes the commit's name into one. It gives no path and no size."""
    comment = b"52 comment=0123456789012345678901234567890123456789\n" + b"13 path=evil\n"
    path = tmp_path / "archive"
    blocks = header(type=b"g", size=len(comment)) + comment.ljust(512, b"\0") + header(size=2) + b"hi".ljust(512, b"\0")
    path.write_bytes(gzip.compress(blocks + bytes(1024)))
    unpacking.unpack(str(path), str(tmp_path / "code"))
    assert [found.name for found in (tmp_path / "code").iterdir()] == ["file"]
    assert (tmp_path / "code/file").read_bytes() == b"hi"


@pytest.mark.parametrize("case", ["evil", "another digest", "unknown"])
def test_a_snapshot_that_is_not_right_starts_nothing(rig, case):
    blob = EVIL["dot dot"] if case == "evil" else packed({"a": b"x"})
    digest = "sha256:" + ("0" * 64 if case == "another digest" else hashlib.sha256(blob).hexdigest())
    if case != "unknown":
        rig.server.blobs[digest] = blob
    record = rig.run("echo > $OUTSIDE/ran", snapshot=digest)
    assert (record["reason"], record["code"]) == ("download_failed", 1)
    assert not (rig.outside / "ran").exists()
    assert not rig.server.registered
    assert not (rig.directory / "code").exists()
