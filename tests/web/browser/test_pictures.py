"""Eight pages look as before: their pictures, with a still clock, fixed jobs and one font, against stored ones.

Take them anew with `OARLOCK_GOLDEN=write make test-web ARGS="-k pictures"`, and look at them before you commit them.
They belong to one version of Chromium. Where another version draws a page otherwise, the test is left out and says so.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from tests import needs
from tests.web import documented
from tests.web.browser import conftest, pictures, stills, test_stills

pytestmark = pytest.mark.browser

FOLDER = Path(__file__).parent / "golden" / "pictures"
VERSION = FOLDER / "chromium.txt"
PAGES = {
    "home": "light",
    "jobs": "dark",
    "job-runs": "light",
    "log": "dark",
    "metrics": "light",
    "cluster": "dark",
    "pools": "light",
    "submit": "dark",
}
"""The pages with jobs that have a picture, each in one of the themes."""


@pytest.mark.parametrize(("name", "theme"), PAGES.items())
async def test_a_page_looks_as_before(
    chromium: conftest.Chromium, still: dict[str, stills.Still], name: str, theme: str, tmp_path: Path
) -> None:
    if not conftest.FONTS:
        needs.skip("DejaVu fonts")
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page(stills.FULL[name])
    await page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    await test_stills.complete(page)
    shot = await page.screenshot(animations="disabled", caret="hide")
    await watched.context.close()
    file = FOLDER / f"{name}-{theme}.png"
    if test_stills.WRITES:
        pictures.store(file, pictures.small(shot))
        VERSION.write_text(chromium.version + "\n")
    found = pictures.change(Image.open(file), pictures.small(shot))
    if found is None:
        return
    drawn_by = VERSION.read_text().strip()
    if chromium.version.partition(".")[0] != drawn_by.partition(".")[0]:
        needs.skip("Chromium of the pictures", f"drawn by {drawn_by}, this is {chromium.version}")
    (tmp_path / "now.png").write_bytes(shot)
    raise AssertionError(
        f"{name} looks otherwise within {found.box} (left, top, right, bottom; {found.dots} dots): see"
        f" {tmp_path / 'now.png'}. If that is right, take the pictures anew: OARLOCK_GOLDEN=write"
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", documented.PAGES)
async def test_the_documentation_shows_the_page(
    chromium: conftest.Chromium, still: dict[str, stills.Still], name: str, theme: str
) -> None:
    watched = await test_stills.opened(chromium, still["full"])
    page = await watched.page(stills.FULL[documented.PAGES[name]])
    await page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    await test_stills.complete(page)
    shot = await page.screenshot(animations="disabled", caret="hide")
    await watched.context.close()
    drawn = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("RGB").save(drawn, "WEBP", quality=75, method=6)
    assert len(drawn.getvalue()) < documented.MOST_BYTES
    if documented.WRITES:
        documented.store(name, theme, drawn.getvalue())
    with Image.open(documented.file_of(name, theme)) as stored:
        assert stored.size == (1280, 800)


def page_with(left: int, colour: str = "#17693a", line: str = "#c9d0d6") -> Image.Image:
    """Draw a page with a line, a box and a word, the box and the word at `left`."""
    drawn = Image.new("RGB", (400, 200), "white")
    draw = ImageDraw.Draw(drawn)
    draw.line((0, 50, 400, 50), fill=line)
    draw.rectangle((left, 80, left + 80, 88), fill=colour)
    draw.text((left, 100), "a word of the page", fill="black")
    return drawn.reduce(pictures.BLOCK)


def test_a_box_that_moves_or_changes_its_colour_is_seen_and_smoothing_is_not() -> None:
    page = page_with(40)
    for other in (page_with(42), page_with(48), page_with(40, colour="#8a5a00"), page_with(40).crop((0, 0, 99, 50))):
        assert pictures.change(page, other) is not None
    assert pictures.change(page, page.point(lambda grade: min(255, grade + 8))) is None
