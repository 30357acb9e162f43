"""A scenario: one YAML file with all settings of an experiment (docs/simulator.md).

It has jobs in groups, declared or drawn at random, or a recorded workload; the cluster, the pools, the faults; and
`runs`, each of which changes some settings, so that one file has everything to compare. `case` turns a run into a
simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from oarlock.simulator import cluster, csvfiles
from oarlock.simulator.engine import faults, simulation
from oarlock.simulator.workloads import distributions, jobgroups, recorded, workload
from oarlock.spec import errors, plans
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.input import validation


class Run(distributions.Part, frozen=True):
    """The settings that a run changes.

    `spec` is merged over every job's; `policies` are parameters of policies; `scale` is the factor of the arrival rate.
    `ends_told`: whether jobs report their remaining steps. `lockstep`: plans are made in whole rounds only.
    `interference`: share of speed that gangs on several nodes lose where they share a node.
    """

    policy: str | None = None
    round: distributions.Quantity | None = None
    restart: distributions.Quantity | None = None
    min_runtime: distributions.Quantity | None = None
    backfill: bool | None = None
    policies: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    scale: float | None = None
    nodes: str | tuple[cluster.NodeClass, ...] | None = None
    freedom: recorded.Freedom | None = None
    apart: bool | None = None
    ends_told: bool | None = None
    lockstep: bool | None = None
    interference: float | None = None


class Scenario(distributions.Part, frozen=True):
    """A whole scenario.

    `run` holds for all `runs`. `checkpoint` is the interval of checkpoints; None: only at a stop.
    """

    name: str | None = None
    seed: int = 0
    nodes: str | tuple[cluster.NodeClass, ...] = "16x4"
    pools: tuple[dict[str, Any], ...] = ()
    jobs: tuple[jobgroups.Group, ...] = ()
    recorded: recorded.Recorded | None = None
    faults: dict[str, distributions.Quantity] = msgspec.field(default_factory=dict)  # `faults.Faults`
    checkpoint: distributions.Quantity | None = "10m"
    until: distributions.Quantity | None = None
    run: Run = Run()
    runs: dict[str, Run] = msgspec.field(default_factory=dict)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation: all arguments of `simulation.Simulation` except the scheduler."""

    workload: workload.Workload
    machines: tuple[nodes.Node, ...]
    settings: simulation.Settings


T = TypeVar("T")

PAGE = "docs/simulator.md"
LEAST_ROUND_S = 1.0

FREEDOMS = {"goodput": recorded.Freedom.ADAPTIVE, "optimus": recorded.Freedom.ELASTIC}
"""The default freedom of AdaptDL's jobs by policy: the choices that the policy can make. Other policies get none."""


def load(path: Path) -> Scenario:
    """Return a scenario file, or a recorded workload as a scenario. Raises InvalidInput and NotFound."""
    if path.suffix not in (".yaml", ".yml"):
        return Scenario(name=path.stem, recorded=recorded.Recorded(file=path.name))
    try:
        text = path.read_bytes()
    except OSError as error:
        raise csvfiles.unreadable(path, error, csvfiles.NAME_IT) from error
    raw = validation.fields(text, source=str(path), hint=f"A scenario has `jobs` or `recorded`: {PAGE}.")
    found = of_fields(raw, str(path))
    return found if found.name is not None else msgspec.structs.replace(found, name=path.stem)


def of_fields(raw: dict[str, Any], path: str = "the scenario") -> Scenario:
    """Return a scenario from its fields; `path` names it in messages. Raises InvalidInput."""
    found = validation.convert(raw, Scenario, page=PAGE)
    if bool(found.jobs) == (found.recorded is not None):
        raise errors.InvalidInput(
            f"{path} has {'both `jobs` and `recorded`' if found.jobs else 'neither `jobs` nor `recorded`'}",
            hint="Give one of them.",
        )
    return found


def titles(of: Scenario, policies: Sequence[str] = ()) -> list[tuple[str, str, str | None]]:
    """Return, for each simulation, its title, its run and its policy.

    Every run is combined with each of `policies`, or has its own policy if there are none.
    """
    chosen: list[tuple[str, str, str | None]] = []
    for name, run in (of.runs or {"": Run()}).items():
        for policy in policies or (None,):
            own = run.policy or of.run.policy or plans.Rules().policy
            said = [name] if name and policy is None else [name, policy or own]
            chosen.append(("/".join(part for part in said if part), name, policy))
    return chosen


def case(of: Scenario, base: Path, title: str, name: str, policy: str | None, over: Run) -> Case:
    """Return the simulation of the run `name` with `policy`.

    `over` has priority; `base` is the base of relative paths.
    """
    run = _merged(of, name, policy, over)
    given = _rules(run)
    machines = tuple(_machines(of.nodes if run.nodes is None else run.nodes))
    settings = simulation.Settings(
        name=title,
        rules=given,
        restart_s=given.restart_s,
        checkpoint_s=None if of.checkpoint is None else distributions.number(of.checkpoint, "checkpoint"),
        faults=_part(
            {name: distributions.number(value, f"faults.{name}") for name, value in of.faults.items()},
            faults.Faults,
            "faults",
        ),
        ends_told=run.ends_told is not False,
        lockstep=run.lockstep is True,
        interference=_share(run.interference),
        seed=of.seed,
        until_s=math.inf if of.until is None else distributions.number(of.until, "until"),
    )
    return Case(workload=_workload(of, run, given.policy, machines, base), machines=machines, settings=settings)


def rules(of: Scenario, name: str, policy: str | None, over: Run) -> plans.Rules:
    """Return the scheduler's settings in that run."""
    return _rules(_merged(of, name, policy, over))


def _merged(of: Scenario, name: str, policy: str | None, over: Run) -> Run:
    return _over(_over(_over(of.run, of.runs.get(name, Run())), over), Run(policy=policy))


def _over(below: Run, above: Run) -> Run:
    """Return `below` with the values that `above` sets; tables are merged."""
    fields: dict[str, Any] = {}
    for field in Run.__struct_fields__:
        low, high = getattr(below, field), getattr(above, field)
        fields[field] = jobgroups.merged(low, high) if isinstance(low, dict) else low if high is None else high
    return Run(**fields)


def _rules(run: Run) -> plans.Rules:
    said: dict[str, Any] = {
        name: distributions.number(value, name.removesuffix("_s"))
        for name, value in (("round_s", run.round), ("restart_s", run.restart), ("min_runtime_s", run.min_runtime))
        if value is not None
    }
    if said.get("round_s", LEAST_ROUND_S) < LEAST_ROUND_S:
        raise errors.InvalidInput(f"{run.round}", path="round", hint="1 second or more.")
    said |= {name: value for name in ("policy", "backfill") if (value := getattr(run, name)) is not None}
    return plans.Rules(policies=run.policies, **said)


def _share(said: float | None) -> float:
    if said is not None and not 0 <= said < 1:
        raise errors.InvalidInput(f"{said:g}", path="interference", hint="A share of the speed: 0 or more, below 1.")
    return said or 0.0


def _machines(said: str | tuple[cluster.NodeClass, ...]) -> list[nodes.Node]:
    return cluster.machines(cluster.parse([said]) if isinstance(said, str) else said)


def _workload(of: Scenario, run: Run, policy: str, machines: Sequence[nodes.Node], base: Path) -> workload.Workload:
    scale = 1.0 if run.scale is None else run.scale
    if not scale > 0:
        raise errors.InvalidInput(f"{scale:g}", path="scale", hint="1 keeps the load, 2 doubles it.")
    given = tuple(_part(pool, pools.Pool, f"pools[{place}]") for place, pool in enumerate(of.pools))
    if of.recorded is not None:
        freedom = run.freedom or FREEDOMS.get(policy, recorded.Freedom.GIVEN)
        found = recorded.read(of.recorded, base, freedom, scale)
        respecified = [_respecified(one, run.spec) for one in found.arrivals]
        recorded.check(respecified, machines)
        return workload.build(of.name or found.name, respecified, given)
    per_node = max(len(node.devices) for node in machines)
    made = [
        msgspec.structs.replace(arrival, at=arrival.at / scale)
        for place, group in enumerate(of.jobs)
        for arrival in jobgroups.arrivals(
            group,
            over=run.spec,
            apart=group.apart if run.apart is None else run.apart,
            seed=f"{of.seed}/{place}/{group.name}",
            path=f"jobs[{place}]",
            per_node=per_node,
        )
    ]
    return workload.build(of.name or "scenario", made, given)


def _part(raw: dict[str, Any], kind: type[T], path: str) -> T:
    """Return the value at `path` of the scenario, converted and checked."""
    try:
        return validation.convert(raw, kind, page=PAGE)
    except errors.InvalidInput as error:
        error.path = f"{path}.{error.path}".rstrip(".")
        raise


def _respecified(arrival: workload.Arrival, over: dict[str, Any]) -> workload.Arrival:
    if not over:
        return arrival
    raw: Any = msgspec.to_builtins(arrival.spec)
    return msgspec.structs.replace(arrival, spec=validation.decode(jobgroups.merged(raw, over)))
