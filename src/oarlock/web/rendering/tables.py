"""The tables of pages as CSV files.

A table of a page has a name (`data-table`), and a link to the same address with `csv=NAME`. The file is made from the
rendered page. So it has the cells, the rights and the visible text of the page, and no table is described twice. It has
all rows, also where the page shows the first few: the page function asks `most` how many to find. The answer to a form
may have no address from which its table could be fetched: its link carries the file (`carried`). Times
(`<time>`) and rounded numbers (`<data>`) stand in it by their exact values; drawings, buttons and the columns for them
(`drawn`, `act`) are left out.
"""

from __future__ import annotations

import csv
import html.parser
import io
import re
from urllib.parse import quote, urlencode

import jinja2
import markupsafe

from oarlock.web.rendering import texts

PARAMETER = "csv"
FILE_ROWS = 2000
"""The most rows of a file, which is read out of a page. Its last line says so where there are more."""
_LEFT_OUT = frozenset({"svg", "button", "form", "script"})
_COLUMNS_LEFT_OUT = frozenset({"drawn", "act"})
_EXACT = {"time": "datetime", "data": "value"}
PASSING = frozenset({"seen", "sections", PARAMETER})
"""The parameters of an address that are not a reader's choice: the link names its own."""
_BREAK = "\x1e"  # between the lines of a cell; pages show no control characters
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)


@jinja2.pass_context
def link(
    context: jinja2.runtime.Context, table: str, section: str = "", words: str = "", **chosen: str
) -> markupsafe.Markup:
    """Return the link to a table as CSV. A table of a part that is made on demand names that: its `section`.

    `words` name the table to a reader, if its name does not. `chosen` are parameters that the address lacks where the
    page answers a form.
    """
    kept = {name: values for name, values in context["asked"].items() if name not in PASSING}
    part = {"sections": section} if section else {}
    query = urlencode({**kept, **chosen, **part, PARAMETER: table}, doseq=True)
    return markupsafe.Markup(
        '<p class="csv"><a href="?{}" download>CSV<span class="hidden"> of the table {}</span></a></p>'
    ).format(query, texts.visible(words) or table.replace("-", " "))


def carried(table: str, content: str) -> markupsafe.Markup:
    """Return the link to a table as CSV that holds the file itself. `content` is the HTML of the table."""
    return markupsafe.Markup(
        '<p class="csv"><a href="data:text/csv;charset=utf-8,{}" download="{}.csv">CSV'
        '<span class="hidden"> of the table {}</span></a></p>'
    ).format(quote(sheet(content, table) or ""), table, table.replace("-", " "))


def most(asked: str, table: str, shown: int) -> int:
    """Return how many rows of a table to find: `shown`, or more for the file of the table, which `asked` names."""
    return FILE_ROWS + 1 if asked == table else shown


def sheet(page: str, table: str) -> str | None:
    """Return the CSV of the table of this name; None where the page has none."""
    reader = _Reader(table)
    reader.feed(page)
    if not reader.found:
        return None
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([_cell(one) for one in row] for row in reader.rows[: FILE_ROWS + 1])  # the head, too
    if len(reader.rows) > FILE_ROWS + 1:
        writer.writerow([f"cut after {FILE_ROWS} rows"])
    return text.getvalue()


def _cell(text: str) -> str:
    return text if _NUMBER.fullmatch(text) else texts.cell(text)


class _Reader(html.parser.HTMLParser):
    """Reads the rows of one table. Void elements stand in no cell but a drawing's."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.found = False
        self._table = table
        self._within = False
        self._skipped = ""  # the element that is left out with its content
        self._depth = 0  # of elements of that name
        self._parts: list[str] | None = None  # of the cell
        self._column = 0
        self._drawn: set[int] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "table" and told.get("data-table") == self._table:
            self._within = self.found = True
        if not self._within:
            return
        if self._skipped:
            self._depth += tag == self._skipped
        elif tag == "tr":
            self.rows.append([])
            self._column = 0
        elif tag in ("td", "th"):
            if _COLUMNS_LEFT_OUT & set((told.get("class") or "").split()):
                self._drawn.add(self._column)
            self._parts = []
        elif tag in _EXACT or tag in _LEFT_OUT or told.get("aria-hidden") == "true":
            self._put(told.get(_EXACT.get(tag, "aria-label")) or "")
            self._skipped, self._depth = tag, 1
        elif tag in ("br", "p"):
            self._put(_BREAK)

    def handle_endtag(self, tag: str) -> None:
        if not self._within:
            return
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
        elif tag in ("td", "th") and self._parts is not None:
            if self._column not in self._drawn:
                self.rows[-1].append(_plain("".join(self._parts)))
            self._column, self._parts = self._column + 1, None
        elif tag == "table":
            self._within = False

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._put(data)

    def _put(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)


def _plain(text: str) -> str:
    """Return the text with the white space that a browser shows."""
    lines = (" ".join(line.split()) for line in text.split(_BREAK))
    return "; ".join(line for line in lines if line)
