"""The small exchanges of the workers by way of the first parameter server, in the place of a gloo group.

A gloo group ends with its first member; workers that go by way of a server need each other's addresses as little as
each other's lives.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch

from oarlock.train import patience
from oarlock.train.servers import addresses
from oarlock.train.servers.process import meeting
from oarlock.train.servers.wire import frames, handshake, memory
from oarlock.train.servers.workers import links


class _Answer:
    """An exchange: its number, this worker's value, and the values of all once they have arrived."""

    def __init__(self, number: int, value: bytes) -> None:
        self.number, self.value = number, value
        self.values: list[bytes] | None = None


class Exchanges:
    """The exchanges of this worker. All workers must begin them in the same order.

    Where it `joins` others that train already, they do not meet any more: each exchange has this worker's value alone.
    In rounds they do, and this worker meets none until it has entered one.
    """

    def __init__(self, servers: addresses.Addresses, place: handshake.Place | None) -> None:
        self._servers = servers
        self._link: links.Link | None = None
        self.joins = False
        self.watch: Callable[[], None] = lambda: None  # called again and again while this worker waits for the others
        if place is not None:
            self.enter(place)

    def enter(self, place: handshake.Place) -> None:
        """Meet the workers of a round, or those of the attempt where it has no rounds."""
        self.close()
        self._rank, self._workers = place.rank, place.workers
        self._begun = 0
        self._under_way: deque[_Answer] = deque()
        self._over: deque[_Answer] = deque(maxlen=meeting.KEPT)  # a new server needs what others lack
        self._link = links.Link(self._servers, 0, place)
        self.joins = self._link.joins

    @property
    def begun(self) -> int:
        """The number of the last exchange."""
        return self._begun

    def succeed(self, begun: int) -> None:
        """Go on in the place of a worker that died, after this exchange."""
        self.joins, self._begun = False, begun

    def gather(self, value: object) -> list[Any]:
        """Return every worker's value, in the order of the ranks. A value is None, a number, a text, or a tuple, list
        or dict of such.
        """
        return [_value(each.decode()) for each in self._begin(repr(value).encode())()]

    def start_largest(self, numbers: Sequence[int], again: int | None = None) -> Callable[[], list[int]]:
        """Start to find the largest of each of these numbers. Return a function that waits for them. `again` is the
        number of an exchange that a worker had begun whose place this one takes.
        """
        wait = self._begin(repr(list(numbers)).encode(), again)
        return lambda: [max(column) for column in zip(*(ast.literal_eval(each.decode()) for each in wait()))]

    @property
    def has_met(self) -> bool:
        """Whether all workers of the round have been there."""
        return self._workers == 1 or bool(self._over)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Give every worker the values that worker `source` has, of a contiguous tensor on the CPU, in place."""
        if self.joins:
            return
        whole = memory.view(tensor)
        for start in range(0, whole.nbytes, meeting.MOST_BODY_BYTES):
            piece = whole[start : start + meeting.MOST_BODY_BYTES]
            theirs = self._begin(bytes(piece) if self._rank == source else b"")()[source]
            if self._rank != source:
                piece[:] = theirs

    def look_after(self) -> None:
        """Recover from the death of the server, while this worker waits for an answer of another kind.

        A worker that has the result of an exchange may be the only one: the others wait for its value.
        """
        if self._link is None or self.joins or not self._link.replaced:
            return
        try:
            while self._under_way and self._link.waits(0):
                self._receive()
            if self._link.is_broken():
                self._recover()
        except links.Lost:
            self._recover()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _begin(self, value: bytes, again: int | None = None) -> Callable[[], list[bytes]]:
        self._begun += again is None
        answer = _Answer(self._begun if again is None else again, value)
        if self.joins:
            answer.values = [value] * self._workers
            return lambda: self._wait(answer)
        try:
            self._send(answer)
        except links.Lost:
            self._recover()
            self._send(answer)
        self._under_way.append(answer)
        return lambda: self._wait(answer)

    def _send(self, answer: _Answer, *, again: bool = False) -> None:
        fields = {"number": answer.number, **({"again": True} if again else {})}
        self._connected().start(frames.Kind.MEET, fields, [memoryview(answer.value)])

    def _connected(self) -> links.Link:
        assert self._link is not None
        return self._link

    def _recover(self) -> None:
        """Give a server that takes the place of a dead one all that it needs."""
        until = monotonic() + links.WAIT_S
        link = self._connected()
        while True:
            try:
                link.reconnect()
                for answer in self._over:
                    self._send(answer, again=True)
                for answer in self._under_way:
                    self._send(answer)
                return
            except links.Lost:
                if not link.replaced or monotonic() > until:
                    raise

    def _wait(self, answer: _Answer) -> list[bytes]:
        while answer.values is None:
            try:
                while not self._connected().waits(links.WATCH_S):
                    patience.check_round()
                    self.watch()
                self._receive()
            except links.Lost:
                self._recover()
        return answer.values

    def _receive(self) -> None:
        """Receive the answer of the oldest exchange."""
        received: list[bytearray] = []

        def into(head: frames.Head) -> list[memoryview]:
            lengths = [int(each) for each in head.fields["lengths"]]
            if len(lengths) != self._workers or not all(0 <= each <= meeting.MOST_BODY_BYTES for each in lengths):
                raise frames.Refused("an exchange has other values than one of each worker")
            received.extend(bytearray(each) for each in lengths)
            return [memoryview(each) for each in received]

        self._connected().finish(into)
        finished = self._under_way.popleft()
        finished.values = [bytes(each) for each in received]
        self._over.append(finished)


class _Floats(ast.NodeTransformer):
    """Puts the floats in that have no literal: infinity, and what is not a number."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node


def _value(text: str) -> Any:
    """Return the plain value of which `text` is the `repr`."""
    return ast.literal_eval(_Floats().visit(ast.parse(text, mode="eval")))
