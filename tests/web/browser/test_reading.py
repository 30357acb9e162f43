"""Pages by keyboard alone, in a chosen theme, on paper, and without JavaScript."""

from __future__ import annotations

import datetime as dt
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.api import rig as rigs
from tests.e2e import shell as shells
from tests.web.browser import conftest, hearing, stills, test_stills

from oarlock.spec import events
from oarlock.web.rendering import times

pytestmark = pytest.mark.browser


async def test_keys_lead_everywhere_and_can_be_switched_off(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.do("run", "--name", "keyed", "--", "true")
    page = await browser.page("/")
    for key, title in (("j", "Jobs"), ("c", "Cluster"), ("s", "Submit")):
        await page.keyboard.press("Escape")
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_selector(f"h1:text-is('{title}')")
    await page.goto(browser.url + "/jobs")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.name") == "text"
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("h1:has-text('keyed')")
    await page.goto(browser.url + "/cluster")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("h2:has-text('Devices of')")
    await page.keyboard.press("?")
    await page.wait_for_selector("dialog[open]")
    await page.locator("#single-keys").press("Space")
    await page.locator("#theme").select_option("dark")
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 24, 30)"
    await page.keyboard.press("Escape")
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.keyboard.press("?")
    assert not await page.locator("dialog[open]").count()
    await page.locator("#show-keys").press("Enter")
    await page.locator("#single-keys").press("Space")
    await page.locator("#theme").select_option("system")


async def test_rows_are_as_high_as_was_chosen(chromium: conftest.Chromium, still: dict[str, stills.Still]) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page("/jobs")

    async def height() -> float:
        found: float = await page.evaluate("document.querySelector('tbody tr').getBoundingClientRect().height")
        return found

    compact = await height()
    await page.locator("#show-keys").press("Enter")
    await page.locator("#density").select_option("comfortable")
    comfortable = await height()
    await page.reload()
    kept = await height(), await page.locator("#density").input_value()
    await page.locator("#show-keys").press("Enter")
    await page.locator("#density").select_option("compact")
    again = await height()
    await page.reload()
    assert (compact, comfortable) == (26, 32)
    assert kept == (comfortable, "comfortable")
    assert (again, await height()) == (compact, compact)
    await watched.context.close()


SAID = """() => {
    const spoken = document.getElementById("spoken");
    window.said = [];
    window.updates = 0;
    document.getElementById("content").addEventListener("refreshed", () => { updates += 1; });
    const told = () => said.push(spoken.textContent);
    new MutationObserver(told).observe(spoken, { childList: true, characterData: true, subtree: true });
}"""


async def test_a_change_of_phase_is_said_once(chromium: conftest.Chromium, tmp_path: Path) -> None:
    """Also where updates without a change of phase come before and after it."""
    async with stills.serving(tmp_path) as still:
        rig = still.rig
        job = await rig.launch(await rig.submit("root", name="spoken"))
        key = rigs.key_of(job)
        watched = await test_stills.opened(chromium, still, moving=True)
        page = await watched.page("/jobs/spoken")
        await page.wait_for_selector(".head .phase:has-text('DEPLOYING')")
        await page.evaluate(SAID)

        async def updated(step: int) -> None:
            """Let the page be updated because of something else than its phase."""
            count = await page.evaluate("updates")
            await rig.happen(job.id, events.CheckpointVisible(checkpoint_step=step, attempt=1, path=f"step-{step}"))
            while await page.evaluate("updates") == count:
                await page.wait_for_timeout(50)

        await updated(3)
        await rig.happen(
            job.id,
            events.TaskRegistered(key=key, address="127.0.0.1"),
            events.TaskReported(key=key, phase="PROCESSING"),
        )
        await page.wait_for_selector("#spoken:has-text('PROCESSING')", state="attached")
        await updated(4)
        await rig.end(job.id)
        await page.wait_for_selector("#spoken:has-text('COMPLETED')", state="attached")
        await page.wait_for_timeout(hearing.QUIET_MS)
        said = await page.evaluate("said")
        assert [(one.partition(":")[0], one.split()[-1]) for one in said] == [
            ("spoken", "PROCESSING"),
            ("spoken", "COMPLETED"),
        ]
        await watched.context.close()


async def test_a_button_copies_the_command_beside_it(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    watched = await test_stills.opened(chromium, still["empty"])
    await watched.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=watched.url)
    page = await watched.page("/jobs")
    command = await page.locator(".empty code").first.inner_text()
    assert command.startswith("oarlock ")
    await page.locator(".empty code + button.copy").first.click()
    await page.wait_for_selector("#spoken:text-is('Copied')", state="attached")
    assert await page.evaluate("navigator.clipboard.readText()") == command
    await watched.context.close()


async def test_times_go_on_in_the_words_of_the_server(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page("/jobs")
    table = [
        (form, seconds)
        for form in times.FORMS
        for seconds in (
            -90000.0,
            -7300.0,
            -245.0,
            -59.7,
            -12.4,
            0.0,
            0.4,
            1.5,
            2.5,
            59.7,
            60.0,
            245.5,
            7300.0,
            9e4,
            1e7,
        )
    ]
    gone = [(form, -seconds if form in times.AHEAD else seconds) for form, seconds in table]
    told = await page.evaluate("(table) => table.map(([form, gone]) => oarlockTimes.words(form, gone))", gone)
    assert told == [times.FORMS[form](seconds) for form, seconds in table]
    age = page.locator("main time[data-form=age]").first
    await age.evaluate("(one) => { one.dateTime = new Date(Date.parse(one.dateTime) - 86400e3 * 40).toISOString(); }")
    while "40d" not in (await age.text_content() or ""):
        await page.wait_for_timeout(50)
    await watched.context.close()


async def test_a_page_without_times_of_day_makes_no_format_of_dates(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    """The first one takes longer than all other work of a page's scripts, just before the first paint."""
    watched = await test_stills.opened(chromium, still["full"])
    await watched.context.add_init_script(
        "window.made = 0; Intl.DateTimeFormat = new Proxy(Intl.DateTimeFormat, "
        "{ construct: (format, given) => (made++, new format(...given)) });"
    )
    for path, expected in (("/jobs", False), ("/jobs/runs", False), ("/cluster", True)):
        page = await watched.page(path)
        assert await page.locator("[data-form]").count(), path
        assert bool(await page.evaluate("made")) is expected, path
    await watched.context.close()


async def test_times_of_day_are_those_of_the_browser(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    """The server writes them in UTC, and says so to readers without scripts."""
    watched = await test_stills.opened(chromium, still["full"], zone="Asia/Tokyo")
    page = await watched.page("/cluster")
    told = await page.evaluate("fetch(location.href).then((answer) => answer.text())")
    assert "Times are UTC." in told
    moments = [dt.datetime.fromisoformat(one) for one in re.findall(r'data-clock="([^"]+)"', told)]
    since = [dt.datetime.fromisoformat(one + "Z") for one in re.findall(r"runs \(ann[^<]*since (\S+ \S+) UTC", told)]
    assert since
    ticks = await page.locator("[data-clock]").all_text_contents()
    assert [one[-5:] for one in ticks] == [f"{at + dt.timedelta(hours=9):%H:%M}" for at in moments]
    titles = [one for one in await page.locator("[data-clocks] title").all_text_contents() if "runs (ann" in one]
    assert all(f"since {at + dt.timedelta(hours=9):%H:%M}" in one for at, one in zip(since, titles, strict=True))
    assert not [one for one in await page.locator("[data-clocks]").all_text_contents() if "UTC" in one]
    assert await page.locator("[data-zone]").inner_text() == "Times are those of Asia/Tokyo."

    page = await watched.page("/jobs/fails/log?times=yes")
    row = page.locator("#lines time").first
    at = dt.datetime.fromisoformat(str(await row.get_attribute("datetime"))) + dt.timedelta(hours=9)
    assert (await row.inner_text()).startswith(f"{at:%H:%M:%S}.")
    await page.fill("input[name=since]", "2026-01-31T12:00")
    await page.fill("input[name=until]", "10m")
    await page.press("input[name=until]", "Enter")
    await page.wait_for_url("**since=2026-01-31T12%3A00%2B09%3A00&until=10m**")
    page = await watched.page("/jobs")
    await page.fill("input[name=until]", "2026-01-31")
    await page.press("input[name=until]", "Enter")
    await page.wait_for_url("**until=2026-01-31T00%3A00%2B09%3A00**")
    await watched.context.close()


async def test_a_time_is_told_in_full_while_its_row_has_the_focus(
    chromium: conftest.Chromium, still: dict[str, stills.Still]
) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page("/jobs")
    first, other = (page.locator(f"tbody tr >> nth={number} >> time") for number in (0, 1))
    before = await first.inner_text()
    at = dt.datetime.fromisoformat(str(await first.get_attribute("datetime")))
    await page.keyboard.press("j")
    await conftest.until(page, f"document.querySelector('tbody time').textContent.includes('{at.year}')")
    assert f"{at:%H:%M:%S}" in await first.inner_text()
    assert await other.get_attribute("tabindex") is None, "its row has a link"
    await page.keyboard.press("j")
    await conftest.until(page, f"document.querySelector('tbody time').textContent === '{before}'")

    page = await watched.page("/jobs/fails")
    time = page.locator("[data-table=attempts] tbody time").first
    await time.focus()
    for key in ("Shift+Tab", "Tab"):  # the focus of the keyboard
        await page.keyboard.press(key)
    at = dt.datetime.fromisoformat(str(await time.get_attribute("datetime")))
    while f"{at:%H:%M:%S}" not in await time.inner_text():
        await page.wait_for_timeout(50)
    await watched.context.close()


ON_PAPER = """() => [...document.querySelectorAll("h1, h2")].filter((one) => one.checkVisibility()).map(
    (one) => one.innerText.split("\\n")[0].trim()
)"""
CUT = """() => [...document.querySelectorAll("main pre, main .scroll, main details")].filter(
    (one) => one.checkVisibility() && one.scrollHeight > one.clientHeight + 2
      && getComputedStyle(one).overflowY !== "visible"
).map((one) => one.outerHTML.slice(0, 100))"""


async def test_a_job_prints_as_a_report(chromium: conftest.Chromium, still: dict[str, stills.Still]) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page(stills.FULL["job-failed"])
    on_screen = await page.evaluate(ON_PAPER)
    assert {"Timeline", "Ranks", "Decisions", "Job file"} <= set(on_screen), on_screen
    assert await page.locator("nav").is_visible()
    await page.emulate_media(media="print")
    for hidden in ("nav", "footer", ".actions", ".copy", ".skip", "#connection"):
        shown = page.locator(f"{hidden}:visible")
        assert await shown.count() == 0, f"{hidden} is for a screen"
    assert await page.evaluate(ON_PAPER) == on_screen, "every section of the report is on paper"
    assert await page.evaluate(CUT) == [], "paper has nothing to scroll"
    traceback = page.get_by_text("Traceback: it has failed").first
    assert await traceback.is_visible()
    pdf = await page.pdf(tagged=True, outline=True)
    titles = [_title(one) for one in re.findall(rb"/Title ?(\(.*?\)|<[0-9A-F]+>)\n", pdf)]
    await watched.context.close()
    assert pdf[:5] == b"%PDF-"
    assert set(on_screen) <= set(titles), "the outline of the file has the headings"


def _title(raw: bytes) -> str:
    """The text of a title of a PDF: plain, or in UTF-16 as hexadecimal numbers."""
    if raw.startswith(b"<"):
        return bytes.fromhex(raw[1:-1].decode()).decode("utf-16")
    return re.sub(rb"\\(.)", rb"\1", raw[1:-1]).decode("latin-1")


@pytest.mark.parametrize("browser", [{"java_script_enabled": False}], indirect=True)
async def test_every_page_reads_without_javascript(shell: shells.Shell, browser: conftest.Watched) -> None:
    shell.do("run", "--name", "plainly", "--", "echo", "a line")
    words = {
        "/": "Home",
        "/jobs": "plainly",
        "/jobs/plainly": "COMPLETED",
        "/jobs/plainly/log": "a line",
        "/cluster": "Cluster",
        "/pools": "default",
        "/usage": "Usage",
        "/submit": "Job file",
        "/simulate": "Policies",
        "/users": "admin",
        "/server": "ready",
        "/sessions": "this one",
    }
    for path, word in words.items():
        page = await browser.page(path)
        assert word in await page.locator("main").inner_text(), path
        await page.close()
    page = await browser.page("/submit")
    await page.fill("#text", "command: echo plain\n")
    await page.fill("input[name='field.name']", "set-plainly")
    await page.click(".actions button[value=set]")
    assert "name: set-plainly" in await page.locator("#text").input_value()
    await page.fill("input[name='field.name']", "sent-plainly")
    await page.click("button[value=submit]")
    assert "sent-plainly" in await page.locator("h1").inner_text()
    page = await browser.page("/submit")
    await page.fill("#text", "name: archived-plainly\ncommand: python mine.py\n")
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("mine.py", "print('out of the archive')")
    file: Any = {"name": "mine.zip", "mimeType": "application/zip", "buffer": code.getvalue()}
    await page.set_input_files("input[name=archive]", file)
    await page.click("button[value=submit]")
    assert "archived-plainly" in await page.locator("h1").inner_text()
    shell.wait_phase("archived-plainly", "COMPLETED")
    assert "out of the archive" in shell.do("logs", "archived-plainly").stdout


PLAIN = [
    ("full", "/jobs/runs/metrics", "figure a:text-is('loss')", "train/accuracy"),
    ("full", "/jobs/runs/metrics?name=loss&smooth=10", "figure polyline >> nth=1", "worker-0"),
    ("full", "/compare?job=runs&job=fails&name=loss", "figure polyline", "Last and best values"),
    ("full", "/jobs/fails/ranks/worker-0", "h1:has-text('worker-0')", "Exit code 3"),
    ("more", "/jobs/wide?sections=ranks", "a.rank >> nth=23", "worker"),
    ("more", "/simulate/simulation", "svg polyline >> nth=5", "time to the end, mean"),
]
"""Pages that scripts draw otherwise: the server, the address, what is drawn without one, and what is read."""


@pytest.mark.parametrize(("state", "path", "drawn", "read"), PLAIN)
async def test_what_scripts_draw_reads_without_them(
    chromium: conftest.Chromium, still: dict[str, stills.Still], state: str, path: str, drawn: str, read: str
) -> None:
    context = (await chromium.open(still[state].url, java_script_enabled=False)).context
    await context.add_cookies(still[state].cookies)
    page = await context.new_page()
    await page.goto(still[state].url + path)
    assert await page.locator(drawn).first.is_visible()
    assert read in await page.locator("main").inner_text()
    closed = page.locator("main details:not([open]) > summary")
    while count := await closed.count():
        await closed.first.click()
        assert await closed.count() == count - 1, "a table opens without scripts"
    await context.close()
