"""The page of simulations: each is an ordinary job of its user, one at a time, with the numbers of the command line."""

from __future__ import annotations

import asyncio
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.web import browsers

from oarlock.api.jobs import simulations
from oarlock.cli import main
from oarlock.scheduler.policies import registry
from oarlock.simulator import recorder
from oarlock.spec import jobs, phases
from oarlock.spec.input import validation
from oarlock.spec.simulator import recordings
from oarlock.spec.simulator import simulations as nouns
from oarlock.web.access import cookies, multipart
from oarlock.web.drawing import simulated
from oarlock.web.pages.cluster import simulate
from oarlock.web.rendering import assets

SMALL = simulations.BUNDLED["small-first"]


async def send(rig: browsers.WebRig, who: str = "ann", **form: Any) -> httpx.Response:
    async with rig.browser(who) as browser:
        answer = await browser.post("/simulate", data=form, headers=browsers.OURS)
    if answer.status_code != 303:
        browsers.elements(answer.text)
    return answer


async def made(rig: browsers.WebRig, answer: httpx.Response) -> tuple[Any, dict[str, str]]:
    """The job, and the files of its snapshot."""
    assert answer.status_code == 303, answer.text
    found = answer.headers["location"].removeprefix("/simulate/")
    job = await rig.store.read(lambda view: view.job(found))
    assert job is not None
    assert job.snapshot is not None
    with tarfile.open(rig.blobs.path(job.snapshot)) as archive:
        return job, {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]


async def test_a_simulation_is_a_plain_job_of_the_lowest_priority(rig: browsers.WebRig) -> None:
    faults = {"node_mtbf_s": "3d", "job_mtbf_s": ""}
    answer = await send(rig, workload="small-first", policy=["fifo", "las"], seed="7", nodes="4x2", **faults)
    job, files = await made(rig, answer)
    assert (job.name, job.owner, job.spec.framework, job.spec.priority) == ("simulation", "ann", "plain", 0)
    assert (job.spec.timeout, job.spec.roles["worker"].held_cpus) == ("1h", 1)
    assert job.spec.command[-3:] == ("scenario.yaml", "fifo", "las")
    told = validation.fields(files["scenario.yaml"])
    assert (told["seed"], told["nodes"], told["faults"]) == (7, "4x2", {"node_mtbf_s": "3d"})
    assert told["jobs"] == validation.fields(SMALL)["jobs"]
    page = await show(rig, "/simulate")
    assert f"/simulate/{job.id}" in page


@pytest.mark.parametrize("faults", ["abc", "[1]", "3"])
async def test_faults_that_are_not_a_mapping_are_refused_at_their_field(rig: browsers.WebRig, faults: str) -> None:
    text = f"faults: {faults}\njobs: []\n"
    answer = await send(rig, workload=simulate.YOURS, text=text, node_mtbf_s="3d")
    assert answer.status_code == 422
    assert "faults: the faults are not a mapping" in browsers.text(answer.text)
    assert text in answer.text, "the typed text is kept"


@pytest.mark.parametrize("field", ["devices", "hidden_rows", "hidden_bars"])
def test_numbers_without_an_end_are_refused(field: str) -> None:
    curves = {"run": "a", "devices": 1, "over": 1, "completion": [[1, 1]], "held": [[0, 1]], "useful": [], "rows": []}
    told = {"reports": [], "titles": [], "lines": [], "curves": [{**curves, "bars": [], field: 7}]}
    good = json.dumps(told)
    assert simulated.pictures(msgspec.json.decode(good, type=nouns.Outcome).curves).runs
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(good.replace("7", "7" + "0" * 400), type=nouns.Outcome)


async def show(rig: browsers.WebRig, path: str, who: str = "ann", status: int = 200) -> str:
    async with rig.browser(who) as browser:
        answer = await browser.get(path)
    assert answer.status_code == status, answer.text
    browsers.elements(answer.text)
    return answer.text


async def test_a_user_has_one_simulation_at_a_time(rig: browsers.WebRig) -> None:
    first = await send(rig, workload="small-first")
    again = await send(rig, workload="small-first", seed="5")
    assert (again.status_code, "under way" in again.text, 'value="5"' in again.text) == (409, True, True)
    assert (await send(rig, who="bob", workload="small-first")).status_code == 303
    await show(rig, first.headers["location"], "bob", 404)


async def test_recorded_jobs_and_pasted_tables_are_workloads(rig: browsers.WebRig) -> None:
    none = await send(rig, workload=simulate.OWN)
    assert "No job that was submitted in that time has run." in browsers.text(none.text)
    job = await rig.launch(await rig.submit("ann", name="ran", roles={"worker": {"gpus": 2}}))
    rig.clock.now += 100
    await rig.end(job.id, code=0)
    stored = await rig.store.read(lambda view: view.job(job.id))
    assert stored is not None
    rig.store._state._jobs[job.id] = msgspec.structs.replace(stored, processed_s=90.0)
    _, files = await made(rig, await send(rig, workload=simulate.OWN))
    assert [one["lasts"] for one in validation.fields(files["scenario.yaml"])["jobs"]] == [90]
    text = "timestamp,duration,num_gpus\n0,100,1\n"
    pasted, files = await made(rig, await send(rig, who="bob", workload=simulate.YOURS, text=text))
    assert files["workload.csv"] == text
    assert validation.fields(files["scenario.yaml"])["recorded"] == {"file": "workload.csv"}
    assert pasted.owner == "bob"


def sent(boundary: str = "x", **fields: str | tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A form as a browser without scripts sends it; a pair is a file's name and content."""
    body = b""
    for name, value in fields.items():
        file, content = (f'; filename="{value[0]}"', value[1]) if isinstance(value, tuple) else ("", value.encode())
        body += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
        )
    media = f"multipart/form-data; boundary={boundary}"
    return body + f"--{boundary}--\r\n".encode(), {**browsers.OURS, "Content-Type": media}


async def test_a_file_is_a_workload_without_scripts(rig: browsers.WebRig) -> None:
    text = "timestamp,duration,num_gpus\r\n0,100,1\n"
    file, none = ("jobs.csv", text.encode()), ("", b"")
    async with rig.browser("ann") as browser:
        body, headers = sent(workload="small-first", policy="fifo", text="other", file=file)
        answer = await browser.post("/simulate", content=body, headers=headers)
        _, files = await made(rig, answer)
        assert files["workload.csv"] == text.replace("\r\n", "\n")
    async with rig.browser("bob") as browser:
        body, headers = sent(workload="small-first", policy="fifo", text="", file=none)
        _, files = await made(rig, await browser.post("/simulate", content=body, headers=headers))
        assert validation.fields(files["scenario.yaml"])["jobs"] == validation.fields(SMALL)["jobs"], (
            "no file, no change"
        )
    async with rig.browser("root") as browser:
        body, headers = sent(workload="small-first", nodes="9x9", file=("bad.yaml", b"jobs: ["))
        refused = await browser.post("/simulate", content=body, headers=headers)
        assert refused.status_code == 422
        assert "not valid YAML" in browsers.text(refused.text)
        assert "jobs: [</textarea>" in refused.text, "the file's text comes back"
        body, headers = sent(workload="small-first", file=("bad.yaml", b"a: " + b"[" * (simulate.MOST_KEPT + 1)))
        refused = await browser.post("/simulate", content=body, headers=headers)
        assert "choose it again" in browsers.text(refused.text)
        assert len(refused.content) < 100_000
        for content, status, said in (
            (b"\xff\xfe", 422, "notes.txt is not text: the byte at 0 is not UTF-8."),
            (b"x" * (simulate.MOST_BYTES + 1), 413, "The form is too large."),
        ):
            body, headers = sent(workload="small-first", file=("notes.txt", content))
            answer = await browser.post("/simulate", content=body, headers=headers)
            assert (answer.status_code, said in browsers.text(answer.text)) == (status, True)


async def test_a_large_workload_outlives_its_session(rig: browsers.WebRig) -> None:
    text = "timestamp,duration,num_gpus\n" + "0,100,1\n" * 300_000
    body, headers = sent(workload="small-first", policy="fifo", file=("jobs.csv", text.encode()))
    name = cookies.SessionCookie(browsers.SERVER, secure=False).name
    async with rig.browser() as browser:
        assert (await browser.post("/simulate", content=body, headers=headers)).status_code == 413, (
            "a stranger's is not"
        )
        ended = {**headers, "Cookie": f"{name}=oas_{'A' * 43}"}
        answer = await browser.post("/simulate", content=body, headers=ended)
    assert answer.status_code == 401
    kept = re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>\n([^<]*)</textarea>', answer.text)
    assert dict(kept) == {"workload": "small-first", "policy": "fifo", "file": text}
    assert 'enctype="multipart/form-data"' in answer.text, "as large once more, and no larger"


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"--x",
        b"--x\r\n\r\n\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb',
        b"--y--",
        b"\r\n--x" * 3000 + b"--",
    ],
)
async def test_a_form_that_is_not_whole_is_refused(rig: browsers.WebRig, damaged: bytes) -> None:
    async with rig.browser("ann") as browser:
        answer = await browser.post("/simulate", content=damaged, headers=sent()[1])
        assert (answer.status_code, "Send it again." in answer.text) == (422, True)


def test_the_fields_of_a_form_with_signs_and_several_values() -> None:
    body, headers = sent(a="one\r\ntwo", b="ü --x", c="")
    body = body.replace(b'name="c"', b'name="a"')
    assert multipart.fields(body, headers["Content-Type"]) == {"a": ["one\r\ntwo", ""], "b": ["ü --x"]}
    assert multipart.fields(body, 'multipart/form-data; boundary="x"') == multipart.fields(
        body, headers["Content-Type"]
    )


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"workload": "none"}, "no such workload"),
        ({"workload": "small-first", "seed": "x"}, "not a seed"),
        ({"workload": "small-first", "policy": "<b>"}, "there is no policy"),
        ({"workload": simulate.YOURS, "text": "jobs: ["}, "not valid YAML"),
        ({"workload": simulate.YOURS, "text": "recorded: {file: /etc/passwd}"}, "cannot name files"),
        ({"workload": simulate.YOURS, "text": ""}, "the text is empty"),
    ],
)
async def test_a_refusal_keeps_the_form(rig: browsers.WebRig, form: dict[str, str], said: str) -> None:
    answer = await send(rig, nodes="9x9", **form)
    assert answer.status_code == 422
    assert said in browsers.text(answer.text)
    assert 'value="9x9"' in answer.text
    assert await rig.store.read(lambda view: view.active()) == []


def recorded(tmp_path: Path) -> bytes:
    path = tmp_path / "scenario.yaml"
    path.write_text(SMALL)
    return msgspec.json.encode(recorder.record(path, ("fifo", "las")))


async def left(rig: browsers.WebRig, job: jobs.Job, content: bytes) -> None:
    """Let the simulation end, and leave this file as its results."""
    place = Path(rig.services.about.home) / "files" / job.id / "worker-0" / "attempt-1"
    await asyncio.to_thread(lambda: (place.mkdir(parents=True), (place / nouns.FILE).write_bytes(content)))


async def ended(rig: browsers.WebRig) -> jobs.Job:
    """A simulation that has ended, and has left no file yet."""
    job, _ = await made(rig, await send(rig, workload="small-first", policy=["fifo", "las"]))
    assert "left no results" not in await show(rig, f"/simulate/{job.id}")
    await rig.launch(job)
    await rig.end(job.id, code=0)
    stored = await rig.store.read(lambda view: view.job(job.id))
    assert stored is not None
    rig.store._state._jobs[job.id] = msgspec.structs.replace(stored, phase=phases.Phase.COMPLETED)
    return stored


async def test_the_results_are_drawn(rig: browsers.WebRig, tmp_path: Path) -> None:
    job = await ended(rig)
    assert "left no results" in await show(rig, f"/simulate/{job.id}")
    await left(rig, job, await asyncio.to_thread(recorded, tmp_path))
    page = await show(rig, f"/simulate/{job.id}")
    text = browsers.text(page)
    assert "time to the end, mean" in text
    assert page.count("<polyline") == 2 + 2 * 2
    assert page.count("<svg") == 1 + 2 * 2
    assert "8 devices" in text
    assert page.count("a table follows") == page.count("as a table</summary>") == 1 + 2 * 2


async def test_no_two_runs_look_alike(rig: browsers.WebRig) -> None:
    """There are eight colours: the lines of further runs have dashes that the style sheet knows."""
    job = await ended(rig)
    curves = {"devices": 1, "over": 1, "completion": [[1, 1]], "held": [], "useful": [], "rows": [], "bars": []}
    runs = [{**curves, "run": f"run-{number}", "hidden_rows": 0, "hidden_bars": 0} for number in range(16)]
    told = {"reports": [], "titles": [], "lines": [], "curves": runs}
    await left(rig, job, json.dumps(told).encode())
    page = await show(rig, f"/simulate/{job.id}")
    looks = re.findall(r'<polyline class="series-(\d) dash-(\d)"', page)
    assert len(set(looks)) == len(looks) == 16
    assert re.findall(r'class="key series-(\d) dash-(\d)"', page) == looks, "so have their names"
    sheet = (assets.FOLDER / "oarlock.css").read_text()
    assert sheet.count(".dash-1 {") == 2, "a rule for the line, and one for the name"


def test_the_numbers_are_those_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(recorded(tmp_path))["reports"]
    capsys.readouterr()  # the lines of progress
    words = ["simulate", str(tmp_path / "scenario.yaml"), "--policy", "fifo", "--policy", "las", "--json"]
    assert main.main(words) == 0
    expected = json.loads(capsys.readouterr().out)
    for one in (*found, *expected):
        del one["measured"]
    assert found == expected


def test_the_tables_have_the_numbers_of_the_pictures() -> None:
    bars = (recordings.Bar(0, 7, 0.0, 60.0, 10.0, 60.0), recordings.Bar(5, 8, 0.0, 120.0, 120.0, 0.0))
    one = recordings.Curves(
        run="fifo", devices=2, over=120.0, completion=((60.0, 0.5), (120.0, 1.0)), held=((0.0, 2.0), (60.0, 1.0)),
        useful=((10.0, 1.0), (60.0, 0.0)), rows=("n1, device 0",), bars=bars * 60, hidden_bars=3,
    )  # fmt: skip
    early = msgspec.structs.replace(one, completion=((30.0, 0.3),))
    drawn = simulated.pictures([one, early])
    assert dict(drawn.shares) == {
        0.1: (60.0, 30.0), 0.25: (60.0, 30.0), 0.5: (60.0, None), 0.75: (120.0, None), 0.9: (120.0, None),
        0.99: (120.0, None), 1.0: (120.0, None),
    }  # fmt: skip
    run = drawn.runs[0]
    told = {round(moment.at): (moment.held, moment.useful) for moment in run.moments}
    assert [told[at] for at in (0, 10, 50, 60, 120)] == [(2, 0), (2, 1), (2, 1), (1, 0), (1, 0)]
    assert run.stays[:2] == (
        simulated.Stay("n1, device 0", 7, 0.0, 60.0, 50.0),
        simulated.Stay("row 5", 8, 0.0, 120.0, 0.0),
    )
    assert (len(run.stays), run.hidden_stays) == (100, 23)


def test_the_curves_are_bounded() -> None:
    points = [(float(at), float(at)) for at in range(10_000)]
    thinned = recorder.thinned(points)
    assert (len(thinned), thinned[0], thinned[-1]) == (recorder.MOST_POINTS, points[0], points[-1])


def test_a_file_that_a_job_has_made_up_is_drawn_within_bounds() -> None:
    points = tuple((10.0**place, 1e308) for place in range(-300, 300)) * 5
    bars = tuple(recordings.Bar(row, -1, -1e308, 1e308, 5.0, 1e300) for row in (0, -5, 10**15)) * 20_000
    one = recordings.Curves(
        run="<b>", devices=-1, over=1e-320, completion=points, held=points, useful=points, rows=("x",) * 9999, bars=bars
    )
    drawn = simulated.pictures([one] * 100)
    assert len(drawn.runs) == simulated.MOST_RUNS
    assert sum(len(run.pale) for run in drawn.runs) <= simulated.MOST_BARS
    assert all(run.height <= simulated.ROW * simulated.MOST_ROWS for run in drawn.runs)
    assert all(len(line.path.split()) <= 2 * simulated.MOST_POINTS for line in drawn.completion)
    told = [value for run in drawn.runs for one in run.stays for value in (one.begin, one.end, one.useful_s)]
    assert max(told) <= simulated.LONGEST_S, "as words they are short"
    assert simulated.pictures([]).runs == ()


async def test_a_server_that_runs_no_simulations_does_not_offer_the_page(rig: browsers.WebRig) -> None:
    found = []
    for words in (rig.services.about.capabilities, ("sizes",)):
        rig.tell(capabilities=words)
        async with rig.browser("ann") as browser:
            home = (await browser.get("/")).text
            status = (await browser.get("/simulate")).status_code
        found.append(('href="/simulate"' in home, status, (await send(rig, workload="small-first")).status_code))
    assert found == [(True, 200, 303), (False, 404, 404)]


async def test_all_policies_are_offered(rig: browsers.WebRig) -> None:
    page = await show(rig, "/simulate")
    assert registry.POLICIES
    assert all(f'value="{name}"' in page for name in registry.POLICIES)
