"""A job among agents, a guardian, a scheduler and its owner, which all may die, repeat themselves and come too late.

The world is the fake backend's; the player of the agents keeps to their protocol and nothing else. What must hold is
written as invariants; in the end the faults stop, and the job must come to rest.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests import examples
from tests.lifecycle import script

from oarlock.backends import backends, fake
from oarlock.lifecycle import noticing, orders, reshaping, stepping, wanting
from oarlock.spec import attempts, curves, errors, events, holdings, intents, jobfile, phases, roles
from oarlock.spec.cluster import nodes
from oarlock.spec.protocol import assignments
from oarlock.spec.reconciling import actions, observations

SPECS = (
    "{max_restarts: 1, grace: 2s}",
    "{max_restarts: 1, grace: 2s, roles: {worker: {count: 2}}, hang_timeout: 20s}",
    "{framework: plain, grace: 1s, max_restarts: 2, roles: {worker: {count: 3, on_failure: restart}}}",
    "{framework: tensorflow, grace: 2s, max_restarts: 1, roles: {chief: {}, worker: {}, ps: {}, evaluator: {}}}",
    "{grace: 1s, max_restarts: 0, freeze: 30s, timeout: 200s, start_timeout: 40s, roles: {worker: {count: 2}}}",
    "{framework: plain, grace: 0s, max_restarts: 3, roles: {worker: {count: 2, on_failure: ignore}}}",
    "{grace: 2s, max_restarts: 1, roles: {worker: {count: 2, min: 1, max: 3, gpus: 1}}}",
    "{grace: 2s, max_restarts: 2, roles: {worker: {count: 2, min: 1, max: 3, on_failure: restart}}}",
    "{grace: 1s, max_restarts: 2, start_timeout: 40s, roles: {worker: {count: 3, on_failure: restart}}}",
    "{grace: 1s, strategy: {kind: auto}, roles: {worker: {count: 2}, ps: {}}}",
    "{framework: plain, grace: 1s, roles: {worker: {count: 2, min: 1, on_failure: restart}, ps: {}}}",
)
STRONG = tuple(intent for intent in intents.Intent if intent is not intents.Intent.CANCEL)


class Interleavings(RuleBasedStateMachine):
    @initialize(spec=st.sampled_from(SPECS))
    def begin(self, spec: str) -> None:
        self.now = script.START
        self.job = script.new_job(spec)
        lingering = fake.Behaviour(at_barrier=True, lingers=True)
        machine = nodes.Node(name="n0", capacity=holdings.Resources(10**6))
        self.world = fake.World([machine], lambda task: lingering, lambda: self.now)
        self.told: list[events.AnyEvent] = []

    # Events

    def tell(self, event: events.AnyEvent) -> None:
        before = self.job
        self.job = stepping.step(before, event, self.now)
        if not isinstance(event, events.Intended):
            self.told.append(event)
        if before.terminal:
            assert self.job is before, "a terminal job never changes"
        assert stepping.step(self.job, event, self.now) is self.job, "an event told twice changes nothing"
        if self.job.phase is not before.phase:
            assert self.job.phase in phases.ALLOWED[before.phase]
        last, earlier = self.job.attempt, before.attempt
        if earlier is not None:
            assert last is not None
            assert last.number in {earlier.number, earlier.number + 1}
            if last.number == earlier.number:
                assert last.round >= earlier.round
            else:
                assert before.live is None, "one attempt at a time"
        assert before.restarts <= self.job.restarts <= self.job.spec.max_restarts
        assert before.served_s <= self.job.served_s, "used time stays used"
        if before.live is not None and self.job.live is None and before.live.stop is attempts.Cause.STOPPED:
            assert self.job.restarts == before.restarts, "a stop of ours is not a failure"
            assert self.job.intent not in {intents.Intent.PREEMPT, intents.Intent.RESIZE} or self.job.terminal
            for_others = before.intent in {intents.Intent.PREEMPT, intents.Intent.RESIZE}
            good = self.job.phase is phases.Phase.COMPLETED
            assert (self.job.stopped_at == self.now) == (for_others and not good) or before.stopped_at == self.now

    def of(self, key: attempts.TaskKey) -> dict[str, object]:
        return {"key": key}

    def agents(self) -> list[attempts.TaskKey]:
        """Agents that live, also those that linger after the end of their process."""
        return sorted(key for key in self.world.running() if self.world.look(key).state.value == "running")

    @rule(seconds=st.sampled_from((0.1, 0.5, 1.0, 3.0, 10.0, 31.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(intent=st.sampled_from(STRONG))
    def wish(self, intent: intents.Intent) -> None:
        before = self.job
        self.tell(events.Intended(intent=intent, by="alice"))
        if intents.STRENGTH[before.intent] > intents.STRENGTH[intent] and intent is not intents.Intent.RUN:
            assert self.job is before, "a lesser wish is not heard"

    @rule(sure=st.sampled_from((False, False, False, True)))
    def cancel(self, sure: bool) -> None:
        if sure:
            self.tell(events.Intended(intent=intents.Intent.CANCEL, by="alice"))

    @precondition(lambda self: self.job.phase is phases.Phase.QUEUED)
    @rule(size=st.integers(0, 3), local=st.sampled_from((None, 8)))
    def admit(self, size: int = 0, local: int | None = None) -> None:
        """With any number of workers that it may have."""
        number = self.job.attempt.number + 1 if self.job.attempt else 1
        said = self.job.spec.roles.get(roles.RoleName.WORKER)
        assert said is not None
        most, least = said.max or said.count, said.min or said.count
        claims = script.places(self.job, number, {"worker": max(least, min(most, size or said.count))})
        batch = curves.Batch(local) if local is not None else None
        self.tell(events.Admitted(attempt=number, holdings=claims, batch=batch))
        assert self.job.live is not None
        assert len(self.job.live.tasks) == len(claims)

    @precondition(lambda self: self.job.live is not None)
    @rule(local=st.integers(1, 3))
    def decide_batch(self, local: int) -> None:
        assert self.job.live is not None
        self.tell(events.BatchDecided(attempt=self.job.live.number, batch=curves.Batch(local)))

    @precondition(lambda self: self.job.live is not None)
    @rule(size=st.integers(1, 3))
    def reshape(self, size: int) -> None:
        """The scheduler gives the gang another size, if it can go on at that."""
        live = self.job.live
        assert live is not None
        held = script.held_by(self.job)
        change = reshaping.change(self.job, held, script.reshaped_to(self.job, {"worker": size}))
        if change is None:
            return
        claims = (*held, *change.added)
        self.tell(
            events.Reshaped(
                attempt=live.number,
                round=live.round,
                added=change.added,
                removed=change.removed,
                held=sum((claim.amount for claim in claims), holdings.Resources()),
            )
        )
        assert self.job.live is not None
        assert sum(task.holds for task in self.job.live.tasks) == size

    @precondition(lambda self: self.job.live is not None)
    @rule(step=st.integers(0, 50))
    def checkpoint(self, step: int) -> None:
        assert self.job.live is not None
        self.tell(events.CheckpointVisible(checkpoint_step=step, attempt=self.job.live.number, path=f"step-{step}"))

    @rule(dies_after=st.integers(0, 6), recorded=st.booleans())
    def guard(self, dies_after: int, recorded: bool) -> None:
        """The guardian looks and acts, and dies after some actions: perhaps between the last one and its record."""
        observed = self.observed()
        for event in noticing.notices(self.job, observed)[: dies_after or None]:
            self.tell(event)
        wanted = wanting.wants(self.job, observed, self.now)
        for place, action in enumerate(wanted[: dies_after or None]):
            last = place == dies_after - 1
            if not self.carry_out(action, recorded=recorded or not last):
                break

    def carry_out(self, action: actions.Action, *, recorded: bool = True) -> bool:
        """Whether the rest of the actions still stands."""
        match action:
            case actions.Note(event=event):
                self.tell(event)
                return False
            case actions.Launch(attempt=number, tasks=tasks):
                keys = tuple(task.key(self.job.id, number) for task in tasks)
                for key in keys if recorded else keys[:1]:
                    self.world.make(launch_of(key))
                if recorded:
                    live = self.job.live
                    whole = live is not None and live.launched_at is None
                    self.tell(events.Launched(attempt=number, tasks=() if whole else keys))
            case actions.Kill(attempt=number, tasks=tasks):
                for task in tasks:
                    self.world.kill(task.key(self.job.id, number))
            case actions.Vacate(attempt=number, tasks=tasks):
                keys = tuple(task.key(self.job.id, number) for task in tasks)
                assert not set(keys) & set(self.world.running()), "a place is free only once nothing runs there"
                names = {task.name for task in tasks}
                left = (claim.amount for claim in script.held_by(self.job) if claim.task not in names)
                if recorded:
                    self.tell(events.Vacated(attempt=number, tasks=keys, held=sum(left, holdings.Resources())))
            case actions.Release(attempt=number):
                self.tell(events.Released(attempt=number))
                assert self.job.live is None, "a release that was wanted is a release"
            case actions.Discard(attempt=number):
                assert all(key.attempt != number for key in self.world.running()), (
                    "only a task that is gone is forgotten"
                )
                self.world.discard(self.job.id, number)
        return True

    @rule(pick=st.integers(0, 5))
    def agent_moves(self, pick: int) -> None:
        """One agent says what it has to say, hears its orders and keeps to them."""
        agents = self.agents()
        if agents:
            self.move(agents[pick % len(agents)])

    def move(self, key: attempts.TaskKey) -> None:
        try:
            orders.orders(self.job, key, self.now)
        except errors.StaleTask:
            self.world.kill(key)
            return
        left = self.world.look(key).exit
        if left is not None:
            self.tell(events.TaskExited(**self.of(key), exit=left))
        elif self.world.began(key):
            can_rejoin = jobfile.rejoins(self.job.spec) or None
            self.tell(events.TaskReported(**self.of(key), phase="PROCESSING", idle_s=0.0, can_rejoin=can_rejoin))
        else:
            self.tell(events.TaskReported(**self.of(key), phase="DOWNLOADING"))
            self.tell(events.TaskRegistered(**self.of(key), address="10.0.0.1"))
            if orders.admitted(self.job, key):
                self.world.begin(key)
        try:
            told = orders.orders(self.job, key, self.now)
        except errors.StaleTask:
            self.world.kill(key)
            return
        if told.stop is not None:
            # An agent without a process has nothing to stop: it says so.
            self.world.begin(key)
            self.world.stop(key)
        if told.stacks is not None:
            self.tell(events.StacksTaken(**self.of(key), request=told.stacks, stacks={"0": "File train.py"}))
        if told.release:
            self.world.let_go(key)

    @rule(pick=st.integers(0, 5), code=st.sampled_from((0, 0, 1, 3)), signal=st.sampled_from((None, None, 9)))
    def process_ends(self, pick: int, code: int, signal: int | None) -> None:
        began = [key for key in self.agents() if self.world.began(key) and self.world.look(key).exit is None]
        if began:
            self.world.end(began[pick % len(began)], code, signal)

    @rule(pick=st.integers(0, 5), idle=st.sampled_from((5.0, 25.0)), rejoin=st.booleans())
    def process_stands_still(self, pick: int, idle: float, rejoin: bool) -> None:
        agents = self.agents()
        if agents:
            of = self.of(agents[pick % len(agents)])
            self.tell(events.TaskReported(**of, phase="PROCESSING", idle_s=idle, can_rejoin=rejoin))

    @rule(pick=st.integers(0, 5), all_of_it=st.booleans())
    def agent_dies(self, pick: int, all_of_it: bool) -> None:
        agents = self.agents()
        if agents:
            key = agents[pick % len(agents)]
            self.world.kill(key) if all_of_it else self.world.abandon(key)

    @precondition(lambda self: self.told)
    @rule(pick=st.integers(0, 10_000))
    def news_come_again(self, pick: int) -> None:
        self.tell(self.told[pick % len(self.told)])

    @precondition(lambda self: self.job.live is not None and self.job.live.launched_at is None)
    @rule()
    def launch_fails(self) -> None:
        assert self.job.live is not None
        self.tell(events.LaunchFailed(attempt=self.job.live.number, reason="no such image"))

    # Conditions that hold at every moment

    @invariant()
    def nothing_runs_of_a_job_at_rest(self) -> None:
        if self.job.phase in phases.TERMINAL | {phases.Phase.HALTED}:
            assert self.job.live is None
        if self.job.live is None:
            assert self.processes() == [], f"{self.job.phase} while a process runs"

    @invariant()
    def at_most_one_admitted_process_of_each_task(self) -> None:
        running = self.processes()
        assert len({(key.role, key.index) for key in running}) == len(running)
        for key in running:
            assert self.job.live is not None
            assert key.attempt == self.job.live.number

    @invariant()
    def a_job_that_runs_has_an_attempt(self) -> None:
        assert (self.job.live is not None) == (self.job.phase in phases.RUNNING)

    @invariant()
    def ends_are_told(self) -> None:
        assert (self.job.exit_code is not None) == self.job.terminal
        assert (self.job.ended_at is not None) == self.job.terminal
        for attempt in self.job.attempts:
            assert (attempt.verdict is not None) == (attempt.ended_at is not None)

    @invariant()
    def the_next_wake_lies_ahead(self) -> None:
        at = wanting.next_wake(self.job, self.observed(), self.now)
        assert at is None or at > self.now

    def observed(self) -> list[observations.Observed]:
        return [self.world.look(key) for key in self.world.known()]

    def processes(self) -> list[attempts.TaskKey]:
        """User's processes that run: begun by an agent that the barrier let through."""
        return [key for key in self.world.running() if self.world.began(key) and self.world.look(key).exit is None]

    def teardown(self) -> None:
        """The faults stop: everybody does what is to be done, processes end well."""
        for _ in range(1000):
            if self.at_rest():
                return
            self.now += 1.0
            if self.job.phase is phases.Phase.QUEUED and self.now >= (self.job.not_before or 0.0):
                self.admit()
            self.guard(0, True)
            for key in self.agents():
                self.move(key)
                if self.world.began(key):
                    self.world.end(key)
        raise AssertionError(f"it never came to rest: {self.job}, {[self.world.look(k) for k in self.world.known()]}")

    def at_rest(self) -> bool:
        resting = self.job.terminal or self.job.phase is phases.Phase.HALTED
        return resting and self.world.known() == []


def launch_of(key: attempts.TaskKey) -> backends.TaskLaunch:
    return backends.TaskLaunch(
        key=key,
        assignment=assignments.Assignment(key=str(key), server="", token="", command="true"),
        holding=holdings.Holding(
            job=key.job, attempt=key.attempt, role=key.role, index=key.index, node="n0", amount=holdings.Resources()
        ),
    )


Interleavings.TestCase.settings = settings(max_examples=examples.at_most(150), stateful_step_count=60)
TestInterleavings = Interleavings.TestCase
