"""Parameter servers: the servers hold the weights and run the optimizer, the workers compute gradients.

The user's optimizer stays the place of the settings, which schedulers change. Hooks around its step do the work: before
it, this worker's gradients go to the servers and the weights come back, straight into the model; during the step the
parameters have no gradients, so that it changes nothing. A state_dict of the optimizer fetches the servers' state, and
`begin` gives the servers the weights and the state that a checkpoint held.

The servers are the job's tasks of the role `ps`. Where there are none and several processes train together, as under
torchrun, the chief starts `servers` of them beside itself. A process that trains alone needs none.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import environment, errors, rounds, worlds
from oarlock.train.measuring.straggling import Slowest
from oarlock.train.servers import addresses, children
from oarlock.train.servers.model import openings, optimizers, rows, sharding, shares
from oarlock.train.servers.wire import frames
from oarlock.train.servers.workers import giving, links, norms, remotes, staging
from oarlock.train.strategies import changes, replicas
from oarlock.train.strategies.strategy import Figures, Strategy

Kind = frames.Kind


@dataclass(frozen=True)
class Settings:
    """The settings of ParameterServers, under the names of its arguments."""

    sync: bool = True
    backup: int = 0
    staleness: int | None = None
    servers: int = 1
    sharding: str = "partition"

    def __post_init__(self) -> None:
        if self.sharding not in sharding.WAYS:
            raise errors.StateError(f"sharding={self.sharding!r} is not one of {', '.join(sharding.WAYS)}")

    def under(self, told: Mapping[str, Any]) -> Settings:
        """Return these settings with the job file's fields `sync`, `backup` and `staleness`, where it sets them, and
        with the number of `servers` that `oarlock advise` asks for. A setting falls away that belongs to the other
        mode.
        """
        sync = told.get("sync", self.sync or bool(told.get("backup")))
        backup = told.get("backup", self.backup if sync else 0)
        staleness = told.get("staleness", None if sync else self.staleness)
        servers = int(told.get("servers", self.servers))
        return replace(self, sync=sync, backup=backup, staleness=staleness, servers=servers)


class ParameterServers(Strategy):
    """Training with parameter servers.

    With `sync` all workers step together with the mean of their gradients, as in allreduce. An update does not wait for
    the `backup` slowest gradients, which are dropped. Without `sync` each gradient is an update of its own; a worker is
    at most `staleness` steps ahead of the slowest one (None: any number). `sharding` is the way in which the servers
    divide the model (sharding.py).
    """

    kind = "ps"
    why_no_scaler = "each worker has its own gradients, and would pass over a step alone while the others wait for it"

    def __init__(
        self,
        *,
        sync: bool = True,
        backup: int = 0,
        staleness: int | None = None,
        servers: int = 1,
        sharding: str = "partition",
    ) -> None:
        self._world = worlds.init()
        self.settings = Settings(sync, backup, staleness, servers, sharding)
        self._given = environment.Processes.read()
        numbered = self._given.worker is not None
        if backup < 0 or (backup >= max(2, self._world.world_size) and not numbered):
            raise errors.StateError(f"backup={backup}: {self._world.world_size} workers leave none to wait for")
        if (staleness is not None and sync) or (backup and not sync):
            raise errors.StateError("staleness= goes with sync=False, and backup= with sync=True")
        elastic = numbered and not (sync and not backup)
        in_rounds = worlds.rounds is not None and worlds.exchanges is not None
        self.rejoins = in_rounds and sync and not backup
        workers = 1 if elastic or self.rejoins else self._world.world_size
        late = backup if elastic else min(backup, self._world.world_size - 1)
        self._mode = openings.Mode(workers, sync, late, staleness, elastic, self.rejoins)
        self._known = 0  # the version of the weights of this worker, between two rounds
        self._comes = False  # to others that have begun
        self._shares = shares.Shares()
        self._rounds = rounds.Rounds(os.environ, 0.0) if elastic else None
        self._last: int | None = None  # the last step of a worker that leaves
        self.lockstep = self._mode.lockstep
        self._wish = self._strongest = 0
        self._origin: int | None = None  # the step before the first one
        self._before = 0  # what `_passed` was before the first step of anybody
        self._steps = 0  # of this worker, with those of earlier incarnations
        self._steps_before = 0  # the same, at the last end of a session's step
        self._done = False
        self._servers: list[remotes.Remote] = []
        self._staging = staging.Staging()
        self._found: addresses.Addresses | None = None
        self._named: list[tuple[str, nn.Parameter]] = []
        self._by_row: set[int] = set()  # the ids of parameters whose gradients are sparse
        self._optimizer: optim.Optimizer | None = None
        self._held: list[tuple[nn.Parameter, torch.Tensor | None]] = []
        self._weights: list[torch.Tensor] = []  # before a rehearsal
        self._giving: giving.Giving | None = None
        self._sessions = 0
        self._first_steps: changes.FirstSteps | None = None
        self._compared: list[int] = []  # the slowest worker and its time, as the session knows them
        self._norms = norms.Norms()
        self.figures: Figures = Figures(self._world)
        self.figures.measures_noise = sync  # without it no mean of gradients is made

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        self.send_by_row(rows.sparse_parameters(model))
        if self._connect(replicas.trained(model), optimizer):
            worlds.meet_at_servers()  # if the script alone has named this strategy
            self._take_part()
            if self._world.world_size > 1:
                self._first_steps = changes.FirstSteps(self.parameters, says=self._world.is_chief)
            replicas.broadcast(model)
            self.begin()
        return model

    def send_by_row(self, parameters: set[int]) -> None:
        """Send only the rows that have a gradient, of the parameters with these ids."""
        self._by_row = parameters

    def try_on(self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None) -> None:
        """Get ready for `rehearse`, with these parameters of a model that another strategy trains.

        No rank may rehearse before all are ready: the chief gives the weights.
        """
        self._weights = [parameter.detach().clone() for _, parameter in named]
        self._connect(named, optimizer)
        self._give()

    def rehearse(self) -> None:
        """Make one exchange of the present gradients. The weights are those before once `drop` was called."""
        assert self._optimizer is not None
        self._exchange(optimizers.settings_of(self._optimizer))

    @torch.no_grad()
    def drop(self) -> None:
        """Put the weights back, and let go of the exchange's memory. The connections stay, so that the servers need not
        begin anew.
        """
        self._staging = staging.Staging()
        for server in self._servers:
            server.let_go()
        for (_, parameter), weight in zip(self._named, self._weights):
            parameter.copy_(weight)
        self._weights.clear()

    def abandon(self) -> None:
        """Break the connections, so that no other worker waits for this one. This strategy is of no use any more."""
        for server in self._servers:
            server.link.close()
        self._servers.clear()
        self._release()

    def take_over(
        self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None, figures: Figures | None = None
    ) -> None:
        """Go on with these parameters, which another strategy has exchanged, and with its figures."""
        self.figures = figures or self.figures
        self.figures.measures_noise = self.settings.sync
        if self._servers or self._connect(named, optimizer):
            self._take_part()
            self.begin()

    def _connect(self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None) -> bool:
        """Connect to the servers. Return False where a process trains alone. One that joins others connects when it
        enters a round.
        """
        found = addresses.given(os.environ) or self._start()
        if found is None:
            return False
        if optimizer is None:
            raise errors.StateError(
                "parameter servers run the optimizer, and got none: call data_parallel(model, optimizer)"
            )
        if worlds.rounds is not None and worlds.exchanges is not None and not self.rejoins:
            raise errors.StateError(
                f"the job file says that all workers step together (`sync: true`), and the script has {self.settings}: "
                "write `backup` or `sync: false` into the job file's `strategy`, or leave it out of the script"
            )
        kind = optimizers.kind_of(optimizer)
        self._optimizer, self._named = optimizer, named
        self.parameters = [parameter for _, parameter in named]
        for _, parameter in self._named:
            parameter.data = parameter.data.contiguous()  # the parts are cut from, and received into, flat memory
        self._tensors, self._kind = remotes.described(named, optimizer, self._by_row), kind
        self._reserve(found)
        atexit.register(self._leave)
        worlds.leaving.append(self._leave)
        self._comes = worlds.joining()
        if not self._comes:
            self._reach(found)
            for server in self._servers:  # the first one finds the steps of a worker that is new
                server.open(self._steps)
                self._steps = self._servers[0].steps
        return True

    def _reach(self, found: addresses.Addresses) -> None:
        """Connect to all servers, without taking part yet."""
        tensors, kind, way = self._tensors, self._kind, self.settings.sharding
        way = way if kind in optimizers.ELEMENTWISE or way != "partition" else "greedy"
        place = worlds.place("step")
        for number, parts in enumerate(sharding.divide(tensors, len(found.servers), way)):
            link = links.Link(found, number, place)
            opening = openings.Opening(remotes.pieces(parts, tensors), kind, self._mode)
            remote = remotes.Remote(link, place.rank, parts, tensors, self._named, opening, self._shares)
            self._servers.append(remote)
            remote.version, remote.watch = self._known, self._watch

    def _take_part(self) -> None:
        """Do the work of the optimizer's step from now on."""
        assert self._optimizer is not None
        worlds.watch = self._look_after  # an exchange of the process group may be under way
        if worlds.exchanges is not None:
            worlds.exchanges.watch = self._look_after
        self._optimizer.register_step_pre_hook(self._before_step)
        self._optimizer.register_step_post_hook(self._after_step)
        self._optimizer.register_state_dict_pre_hook(self._fetch_state)
        self._optimizer.register_state_dict_post_hook(self._drop_state)

    def _give(self) -> None:
        """Give the servers the chief's weights and optimizer state."""
        assert self._optimizer is not None
        if self._world.is_chief and not self._joins:
            settings = optimizers.settings_of(self._optimizer)
            for server in self._servers:
                server.load(settings, self._optimizer)

    def begin(self) -> None:
        """Give the servers the chief's weights and optimizer state, and take the weights from them."""
        if not self._servers or self._optimizer is None:
            return
        if self._comes:  # the others have begun, and this worker has the weights from them
            self._comes = False
            return
        if self._done:  # a second session
            assert self._found is not None
            self._reserve(self._found)
            self._done, self._sessions = False, self._sessions + 1
            for server in self._servers:
                server.open(self._steps)
        for server in self._servers:
            server.recovers = False  # until all weights and states are there, a failure ends the attempt
        self._give()
        self._optimizer.state.clear()  # it is on the servers now
        self._before = self._passed  # after the next line others may make steps, faster than this worker pulls
        self._world.gather(None)
        self._pull()
        for server in self._servers:
            server.recovers = server.link.replaced
        self._count_skipped()

    def _count_skipped(self) -> None:
        """Count the steps that this worker passes over alone, from now on."""
        self._steps_before = self._steps
        for server in self._servers:
            server.skipped = 0 if self.lockstep else None

    @property
    def _joins(self) -> bool:
        """Whether this process takes the place of one that died while the others went on."""
        return any(server.link.joins for server in self._servers)

    @property
    def replaced_alone(self) -> bool:
        """Whether the others wait for the successor of a worker that dies. A second session has no successors: their
        scripts would begin with the first.
        """
        alone = self.lockstep and worlds.exchanges is not None and not self._sessions and not self.rejoins
        return alone and self._found is not None and self._found.replaced and bool(self._servers)

    @property
    def takes_place(self) -> bool:
        return self.replaced_alone and self._joins

    @property
    def version(self) -> int:
        return min((server.version for server in self._servers), default=0)

    def outlast(self, step: int, pack: giving.Pack, keep_waiting: Callable[[], None]) -> None:
        assert self._found is not None
        self._giving = giving.Giving(self._found, self._world, pack, keep_waiting)
        for server in self._servers:
            server.began_at = step
            if self._world.is_chief and not self._joins:
                server.ask(Kind.BEGIN, {"step": step})

    def take_place(self, most: int) -> bytes:
        versions = {server.version for server in self._servers}
        return self._servers[0].take_place(most, weights=len(versions) > 1)

    def go_on_from(self, version: int) -> None:
        for server in self._servers:
            server.version = version
            server.link.joins = False

    def leave(self) -> None:
        if self._servers:
            self._known = self.version
        for server in self._servers:
            server.link.close()
        self._servers.clear()

    def shared(self) -> dict[str, Any]:
        return {"version": self._known}

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        self._known = int(shared["version"])

    def regroup(self) -> None:
        """Take part in a round. The servers keep weights and state, and every worker has these weights."""
        assert self._found is not None
        assert self._optimizer is not None
        self.lost = self._done = False
        self._optimizer.state.clear()
        try:
            self._reach(self._found)
            for server in self._servers:
                server.enter(self._known, optimizers.settings_of(self._optimizer))
        except links.Lost as cause:
            raise errors.PeersLost(f"the round cannot begin without a server: {cause}") from cause
        self._count_skipped()
        self.figures.regroup(self._world)

    def after_step(self, step: int) -> None:
        """Tell the others where this worker has not called optimizer.step(), for which they may wait."""
        if self._steps == self._steps_before:
            for server in self._servers:
                server.skipped = None if server.skipped is None else server.skipped + 1
            with self.noticing(), self.figures.waiting:
                self._tell_skipped()
        self._steps_before = self._steps

    def _tell_skipped(self) -> None:
        """Tell all servers of the steps that this worker has passed over: others may wait at any of them."""
        for server in [each for each in self._servers if each.tell_skipped()]:
            server.heed()

    def reached(self, step: int) -> int:
        if self.lockstep or not self._servers:
            return step
        if self._origin is None and self._joins:
            self._origin = self._servers[0].began_at or 0
            if self._mode.elastic and self._mode.sync:
                self._await_share()
            elif self._mode.elastic and step - self._origin > self._steps:  # its checkpoint is that of a faster worker
                self._steps = step - self._origin
                for server in self._servers:
                    server.advance(self._steps)
        elif self._origin is None:
            self._origin = step - self._before
            if self._world.is_chief:
                for server in self._servers:
                    server.ask(Kind.BEGIN, {"step": self._origin})
            for server in self._servers:
                server.began_at = self._origin
        return self._origin + self._passed

    @property
    def _passed(self) -> int:
        """The updates that stand for steps. With backup workers each server drops gradients by itself, so that one may
        have made more updates than another.
        """
        return self.version if self._mode.sync else self._steps

    def _await_share(self) -> None:
        """Pass over the steps in which this worker has no share yet."""
        assert self._given.worker is not None
        begins_at = self._shares.next_of(self._given.worker, self.version + 1)
        if begins_at > self.version + 1:
            self._pull(at_least=begins_at - 1)

    def share(self, step: int) -> tuple[int, int] | None:
        if self._rounds is None or self._origin is None:
            return None
        assert self._given.worker is not None
        return self._shares.of(self._given.worker, step - self._origin)

    def leaves(self) -> bool:
        if self._rounds is None or not self._servers:
            return False
        if self._last is None and self._rounds.newest().rank is None:
            self._last = self._servers[0].part()
        if self._last is None or self._passed < self._last:
            return False
        self._done = True
        for server in self._servers:
            server.ask(Kind.DONE, {"wish": 0, "wait": False})
        self._release()
        return True

    def tell(self, wish: int) -> int:
        self._wish = max(self._wish, wish)
        return max(self._wish, self._strongest)

    def compare(self, own_s: float | None) -> Slowest | None:
        if not self._servers:
            return None
        first = self._servers[0]
        first.own_us = None if own_s is None else round(own_s * 1e6)
        if first.slowest is None or first.slowest[:2] == self._compared:
            return None
        worker, own_us, least_us = first.slowest
        self._compared = [worker, own_us]
        place = self._shares.of(worker, self._passed + 1) if self._rounds is not None else None
        return Slowest(worker if place is None else place[0], own_us / 1e6, least_us / 1e6)

    def before_save(self) -> None:
        if not self.lockstep:
            self._pull()

    def finish(self, wish: int) -> None:
        """Tell the servers that the others do not wait for this worker any more.

        Out of lockstep it waits for them, and takes the last weights.
        """
        if self._done:
            return
        self._done = True
        for server in self._servers:
            server.ask(Kind.DONE, {"wish": wish, "wait": False})
        if not self.lockstep:
            for server in self._servers:
                server.ask(Kind.DONE, {"wish": wish, "wait": True})
        if not self.lockstep:
            self._pull()
        self._release()

    def _watch(self) -> None:
        """Look after all connections, while this worker waits for an answer."""
        self._look_after()
        if worlds.exchanges is not None:
            worlds.exchanges.look_after()

    def _look_after(self) -> None:
        """Give the weights to servers that were started anew, while this worker waits for something else.

        The others may lack the last update of such a server, and wait for it before they come here.
        """
        for server in self._servers:
            server.look_after()
        self._tell_skipped()  # another worker may have made an update since
        if self._giving is not None:
            self._giving.look()

    def _start(self) -> addresses.Addresses | None:
        """Start servers beside the chief, if there are several processes."""
        if self._world.world_size == 1:
            return None
        started = children.start(self.settings.servers) if self._world.is_chief else None
        told = self._world.gather((started.servers, started.token) if started else None)[0]
        return addresses.Addresses(*told)

    def _before_step(self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure") is not None or any(each is not None for each in args[1:]):
            raise errors.StateError("parameter servers need backward() before step(): call step() without a closure")
        if not self._servers:
            return
        self._restore()  # a step that failed
        if self._first_steps is not None and self._first_steps.over():
            self._first_steps = None
        with self.noticing():
            self._exchange(optimizers.settings_of(optimizer))
        self._held = [(parameter, parameter.grad) for _, parameter in self._named]
        for _, parameter in self._named:
            parameter.grad = None

    def _after_step(self, optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._restore()

    def _restore(self) -> None:
        for parameter, gradient in self._held:
            parameter.grad = gradient
        self._held.clear()

    @torch.no_grad()
    def _exchange(self, settings: Sequence[dict[str, Any]]) -> None:
        """Push the gradients to all servers, then take the weights from them."""
        gradients = [
            _sparse(one.grad) if id(one) in self._by_row else self._staging.begin(number, one.grad)
            for number, (_, one) in enumerate(self._named)
        ]
        self._staging.finish()
        begin = self._first_server()
        servers = self._servers[begin:] + self._servers[:begin]
        several = servers if len(servers) > 1 else []
        agreeing = several if self.rejoins else []
        with self.figures.waiting:
            for server in servers:
                self.figures.sent_bytes += server.push(gradients, settings, self._wish, hold=bool(agreeing))
            for server in agreeing:  # no server makes an update that another one cannot make, because a worker died
                server.agree()
            for server in agreeing:
                server.commit()
            for server in several if self._giving is not None else ():
                server.await_answer()  # a successor may need the weights before this update
            for server in servers:
                self._strongest = max(self._strongest, server.take())
        self._norms.take([server.norms for server in self._servers], self.figures)
        self._steps += 1
        self.figures.waiting.settle()
        self.figures.exchanges += 1

    def _first_server(self) -> int:
        """Return the number of the server with which an exchange begins.

        Out of lockstep it is the first one for all ranks: it says when a worker that comes or goes has a share of the
        data. And with backup workers each server would else always drop the gradient of the same rank, slow or not.
        """
        if not self.lockstep:
            return 0
        return sharding.first_server(self._world.rank, self._world.world_size, len(self._servers))

    def _pull(self, at_least: int = 0) -> None:
        for server in self._servers:
            server.pull(at_least)
        for server in self._servers:
            server.take()

    def _fetch_state(self, optimizer: optim.Optimizer) -> None:
        for server in self._servers:
            server.fetch_state(optimizer)

    def _drop_state(self, optimizer: optim.Optimizer, state: dict[str, Any]) -> None:
        if self._servers:
            optimizer.state.clear()

    def _leave(self) -> None:
        """Say at the end of the process that it was meant, unless an error ended it."""
        try:
            if not worlds.failed() and not self._done:
                for server in self._servers:
                    server.link.ask(Kind.DONE, {"wish": 0, "wait": False})
        except errors.PeersLost:
            pass  # the others are in a later round, and do not wait for this worker
        except errors.ServerError as cause:
            sys.stderr.write(f"oarlock.train: {cause}\n")
        for server in self._servers:
            server.link.close()
        self._servers.clear()
        if self._giving is not None:
            self._giving.close()
        self._giving = None
        self._release()

    def _reserve(self, found: addresses.Addresses) -> None:
        """Reserve the servers for this model. StateError where another model of this process has them.

        A server would take two models with equal names and shapes for one: a worker has one connection for its steps.
        """
        if _users.setdefault(found.servers, self) is not self:
            raise errors.StateError(
                "parameter servers hold one model, and another model of this script has them until its session ends: "
                'give one of the two to data_parallel() with strategy="allreduce"'
            )
        self._found = found

    def _release(self) -> None:
        if self._found is not None and _users.get(self._found.servers) is self:
            del _users[self._found.servers]


_users: dict[tuple[str, ...], ParameterServers] = {}
"""The strategy that trains with these servers."""


def are_free() -> bool:
    """Return whether no model of this process has the job's servers."""
    found = addresses.given(os.environ)
    return found is None or found.servers not in _users


def _sparse(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient of rows on the CPU, each row once."""
    if tensor is None or not tensor.is_sparse:
        return staging.at_hand(tensor)
    return tensor.detach().to("cpu").coalesce()
