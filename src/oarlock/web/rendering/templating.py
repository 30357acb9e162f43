"""Templates: Jinja2 with every value escaped, an undefined name an error, and users' text made visible."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2

from oarlock.display import amounts, durations
from oarlock.display.jobs import stacks
from oarlock.spec import jobs
from oarlock.spec.input import quantities
from oarlock.web.rendering import assets, jobrows, parts, tables, texts, times

FOLDER = Path(__file__).parents[1] / "templates"
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
_LAST = 253402300799.0  # the year 9999
_METHODS = frozenset(dir(dict))


class _Environment(jinja2.Environment):
    """Jinja's environment, which looks for `row.name` of a dictionary among its keys first, after the methods.

    Jinja tries the attribute first, and raises and catches an error for each key: a quarter of the time of a row.
    Users choose keys, too: one named `items` must not take the place of the method that a template calls.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _METHODS and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


class Templates:
    """The pages' templates. `static` names the files that they refer to."""

    def __init__(self, static: assets.Assets) -> None:
        self._environment = environment = _Environment(
            loader=jinja2.FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=texts.shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.globals["bar"] = parts.bar
        environment.globals["phase"] = parts.phase
        environment.globals["job_rows"] = jobrows.rows
        environment.globals["query_with"] = query_with
        environment.globals["csv"] = tables.link
        environment.globals["csv_carried"] = tables.carried
        environment.globals["static"] = static.path
        environment.filters |= {
            "age": durations.age,
            "ago": times.ago,
            "ahead": times.ahead,
            "amount": amounts.number,
            "amount_of": lambda value, resource: amounts.of_resource(resource, value),
            "rate": amounts.rate,
            "clock": clock,
            "bytes": quantities.memory_text,
            "counted": amounts.counted,
            "cut": texts.cut,
            "duration": durations.text,
            "lasting": times.lasting,
            "log_text": log_text,
            "query": query,
            "segment": lambda text: quote(text, safe=""),
            "stacks": stacks.groups,
            "short_id": jobs.short_id,
            "since": times.since,
            "typed": texts.typed,
            "within": times.within,
        }

    def render(self, template: str, /, **facts: Any) -> str:
        return self._environment.get_template(template).render(facts)


def log_text(line: str) -> str:
    """Return a line of a log as a terminal shows it: without colours, and with the last text over a carriage return."""
    plain = _ESCAPES.sub("", line)
    return texts.cut(plain.rstrip("\r").rpartition("\r")[2])


def moment(at: float) -> str:
    """Return a time as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(at, 0.0), _LAST)))


def clock(at: float) -> str:
    """Return the time of day in UTC, with milliseconds."""
    bounded = min(max(at, 0.0), _LAST)
    return time.strftime("%H:%M:%S", time.gmtime(bounded)) + f".{int(bounded * 1000) % 1000:03d}"


def job_path(job: str) -> str:
    """Return the path of a job's page."""
    return f"/jobs/{quote(job, safe='')}"


def query(values: dict[str, Any]) -> str:
    """Return `?a=1&b=2` without empty values, to follow a path."""
    kept = {name: value for name, value in values.items() if value not in (None, "", (), [])}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


@jinja2.pass_context
def query_with(context: jinja2.runtime.Context, **changes: Any) -> str:
    """Return the query of this address with other values of these parameters: a link keeps what else was chosen.

    A parameter that gets no value is left out, and so are those that are no choice of the reader.
    """
    kept = {name: values for name, values in context["asked"].items() if name not in tables.PASSING}
    return query({**kept, **changes})
