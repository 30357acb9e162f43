"""The names that a template looks up."""

from __future__ import annotations

from oarlock.web.rendering import templating


def test_a_key_that_is_named_like_a_method_of_dictionaries_is_the_key() -> None:
    environment = templating._Environment()
    template = environment.from_string("{{ row.name }} {{ row.items }} {{ row.get('name') }} {{ row.other }}")
    assert template.render(row={"name": "a", "items": 3}) == "a 3 a "
