"""Times that go on by themselves: their words in whole pages, and updates that stay the same while time goes on."""

from __future__ import annotations

import re

import pytest
from tests.web import browsers

from oarlock.display import durations
from oarlock.web.rendering import times

FRAGMENT = {"Oarlock-Fragment": "1"}


@pytest.mark.parametrize(
    ("form", "seconds", "words"),
    [
        ("ago", 200.0, "3m ago"),
        ("age", 7300.0, "2h"),
        ("lasting", 12.4, "12 s"),
        ("lasting", 245.0, "4m 05s"),
        ("ahead", 245.0, "in 4m 05s"),
        ("ahead", 0.0, "at any moment"),
        ("within", 30.0, "within 30 s"),
        ("within", -5.0, "within 0 s"),
    ],
)
def test_each_form_has_the_words_of_the_command_line(form: str, seconds: float, words: str) -> None:
    assert times.FORMS[form](seconds) == words


def test_a_drawing_ends_at_the_same_time_until_that_has_come() -> None:
    assert [times.steady(at, 10.0) for at in (100.0, 100.1, 109.9, 110.0)] == [100.0, 110.0, 110.0, 110.0]


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/runs", "/jobs/waits", "/cluster", "/pools"])
async def test_an_update_stays_the_same_while_only_time_goes_on(rig: browsers.WebRig, path: str) -> None:
    """Without this every open page fetches and morphs itself twice a second on a busy server, for ages alone."""
    await rig.end((await rig.launch(await rig.submit("ann", name="over"))).id)
    runs = await rig.launch(await rig.submit("ann", name="runs", roles={"worker": {"gpus": 2}}))
    await rig.submit("ann", name="waits", roles={"worker": {"gpus": 2}})
    rig.clock.now = times.steady(runs.created_at + 300, 3600.0) + 1
    async with rig.browser("ann") as browser:
        found = []
        for _ in range(5):
            answer = await browser.get(path, headers=FRAGMENT)
            found.append((answer.headers["etag"], answer.text))
            rig.clock.now += 0.8
    assert len({mark for mark, _ in found}) == 1, [text for _, text in found]


async def test_a_whole_page_has_the_words_for_readers_without_scripts(rig: browsers.WebRig) -> None:
    await rig.launch(await rig.submit("ann", name="runs"))
    rig.clock.now += 200
    async with rig.browser("ann") as browser:
        for path in ("/jobs", "/jobs/runs", "/cluster"):
            told = re.findall(r'data-form="(\w+)"[^>]*>([^<]*)<', (await browser.get(path)).text)
            assert told, path
            assert {words for _, words in told} <= {"3m", "3m ago", durations.text(200.0)}, path


async def test_an_update_tells_the_time_on_the_clock_of_the_server(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        assert f'data-now="{rig.clock.now}"' in (await browser.get("/jobs")).text
        rig.clock.now += 60
        told = (await browser.get("/jobs", headers=FRAGMENT)).headers["oarlock-now"]
    assert float(told) == pytest.approx(rig.clock.now, abs=0.1)
