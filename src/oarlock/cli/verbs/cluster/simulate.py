"""`oarlock simulate`: a workload on a simulated cluster, scheduled by the code of a real server.

It starts no processes: everything happens in memory, on a simulated clock. A server is needed for its recorded jobs
alone, and to run the simulation as a job there (`serversimulations`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command, moments
from oarlock.cli.output import terminal
from oarlock.display import bars
from oarlock.spec import errors
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.simulator import scenario
    from oarlock.simulator.outcomes import outcome

FAULTS = "Faults"
RULES = "Scheduling"
PART = "Workload"
_DRAWN_EVERY_S = 0.1


@command.verb("simulate", short_help="Simulate a workload on a cluster, under several policies")
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@command.option(
    "--nodes", metavar="16x4", help="Nodes of the cluster: 16x4 (4 GPUs each), or of two types: 8x4:v100,2x8:h100."
)
@command.option(
    "--policy", "policies", metavar="NAME", multiple=True, help="Policy to simulate. Repeat it to compare policies."
)
@command.option("--seed", type=int, metavar="N", show_default="0", help="Random seed.")
@command.option("--until", metavar="TIME", help="Simulated time at which to give up.")
@command.option("--on-server", is_flag=True, help="Run the simulation as a job of the server.")
@command.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Directory for pictures, a page and all data."
)
@command.option(
    "--recorded",
    metavar="TIME",
    help="Simulate the jobs that the server has recorded since then: 7d (ago).",
    section=PART,
)
@command.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --recorded: file to write the workload to, as a scenario.",
    section=PART,
)
@command.option(
    "--scale", type=float, metavar="X", show_default="1", help="Factor of the arrival rate of jobs.", section=PART
)
@command.option("--jobs", type=click.IntRange(1), metavar="N", help="Number of jobs, from the first.", section=PART)
@command.option("--from", "start", metavar="TIME", help="Earliest arrival of a job.", section=PART)
@command.option("--to", "end", metavar="TIME", help="End of the arrivals.", section=PART)
@command.option("--traces", metavar="DIR", help="Directory with measured models for an AdaptDL workload.", section=PART)
@command.option(
    "--freedom",
    type=click.Choice(["adaptive", "elastic", "given"]),
    help="Choices of the scheduler for AdaptDL's jobs: adaptive (devices and batch size), elastic (devices), given.",
    section=PART,
)
@command.option("--ends-told/--ends-hidden", default=None, help="Whether jobs report their last step.", section=PART)
@command.option(
    "--interference",
    type=float,
    metavar="SHARE",
    show_default="0",
    help="Share of speed that gangs on several nodes lose if they share a node.",
    section=PART,
)
@command.option(
    "--round",
    "round_",
    metavar="TIME",
    show_default="60s",
    help="Time between plans that may stop jobs.",
    section=RULES,
)
@command.option("--lockstep/--no-lockstep", default=None, help="Whether to plan only at whole rounds.", section=RULES)
@command.option(
    "--restart", metavar="TIME", show_default="30s", help="Time that each start of a gang costs.", section=RULES
)
@command.option(
    "--min-runtime", metavar="TIME", show_default="120s", help="Minimum run time before preemption.", section=RULES
)
@command.option(
    "--backfill/--no-backfill", default=None, help="Whether small gangs may start before larger ones.", section=RULES
)
@command.option("--set", "given", metavar="POLICY.NAME=X", multiple=True, help="Parameter of a policy.", section=RULES)
@command.option(
    "--node-mtbf", metavar="TIME", show_default="never", help="Mean time between losses of a node.", section=FAULTS
)
@command.option(
    "--node-mttr", metavar="TIME", show_default="30m", help="Mean time until a lost node is back.", section=FAULTS
)
@command.option(
    "--job-mtbf", metavar="TIME", show_default="never", help="Mean time between failures of a job.", section=FAULTS
)
@command.option(
    "--launch-failures",
    type=float,
    metavar="SHARE",
    show_default="0",
    help="Share of tasks that cannot be created.",
    section=FAULTS,
)
@command.json_option
@command.server_options
def simulate(
    workload: Path | None,
    policies: tuple[str, ...],
    out: Path | None,
    recorded: str | None,
    save: Path | None,
    on_server: bool,
    as_json: bool,
    server: str | None,
    token: str | None,
    **said: Any,
) -> int:
    """Simulate WORKLOAD: a scenario (YAML), or a recorded workload of AdaptDL or Philly (CSV).

    With --on-server, WORKLOAD may also be the name of a workload that the server has: mixed-load or small-first.
    """
    if (workload is None) == (recorded is None):
        raise errors.InvalidInput(
            "a simulation needs one workload", path="WORKLOAD", hint="Name a file, or give --recorded 7d."
        )
    if save is not None and (recorded is None or on_server):
        raise errors.InvalidInput(
            "--save needs --recorded, without --on-server",
            path="--save",
            hint="Leave it out, or leave out --on-server.",
        )
    if on_server:
        from oarlock.cli.verbs.cluster import serversimulations

        asked = serversimulations.request(workload, recorded, policies, {"out": out, **said})
        with command.open_client(server, token) as client:
            return serversimulations.run(client, asked, as_json=as_json)
    if workload is None:
        assert recorded is not None
        with command.open_client(server, token) as client:
            workload, found = _recorded(client, recorded, save)
    else:
        from oarlock.simulator import scenario

        found = scenario.load(workload)
    return _simulate(workload, found, policies, out, said, as_json=as_json)


def _recorded(client: clients.Client, since: str, save: Path | None) -> tuple[Path, scenario.Scenario]:
    """Return the server's recorded jobs as a scenario, and the path that names it; save it on request."""
    import msgspec

    from oarlock.simulator import scenario

    told = client.recorded(since=moments.read(recorded=since)["recorded"])
    if save is not None:
        try:
            save.write_bytes(msgspec.yaml.encode(told))
        except OSError as error:
            hint = "Name another file with --save."
            raise errors.Unavailable(f"{error.filename}: {error.strerror}", hint=hint) from error
        terminal.say(f"Wrote {save}.")
    return save or Path(told.name), scenario.of_fields(msgspec.to_builtins(told))


def _simulate(
    workload: Path,
    of: scenario.Scenario,
    policies: tuple[str, ...],
    out: Path | None,
    said: Mapping[str, Any],
    *,
    as_json: bool,
) -> int:
    from oarlock.simulator import running, scenario
    from oarlock.simulator.reports import charts, comparison

    found = _told(of, said)
    if out is not None:
        charts.check()
        _make(out)
    once = tuple(dict.fromkeys(policies))
    watch = Watch(sys.stderr)
    results: list[outcome.Result] = []
    try:
        for result in running.results(found, workload.parent, _over(said), once, watch.begin):
            results.append(result)  # noqa: PERF402 - one by one, because Ctrl-C may interrupt the next run
        watch.end()
        _tell_refused(results)
        if out is not None:
            _write(out, found.name or workload.stem, results)
    except KeyboardInterrupt:
        watch.end()
        return _interrupted(watch, results, len(scenario.titles(found, once)), shown=not as_json)
    finally:
        watch.end()
    if as_json:
        terminal.json_out([comparison.report(result) for result in results])
    else:
        _show(results)
    return 0


def _interrupted(watch: Watch, results: Sequence[outcome.Result], runs: int, *, shown: bool) -> int:
    """Say how far the simulation came, and show people the finished runs. A program needs all of them."""
    done = f"{len(results)} of {runs} {'run' if runs == 1 else 'runs'} done"
    terminal.say(f"Interrupted: {terminal.clean(watch.reached())}; {done}.")
    if results and shown:
        _show(results)
    return 130


def _told(of: scenario.Scenario, said: Mapping[str, Any]) -> scenario.Scenario:
    """Return the scenario with the changes of the flags."""
    import msgspec

    changed: dict[str, Any] = {name: said[name] for name in ("seed", "until") if said[name] is not None}
    faults = {"node_mtbf": "node_mtbf_s", "node_mttr": "node_mttr_s", "job_mtbf": "job_mtbf_s"}
    told = {field: said[name] for name, field in faults.items() if said[name] is not None}
    told |= {"launch_failures": said["launch_failures"]} if said["launch_failures"] is not None else {}
    cut = {name: said[name] for name in ("jobs", "start", "end", "traces") if said[name] is not None}
    if "traces" in cut:
        cut["traces"] = str(Path(cut["traces"]).absolute())
    recorded = of.recorded
    if cut and recorded is None:
        raise errors.InvalidInput(
            "--jobs, --from, --to and --traces need a recorded workload", hint="Change the scenario's file instead."
        )
    if recorded is not None:
        changed["recorded"] = msgspec.structs.replace(recorded, **cut)
    return msgspec.structs.replace(of, faults={**of.faults, **told}, **changed)


def _over(said: Mapping[str, Any]) -> scenario.Run:
    from oarlock.simulator import scenario
    from oarlock.simulator.workloads import recorded

    return scenario.Run(
        round=said["round_"],
        restart=said["restart"],
        min_runtime=said["min_runtime"],
        backfill=said["backfill"],
        policies=_parameters(said["given"]),
        scale=said["scale"],
        nodes=said["nodes"],
        ends_told=said["ends_told"],
        lockstep=said["lockstep"],
        interference=said["interference"],
        freedom=None if said["freedom"] is None else recorded.Freedom(said["freedom"]),
    )


def _parameters(given: Sequence[str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for text in given:
        name, _, value = text.partition("=")
        policy, _, parameter = name.partition(".")
        try:
            found.setdefault(policy, {})[parameter] = float(value)
        except ValueError:
            parameter = ""
        if not policy or not parameter:
            raise errors.InvalidInput(
                f"{text!r} is not a parameter with its value", path="--set", hint="Write --set las.band1_s=57600."
            )
    return found


def _tell_refused(results: Sequence[outcome.Result]) -> None:
    """Name the jobs that a server would have refused. No figure counts them."""
    for result in results:
        refused = result.outcome.refused
        if refused:
            job, why = next(iter(refused.items()))
            count = "1 job" if len(refused) == 1 else f"{len(refused):,} jobs"
            terminal.say(f"{result.outcome.run}: left out {count} that could never run. {job}: {why}")


def _show(results: Sequence[outcome.Result]) -> None:
    from oarlock.cli.output import runtables
    from oarlock.simulator.reports import comparison

    runtables.show(*comparison.table(results))


def _write(out: Path, title: str, results: Sequence[outcome.Result]) -> None:
    """Write the page, the pictures and the data."""
    import msgspec

    from oarlock.simulator.reports import charts, comparison, page

    outcomes = [result.outcome for result in results]
    drawn = {
        "Completion": ("completion.png", charts.completion(outcomes)),
        "Utilisation": ("utilisation.png", charts.utilisation(outcomes)),
    }
    for found in outcomes:
        drawn[f"Held devices: {found.run}"] = (f"gantt-{_file_name(found.run)}.png", charts.gantt(found))
    files: dict[str, bytes] = dict(drawn.values())
    files["index.html"] = page.render(title, results, {above: png for above, (_, png) in drawn.items()}).encode()
    files["report.json"] = msgspec.json.format(
        msgspec.json.encode([comparison.report(one) for one in results]), indent=2
    )
    for found in outcomes:
        files[f"outcome-{_file_name(found.run)}.json"] = msgspec.json.encode(found)
    try:
        for name, content in files.items():
            (out / name).write_bytes(content)
    except OSError as error:
        raise _unwritable(error) from error
    terminal.say(f"Wrote {out / 'index.html'}.")


def _make(out: Path) -> None:
    """Make the directory before the simulation, which may take hours."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> errors.Unavailable:
    return errors.Unavailable(f"{error.filename}: {error.strerror}", hint="Name another directory with --out.")


def _file_name(title: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in title)


class Watch:
    """The progress of a run: a line that is drawn again on a terminal, else one line when the run begins."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._live = terminal.is_terminal(stream) and not terminal.is_dumb()
        self._unicode = terminal.speaks_unicode(stream)
        self._drawn_at = 0.0
        self._reached: tuple[str, float, int, int] | None = None

    def begin(self, run: str, jobs: int) -> Any:
        self._reached = run, 0.0, 0, jobs
        if not self._live:
            terminal.say(f"Simulating {run}: {jobs} {'job' if jobs == 1 else 'jobs'}.")
        began = time.monotonic()

        def heard(now_s: float, ended: int, total: int) -> None:
            now = time.monotonic()
            self._reached = run, now_s, ended, total
            if self._live and (now - self._drawn_at >= _DRAWN_EVERY_S or ended == total):
                self._drawn_at = now
                self._draw(run, now_s, ended, total, now - began)

        return heard

    def reached(self) -> str:
        """Return the progress in words."""
        if self._reached is None:
            return "before the first run"
        run, now_s, ended, total = self._reached
        return f"{run} was at {quantities.duration_text(now_s)}, with {ended:,} of {total:,} jobs over"

    def end(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self, run: str, now_s: float, ended: int, total: int, spent_s: float) -> None:
        drawn = bars.progress(ended / total, bars.WIDEST, unicode=self._unicode)
        words = f"{run}  {drawn}  {ended}/{total} jobs  {quantities.duration_text(now_s)} in {spent_s:.0f} s"
        line = terminal.cut(terminal.clean(words), terminal.columns(self._stream) - 1)
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()
