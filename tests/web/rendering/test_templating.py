"""The names that a template looks up."""

from __future__ import annotations

import re

from tests.web import browsers

from oarlock.spec import attempts, events
from oarlock.web.rendering import templating


def test_a_key_that_is_named_like_a_method_of_dictionaries_hides_no_method() -> None:
    environment = templating._Environment()
    template = environment.from_string("{{ row.name }} {{ row['items'] }} {{ row.get('name') }} {{ row.other }}")
    assert template.render(row={"name": "a", "items": 3, "get": 4}) == "a 3 a "


async def test_the_stacks_of_a_process_named_like_a_method_are_shown(rig: browsers.WebRig) -> None:
    job = await rig.launch(await rig.submit("ann"))
    key = attempts.TaskKey(job.id, 1, "worker", 0, 1)
    await rig.happen(
        job.id,
        events.StacksAsked(attempt=1, task="worker-0", message="it hangs"),
        events.StacksTaken(key=key, request=1, stacks={"items": "in the data loader"}),
    )
    async with rig.browser("ann") as browser:
        page = browsers.text((await browser.get(f"/jobs/{job.id}/ranks/worker-0")).text)
    assert "process items" in page
    assert "in the data loader" in page


async def test_a_form_with_a_field_named_like_a_method_is_kept(rig: browsers.WebRig) -> None:
    async with rig.browser() as browser:
        answer = await browser.post("/jobs", data={"items": "1", "get": "2"}, headers=browsers.OURS)
    assert answer.status_code == 401
    assert re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>\s*(\w+)<', answer.text) == [("items", "1"), ("get", "2")]


def test_an_empty_state_names_the_command_or_the_page_that_helps() -> None:
    for file in sorted(templating.FOLDER.rglob("*.html")):
        for said in re.findall(r'<p class="empty">(.*?)</p>', file.read_text()):
            assert "<code>" in said or "href=" in said or "does not tell" in said, (file, said)
