"""Scenarios as text: a cluster, jobs arriving, and what the scheduler says. The language of `scenarios/*.txt`.

    rules policy=las min_runtime=0 restart=30 round=60 backfill=no las.band1_s=100
    node NAME cpus=4 gpus=2:h100 memory=16Gi gpu_memory=80Gi nvlink=n1 rack=r1 zone=z price=2.5 ports=20000-20099 down
    pool NAME limit.gpus=4 reserve.gpus=2 share.gpus=2 static=gpus parent=NAME policy=fifo
    running JOB tasks=2 min=1 max=4 cpus=1 gpus=1 on=NODE*2,NODE pool=P priority=60 owner=ada preemptible=no
                started=-100 checkpoint=-10 end=120 stopping returns
    job JOB tasks=2 min=1 max=4 cpus=1 gpus=0.5 type=h100,a100 gpu_memory=40Gi ports=4 priority=60 pool=P owner=ada
            preemptible=no spread same=rack required mixed not_before=50 timeout=60 at=3 served=100
            ps=2 ps_cpus=1 beside      (beside or apart; without either: wherever)
    plan now=0         fills what is free. What follows the line `----` is the plan, one line a job
    round now=0        the same, and running gangs may be touched
    carry now=0        the last plan is carried out: launched gangs run from now on, others stop
    gone JOB now=30    it has stopped: nothing of it runs, and it waits again if it returns
    place JOB keep=NODE prefer=NODE    where JOB goes when nothing else is asked; it runs from now on
    detail JOB         beside the words of the last plan: how many wait before it, the nodes kept for it, its start, and
                       for which job it gives way
    forecast JOB now=0
    measured JOB alone=0.1 beside=JOB:0.2    seconds of a step on one device: alone, sharing it with another
    typed JOB t4=0.4 a100=0.1    seconds of a step on one device of each type; two devices are twice as fast
    start JOB          what is planned for JOB runs from now on (end=T: until T)
    finish JOB
    drop JOB           it waits no more
    down NODE, up NODE

Times are seconds. Lines that begin with # are comments; a line that begins with spaces continues the one before.
An option that a verb does not know, and one that is given twice, are errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.scheduler import world

from oarlock.scheduler import planning
from oarlock.scheduler.explaining import reasons
from oarlock.scheduler.forecasting import forecasts
from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.policies import registry
from oarlock.spec import curves, holdings, jobfile, plans
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.input import quantities

GANG = (
    "tasks= min= max= cpus= gpus= memory= type= gpu_memory= ports= priority= pool= owner= preemptible= same="
    " not_before= timeout= at= served= ps= ps_cpus= spread required mixed beside apart"
)
PARAMETERS = " ".join(f"{name}.{one}=" for name, policy in registry.POLICIES.items() for one in policy.PARAMETERS)
BOUNDS = " ".join(f"{bound}.{one}=" for bound in ("limit", "reserve", "share") for one in pools.RESOURCES)
OPTIONS: Mapping[str, str] = {
    "rules": f"policy= min_runtime= restart= round= backfill= {PARAMETERS}",
    "node": "cpus= gpus= memory= gpu_memory= nvlink= rack= zone= price= ports= down",
    "pool": f"parent= static= policy= {BOUNDS}",
    "job": GANG,
    "running": f"{GANG} on= started= checkpoint= end= latest= stopping returns",
    **dict.fromkeys(("plan", "round", "carry", "gone", "forecast"), "now="),
    "place": "keep= prefer=",
    "measured": "alone= beside=",
    "typed": "t4= a100= h100=",
    "start": "end=",
    **dict.fromkeys(("finish", "drop", "down", "up", "detail"), ""),
}
"""The options of each verb; one with a value ends with `=`."""
NAMELESS = {"rules", "plan", "round", "carry"}
"""The verbs that are about the whole cluster."""


class Cluster:
    """The state that a scenario builds up, line by line."""

    def __init__(self) -> None:
        self.world = world.World()
        self.planned = plans.Plan()

    def do(self, line: str) -> str:
        """Carry out one line; what it prints, if anything."""
        verb, name, options = read(line)
        return str(getattr(self, f"_{verb}")(name, options) or "")

    def _rules(self, _: str, options: dict[str, str]) -> None:
        given: dict[str, dict[str, float]] = {}
        for key, value in options.items():
            policy, dot, parameter = key.partition(".")
            if dot:
                given.setdefault(policy, {})[parameter] = float(value)
        self.world.rules = plans.Rules(
            policy=options.get("policy", "priority"),
            round_s=float(options.get("round", "60")),
            min_runtime_s=float(options.get("min_runtime", "120")),
            restart_s=float(options.get("restart", "30")),
            backfill=options.get("backfill", "yes") == "yes",
            policies=given,
        )

    def _node(self, name: str, options: dict[str, str]) -> None:
        count, _, kind = options.get("gpus", "0:").partition(":")
        memory = quantities.memory_bytes(options.get("gpu_memory", "80Gi"))
        devices = tuple(nodes.Device(index=i, type=kind or "gpu", memory_bytes=memory) for i in range(int(count)))
        ports = options.get("ports")
        self.world.nodes[name] = nodes.Node(
            name=name,
            capacity=_amount(options | {"gpus": count}),
            devices=devices,
            domains={level: options[level] for level in ("nvlink", "rack", "zone") if level in options},
            price_per_h=float(options.get("price", "0")),
            ports=tuple(int(port) for port in ports.split("-")) if ports else None,  # type: ignore[arg-type]
            ready="down" not in options,
        )

    def _down(self, name: str, _: dict[str, str]) -> None:
        self.world.nodes[name] = world.replace(self.world.nodes[name], ready=False)

    def _up(self, name: str, _: dict[str, str]) -> None:
        self.world.nodes[name] = world.replace(self.world.nodes[name], ready=True)

    def _pool(self, name: str, options: dict[str, str]) -> None:
        amounts: dict[str, dict[str, float]] = {"limit": {}, "reserve": {}, "share": {}}
        for key, value in options.items():
            bound, dot, resource = key.partition(".")
            if dot:
                amounts[bound][resource] = float(value)
        self.world.pools[name] = pools.Pool(
            name=name,
            parent=options.get("parent"),
            static=tuple(options["static"].split(",")) if "static" in options else (),
            policy=options.get("policy"),
            **amounts,
        )

    def _job(self, name: str, options: dict[str, str]) -> None:
        self.world.waiting[name] = _gang(name, {"at": str(len(self.world.waiting)), **options})

    def _running(self, name: str, options: dict[str, str]) -> None:
        gang = _gang(name, {"at": "-1", **options})
        end, latest, checkpoint = options.get("end"), options.get("latest"), options.get("checkpoint")
        self.world.running[name] = plans.Running(
            gang=gang,
            holdings=self._held(gang, options["on"]),
            started_at=float(options.get("started", "0")),
            expected_end=float(end) if end else None,
            latest_end=float(latest) if latest else None,
            checkpoint_at=float(checkpoint) if checkpoint else None,
            stopping="stopping" in options,
            returns="returns" in options,
        )

    def _held(self, gang: plans.Gang, on: str) -> tuple[holdings.Holding, ...]:
        """`a*2,b`: its tasks one after the other on these nodes, each on the first free devices."""
        places = [
            node for part in on.split(",") for node, _, count in [part.partition("*")] for _ in range(int(count or 1))
        ]
        tasks = gang.at((len(places),)) if len(places) > 1 else gang.tasks
        places = places if len(places) > 1 else places * len(tasks)
        held: list[holdings.Holding] = []
        others = [claim for job in self.world.running.values() for claim in job.holdings]
        for task, node in zip(tasks, places, strict=True):
            used = {device for claim in [*others, *held] if claim.node == node for device in claim.devices}
            free = [device.index for device in self.world.nodes[node].devices if device.index not in used]
            held.append(
                holdings.Holding(
                    job=gang.job,
                    attempt=1,
                    role=task.role,
                    index=task.index,
                    node=node,
                    amount=task.amount,
                    devices=tuple(free[: task.amount.gpus]),
                )
            )
        return tuple(held)

    def _plan(self, _: str, options: dict[str, str]) -> str:
        return self._planned(options, reallocate=False)

    def _round(self, _: str, options: dict[str, str]) -> str:
        return self._planned(options, reallocate=True)

    def _planned(self, options: dict[str, str], *, reallocate: bool) -> str:
        snapshot = self.world.snapshot(reallocate=reallocate)
        self.planned = planning.plan(snapshot, float(options.get("now", "0")))
        waiting = [_told(self.planned, name) for name in self.world.waiting]
        return "\n".join([*waiting, *(line for name in self.world.running for line in _happens(self.planned, name))])

    def _detail(self, name: str, _: dict[str, str]) -> str:
        told = [f"starts on {_places(one.holdings)}" for one in self.planned.launches if one.job == name]
        if (refusal := self.planned.refusals.get(name)) is not None:
            told.append(f"ahead={refusal.ahead} kept={','.join(refusal.kept)}")
        ended = (*self.planned.preemptions, *self.planned.resizes)
        told += [f"for {one.by}" for one in ended if one.job == name]
        return f"{name}: {'; '.join(told) or 'nothing'}"

    def _carry(self, _: str, options: dict[str, str]) -> None:
        self.world.carry_out(self.planned, float(options.get("now", "0")))

    def _gone(self, name: str, options: dict[str, str]) -> None:
        self.world.gone(name, float(options.get("now", "0")))

    def _measured(self, name: str, options: dict[str, str]) -> None:
        told = {"": options["alone"]} if "alone" in options else {}
        told |= dict([options["beside"].split(":")]) if "beside" in options else {}
        new = [
            curves.Sample(nodes=1, devices=1, local=8, step_s=float(step), sync_s=0.0, beside=beside, count=5)
            for beside, step in told.items()
        ]
        self.world.learn(name, new)

    def _typed(self, name: str, options: dict[str, str]) -> None:
        on = [
            curves.OnType(
                gpu_type=kind, model=curves.Allreduce(compute_s=float(step), compute_per_example_s=0.0, seen=4)
            )
            for kind, step in options.items()
        ]
        self.world.told(name, curves.Curve(model=on[0].model, types=tuple(on)))

    def _start(self, name: str, options: dict[str, str]) -> None:
        answer = planning.plan(self.world.snapshot(), 0.0)
        launch = next(launch for launch in answer.launches if launch.job == name)
        end = options.get("end")
        self.world.start(name, launch.holdings, 0.0, float(end) if end else None)

    def _place(self, name: str, options: dict[str, str]) -> str:
        gang = self.world.waiting[name]
        space = freespace.FreeSpace()
        space.follow(tuple(self.world.nodes.values()), tuple(self.world.running.values()))
        keep, prefer = (tuple(options.get(which, "").split(",")) for which in ("keep", "prefer"))
        claims = placing.place(gang, space, keep=frozenset(keep), prefer=prefer)
        if claims is None:
            fitting, widest = placing.most(gang, space), placing.widest(gang, space)
            at_most = f"; {widest.level} {widest.name} takes {widest.tasks}" if widest is not None else ""
            return f"{name}: no place, {fitting} of {len(gang.tasks)} tasks would fit{at_most}"
        del self.world.waiting[name]
        self.world.running[name] = plans.Running(gang=gang, holdings=claims, started_at=0.0)
        return f"{name}: {_places(claims)}"

    def _finish(self, name: str, _: dict[str, str]) -> None:
        del self.world.running[name]

    def _drop(self, name: str, _: dict[str, str]) -> None:
        del self.world.waiting[name]

    def _forecast(self, name: str, options: dict[str, str]) -> str:
        now = float(options.get("now", "0"))
        verdict = forecasts.forecast(self.world.snapshot(), self.world.waiting[name], now, spent=lambda: 0.0)
        start = "" if verdict.start is None else f" start={verdict.start:g}"
        latest = "" if verdict.latest is None else f" latest={verdict.latest:g}"
        told = [verdict.message, "" if verdict.when == "now" else verdict.expected]
        return f"{name}: {verdict.when}{start}{latest}: {' '.join(filter(None, told))}"


def read(line: str) -> tuple[str, str, dict[str, str]]:
    """Return the verb, the name and the options of a line. Raises ValueError for words that it does not know."""
    verb, *words = line.split()
    if verb not in OPTIONS:
        raise ValueError(f"{line!r}: there is no verb {verb!r}")
    name = "" if verb in NAMELESS else words.pop(0) if words else ""
    if "=" in name or (not name and verb not in NAMELESS):
        raise ValueError(f"{line!r}: {verb} needs a name")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key + equals not in OPTIONS[verb].split():
            raise ValueError(f"{line!r}: {verb} has no option {key + equals!r}")
        if key in options:
            raise ValueError(f"{line!r}: {key!r} is given twice")
        options[key] = value or "yes"
    return verb, name, options


def _gang(name: str, options: dict[str, str]) -> plans.Gang:
    same, timeout = options.get("same"), options.get("timeout")
    return plans.Gang(
        job=name,
        name=name,
        pool=options.get("pool", "default"),
        owner=options.get("owner", ""),
        asks=tuple(_asks(options)),
        submitted_at=float(options["at"]),
        priority=int(options.get("priority", "50")),
        preemptible=options.get("preemptible", "yes") == "yes",
        placement=jobfile.Placement.SPREAD if "spread" in options else jobfile.Placement.PACK,
        topology=jobfile.Topology(same=jobfile.Domain(same), required="required" in options) if same else None,
        mixed="mixed" in options,
        beside=True if "beside" in options else False if "apart" in options else None,
        not_before=float(options["not_before"]) if "not_before" in options else None,
        at_most_s=float(timeout) if timeout else None,
        served_s=float(options.get("served", "0")),
    )


def _asks(options: dict[str, str]) -> Iterator[plans.Ask]:
    count = int(options.get("tasks", "1"))
    yield plans.Ask(
        role="worker",
        count=count,
        min=int(options.get("min", count)),
        max=int(options.get("max", count)),
        amount=_amount(options),
        ports=int(options.get("ports", "0")),
        gpu_types=tuple(options["type"].split(",")) if "type" in options else (),
        gpu_memory_bytes=quantities.memory_bytes(options.get("gpu_memory", "0")),
    )
    if servers := int(options.get("ps", "0")):
        amount = holdings.Resources(quantities.cpus_milli(options.get("ps_cpus", "1")))
        yield plans.Ask(role="ps", count=servers, min=servers, max=servers, amount=amount)


def _amount(options: dict[str, str]) -> holdings.Resources:
    gpus = float(options.get("gpus", "0"))
    return holdings.Resources(
        cpus_milli=quantities.cpus_milli(options.get("cpus", "0")),
        memory_bytes=quantities.memory_bytes(options.get("memory", "0")),
        gpus=int(gpus),
        gpu_milli=round(gpus % 1 * 1000),
    )


def _told(answer: plans.Plan, name: str) -> str:
    """Return the words about a gang that waits."""
    launch = next((launch for launch in answer.launches if launch.job == name), None)
    if launch is not None:
        return f"{name}: starts on {_places(launch.holdings)}"
    refusal = answer.refusals[name]
    told = [refusal.message, reasons.held_by(refusal, 0.0), refusal.change]
    return f"{name}: {refusal.code}: {' '.join(filter(None, told))}"


def _happens(answer: plans.Plan, name: str) -> Iterator[str]:
    """Return the words about the change of a gang that runs."""
    yield from (f"{name}: stopped: {one.reason}" for one in answer.preemptions if one.job == name)
    yield from (
        f"{name}: resized to {','.join(map(str, one.size))} on {_places(one.to)}: {one.reason}"
        for one in answer.resizes
        if one.job == name
    )
    yield from (f"{name}: moved to {_places(one.to)}: {one.reason}" for one in answer.moves if one.job == name)
    if name in answer.batches:
        yield f"{name}: batch {answer.batches[name].local} x {answer.batches[name].accumulate}"


def _places(claims: tuple[holdings.Holding, ...]) -> str:
    """By role and index; a role other than `worker` is named."""
    roles: dict[str, list[str]] = {}
    for claim in sorted(claims, key=lambda claim: claim.index):
        devices = f"[{','.join(str(device) for device in claim.devices)}]" if claim.devices else ""
        ports = f":{claim.ports[0]}-{claim.ports[-1]}" if claim.ports else ""
        roles.setdefault(claim.role, []).append(claim.node + devices + ports)
    return "; ".join(
        ("" if role == "worker" else f"{role} ") + ", ".join(roles[role]) for role in sorted(roles, reverse=True)
    )


def blocks(text: str) -> Iterator[tuple[list[str], str]]:
    """The scenario's blocks: commands, and what the last of them is expected to print."""
    for block in text.strip().split("\n\n"):
        commands, _, expected = block.partition("\n----\n")
        lines: list[str] = []
        for line in commands.splitlines():
            if line.startswith(" ") and lines:
                lines[-1] += line
            elif line and not line.startswith("#"):
                lines.append(line)
        if lines:
            yield lines, expected.strip()
