"""A readable language for scenarios of a job's life: commands in, phases and actions out.

A scenario file is a sequence of blocks: commands, a line of four dashes, what is to be seen then, an empty line. Lines
that begin with # are for people. `REWRITE_SCENARIOS=1 pytest tests/lifecycle/test_scenarios.py` writes what is seen
now.

    job SPEC            a new job, SPEC in YAML                 after SECONDS       the clock moves on
    intend INTENT ...   an intent, `by=` and `reason=`
    admit [ROLE=N] ...  the scheduler places the gang, with N tasks of that role, `reason=`, `batch=LOCALxACCUMULATE`
    batch LOCALxACCUMULATE  the scheduler gives the attempt another batch size
    reshape ROLE=N      the scheduler gives the running gang another size
    launched, launch_failed REASON
    register TASK ...   agents at the barrier
    report TASK [PHASE] [idle=] [step=] [of=] [loss=] [detail=] [rejoin] [lost=ROUND]
    fail [code=] [signal=] [reason=] [says=] [step=]    worker-0 starts, comes to that step, fails, is gone
    exit TASK [code=] [signal=] [oom] [stopped] [reason=] [says=] [at_step=] [peak=]
    gone TASK ...       the backend confirms it                 stacks TASK ...     ranks tell their stacks
    checkpoint STEP     one becomes visible                     release             told that nothing runs any more
    see TASK STATE      the backend shows it from now on, [unbound] [bound=SECONDS ago]; else as bound when it was made
    lose TASK           it shows nothing of it any more
    account             what it has used, and what it still needs
    notice              observations become events              wants, wake, orders TASK, show, tasks, steps, verdict
    do                  carry out `wants` until only time can change anything: tasks that are made run, killed ones are
    gone

A task is `worker-0`, or `1/worker-0/2` for that attempt and incarnation. A command that changes nothing says `same`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from oarlock.lifecycle import noticing, orders, reshaping, stepping, wanting
from oarlock.spec import attempts, curves, errors, events, holdings, intents, jobs
from oarlock.spec.input import quantities, validation
from oarlock.spec.reconciling import actions, observations

State = observations.State
START = 1000.0
DEVICES_PER_TASK = 1


def new_job(text: str = "{}", *, id: str = "j", created_at: float = START) -> jobs.Job:  # noqa: A002 - the field's name
    spec = validation.decode({"command": "train"} | validation.plain(text or "{}"))
    return jobs.Job(id=id, name="train", owner="alice", spec=spec, created_at=created_at, phase_at=created_at)


def places(job: jobs.Job, number: int, sizes: dict[str, int] | None = None) -> tuple[holdings.Holding, ...]:
    return tuple(
        holdings.Holding(
            job=job.id,
            attempt=number,
            role=str(role),
            index=index,
            node="n0",
            amount=holdings.Resources(
                quantities.cpus_milli(said.held_cpus), gpus=int(said.gpus), gpu_milli=round(said.gpus % 1 * 1000)
            ),
            ports=(20000 + 10 * place + index,),
        )
        for place, (role, said) in enumerate(job.spec.roles.items())
        for index in range((sizes or {}).get(str(role), said.count))
    )


def held_by(job: jobs.Job) -> tuple[holdings.Holding, ...]:
    """Return the holdings of the job's tasks, by its record: those that leave still hold theirs."""
    live = job.live
    assert live is not None, "there is no live attempt"
    return tuple(
        holdings.Holding(
            job=job.id,
            attempt=live.number,
            role=str(task.role),
            index=task.index,
            node=task.node,
            amount=holdings.Resources(quantities.cpus_milli(job.spec.roles[task.role].held_cpus)),
            devices=task.devices,
            ports=task.ports,
        )
        for task in live.tasks
        if task.part is not attempts.Part.AWAY
    )


def reshaped_to(job: jobs.Job, sizes: dict[str, int]) -> tuple[holdings.Holding, ...]:
    """Return a place for the gang at another size, as the scheduler places it: all of it anew."""
    live = job.live
    assert live is not None, "there is no live attempt"
    now = {str(role): sum(task.role is role and task.holds for task in live.tasks) for role in job.spec.roles}
    return places(job, 0, now | sizes)


def batch(text: str) -> curves.Batch:
    local, _, accumulate = text.partition("x")
    return curves.Batch(int(local), int(accumulate or 1))


class Play:
    """A job, a clock and the backend's view."""

    def __init__(self) -> None:
        self.now = START
        self.job = new_job()
        self.shown: dict[attempts.TaskKey, observations.Observed] = {}

    def run(self, line: str) -> list[str]:
        name, _, rest = line.partition(" ")
        return list(getattr(self, f"on_{name}")(rest) or [])

    # Events

    def tell(self, event: events.AnyEvent) -> list[str]:
        before = self.job
        self.job = stepping.step(before, event, self.now)
        again = stepping.step(self.job, event, self.now)
        assert again is self.job, f"{event} told twice makes a difference"
        return ["same"] if self.job is before else [self.line()]

    def on_job(self, rest: str) -> list[str]:
        self.job, self.shown = new_job(rest, created_at=self.now), {}
        return [self.line()]

    def on_after(self, rest: str) -> None:
        self.now += quantities.seconds(rest)

    def on_intend(self, rest: str) -> list[str]:
        words, named = split(rest)
        return self.tell(events.Intended(intent=intents.Intent(words[0]), **named))

    def on_admit(self, rest: str) -> list[str]:
        words, named = split(rest)
        number = int(words[0]) if words else (self.job.attempt.number if self.job.attempt else 0) + 1
        reason = named.pop("reason", "")
        chosen = batch(named.pop("batch")) if "batch" in named else None
        claims = places(self.job, number, {role: int(count) for role, count in named.items()})
        try:
            return self.tell(events.Admitted(attempt=number, holdings=claims, reason=reason, batch=chosen))
        except errors.Conflict as refused:
            return [refused.message]

    def on_batch(self, rest: str) -> list[str]:
        number = self.job.attempt.number if self.job.attempt else 1
        said = self.tell(events.BatchDecided(attempt=number, batch=batch(rest)))
        told = self.job.attempt.batch if self.job.attempt else None
        return said if said == ["same"] or told is None else [f"batch {told.local}x{told.accumulate}"]

    def on_reshape(self, rest: str) -> list[str]:
        """`impossible`: the gang has to end for that."""
        _, named = split(rest)
        held = held_by(self.job)
        to = reshaped_to(self.job, {named_role: int(count) for named_role, count in named.items()})
        change = reshaping.change(self.job, held, to)
        if change is None:
            return ["impossible"]
        claims = (*held, *change.added)
        return self.tell(
            events.Reshaped(
                attempt=self.live.number,
                round=self.live.round,
                added=change.added,
                removed=change.removed,
                held=sum((claim.amount for claim in claims), holdings.Resources()),
            )
        )

    def on_account(self, rest: str) -> list[str]:
        job = self.job
        stopped = f"stopped {self.now - job.stopped_at:g} s ago" if job.stopped_at is not None else "never stopped"
        left = f"{job.lasts_s:g} s" if job.lasts_s is not None else "an unknown time"
        return [f"restarts {job.restarts}, served {job.served_s:g}, {stopped}, still needs {left}"]

    def on_launched(self, rest: str) -> list[str]:
        for task in self.live.tasks:
            if task.incarnation == 1:
                self.show_task(task.key(self.job.id, self.live.number), State.RUNNING)
        return self.tell(events.Launched(attempt=self.live.number))

    def on_launch_failed(self, rest: str) -> list[str]:
        return self.tell(events.LaunchFailed(attempt=self.live.number, reason=rest))

    def on_register(self, rest: str) -> list[str]:
        said = [self.tell(events.TaskRegistered(**self.of(word), address="10.0.0.1")) for word in rest.split()]
        return said[-1]

    def on_report(self, rest: str) -> list[str]:
        words, named = split(rest)
        total = int(named["of"]) if "of" in named else None
        progress = (
            attempts.Progress(
                step=int(named["step"]),
                at=self.now,
                total_steps=total,
                loss=float(named["loss"]) if "loss" in named else None,
            )
            if "step" in named
            else None
        )
        phase = next((word for word in words[1:] if word.isupper()), None)
        return self.tell(
            events.TaskReported(
                **self.of(words[0]),
                phase=phase,
                progress=progress,
                idle_s=float(named["idle"]) if "idle" in named else None,
                detail=named.get("detail", ""),
                can_rejoin=True if "rejoin" in words else None,
                lost_round=int(named["lost"]) if "lost" in named else None,
            )
        )

    def on_exit(self, rest: str) -> list[str]:
        words, named = split(rest)
        how = understood(words, named, self.now)
        key = self.key(words[0])
        if key in self.shown:
            self.shown[key] = msgspec.structs.replace(self.shown[key], exit=how)
        return self.tell(events.TaskExited(**self.of(words[0]), exit=how))

    def on_fail(self, rest: str) -> Iterator[str]:
        """A whole attempt of one worker; only its end is of interest."""
        words, named = split(rest)
        step, after = named.pop("step", None), named.pop("after", "0")
        spoken = shlex.join([*words, *(f"{name}={value}" for name, value in named.items())])
        commands = ["admit", "do", "register worker-0", f"report worker-0 PROCESSING {f'step={step}' if step else ''}"]
        for line in (*commands, f"after {after}", f"exit worker-0 {spoken}", "gone worker-0", "do"):
            self.run(line)
        yield self.line()

    def on_gone(self, rest: str) -> list[str]:
        said = []
        for word in rest.split():
            if self.key(word) in self.shown:
                self.show_task(self.key(word), State.GONE)
            said = self.tell(events.TaskGone(**self.of(word)))
        return said

    def on_stacks(self, rest: str) -> list[str]:
        said = []
        for word in rest.split():
            request = self.live.stacks_request
            said = self.tell(events.StacksTaken(**self.of(word), request=request, stacks={"0": "File train.py"}))
        return said

    def on_checkpoint(self, rest: str) -> list[str]:
        number = self.job.attempt.number if self.job.attempt else 1
        return self.tell(events.CheckpointVisible(checkpoint_step=int(rest), attempt=number, path=f"step-{rest}"))

    def on_release(self, rest: str) -> list[str]:
        return self.tell(events.Released(attempt=int(rest) if rest else self.live.number))

    # The backend

    def on_see(self, rest: str) -> None:
        words, named = split(rest)
        how = understood(words, named, self.now) if "code" in named or "signal" in named else None
        key = self.key(words[0])
        self.show_task(key, State(words[1].lower()), how, named.get("detail", ""))
        bound_at = None if "unbound" in words else self.now - float(named["bound"]) if "bound" in named else 0.0
        self.shown[key] = msgspec.structs.replace(self.shown[key], bound_at=bound_at)

    def on_lose(self, rest: str) -> None:
        for word in rest.split():
            self.shown.pop(self.key(word), None)

    def show_task(
        self, key: attempts.TaskKey, state: State, how: attempts.Exit | None = None, detail: str = ""
    ) -> None:
        known = self.shown.get(key)
        how = how or (known.exit if known is not None else None)
        self.shown[key] = observations.Observed(key=key, state=state, exit=how, detail=detail)

    def on_notice(self, rest: str) -> list[str]:
        found = noticing.notices(self.job, list(self.shown.values()))
        said = [event.__struct_config__.tag + " " + self.tell(event)[-1] for event in found]
        assert noticing.notices(self.job, list(self.shown.values())) == [], "an old notice comes again"
        return [str(line) for line in said] or ["nothing"]

    # Decisions

    def wants(self) -> tuple[actions.Action, ...]:
        return wanting.wants(self.job, list(self.shown.values()), self.now)

    def on_wants(self, rest: str) -> list[str]:
        return [described(action, self.now) for action in self.wants()] or ["nothing"]

    def on_do(self, rest: str) -> Iterator[str]:
        for _ in range(20):
            found = self.wants()
            if not found:
                return
            for action in found[:1] if isinstance(found[0], actions.Note) else found:
                yield described(action, self.now)
                yield from self.carry_out(action)
            for event in noticing.notices(self.job, list(self.shown.values())):
                self.tell(event)
        raise AssertionError(f"it never comes to rest: {self.wants()}")

    def carry_out(self, action: actions.Action) -> Iterator[str]:
        match action:
            case actions.Launch(attempt=number, tasks=tasks):
                keys = tuple(task.key(self.job.id, number) for task in tasks)
                for key in keys:
                    self.show_task(key, State.RUNNING)
                whole = self.live.launched_at is None
                yield from self.tell(events.Launched(attempt=number, tasks=() if whole else keys))
            case actions.Kill(attempt=number, tasks=tasks):
                for task in tasks:
                    self.show_task(task.key(self.job.id, number), State.GONE)
            case actions.Note(event=event):
                yield from self.tell(event)
            case actions.Vacate(attempt=number, tasks=tasks):
                keys = tuple(task.key(self.job.id, number) for task in tasks)
                names = {task.name for task in tasks}
                left = (claim.amount for claim in held_by(self.job) if claim.task not in names)
                yield from self.tell(events.Vacated(attempt=number, tasks=keys, held=sum(left, holdings.Resources())))
            case actions.Release(attempt=number):
                yield from self.tell(events.Released(attempt=number))
            case actions.Discard(attempt=number):
                self.shown = {key: one for key, one in self.shown.items() if key.attempt != number}

    def on_wake(self, rest: str) -> list[str]:
        at = wanting.next_wake(self.job, list(self.shown.values()), self.now)
        return ["never" if at is None else f"in {at - self.now:g} s"]

    def on_orders(self, rest: str) -> list[str]:
        try:
            told = orders.orders(self.job, self.key(rest), self.now)
        except errors.StaleTask:
            return ["stale"]
        parts = [f"round {told.round}"]
        if told.stop is not None:
            parts.append(f"stop within {told.stop.grace_s:g} s ({told.stop.reason})")
        parts += [f"stacks {told.stacks}"] if told.stacks is not None else []
        parts += ["go"] if told.release else []
        return [", ".join(parts)]

    # Looking

    def on_show(self, rest: str) -> list[str]:
        return [self.line()]

    def on_tasks(self, rest: str) -> list[str]:
        return [task_line(task) for task in (self.job.attempt.tasks if self.job.attempt else ())]

    def on_steps(self, rest: str) -> list[str]:
        """How far each task has come, by the record, and its loss there."""
        told = [(task.name, task.progress) for task in (self.job.attempt.tasks if self.job.attempt else ())]
        steps = [
            f"{name} {said.step}" + (f" loss {said.loss:g}" if said.loss is not None else "")
            for name, said in told
            if said is not None
        ]
        return [", ".join(steps) or "none"]

    def on_verdict(self, rest: str) -> list[str]:
        attempt = self.job.attempt
        if attempt is None or attempt.verdict is None:
            return ["none"]
        said = attempt.verdict
        code = f"exit code {self.job.exit_code}" if self.job.exit_code is not None else f"code {said.exit_code}"
        blamed = f" {said.task}" if said.task else ""
        final = [f"hint: {said.hint}"] if said.hint else []
        final += [f"no restart: {attempt.no_restart}"] if attempt.no_restart else []
        return [f"{said.cause}{blamed}, {code}: {said.message}", *(f"  | {line}" for line in said.last_lines), *final]

    def line(self) -> str:
        live = self.job.live
        at = f" {live.number}.{live.round}" if live is not None else ""
        tasks = " [" + " ".join(f"{task.name}:{mark(task)}" for task in live.tasks) + "]" if live is not None else ""
        stop = f" stop={live.stop}" if live is not None and live.stop is not None else ""
        wish = f" intent={self.job.intent}" if self.job.intent is not intents.Intent.RUN else ""
        reason = f" ({self.job.reason})" if self.job.reason else ""
        wait = f" not before {self.job.not_before - self.now:g} s" if self.job.not_before is not None else ""
        return f"{self.job.phase}{at}{wish}{stop}{wait}{tasks}{reason}"

    @property
    def live(self) -> attempts.Attempt:
        assert self.job.live is not None, "there is no live attempt"
        return self.job.live

    def key(self, word: str) -> attempts.TaskKey:
        parts = word.split("/")
        name = parts[1] if len(parts) == 3 else parts[0]
        role, index = name.rsplit("-", 1)
        if len(parts) == 3:
            return attempts.TaskKey(self.job.id, int(parts[0]), role, int(index), int(parts[2]))
        attempt = self.job.attempt
        task = attempt.task(role, int(index)) if attempt is not None else None
        number = attempt.number if attempt is not None else 1
        return attempts.TaskKey(self.job.id, number, role, int(index), task.incarnation if task is not None else 1)

    def of(self, word: str) -> dict[str, object]:
        return {"key": self.key(word)}


def split(rest: str) -> tuple[list[str], dict[str, str]]:
    words = shlex.split(rest)
    named = dict(word.split("=", 1) for word in words if "=" in word)
    return [word for word in words if "=" not in word], named


def understood(words: list[str], named: dict[str, str], now: float) -> attempts.Exit:
    signal = int(named["signal"]) if "signal" in named else None
    code = int(named.get("code", 0 if signal is None else 128 + signal))
    cause = attempts.Cause.ERROR if code else attempts.Cause.SUCCEEDED
    cause = attempts.Cause.SIGNAL if signal is not None else cause
    cause = attempts.Cause.OOM if "oom" in words else cause
    cause = attempts.Cause.PLATFORM if "platform" in words else cause
    cause = attempts.Cause.STOPPED if "stopped" in words else cause
    says = tuple(named["says"].split(";")) if "says" in named else ()
    at = now + float(named.get("late", 0))
    return attempts.Exit(
        code=code,
        cause=cause,
        at=at,
        signal=signal,
        reason=named.get("reason", ""),
        last_lines=says,
        process=int(named.get("process", 0)),
        step=int(named["at_step"]) if "at_step" in named else None,
        memory_peak_bytes=quantities.memory_bytes(named["peak"]) if "peak" in named else None,
    )


def mark(task: attempts.Task) -> str:
    again = f"/{task.incarnation}" if task.incarnation > 1 else ""
    if task.part is attempts.Part.AWAY:
        return f"away{again}"
    return f"{task.phase}{again}{'+gone' if task.gone else ''}{'+leaves' if task.leave_by is not None else ''}"


def task_line(task: attempts.Task) -> str:
    how = f" {task.exit.cause} code {task.exit.code}" if task.exit is not None else ""
    detail = f" ({task.detail})" if task.detail else ""
    detail += f" [{task.obstacle}]" if task.obstacle else ""
    step = f" step {task.progress.step}" if task.progress is not None else ""
    return f"{task.name} {mark(task)}{how}{step}{detail}"


def described(action: actions.Action, now: float) -> str:
    match action:
        case actions.Launch(attempt=number, tasks=tasks, until=until):
            return f"launch {number}: {names(tasks)}" + (f", within {until - now:g} s" if until is not None else "")
        case actions.Kill(attempt=number, tasks=tasks, reason=reason):
            return f"kill {number}: {names(tasks)} ({reason})"
        case actions.Vacate(attempt=number, tasks=tasks):
            return f"vacate {number}: {names(tasks)}"
        case actions.Release(attempt=number):
            return f"release {number}"
        case actions.Discard(attempt=number):
            return f"discard {number}"
        case actions.Note(event=event):
            fields = msgspec.to_builtins(event)
            kind = fields.pop("event")
            said = [str(value) for name, value in fields.items() if value and name != "attempt"]
            return f"note {kind}: {', '.join(said)}"
    raise AssertionError(action)


def names(tasks: tuple[attempts.Task, ...]) -> str:
    return " ".join(task.name + (f"/{task.incarnation}" if task.incarnation > 1 else "") for task in tasks)
