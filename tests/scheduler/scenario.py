"""Scenarios as text: a cluster, jobs arriving, and what the scheduler says. The language of `scenarios/*.txt`.

    node NAME cpus=4 gpus=2:h100 memory=16Gi rack=r1 nvlink=d1 zone=z price=3 ports=20000-20099 down
    pool NAME limit.gpus=4 parent=NAME
    running JOB tasks=2 cpus=1 gpus=1 on=NODE pool=P end=120
    job JOB tasks=2 cpus=1 gpus=1 type=h100,a100 gpu_memory=40Gi priority=60 spread same=rack required not_before=50
        gpus=0.5 mixed ps=2 ps_cpus=1 beside|apart
    plan now=0         what follows the line `----` is the plan, one line a job
    forecast JOB now=0
    place JOB keep=NODE,NODE prefer=NODE    where it goes, whoever else waits, and it runs there from now on
    start JOB          what was planned for JOB runs from now on (end=T: until T)
    finish JOB

Times are seconds. Lines that begin with # are comments.
"""

from __future__ import annotations

from collections.abc import Iterator

from oarlock.scheduler import explaining, forecasting, placement, planning
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, jobfile, nodes, plans, pools, quantities


class Cluster:
    """The state that a scenario builds up, line by line."""

    def __init__(self) -> None:
        self.nodes: dict[str, nodes.Node] = {}
        self.pools: dict[str, pools.Pool] = {}
        self.waiting: dict[str, plans.Gang] = {}
        self.running: dict[str, plans.Running] = {}

    def snapshot(self) -> plans.Snapshot:
        return plans.Snapshot(
            nodes=tuple(self.nodes.values()),
            pools=tuple(self.pools.values()),
            waiting=tuple(self.waiting.values()),
            running=tuple(self.running.values()),
        )

    def do(self, line: str) -> str:
        """Carry out one line; what it prints, if anything."""
        verb, *words = line.split()
        name = words.pop(0) if words and "=" not in words[0] else ""
        options = dict(word.split("=", 1) if "=" in word else (word, "yes") for word in words)
        return str(getattr(self, f"_{verb}")(name, options) or "")

    def _node(self, name: str, options: dict[str, str]) -> None:
        count, _, kind = options.get("gpus", "0:").partition(":")
        memory = quantities.memory_bytes(options.get("gpu_memory", "80Gi"))
        devices = tuple(nodes.Device(index=i, type=kind or "gpu", memory_bytes=memory) for i in range(int(count)))
        ports = options.get("ports")
        self.nodes[name] = nodes.Node(
            name=name,
            capacity=_amount(options | {"gpus": count}),
            devices=devices,
            domains={level: options[level] for level in ("nvlink", "rack", "zone") if level in options},
            price_per_h=float(options.get("price", "0")),
            ports=tuple(int(port) for port in ports.split("-")) if ports else None,  # type: ignore[arg-type]
            ready="down" not in options,
        )

    def _pool(self, name: str, options: dict[str, str]) -> None:
        limit = {key[6:]: float(value) for key, value in options.items() if key.startswith("limit.")}
        self.pools[name] = pools.Pool(name=name, parent=options.get("parent"), limit=limit)

    def _job(self, name: str, options: dict[str, str]) -> None:
        count = int(options.get("tasks", "1"))
        ask = plans.Ask(
            role="worker",
            count=count,
            min=int(options.get("min", count)),
            max=int(options.get("max", count)),
            amount=_amount(options),
            ports=int(options.get("ports", "0")),
            gpu_types=tuple(options["type"].split(",")) if "type" in options else (),
            gpu_memory_bytes=quantities.memory_bytes(options.get("gpu_memory", "0")),
        )
        asks = (ask,)
        if "ps" in options:
            servers, cpus = int(options["ps"]), quantities.cpus_milli(options.get("ps_cpus", "1"))
            asks += (plans.Ask(role="ps", count=servers, min=servers, max=servers, amount=holdings.Resources(cpus)),)
        same = options.get("same")
        self.waiting[name] = plans.Gang(
            job=name,
            name=name,
            pool=options.get("pool", "default"),
            asks=asks,
            submitted_at=float(options.get("at", len(self.waiting))),
            priority=int(options.get("priority", "50")),
            placement=jobfile.Placement.SPREAD if "spread" in options else jobfile.Placement.PACK,
            topology=jobfile.Topology(same=jobfile.Domain(same), required="required" in options) if same else None,
            mixed="mixed" in options,
            beside="beside" in options if {"beside", "apart"} & set(options) else None,
            not_before=float(options["not_before"]) if "not_before" in options else None,
        )

    def _running(self, name: str, options: dict[str, str]) -> None:
        node = self.nodes[options["on"]]
        amount = _amount(options)
        tasks = int(options.get("tasks", "1"))
        held = tuple(
            holdings.Holding(
                job=name,
                attempt=1,
                role="worker",
                index=i,
                node=node.name,
                amount=amount,
                devices=tuple(range(i * amount.gpus, (i + 1) * amount.gpus)),
            )
            for i in range(tasks)
        )
        end = options.get("end")
        ask = plans.Ask(role="worker", count=tasks, min=tasks, max=tasks, amount=amount)
        gang = plans.Gang(job=name, name=name, pool=options.get("pool", "default"), asks=(ask,), submitted_at=-1.0)
        self.running[name] = plans.Running(
            gang=gang,
            holdings=held,
            started_at=0.0,
            expected_end=float(end) if end else None,
        )

    def _plan(self, _: str, options: dict[str, str]) -> str:
        answer = planning.plan(self.snapshot(), float(options.get("now", "0")))
        return "\n".join(_told(answer, name) for name in self.waiting)

    def _start(self, name: str, options: dict[str, str]) -> None:
        answer = planning.plan(self.snapshot(), 0.0)
        launch = next(launch for launch in answer.launches if launch.job == name)
        gang = self.waiting.pop(name)
        end = options.get("end")
        self.running[name] = plans.Running(
            gang=gang,
            holdings=launch.holdings,
            started_at=0.0,
            expected_end=float(end) if end else None,
        )

    def _place(self, name: str, options: dict[str, str]) -> str:
        gang = self.waiting[name]
        room = rooms.Room()
        room.follow(tuple(self.nodes.values()), tuple(self.running.values()))
        keep, prefer = (tuple(options.get(which, "").split(",")) for which in ("keep", "prefer"))
        claims = placement.place(gang, room, keep=frozenset(keep), prefer=prefer)
        if claims is None:
            fitting, widest = placement.most(gang, room), placement.widest(gang, room)
            at_most = f"; {widest.level} {widest.name} takes {widest.tasks}" if widest is not None else ""
            return f"{name}: no place, {fitting} of {len(gang.tasks)} tasks would fit{at_most}"
        del self.waiting[name]
        self.running[name] = plans.Running(gang=gang, holdings=claims, started_at=0.0)
        return f"{name}: {_places(claims)}"

    def _finish(self, name: str, _: dict[str, str]) -> None:
        del self.running[name]

    def _forecast(self, name: str, options: dict[str, str]) -> str:
        now = float(options.get("now", "0"))
        verdict = forecasting.forecast(self.snapshot(), self.waiting[name], now, spent=lambda: 0.0)
        start = "" if verdict.start is None else f" start={verdict.start:g}"
        latest = "" if verdict.latest is None else f" latest={verdict.latest:g}"
        told = [verdict.message, "" if verdict.when == "now" else verdict.expected]
        return f"{name}: {verdict.when}{start}{latest}: {' '.join(filter(None, told))}"


def _amount(options: dict[str, str]) -> holdings.Resources:
    gpus = float(options.get("gpus", "0"))
    return holdings.Resources(
        cpus_milli=quantities.cpus_milli(options.get("cpus", "0")),
        memory_bytes=quantities.memory_bytes(options.get("memory", "0")),
        gpus=int(gpus),
        gpu_milli=round(gpus % 1 * 1000),
    )


def _told(answer: plans.Plan, name: str) -> str:
    launch = next((launch for launch in answer.launches if launch.job == name), None)
    if launch is not None:
        return f"{name}: starts on {_places(launch.holdings)}"
    refusal = answer.refusals[name]
    told = [refusal.message, explaining.held_by(refusal, 0.0), refusal.change]
    return f"{name}: {refusal.code}: {' '.join(filter(None, told))}"


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
        lines = [line for line in commands.splitlines() if line and not line.startswith("#")]
        if lines:
            yield lines, expected.strip()
