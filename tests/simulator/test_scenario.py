"""Scenario files are simulated as they are written, and an invalid value is named with its place."""

from __future__ import annotations

import random
import re
import statistics
from pathlib import Path

import pytest

from oarlock import configuration
from oarlock.simulator import cluster, scenario
from oarlock.simulator.engine import work
from oarlock.simulator.models import jobmodels
from oarlock.simulator.workloads import distributions, jobgroups, recorded
from oarlock.spec import errors, jobfile, plans

ROOT = Path(__file__).parents[2]

FULL = """
name: everything
seed: 4
nodes:
  - {count: 2, gpus: 8, gpu_type: h100, per_rack: 1, price_per_h: 30}
  - {count: 3, gpus: 0, cpus: 128}
pools:
  - {name: default, reserve: {gpus: 8}}
  - {name: research, limit: {gpus: 12}, share: {gpus: 2}}
jobs:
  - name: fixed
    count: 3
    arrivals: {start: 1m, every: 30}
    lasts: 2h
    gpus: 4
    spec: {pool: research, priority: 70}
  - name: elastic
    arrivals: {start: 2h}
    lasts: 100
    gpus: 2
    least: 1
    most: 8
    speed: {amdahl: 0.1, far: 1.5}
    owner: alice
  - name: learner
    lasts: 10m
    gpus: 3
    apart: true
  - name: ps
    lasts: 10m
    spec: {roles: {worker: {count: 2, gpus: 1}, ps: {count: 1}}, max_restarts: 9}
faults: {node_mtbf_s: 4h, launch_failures: 0.1}
checkpoint: null
until: 2d
run: {restart: 1m, policies: {las: {first: 100}}}
runs:
  calm: {policy: fifo, spec: {placement: spread}}
  busy: {policy: las, scale: 2, nodes: 4x4, round: 30, min_runtime: 0, policies: {las: {second: 7}}, apart: false}
"""


def case(text: str, tmp_path: Path, name: str, over: scenario.Run | None = None, policy: str | None = None):
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return scenario.case(scenario.load(path), tmp_path, "title", name, policy, over or scenario.Run())


def test_everything_that_is_said_is_heard(tmp_path: Path) -> None:
    found = case(FULL, tmp_path, "calm")
    assert [(node.name, len(node.devices), node.domains) for node in found.machines] == [
        ("n1", 8, {"rack": "h100-r1"}),
        ("n2", 8, {"rack": "h100-r2"}),
        ("n3", 0, {}),
        ("n4", 0, {}),
        ("n5", 0, {}),
    ]
    assert [(one.id, one.at, one.group) for one in found.workload.arrivals] == [
        ("learner-worker-0", 0.0, "learner"),
        ("learner-worker-1", 0.0, "learner"),
        ("learner-worker-2", 0.0, "learner"),
        ("ps", 0.0, ""),
        ("fixed-1", 60.0, ""),
        ("fixed-2", 90.0, ""),
        ("fixed-3", 120.0, ""),
        ("elastic", 7200.0, ""),
    ]
    by_id = {one.id: one for one in found.workload.arrivals}
    fixed, elastic, ps = by_id["fixed-2"].spec, by_id["elastic"], by_id["ps"].spec
    assert (fixed.pool, fixed.priority, fixed.placement) == ("research", 70, jobfile.Placement.SPREAD)
    assert (fixed.roles["worker"].count, fixed.roles["worker"].gpus) == (4, 1)
    role = elastic.spec.roles["worker"]
    assert (role.min, role.count, role.max, elastic.owner) == (1, 2, 8, "alice")
    assert (ps.roles["ps"].count, ps.max_restarts) == (1, 9)
    assert [(pool.name, pool.reserve, pool.share) for pool in found.workload.pools] == [
        ("default", {"gpus": 8.0}, {}),
        ("research", {}, {"gpus": 2.0}),
    ]
    settings = found.settings
    assert (settings.seed, settings.checkpoint_s, settings.until_s, settings.restart_s) == (4, None, 172_800.0, 60.0)
    assert (settings.faults.node_mtbf_s, settings.faults.launch_failures) == (14_400.0, 0.1)
    assert (settings.rules.policy, settings.rules.restart_s) == ("fifo", 60.0)


def test_a_run_changes_only_its_own_settings(tmp_path: Path) -> None:
    found = case(FULL, tmp_path, "busy")
    rules = found.settings.rules
    assert (rules.policy, rules.round_s, rules.min_runtime_s, rules.restart_s) == ("las", 30.0, 0.0, 60.0)
    assert rules.policies == {"las": {"first": 100.0, "second": 7.0}}
    assert len(found.machines) == 4
    assert [(one.id, one.at) for one in found.workload.arrivals][-2:] == [("fixed-3", 60.0), ("elastic", 3600.0)]
    assert "learner" in [one.id for one in found.workload.arrivals]


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_tasks_apart_last_as_long_as_the_gang_would(gpus: int, tmp_path: Path) -> None:
    text = f"jobs: [{{name: j, lasts: 10m, spec: {{roles: {{worker: {{count: 3, gpus: {gpus}}}}}}}}}]"
    (gang,) = case(text, tmp_path, "").workload.arrivals
    apart = case(text, tmp_path, "", scenario.Run(apart=True)).workload.arrivals
    for arrival, shape in [(gang, (3 * max(1, gpus),)), *((one, (max(1, gpus),)) for one in apart)]:
        did = work.Work(arrival.job_model)
        did.start(0.0, 1, shape, None, ready_s=0.0)
        assert did.ends_at == pytest.approx(600.0)
    assert len(apart) == 3


def test_the_command_line_has_priority(tmp_path: Path) -> None:
    over = scenario.Run(restart=5.0, nodes="1x2", backfill=False)
    found = case(FULL, tmp_path, "busy", over, "fair")
    rules = found.settings.rules
    assert (rules.policy, rules.restart_s, rules.backfill, len(found.machines)) == ("fair", 5.0, False, 1)


def test_every_run_is_compared_under_every_policy(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(FULL)
    loaded = scenario.load(tmp_path / "s.yaml")
    assert [title for title, _, _ in scenario.titles(loaded)] == ["calm", "busy"]
    both = scenario.titles(loaded, ("fifo", "las"))
    assert both == [
        ("calm/fifo", "calm", "fifo"),
        ("calm/las", "calm", "las"),
        ("busy/fifo", "busy", "fifo"),
        ("busy/las", "busy", "las"),
    ]
    plain = scenario.Scenario(recorded=recorded.Recorded(file="x.csv"))
    assert [title for title, _, _ in scenario.titles(plain, ("fifo",))] == ["fifo"]


def test_draws_are_repeated_and_one_property_does_not_move_another(tmp_path: Path) -> None:
    text = """
    jobs:
      - {name: j, count: 50, arrivals: {poisson: {per_h: 10}}, lasts: {exponential: {mean: 1h}},
         gpus: {choice: {values: [1, 2, 8], weights: [5, 3, 1]}}}
    """
    first, again = case(text, tmp_path, "").workload.arrivals, case(text, tmp_path, "").workload.arrivals
    assert [(one.at, one.job_model.total) for one in first] == [(one.at, one.job_model.total) for one in again]
    other = case(text.replace("[5, 3, 1]", "[1, 1, 1]"), tmp_path, "").workload.arrivals
    assert [(one.at, one.job_model.total) for one in first] == [(one.at, one.job_model.total) for one in other]
    assert [one.spec.roles for one in first] != [one.spec.roles for one in other]
    reseeded = case("seed: 1\n" + text.replace("\n    ", "\n"), tmp_path, "").workload.arrivals
    assert [one.at for one in first] != [one.at for one in reseeded]


def test_properties_are_drawn_apart(tmp_path: Path) -> None:
    """Two properties with the same distribution are not the same numbers."""
    same = "{uniform: {least: 1, most: 60}}"
    text = f"jobs: [{{name: j, count: 40, lasts: {same}, gpus: {same}}}]"
    found = case(text, tmp_path, "").workload.arrivals
    assert sum(round(one.job_model.total) == one.spec.roles["worker"].count for one in found) < 10


@pytest.mark.parametrize(
    ("raw", "mean", "deviation"),
    [
        (distributions.Distribution(exponential=distributions.Exponential(mean="1m")), 60.0, 60.0),
        (distributions.Distribution(uniform=distributions.Uniform(least=10, most="50s")), 30.0, 40 / 12**0.5),
        (distributions.Distribution(lognormal=distributions.Lognormal(median=100, sigma=0.5)), 113.3, 60.4),
        (distributions.Distribution(choice=distributions.Choice(values=("10s", 20), weights=(3, 1))), 12.5, 4.33),
        ("2m", 120.0, 0.0),
    ],
)
def test_distributions_have_their_means(raw: distributions.Distribution, mean: float, deviation: float) -> None:
    drawn = distributions.draws(raw, random.Random(1), "lasts")
    values = [next(drawn) for _ in range(20_000)]
    error = 4 * deviation / 20_000**0.5 + 0.002 * mean
    assert statistics.fmean(values) == pytest.approx(mean, abs=error)
    assert statistics.pstdev(values) == pytest.approx(deviation, rel=0.05, abs=1e-9)


def test_poisson_arrivals_come_so_often() -> None:
    times = distributions.arrival_times(
        distributions.Arrivals(start="1h", poisson=distributions.Poisson(per_h=60)), random.Random(3), "arrivals"
    )
    found = [next(times) for _ in range(10_000)]
    assert found == sorted(found)
    assert (found[-1] - 3600) / 10_000 == pytest.approx(60.0, rel=0.04)


def test_limits_hold() -> None:
    of = distributions.Distribution(exponential=distributions.Exponential(mean=100), at_least="50s", at_most=200)
    drawn = distributions.draws(of, random.Random(1), "lasts")
    values = [next(drawn) for _ in range(1000)]
    assert (min(values), max(values)) == (50.0, 200.0)


def test_a_job_with_a_model_has_its_duration_at_the_requested_size(tmp_path: Path) -> None:
    text = """
    nodes: 2x4
    jobs:
      - name: model
        lasts: 1000
        gpus: 6
        speed: {allreduce: {compute_s: 0.01, compute_per_example_s: 0.001, far_s: 0.05, noise: 300}}
        spec: {batch: {size: 96, max: 768, local_max: 32}}
    """
    (arrival,) = case(text, tmp_path, "").workload.arrivals
    did = work.Work(arrival.job_model)
    did.start(0.0, 1, (2, 4), None, ready_s=0.0)
    assert did.ends_at == pytest.approx(1000.0)
    assert arrival.job_model.pace((2, 4), None, 0.0).step_s == pytest.approx(0.01 + 0.016 + 0.05)


def test_compact_is_as_few_nodes_as_hold_it() -> None:
    assert [jobgroups.compact(devices, 4) for devices in (1, 4, 6, 9)] == [(1,), (4,), (2, 4), (1, 4, 4)]
    assert jobgroups.compact(3, 0) == (3,)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("jobs: [{name: a, lasts: soon}]", "jobs[0].lasts", "not a duration"),
        ("jobs: [{name: a, lasts: {exponential: {mean: 0}}}]", "jobs[0].lasts.exponential.mean", "0"),
        ("jobs: [{name: a, lasts: {}}]", "jobs[0].lasts", "one kind"),
        ("jobs: [{name: a, gpus: {choice: {values: [1], weights: [1, 2]}}}]", "jobs[0].gpus.choice", "1 values"),
        ("jobs: [{name: a, count: 0}]", "jobs[0].count", "0 jobs"),
        ("jobs: [{name: a, spec: {prioriti: 3}}]", "jobs[0].spec.prioriti", "unknown field"),
        ("jobs: [{name: a, speed: {amdahl: 2}}]", "jobs[0].speed.amdahl", "2"),
        ("jobs: [{name: a, speed: {amdahl: 0.5, speedups: [1, 2]}}]", "jobs[0].speed", "amdahl and speedups"),
        ("jobs: [{name: a, speed: {allreduce: {compute_s: 1, compute_per_example_s: 1}}}]", "jobs[0].spec.batch", ""),
        ("jobs: [{name: a, arrivals: {every: 1, poisson: {per_h: 1}}}]", "jobs[0].arrivals", "both"),
        ("jobs: [{name: a}, {name: a}]", "", "two jobs a"),
        ("jobs: [{name: a}]\nnodes: many", "", "does not describe nodes"),
        ("jobs: [{name: a}]\nnodes: '0x4'", "nodes", "0 nodes"),
        ("jobs: [{name: a}]\nfaults: {node_mtbf: 3h}", "faults.node_mtbf", "unknown field"),
        ("jobs: [{name: a}]\npools: [{name: a}, {name: b, limit: 3}]", "pools[1].limit", "docs/simulator.md"),
        ("jobs: [{name: a, count: many}]", "jobs[0].count", "docs/simulator.md"),
        ("jobs: [{name: a, spec: {priority: high}}]", "jobs[0].spec.priority", "docs/job-file.md"),
        ("seed: much\njobs: [{name: a}]", "seed", "docs/simulator.md"),
        ("jobs: [{name: a}]\nrun: {scale: 0}", "scale", "0"),
        ("jobs: [{name: a}]\nrecorded: {file: x.csv}", "", "has both"),
        ("name: x", "", "has neither"),
        ("jobs: [{name: a, lasts: {lognormal: {median: 1, sigma: -1}}}]", "jobs[0].lasts.lognormal.sigma", "-1"),
        ("jobs: [{name: a, lasts: {lognormal: {median: 1, sigma: .inf}}}]", "jobs[0].lasts.lognormal.sigma", "to 10"),
        ("jobs: [{name: a, lasts: {uniform: {least: 5, most: 1}}}]", "jobs[0].lasts.uniform", "from 5 to 1"),
        (
            "jobs: [{name: a, lasts: {uniform: {least: 1, most: 5}, at_least: 9, at_most: 8}}]",
            "jobs[0].lasts",
            "9 to 8",
        ),
        ("jobs: [{name: a, gpus: {choice: {values: [1], weights: [.inf]}}}]", "jobs[0].gpus.choice", "1 values"),
        ("jobs: [{name: a, gpus: 1.5}]", "jobs[0].gpus", "expected a whole number, a mapping or nothing, got a number"),
        ("jobs: [{name: a, gpus: 0}]", "jobs[0].gpus", "leave it out"),
        ("jobs: [{name: a, gpus: -1}]", "jobs[0].gpus", "-1 GPUs"),
        ("jobs: [{name: a, gpus: 3, least: 5}]", "jobs[0].least", "5 of 3 GPUs"),
        ("jobs: [{name: a, gpus: 3, most: 2}]", "jobs[0].most", "2 of 3 GPUs"),
        ("jobs: [{name: a, count: 10000000}]", "jobs[0].count", "1,000,000"),
        ("jobs: [{name: a}]\nnodes: [{count: -1}, {count: 2}]", "nodes.count", "-1"),
        ("jobs: [{name: a}]\nnodes: [{count: 2, per_rack: 0}]", "nodes.per_rack", "0"),
        ("recorded: {file: x.csv, jobs: -1}", "recorded.jobs", "-1"),
        ("jobs: [{nme: a}]", "jobs[0].nme", "unknown field"),
    ],
)
def test_an_invalid_value_is_named_with_its_place(tmp_path: Path, text: str, path: str, says: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        case(text, tmp_path, "")
    assert caught.value.path == path
    assert says in str(caught.value)
    assert caught.value.hint


def test_a_cluster_in_a_few_words() -> None:
    made = cluster.machines(cluster.parse(["2x8:h100,10x0", "1x4"]))
    assert [node.name for node in made][:3] == ["n01", "n02", "n03"]
    assert [
        (len(node.devices), node.devices[:1] and node.devices[0].type) for node in (made[0], made[2], made[-1])
    ] == [
        (8, "h100"),
        (0, ()),
        (4, "gpu"),
    ]


def test_a_group_without_a_speed_has_linear_jobs(tmp_path: Path) -> None:
    (arrival,) = case("jobs: [{name: a, lasts: 60, gpus: 3}]", tmp_path, "").workload.arrivals
    assert isinstance(arrival.job_model, jobmodels.Scaled)
    assert arrival.job_model.pace((1,), None, 0.0).rate == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("pools", "used", "wrong"),
    [
        ("[{name: x, reserve: {gpus: 3}}, {name: y, parent: x, reserve: {gpus: 8}}]", "y", r"pools\[0\].*y 8 GPUs"),
        ("[{name: x, limit: {gpus: 3}, reserve: {gpus: 4}}]", "x", r"pools\[0\]\.reserve\.gpus"),
        ("[{name: x}, {name: x, share: {gpus: 2}}]", "x", r"pools\[1\]: two pools are called `x`"),
        ("[{name: x}]", "z", "There is no pool `z`"),
        ("[{name: x}, {name: y, parent: x}]", "x", "`x` is divided into other pools"),
    ],
)
def test_pools_that_a_server_refuses_are_refused(pools: str, used: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=wrong):
        case(f"{{pools: {pools}, jobs: [{{name: a, lasts: 60, spec: {{pool: {used}}}}}]}}", tmp_path, "")


def test_the_scenario_in_the_documentation_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "simulator.md").read_text()
    text = page.partition("```yaml who-waits.yaml\n")[2].partition("```")[0]
    for name in ("fifo", "las", "spread", "busy"):
        found = case(text, tmp_path, name)
        assert len(found.workload.arrivals) == 310
    assert found.workload.arrivals[-1].at < 8 * 3600
    configuration.check_policies(case(text, tmp_path, "las").settings.rules)


@pytest.mark.parametrize(
    "page",
    [*sorted((ROOT / "docs").glob("*.md")), ROOT / "src/oarlock/cli/verbs/cluster/simulate.py"],
    ids=lambda path: path.name,
)
def test_a_policy_has_the_parameters_that_a_page_sets(page: Path) -> None:
    for policy, parameter in re.findall(r"--set ([a-z]+)\.([a-z0-9_]+)=", page.read_text()):
        configuration.check_policies(plans.Rules(policies={policy: {parameter: 1.0}}))
