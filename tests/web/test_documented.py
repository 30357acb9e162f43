"""The pictures of the documentation: each is there in both themes, is shown, and has its page's present content."""

from __future__ import annotations

import re

import pytest
from tests.web import documented

SHOWING = {"README.md": ["home"], "docs/web.md": list(documented.PAGES)}


@pytest.mark.parametrize("name", documented.PAGES)
def test_the_picture_of_a_page_has_its_present_content(name: str) -> None:
    assert documented.digests().get(name) == documented.digest(name), "the page has changed: `make pictures`"
    for theme in ("light", "dark"):
        picture = documented.file_of(name, theme).read_bytes()
        assert (picture[:4], picture[8:12]) == (b"RIFF", b"WEBP")
        assert len(picture) < documented.MOST_BYTES


@pytest.mark.parametrize("page", SHOWING)
def test_the_documentation_shows_each_picture_for_readers_in_the_light_and_in_the_dark(page: str) -> None:
    text = (documented.ROOT / page).read_text()
    folder = "docs/pictures/" if page == "README.md" else "pictures/"
    shown = re.findall(rf"{folder}([a-z]+)-(light|dark)\.webp", text)
    assert sorted(shown) == sorted((name, theme) for name in SHOWING[page] for theme in ("dark", "light"))
    assert text.count('alt="') == len(SHOWING[page])
