"""The blanking of secrets in log bytes: each secret is overwritten by `*` of equal length before the bytes are sent.

Covered: every secret of four characters or more as it is; each line of sixteen characters or more of a longer secret
(keys, certificates); and the usual encodings: percent-encoded, escaped as in JSON or a repr, and base64 at any of its
three alignments. Not covered: a secret that a program changes on purpose (reversed, split, encrypted).

Offsets do not move, so a stream can be cut anywhere: the caller gives `cover` some bytes of context on both sides.
While the file may still grow, it holds back the bytes at the end that may be the beginning of a secret (`held`).
"""

from __future__ import annotations

import binascii
import json

SHORTEST_SECRET = 4
SHORTEST_LINE = 16
SHORTEST_BASE64 = 8
LONGEST_PATTERN_BYTES = 64 << 10
UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"


class Blanker:
    """The byte patterns to hide.

    `reach`, the context that is needed, is the length of the longest pattern minus one.
    """

    def __init__(self, secrets: list[str]) -> None:
        found: set[bytes] = set()
        for secret in secrets:
            found.update(_forms(secret))
        pieces = {piece for pattern in found for piece in _pieces(pattern)}
        self._patterns = sorted(pieces, key=lambda pattern: (-len(pattern), pattern))
        self.reach = max([len(pattern) for pattern in self._patterns] or [1]) - 1

    def cover(self, data: bytes) -> bytes:
        """Return `data` with every whole secret overwritten. Overlapping secrets are covered to their common end."""
        out: bytearray | None = None
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                out = bytearray(data) if out is None else out
                out[at : at + len(pattern)] = b"*" * len(pattern)
                at = data.find(pattern, at + 1)
        return data if out is None else bytes(out)

    def held(self, data: bytes) -> int:
        """Return the number of bytes at the end of `data` that may be the beginning of a secret."""
        longest = 0
        for pattern in self._patterns:
            at = data.find(pattern[:1], max(0, len(data) - len(pattern) + 1))
            while at >= 0:
                if pattern.startswith(data[at : at + 32]) and pattern.startswith(data[at:]):
                    longest = max(longest, len(data) - at)
                    break
                at = data.find(pattern[:1], at + 1)
        return longest

    def text(self, text: str) -> str:
        """Return a short text, such as a last line or a detail, with every secret overwritten."""
        return self.cover(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _forms(secret: str) -> set[bytes]:
    raw = secret.encode("utf-8", "surrogateescape")
    forms = {raw, raw.strip()}
    forms.update(line.strip() for line in raw.splitlines() if len(line.strip()) >= SHORTEST_LINE)
    forms.add(b"".join(bytes([c]) if c in UNRESERVED else b"%%%02X" % c for c in raw))
    forms.add(b"".join(bytes([c]) if c in UNRESERVED + b"/" else b"%%%02X" % c for c in raw))
    forms.add(json.dumps(secret)[1:-1].encode())
    forms.add(json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"))
    forms.add(repr(secret)[1:-1].encode("utf-8", "surrogateescape"))
    forms = {form for form in forms if len(form) >= SHORTEST_SECRET}
    if len(raw) >= SHORTEST_SECRET:
        forms.update(_base64_forms(raw))
    return forms


def _base64_forms(raw: bytes) -> set[bytes]:
    """Return the base64 text that depends on `raw` alone, for each place in a group of three where it may begin."""
    forms = set()
    for before in range(3):
        text = binascii.b2a_base64(b"\0" * before + raw, newline=False).rstrip(b"=")
        whole = (before + len(raw)) // 3 * 4
        sure = text[(0, 2, 3)[before] : whole]
        if len(sure) >= SHORTEST_BASE64:
            forms.add(sure)
            forms.add(sure.replace(b"+", b"-").replace(b"/", b"_"))
    return forms


def _pieces(pattern: bytes) -> list[bytes]:
    size = LONGEST_PATTERN_BYTES
    pieces = [pattern[at : at + size] for at in range(0, len(pattern), size)]
    return [piece for piece in pieces if len(piece) >= SHORTEST_SECRET]
