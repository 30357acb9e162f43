"""The frames between workers and parameter servers: typed, bounded, never pickled.

A frame is a head of 20 bytes (magic, version, kind, the lengths that follow), a JSON object with plain values, and a
body of raw tensor bytes, which may lie in shared memory. The reader bounds both lengths before it takes memory for
them: the JSON by its own limit, the body by the number of bytes that it expects from this kind of frame. So a foreign
program that speaks to the port costs a refused connection and nothing else.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass
from typing import Any

HEAD = struct.Struct("<4sBBHIQ")
MAGIC = b"oars"
VERSION = 1
MOST_JSON_BYTES = 4 << 20
MOST_GREETING_BYTES = 4096
"""The limit of a frame's JSON until the other side has shown that it knows the token."""


class Kind(enum.IntEnum):
    """The kinds of frames. Each request has one answer: OK, or ERROR with a message."""

    CHALLENGE = 1  # server: a nonce
    HELLO = 2  # worker: its place, a nonce, and the proof that it knows the token
    WELCOME = 3  # server: its own proof
    OPEN = 4  # the parts of the model on this server, the optimizer and the mode
    LOAD = 5  # weights to take; body: the weights
    PULL = 6  # body of the answer: the weights
    STEP = 7  # body: the gradients; body of the answer: the weights after the update
    STATE = 8  # body of the answer: the optimizer's state
    LOAD_STATE = 9  # body: the optimizer's state
    MEET = 10  # an exchange of all workers; body: this worker's value, body of the answer: all values
    DONE = 11  # this worker's training is over
    BEGIN = 12  # training begins, at a step that the newcomers must know
    RESUME = 13  # the weights of a worker, for a server that was restored; body: the weights
    OK = 14
    ERROR = 15
    SHARE = 16  # whether the worker sees the memory that the answer to OPEN offered
    TAKE = 17  # the successor of a dead worker; body of the answer: the state of the others
    WANTED = 18  # whether a successor waits for the state of this worker
    GIVE = 19  # body: this worker's state, for the successor of another one
    LEAVE = 20  # this worker is taken away; the answer tells its last step
    COMMIT = 21  # make the update whose gradients are on all servers; body of the answer: the weights after it
    SKIP = 22  # this worker did not call optimizer.step() in this step


class Refused(Exception):
    """The other side does not speak this protocol, or has sent more than it may."""


class RoundOver(Refused):
    """The round of the worker has lost a member, or a later one has begun: the worker goes on in a later round."""


def refusal(fields: dict[str, Any]) -> Refused:
    """Return the reason of an ERROR."""
    return (RoundOver if fields.get("round_over") is True else Refused)(str(fields.get("message")))


def reason(why: Refused) -> dict[str, Any]:
    """Return the fields of the ERROR that tells of a refusal."""
    return {"message": str(why), **({"round_over": True} if isinstance(why, RoundOver) else {})}


@dataclass(frozen=True)
class Head:
    """A frame up to its body of `body_bytes` bytes, which is still to be read, or lies in `shared` memory."""

    kind: Kind
    fields: dict[str, Any]
    body_bytes: int
    shared: bool = False


def packed(kind: Kind, fields: dict[str, Any], body_bytes: int, *, shared: bool = False) -> bytes:
    """Return the bytes of a frame up to its body."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MOST_JSON_BYTES:
        raise Refused(f"a {kind.name} frame would have {len(text)} bytes of JSON, at most {MOST_JSON_BYTES} are sent")
    return HEAD.pack(MAGIC, VERSION, kind, int(shared), len(text), body_bytes) + text


def lengths(head: bytes, most_json_bytes: int, shared_bytes: int = 0) -> tuple[Kind, int, int, bool]:
    """Return the kind, the length of the JSON, that of the body, and whether the body lies in the shared memory of
    `shared_bytes` bytes. Raises Refused for any other bytes.
    """
    magic, version, kind, shared, json_bytes, body_bytes = HEAD.unpack(head)
    if magic != MAGIC or shared > 1:
        raise Refused("these are not frames of a parameter server")
    if version != VERSION:
        raise Refused(f"version {version} of the protocol, but this library speaks version {VERSION}")
    if shared and body_bytes > shared_bytes:
        raise Refused(f"{body_bytes} bytes in shared memory, which has {shared_bytes}")
    if json_bytes > most_json_bytes:
        raise Refused(f"{json_bytes} bytes of JSON, at most {most_json_bytes} are read")
    try:
        return Kind(kind), json_bytes, body_bytes, bool(shared)
    except ValueError:
        raise Refused(f"{kind} is not a kind of frame") from None


def parsed(text: bytes) -> dict[str, Any]:
    """Return the fields of a frame. Raises Refused for anything but a JSON object."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused("the JSON of a frame is not an object")
    return fields
