"""One uninterrupted life of a job's gang, from launch to release: its tasks and how they ended."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from oarlock.spec import curves, holdings, phases, roles


class Cause(StrEnum):
    """Why a task or an attempt ended. In the order of blame: the first that applies is named."""

    PLATFORM = "platform"  # a node lost, a launch that failed, an agent that died: not the user's doing
    OOM = "oom"  # killed by the kernel for memory
    SIGNAL = "signal"  # killed by a signal that was not ours
    ERROR = "error"  # exited with another code than 0
    LEFT_EARLY = "left_early"  # ended well, but was needed on (a parameter server)
    PEER = "peer"  # failed because a peer did: its last lines say that a connection broke
    HANG = "hang"  # no progress for hang_timeout
    TIMEOUT = "timeout"  # the job's time was over
    START_TIMEOUT = "start_timeout"  # the gang did not reach the barrier
    STOPPED = "stopped"  # our own signal: neutral
    SUCCEEDED = "succeeded"


class Part(StrEnum):
    """The part that a task of an elastic job has in the present round."""

    MEMBER = "member"  # trains with the others, once it is admitted
    JOINING = "joining"  # runs, and waits for the others to take it in
    LEFT = "left"  # the others go on without it: its end is no loss
    AWAY = "away"  # it has left, and given its place back


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The exit record of a task, as its agent wrote it.

    `code` is the first failing process's; 128 + signal for signals.
    """

    code: int
    cause: Cause
    at: float
    signal: int | None = None
    reason: str = ""  # the agent's own word, see docs/agent-protocol.md
    last_lines: tuple[str, ...] = ()
    killed_by: str = ""  # `cgroup` or `session`: which way was used
    process: int = 0
    step: int | None = None  # the farthest that its processes have told of
    memory_peak_bytes: int | None = None  # the most that the task had taken
    memory_limit_bytes: int | None = None  # of its container, where the backend knows it


class NotKept(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the working directory that were not kept for one reason, with the first of them."""

    why: str
    count: int
    bytes: int = 0
    examples: tuple[str, ...] = ()


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The new and changed files of a task's working directory that were kept.

    `removed` names the earlier lives of the task whose files made room; `failure` is the reason why some or all files
    could not be kept.
    """

    files: int = 0
    bytes: int = 0
    changed: int = 0  # of `files`: those that were there before
    not_kept: tuple[NotKept, ...] = ()
    removed: tuple[str, ...] = ()
    failure: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    at: float
    total_steps: int | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    epoch: float | None = None
    step_s: float | None = None  # mean seconds of a step since the last report; of its last part, where it has several
    sync_s: float | None = None  # of that, waiting for the exchange of gradients
    ranks: int | None = None  # processes that train together
    local: int | None = None  # examples that each process takes at once
    accumulate: int | None = None
    noise: float | None = None  # gradient noise scale, in examples
    gpu_type: str = ""  # of the devices that its processes train on
    data_s: float | None = None  # of `step_s`, waiting for the next batch
    sent_bytes: float | None = None  # of gradients, that one process sent in a step; without transport headers
    slowest_rank: int | None = None  # the straggler, the rank that the others wait for in each step; told by the chief
    slowest_s: float | None = None  # its step without waiting for others
    fastest_s: float | None = None  # that of the fastest rank


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as the next one is compared with it, to see whether a program fails again and again in the same way."""

    role: str
    cause: Cause
    code: int
    last_line: str = ""  # without the parts that change with each start: numbers, addresses
    reached_step: int | None = None  # the farthest step that the job had come to by then


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One process (local) or pod (Kubernetes)."""

    role: roles.RoleName
    index: int
    incarnation: int = 1
    phase: phases.TaskPhase = phases.TaskPhase.PENDING
    node: str = ""
    address: str = ""
    ports: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()  # by index; on Kubernetes a number of slots
    gpu_uuids: tuple[str, ...] = ()  # of the devices that the platform chose, as its agent says
    detail: str = ""  # what its agent is doing
    obstacle: str = ""  # that its backend sees now: an image that cannot be pulled, a lost node
    obstacle_at: float = 0.0  # since when
    progress: Progress | None = None
    first_progress: Progress | None = None  # of this incarnation: from then on its pace is known
    idle_s: float = 0.0
    can_rejoin: bool = False
    lost_round: int = 0  # the last round whose connections broke, as its processes said
    exit: Exit | None = None
    kept: Kept | None = None  # None: nothing was new, or its agent has not said yet
    phase_at: float = 0.0
    moved_at: float = 0.0  # last seen to come nearer to the barrier: a phase, or another `detail` on the way
    round: int = 0  # in which it was admitted at the barrier; 0: not yet, no user process may run
    gone: bool = False  # the backend has confirmed that nothing of it runs
    log_gap: int = 0  # acknowledged bytes of its logs that are gone from the server's disk
    last_end: End | None = None  # of the incarnation before this one
    part: Part = Part.MEMBER
    leave_by: float | None = None  # it has left for good, and is ended by force then; its place is given back

    @property
    def holds(self) -> bool:
        """Whether it has a place, and is to keep it."""
        return self.part is not Part.AWAY and self.leave_by is None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def pace_s(self) -> float | None:
        """Seconds that one step takes, as the mean since its first report; None: not known."""
        first, last = self.first_progress, self.progress
        if first is None or last is None or last.step <= first.step:
            return None
        return (last.at - first.at) / (last.step - first.step)

    @property
    def left_s(self) -> float | None:
        """Seconds from its last report to its last step at that pace; None: not known."""
        last, pace_s = self.progress, self.pace_s
        if last is None or pace_s is None or not last.total_steps:
            return None
        return max(0, last.total_steps - last.step) * pace_s

    def key(self, job: str, attempt: int) -> TaskKey:
        return TaskKey(job, attempt, self.role, self.index, self.incarnation)


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """Which start of which task of which attempt: everything an agent says is said under it."""

    job: str
    attempt: int
    role: str
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}/{self.role}/{self.index}/{self.incarnation}"

    @property
    def life(self) -> str:
        """The name of its folder among the task's lives: `attempt-1`, or `attempt-1-incarnation-2`."""
        later = f"-incarnation-{self.incarnation}" if self.incarnation > 1 else ""
        return f"attempt-{self.attempt}{later}"

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Return the key. Raise ValueError for anything but five parts with numbers where numbers belong."""
        job, attempt, role, index, incarnation = text.split("/")
        return cls(job, int(attempt), str(roles.RoleName(role)), int(index), int(incarnation))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, and which task is to blame."""

    cause: Cause
    message: str
    at: float
    task: str = ""  # `worker-1`
    exit_code: int = 0
    last_lines: tuple[str, ...] = ()
    hint: str = ""  # the next step, where the end shows one


class Stacks(msgspec.Struct, frozen=True, kw_only=True):
    """The Python stacks of one task's processes, asked for when it hung. Text by process."""

    task: str
    at: float
    stacks: dict[str, str]


WAVE_S = 1.0
"""Failures of elastic workers within such a time are taken for one: they may have one cause."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The service that an attempt has used: device-seconds, CPU-seconds, and their cost.

    `useful_s` is the part of the device-seconds in which the gang was PROCESSING (`Attempt.works_until`).
    """

    device_s: float = 0.0
    useful_s: float = 0.0
    cpu_s: float = 0.0
    cost: float = 0.0


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts from 1. `stop` says that its end was decided, and why; `verdict` is written once it has ended."""

    number: int
    started_at: float
    reason: str = ""  # why the gang was admitted now and there, one line
    round: int = 0  # 0: the gang has not met at the barrier yet
    tasks: tuple[Task, ...] = ()
    launched_at: float | None = None  # the backend has made and bound all tasks
    barrier_at: float | None = None
    processing_at: float | None = None
    failing_since: float | None = None  # the first failure; blame is settled 1 s later
    aborted_at: float | None = None  # its survivors were told to stop, before that
    stop_at: float | None = None
    stop: Cause | None = None
    stop_message: str = ""
    stop_task: str = ""  # to blame, or suspected to hang
    stacks_request: int = 0
    stacks_at: float | None = None
    stacks: tuple[Stacks, ...] = ()
    frozen_until: float | None = None
    no_restart: str = ""  # why no attempt follows although `max_restarts` leaves one
    verdict: Verdict | None = None
    ended_at: float | None = None
    led_to: phases.Phase | None = None  # the job's phase after its end; None: not ended, or not recorded
    offered_step: int | None = None  # of the best checkpoint that was visible when it began
    restore_step: int | None = None  # from which its processes really went on, as they said; None: they have not
    checkpoint_step: int | None = None  # of the newest checkpoint that it made
    checkpoint_at: float | None = None  # when that became visible
    batch: curves.Batch | None = None  # its batch size, where that was decided with its place
    storing_at: float | None = None  # the deciding tasks have ended well: what is left is to store
    held: holdings.Resources = holdings.Resources()  # by all its tasks together
    gpu_types: tuple[str, ...] = ()  # of the devices that it has held, sorted
    price_per_h: float = 0.0  # of all that it holds, at the prices of when it took it
    held_at: float | None = None  # since when it has held so much; None: since its start
    spent: Spent = Spent()  # before that
    spared: Task | None = None  # the first of the last failures that the others went on after, as it was then
    spared_at: float | None = None
    closed: bool = False  # newcomers have failed in it: it grows by a restart
    lost_round: int = 0  # the newest round that ended with a loss: its exchanges cannot end
    again: int = 0  # rounds in a row, for connections that broke, without a step between
    again_from: int | None = None  # the step that the job had reached by then

    def cost_at(self, now: float) -> float:
        """Return the cost until `now`, or until the end: devices are paid for from launch to release."""
        end = now if self.ended_at is None else self.ended_at
        return self.spent.cost + self.price_per_h * max(0.0, end - self.held_since) / 3600

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than well or by our own stop."""
        return self.verdict is not None and self.verdict.cause not in (Cause.SUCCEEDED, Cause.STOPPED)

    @property
    def held_since(self) -> float:
        return self.started_at if self.held_at is None else self.held_at

    def works_until(self, now: float) -> float:
        """Return the end of its useful time: it failed, was stopped, or began to store; `now` while it works."""
        return min(at for at in (now, self.failing_since, self.stop_at, self.storing_at) if at is not None)

    def spent_at(self, now: float) -> Spent:
        """Return what it has used by `now`."""
        for_s = max(0.0, now - self.held_since)
        works_from = now if self.processing_at is None else max(self.held_since, self.processing_at)
        return Spent(
            device_s=self.spent.device_s + for_s * self.held.devices,
            useful_s=self.spent.useful_s + max(0.0, self.works_until(now) - works_from) * self.held.devices,
            cpu_s=self.spent.cpu_s + for_s * self.held.cpus_milli / 1000,
            cost=self.spent.cost + for_s * self.price_per_h / 3600,
        )

    @property
    def wave(self) -> tuple[Task, ...]:
        """The failure with which those began that end the attempt, if the others went on after it."""
        if self.spared is None or self.spared_at is None or self.failing_since is None:
            return ()
        return (self.spared,) if self.failing_since - self.spared_at <= WAVE_S else ()

    @property
    def guilty(self) -> Task | None:
        """The task to blame, or suspected, as it was when it failed."""
        return next((task for task in (*self.wave, *self.tasks) if task.name == self.stop_task), None)

    @property
    def members(self) -> tuple[Task, ...]:
        """The tasks that count: those that train together, and those of other roles."""
        return tuple(task for task in self.tasks if task.part is Part.MEMBER)

    def task(self, role: str, index: int) -> Task | None:
        return next((task for task in self.tasks if task.role == role and task.index == index), None)
