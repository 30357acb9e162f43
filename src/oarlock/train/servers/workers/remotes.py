"""One parameter server, as a worker sees it: the parts of the model there, and the requests to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import nn, optim

from oarlock.train import errors, patience
from oarlock.train.servers.model import openings, rows, sharding, shares
from oarlock.train.servers.wire import frames, memory
from oarlock.train.servers.workers import links, norms, staging

Kind = frames.Kind
Result = TypeVar("Result")


class Remote:
    """One server, as the worker sees it: its parts of the model."""

    def __init__(
        self,
        link: links.Link,
        rank: int,
        parts: Sequence[sharding.Part],
        tensors: Sequence[sharding.Tensor],
        named: Sequence[tuple[str, nn.Parameter]],
        opening: openings.Opening,
        division: shares.Shares | None = None,
    ) -> None:
        self.link, self._rank = link, rank
        self._shares = division or shares.Shares()  # of the data, among workers that come and go
        self._known = 0  # the number of its divisions that the server knows from this worker
        self._taken: dict[int, int] = {}  # the gradients of each worker in the weights here; none in step with others
        self._parts, self._tensors, self._named, self._opening = parts, tensors, named, opening
        self._staged: dict[int, torch.Tensor] = {}  # by the number of the part
        self._pushed: dict[int, rows.Rows] = {}  # kept for a request that is repeated
        self._changed: dict[int, rows.Rows] = {}
        self._strays = False  # rows here may be those of a lost branch of the server's history
        self.recovers = False
        self._lost_at: float | None = None  # when the answer that is awaited was lost for the first time
        self._settings: list[dict[str, Any]] = []
        self._request: tuple[Kind, dict[str, Any], list[memoryview]] | None = None
        self._step: tuple[Kind, dict[str, Any], list[memoryview]] | None = None  # that of the update that is committed
        self._passed_over = 0  # answers to come to a step that was repeated
        self._awaited = self._broken = False
        self.watch: Callable[[], None] = lambda: None  # called again and again while this worker waits for an answer
        self.version = self.steps = 0
        self.skipped: int | None = None  # steps without an update since the last one, in lockstep with others
        self.own_us: int | None = None  # this worker's time of a step, for the next gradient
        self.slowest: list[int] | None = None  # the slowest worker, its time in microseconds, and that of the fastest
        self.norms: norms.Told | None = None  # of the last update that the server has measured
        self._is_successor = False  # the server of one that died
        self._found = 0  # the version that the server had when this worker came to it
        self.began_at: int | None = None

    def open(self, steps: int = 0) -> None:
        """Take part in the training from now on, after so many steps where workers come and go."""
        told = self.link.open({**self._opening.fields(), **self._knowledge(steps)})
        self.version, self.steps, self.began_at = int(told["version"]), int(told["steps"]), told["began_at"]
        self._learn(told)

    def enter(self, version: int, settings: Sequence[dict[str, Any]]) -> None:
        """Take part in a round, with the weights of this version. ServerError where the server has others.

        A server that was started anew may have older ones: it gets these.
        """
        self.version, self._settings = version, list(settings)
        self._resume()
        if self._found > version:
            raise errors.ServerError(
                f"parameter server {self.link.number} has the weights of version {self._found}, and the workers those "
                f"of version {version}: the gang restarts from its newest checkpoint"
            )
        self.recovers = self.link.replaced

    def advance(self, steps: int) -> None:
        """Count so many steps of this worker, which it has in the weights of a checkpoint."""
        self._taken[self._rank] = max(steps, self._taken.get(self._rank, 0))

    def part(self) -> int:
        """Let the others divide the data without this worker. Return the last step in which it has a share."""
        told = self.ask(Kind.LEAVE, {})
        self._shares.take(told["shares"])
        return int(told["last"])

    def _knowledge(self, steps: int) -> dict[str, Any]:
        self._known = len(self._shares.divisions)
        return {"shares": self._shares.fields(), "steps": steps} if self._opening.mode.elastic else {}

    def _learn(self, told: dict[str, Any]) -> None:
        """Take note of the steps of all workers."""
        own = self._taken.get(self._rank, 0)
        self._taken = {int(rank): int(number) for rank, number in told["taken"].items()}
        if self._opening.mode.elastic:
            self._taken.setdefault(self._rank, own)
        self._shares.take(told.get("shares", []))
        self.slowest = told.get("slowest", self.slowest)
        if "norms" in told:
            version, count, local, mean = told["norms"]
            self.norms = int(version), int(count), float(local), float(mean)

    def load(self, settings: Sequence[dict[str, Any]], optimizer: optim.Optimizer) -> None:
        """Give the server the present weights and the optimizer's state."""
        self._settings = list(settings)
        weights = [self._cut(part, self._named[part.tensor][1].detach()) for part in self._parts]
        fields = {"version": self.version, "settings": settings}
        self.link.ask(Kind.LOAD, fields, [memory.view(each) for each in weights])
        entries: list[list[Any]] = []
        tensors = []
        for index, part in enumerate(self._parts):
            parameter = self._named[part.tensor][1]
            for name, kept_there in optimizer.state.get(parameter, {}).items():
                value = kept_there
                if isinstance(value, torch.Tensor):
                    value = value.to_dense() if value.is_sparse else value  # the momentum of a table
                    whole = value.shape != parameter.shape  # a count, or the factors of a matrix
                    shape = self._opening.pieces[index].shape
                    kept = staging.at_hand(value) if whole else self._cut(part, value).view(shape)
                    assert kept is not None
                    entries.append([index, name, memory.name_of(kept.dtype), list(kept.shape), None])
                    tensors.append(kept)
                else:
                    entries.append([index, name, None, None, value])
        if entries:
            self.link.ask(Kind.LOAD_STATE, {"entries": entries}, [memory.view(each) for each in tensors])

    def push(
        self,
        gradients: Sequence[torch.Tensor | None],
        settings: Sequence[dict[str, Any]],
        wish: int,
        *,
        hold: bool = False,
    ) -> int:
        """Send this server's parts of the gradients. Return the number of bytes on the wire. `hold`: the update waits
        for `commit`.
        """
        absent = [index for index, part in enumerate(self._parts) if gradients[part.tensor] is None]
        body: list[memoryview] = []
        self._pushed = {}
        for index, part in enumerate(self._parts):
            gradient = gradients[part.tensor]
            columns = self._tensors[part.tensor].columns
            if gradient is not None and columns:
                self._pushed[index] = rows.of(gradient, part.start // columns, part.stop // columns)
                body += self._pushed[index].views()
            elif gradient is not None:
                body.append(memory.view(self._cut(part, gradient)))
        self._settings = list(settings)
        number = self._taken[self._rank] + 1 if self._taken else 0
        fields = {"base": self.version, "number": number, "absent": absent, "settings": settings, "wish": wish}
        if self._shares.divisions:
            fields["divisions"] = len(self._shares.divisions)
            if self._opening.mode.sync and len(self._shares.divisions) > self._known:
                fields["shares"] = self._shares.fields()  # it must know which gradients it waits for
                self._known = len(self._shares.divisions)
        if self._strays:
            fields["all_rows"] = True
        if self.own_us is not None:
            fields["own_us"] = self.own_us
        if hold:
            fields["hold"] = True
        if self.skipped is not None:
            fields["skipped"], self.skipped = self.skipped, 0
        if self._pushed:
            fields["rows"] = {str(index): len(each.numbers) for index, each in self._pushed.items()}
        self._start(Kind.STEP, fields, body)
        size = sum(each.nbytes for each in body)
        return 0 if self.link.shares(size) else size

    def agree(self) -> None:
        """Wait until the server has the gradients of all workers."""
        self._finish(None)

    def commit(self) -> None:
        """Ask for the update of these gradients, which all servers have now."""
        step = self._request
        assert step is not None
        names = ("base", "all_rows", "divisions")
        fields = {"wish": 0, **{name: step[1][name] for name in names if name in step[1]}}
        self._start(Kind.COMMIT, fields, [])
        self._step = step

    def tell_skipped(self) -> bool:
        """Tell of the steps that this worker has passed over, unless it waits for an answer. Return whether one
        follows, which `heed` receives.
        """
        if not self.skipped or self._awaited:
            return False
        self._start(Kind.SKIP, {"base": self.version, "skipped": self.skipped}, [])
        return True

    def heed(self) -> None:
        """Receive an answer that has no content. ServerError where another worker has made an update meanwhile."""
        self._finish(None)

    def pull(self, at_least: int = 0) -> None:
        """Ask for this server's parts of the weights, once so many updates are made."""
        self._start(Kind.PULL, {"at_least": at_least} if at_least else {}, [])

    def ask(self, kind: Kind, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a request and receive its answer, which has no body."""
        self._start(kind, fields, [])
        return self._finish(None)

    @torch.no_grad()
    def take(self) -> int:
        """Receive this server's parts of the weights into the model. Return the strongest wish to stop."""
        fields = self._finish(self._places)
        if fields.get("shown"):
            places = [self._place(part) for part in self._parts]
            for place, weights in zip(places, self.link.weights(places)):
                place.copy_(weights)
        for number, staged in self._staged.items():
            self._place(self._parts[number]).copy_(staged)
        for number, changed in self._changed.items():
            place = self._place(self._parts[number])
            whole = place.view(self._opening.pieces[number].shape)
            whole[changed.numbers.to(whole.device)] = changed.values.to(whole.device)
        self.version = int(fields["version"])
        self._learn(fields)
        self._strays = False
        return int(fields.get("wish", 0))

    def let_go(self) -> None:
        """Let go of the memory in which weights arrive, until the next exchange."""
        self._staged.clear()

    def take_place(self, most: int, *, weights: bool) -> bytes:
        """Return the state of another worker's session, for which this one waits."""
        packed = bytearray()

        def into(head: frames.Head) -> list[memoryview]:
            if head.body_bytes > most:
                raise frames.Refused("the state of another worker has more bytes than it may")
            packed[:] = bytes(head.body_bytes)
            return [memoryview(packed)]

        self._start(Kind.TAKE, {"most": most, "weights": weights}, [])
        self._finish(into)
        return bytes(packed)

    def fetch_state(self, optimizer: optim.Optimizer) -> None:
        """Fetch the server's state into the optimizer. The parts of a cut tensor come together there."""
        tensors: list[torch.Tensor] = []

        def into(head: frames.Head) -> list[memoryview]:
            tensors.clear()
            for _, _, dtype, shape, _ in head.fields["entries"]:
                if dtype is not None:
                    tensors.append(torch.empty(shape, dtype=memory.TYPES[dtype], device="cpu"))
            return [memory.view(each) for each in tensors]

        self._start(Kind.STATE, {}, [])
        entries = self._finish(into)["entries"]
        values = iter(tensors)
        for index, name, dtype, _, plain in entries:
            part = self._parts[index]
            tensor, parameter = self._tensors[part.tensor], self._named[part.tensor][1]
            state = optimizer.state[parameter]
            value = next(values) if dtype is not None else plain
            if isinstance(value, torch.Tensor) and value.shape == self._opening.pieces[index].shape:
                if name not in state:
                    state[name] = torch.empty(tensor.shape, dtype=value.dtype, device="cpu")
                state[name].view(-1)[part.start : part.stop] = value.view(-1)
            else:
                state[name] = value

    def _start(self, kind: Kind, fields: dict[str, Any], body: list[memoryview]) -> None:
        self._request, self._awaited = (kind, fields, body), True
        try:
            self.link.start(kind, fields, body)
        except links.Lost:
            if not self.recovers:
                raise
            self._broken = True  # `_finish` asks again

    def await_answer(self) -> None:
        """Wait until the answer of the request is there, and leave it."""
        self._persist(lambda: None)

    def _finish(self, into: Callable[[frames.Head], Sequence[memoryview]] | None) -> dict[str, Any]:
        """Receive the answer of the request, from a server that was started anew if need be."""

        def receive() -> dict[str, Any]:
            while self._passed_over:
                self.link.finish()
                self._passed_over -= 1
            return self.link.finish(into)

        answer = self._persist(receive)
        self._awaited, self._step = False, None
        return answer

    def _persist(self, receive: Callable[[], Result]) -> Result:
        """Wait for the answer, and receive it. Again, where the server has died meanwhile."""
        assert self._request is not None
        while True:
            try:
                if self._broken:
                    self._repair()
                while not self.link.waits(links.WATCH_S):
                    if self._is_successor:  # a worker may have died that it has never seen
                        patience.check_round()
                    self.watch()
                received = receive()
                self._lost_at = None
                return received
            except links.Lost:
                self._lost_at = self._lost_at or monotonic()
                if not self.recovers or monotonic() - self._lost_at > links.WAIT_S:
                    raise
                self._broken = True

    def look_after(self) -> None:
        """Recover from the death of the server, while this worker waits for something else."""
        if not self.recovers or not (self._broken or self.link.is_broken()):
            return
        self._broken = True
        with contextlib.suppress(links.Lost):  # it died again: the next look finds it
            self._repair()

    def _repair(self) -> None:
        """Take part in the training of the server's successor, and repeat the request that awaits its answer."""
        self._recover()
        requests = (self._step, self._request) if self._awaited else ()
        self._passed_over = int(self._awaited and self._step is not None)
        for kind, fields, body in filter(None, requests):
            strays = kind in {Kind.STEP, Kind.COMMIT} and self._strays
            self.link.start(kind, {**fields, "all_rows": True} if strays else fields, body)
        self._broken = False

    def _recover(self) -> None:
        """Connect to the server's successor, and bring it up to the version of this worker."""
        self.link.reconnect()
        self._is_successor = True
        self._resume()

    def _resume(self) -> None:
        version = self.version
        steps = self._taken.get(self._rank, 0)
        told = self.link.open({**self._opening.fields(), **self._knowledge(steps)})
        self._found = int(told["version"])
        newer = version > self._found or not told["loaded"]
        weights = [self._cut(part, self._named[part.tensor][1].detach()) for part in self._parts] if newer else []
        known = {"version": version, "taken": self._taken, "began_at": self.began_at}
        fields = {**known, "settings": self._settings}
        self.link.ask(Kind.RESUME, fields, [memory.view(each) for each in weights])
        self._strays = any(piece.by_row for piece in self._opening.pieces)

    def _places(self, head: frames.Head) -> list[memoryview]:
        """Return the memory that receives the weights: the model's own where a transport can write there. But a server
        may die within an answer, and its successor needs weights of one version.
        """
        if head.fields.get("shown"):  # they are read in the server's memory
            self._staged.clear()
            self._changed = {}
            return []
        into: list[memoryview] = []
        pieces = self._opening.pieces
        shapes = {index: (memory.TYPES[each.dtype], each.shape) for index, each in enumerate(pieces) if each.by_row}
        self._changed = rows.expected(head.fields.get("rows", {}), shapes)
        at_once = self.link.is_whole or not self.link.replaced
        for number, part in enumerate(self._parts):
            if number in self._changed:
                into += self._changed[number].views()
                self._staged.pop(number, None)
                continue
            place = self._place(part)
            if at_once and place.device.type == "cpu":
                self._staged.pop(number, None)
            else:
                if number not in self._staged:
                    pinned = place.device.type == "cuda"
                    self._staged[number] = torch.empty(part.size, dtype=place.dtype, device="cpu", pin_memory=pinned)
                place = self._staged[number]
            into.append(memory.view(place))
        return into

    def _place(self, part: sharding.Part) -> torch.Tensor:
        return self._named[part.tensor][1].detach().view(-1)[part.start : part.stop]

    def _cut(self, part: sharding.Part, whole: torch.Tensor) -> torch.Tensor:
        """Return this part of a tensor, on the CPU."""
        there = staging.at_hand(whole)
        assert there is not None
        return there.view(-1)[part.start : part.stop]


def described(
    named: Sequence[tuple[str, nn.Parameter]], optimizer: optim.Optimizer, by_row: Collection[int]
) -> list[sharding.Tensor]:
    """Return the descriptions of these parameters. `by_row` are the ids of those whose gradients are rows. StateError
    where servers cannot hold one, or the optimizer does not step it.
    """
    groups = {id(one): number for number, group in enumerate(optimizer.param_groups) for one in group["params"]}
    for name, parameter in named:
        if id(parameter) not in groups:
            raise errors.StateError(f"the optimizer does not step {name}: give it that parameter, or freeze it")
        if memory.name_of(parameter.dtype) not in memory.TYPES or not parameter.is_floating_point():
            raise errors.StateError(f"{name} is of type {parameter.dtype}, which parameter servers do not hold")
    return [
        sharding.Tensor(
            name,
            tuple(one.shape),
            memory.name_of(one.dtype),
            one.element_size(),
            groups[id(one)],
            one.shape[1] if id(one) in by_row else 0,
        )
        for name, one in named
    ]


def pieces(parts: Sequence[sharding.Part], tensors: Sequence[sharding.Tensor]) -> tuple[openings.Piece, ...]:
    found = []
    for part in parts:
        tensor = tensors[part.tensor]
        shape = tensor.shape if part.size == tensor.size else (part.size,)
        if tensor.columns:
            shape = (part.size // tensor.columns, tensor.columns)
        piece = openings.Piece(tensor.name, part.start, shape, tensor.dtype, tensor.group, tensor.columns > 0)
        found.append(piece)
    return tuple(found)
