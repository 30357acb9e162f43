"""The greeting of a worker and a parameter server: both show that they know the token of their attempt.

The token itself never travels. Each side sends a fresh nonce and gets HMAC-SHA256 of both nonces under the token back,
the worker's with the place that it claims.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass

from oarlock.train import environment
from oarlock.train.servers.wire import frames, transport

MOST_WORKERS = 1 << 20
_NONCE_BYTES = 16


@dataclass(frozen=True)
class Place:
    """A worker, as it introduces itself. `purpose` is `step`, `meet` or `give`: a connection for each.

    Where workers come and go (`elastic`), `rank` is the number that the worker keeps, and `workers` is how many there
    were when it began. Where they step together and come and go, both belong to a round. 0: there are no rounds.
    """

    rank: int
    workers: int
    incarnation: int
    purpose: str
    elastic: bool = False
    round: int = 0

    @classmethod
    def of(cls, given: environment.Processes, purpose: str) -> Place:
        """Return the place of this process."""
        elastic = given.worker is not None
        rank = given.rank if given.worker is None else given.worker
        return cls(rank, given.world_size, given.incarnation, purpose, elastic)

    def __post_init__(self) -> None:
        numbers = (self.rank, self.workers, self.incarnation, self.round)
        if any(type(each) is not int for each in numbers) or type(self.elastic) is not bool:
            raise frames.Refused("the worker's place is not valid")
        ranks = MOST_WORKERS if self.elastic else self.workers
        if not 0 <= self.rank < ranks or not 1 <= self.workers <= MOST_WORKERS or self.round < 0:
            raise frames.Refused("the worker's place is not valid")
        if self.purpose not in {"step", "meet", "give"}:
            raise frames.Refused("the purpose of the connection is not known")


def greet(connection: transport.Connection, token: str, place: Place) -> bool:
    """Introduce this worker. Return whether it joins others in training. Refused if the server lacks the token."""
    challenge = connection.head(frames.MOST_GREETING_BYTES)
    if challenge.kind is not frames.Kind.CHALLENGE or challenge.body_bytes:
        raise frames.Refused("the server did not send a challenge")
    theirs, ours = str(challenge.fields.get("nonce")), secrets.token_hex(_NONCE_BYTES)
    proof = _proof(token, "worker", theirs, ours, asdict(place))
    connection.send(frames.Kind.HELLO, {"nonce": ours, "proof": proof, "place": asdict(place)})
    welcome = connection.head(frames.MOST_GREETING_BYTES)
    if welcome.kind is frames.Kind.ERROR:
        raise frames.refusal(welcome.fields)
    expected = _proof(token, "server", theirs, ours, {})
    if welcome.body_bytes or not _same(expected, welcome.fields.get("proof")):
        raise frames.Refused("the server does not know the token of this attempt")
    return bool(welcome.fields.get("joins"))


def receive(connection: transport.Connection, token: str) -> tuple[Place, str]:
    """Let a worker introduce itself. Return its place and the proof for the welcome. Raises Refused for all others."""
    ours = secrets.token_hex(_NONCE_BYTES)
    connection.send(frames.Kind.CHALLENGE, {"nonce": ours})
    hello = connection.head(frames.MOST_GREETING_BYTES)
    if hello.kind is not frames.Kind.HELLO or hello.body_bytes:
        raise frames.Refused("the first frame is not a greeting")
    claimed, theirs = hello.fields.get("place"), str(hello.fields.get("nonce"))
    if not isinstance(claimed, dict) or len(theirs) < _NONCE_BYTES:
        raise frames.Refused("the greeting is not complete")
    expected = _proof(token, "worker", ours, theirs, claimed)
    if not _same(expected, hello.fields.get("proof")):
        raise frames.Refused("the token is not that of this attempt")
    try:
        place = Place(**claimed)
    except TypeError:
        raise frames.Refused("the worker's place is not complete") from None
    return place, _proof(token, "server", ours, theirs, {})


def _same(expected: str, told: object) -> bool:
    """Compare in constant time. JSON may tell half of a surrogate pair, which UTF-8 does not encode."""
    return hmac.compare_digest(expected.encode(), str(told).encode("utf-8", "replace"))


def _proof(token: str, side: str, server_nonce: str, worker_nonce: str, place: dict[str, object]) -> str:
    said = json.dumps([side, server_nonce, worker_nonce, place], sort_keys=True)
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()
