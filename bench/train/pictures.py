"""The pictures of docs/strategies.md, from the saved rows of docs/benchmarks.md. Nothing is measured here.

`make bench-train` draws them anew at its end. A picture whose rows are not all saved is left out, with a word of that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import plots, table

FOLDER = "benchmarks"
BETWEEN = "accuracy less that of"
SENDERS = "`auto` against the best fixed choice, 4 workers that send over 20 Mbit/s and receive over 10 Gbit/s, "
SENDERS += "a server apart, lossless choices"


class Missing(Exception):
    """A row, or a number in its details, that a picture needs."""


class Saved:
    """The saved rows: their values, and the numbers in their details."""

    def __init__(self, text: str) -> None:
        self._rows = table.saved(text)

    def value(self, what: str) -> float:
        return float(self._cells(what)[1].split()[0].replace(",", ""))

    def has(self, what: str) -> bool:
        return what in self._rows

    def told(self, what: str, pattern: str) -> list[tuple[str, ...]]:
        """Return the groups of each match in the details."""
        found = [match.groups() for match in re.finditer(pattern, self._cells(what)[4])]
        if not found:
            raise Missing(f"{pattern} in the details of {what}")
        return found

    def interval(self, what: str) -> tuple[float, float]:
        ((low, high),) = self.told(what, r"interval ([-+.\d]+) to ([-+.\d]+)")
        return float(low), float(high)

    def _cells(self, what: str) -> list[str]:
        if what not in self._rows:
            raise Missing(what)
        return self._rows[what]


def run() -> list[table.Row]:
    draw(Saved(table.PAGE.read_text()), table.PAGE.parent / FOLDER)
    return []


def draw(rows: Saved, folder: Path) -> None:
    for name, panels in PICTURES.items():
        try:
            plots.bars(panels(rows), folder / f"{name}.png")
        except Missing as missing:
            sys.stderr.write(f"{name}.png is not drawn: no {missing}\n")


def links(rows: Saved) -> list[plots.Panel]:
    """Compare the strategies by the link."""
    panels = []
    for rate in ("1 Gbit/s", "100 Mbit/s"):
        about = f"25 MB MLP, {rate}"
        dense, ours = (rows.value(f"{name}, {about}, times the link's limit") for name in ("DDP", "allreduce"))
        names = {
            "parameter server beside rank 0": "one parameter server",
            "bf16": "bf16",
            "PowerSGD, rank 1": "PowerSGD, rank 1",
            "DGC 99.9 %": "DGC 99.9 %",
        }
        others = {words: rows.value(f"{name}, {about}, times as fast as DDP") for name, words in names.items()}
        words = f"{rate}: times as fast as DDP"
        panels.append(plots.Panel(words, {"allreduce": dense / ours, **others}, marks=(1.0,)))
    return panels


def workers(rows: Saved) -> list[plots.Panel]:
    """Compare the bytes and the waiting by the number of workers."""
    sent, waits = {}, {}
    for name in ("allreduce", "DGC 99.9 %"):
        what = f"GoogLeNet's shapes, {name}, bytes that each of 8 workers sends, over those with 2"
        ((few, many),) = rows.told(what, r"(\d+) KB with 2, (\d+) KB with 8")
        sent |= {f"{name}, 2 workers": float(few), f"{name}, 8 workers": float(many)}
        ((few, many),) = rows.told(what, r"takes (\d+) and (\d+) ms longer")
        waits |= {f"{name}, 2 workers": float(few), f"{name}, 8 workers": float(many)}
    return [
        plots.Panel("KB that a worker sends in a step", sent),
        plots.Panel("ms that a step waits for them", waits),
    ]


def embedding(rows: Saved) -> list[plots.Panel]:
    """Compare the dense gradients of an embedding with its rows."""
    what = "embedding of 25 MB, 512 rows a step of a worker, by row at a parameter server, 100 Mbit/s, times as fast"
    what += " as allreduce"
    ((dense_ms, by_row_ms),) = rows.told(what, r"takes (\d+) ms by allreduce and (\d+) ms by row")
    ((dense, by_row),) = rows.told(what, r"sends ([\d,]+) KB and ([\d,]+) KB")
    names = ("allreduce", "by row, parameter server")
    steps = dict(zip(names, (float(dense_ms), float(by_row_ms)), strict=True))
    sent = dict(zip(names, (float(each.replace(",", "")) for each in (dense, by_row)), strict=True))
    return [
        plots.Panel("ms of a step, 100 Mbit/s", steps),
        plots.Panel("KB that a worker sends in a step", sent),
    ]


def stragglers(rows: Saved) -> list[plots.Panel]:
    """Show workers of different speed."""
    slower = "one worker 5 times slower: speed of the others"
    one = {
        "lockstep": 1.0,
        "backup worker": rows.value(f"{slower} with a backup worker, against lockstep"),
        "asynchronous": rows.value(f"{slower} without lockstep, against lockstep"),
    }
    faster, points, intervals = {"lockstep": 1.0}, {}, {}
    for name in ("staleness 2", "asynchronous"):
        about = f"{name} parameter server, three workers of random speed"
        faster[name] = rows.value(f"{about}, times as fast as lockstep")
        points[name] = rows.value(f"{about}, {BETWEEN} lockstep")
        intervals[name] = rows.interval(f"{about}, {BETWEEN} lockstep")
    return [
        plots.Panel("one 5 times slower: the others, against lockstep", one, marks=(1.0,)),
        plots.Panel("three of random speed, against lockstep", faster, marks=(1.0,)),
        plots.Panel("their accuracy less lockstep's, points", points, marks=(0.0,), intervals=intervals),
    ]


def choosing(rows: Saved) -> list[plots.Panel]:
    """Show the time of `auto` over that of the best fixed choice."""
    panels = []
    for kind, words in (("lossless choices", "lossless choices"), ('compression="auto", all choices', "all choices")):
        what = f"`auto` against the best fixed choice, the worst of 3 links x 3 models, {kind}"
        cells = rows.told(what, r"([\d.]+ [GM]bit/s), (\S+) ([\d.]+) \(chose")
        ratios = {f"{model}, {rate}": float(ratio) for rate, model, ratio in cells}
        if words == "lossless choices" and rows.has(SENDERS):
            ratios["GoogLeNet, slow senders"] = rows.value(SENDERS)
        panels.append(plots.Panel(f"{words}: time, over that of the best", ratios, marks=(1.0, 1.1)))
    return panels


def accuracy(rows: Saved) -> list[plots.Panel]:
    """Compare DGC, DGC without each of its parts, and plain top-k with dense training."""
    panels = []
    names = {"DGC 99.9 %": "DGC 99.9 %"} | {
        f"DGC 99.9 %, no {part}": f"without {part}" for part in ("correction", "masking", "clipping", "warm-up")
    }
    names["plain top-k"] = "plain top-k"
    for model in ("CNN on digits", "characters of text"):
        figures = {words: f"{name}, {model}, {BETWEEN} dense training" for name, words in names.items()}
        points = {words: rows.value(what) for words, what in figures.items()}
        intervals = {words: rows.interval(what) for words, what in figures.items()}
        panels.append(plots.Panel(f"{model}: accuracy less dense, points", points, marks=(0.0,), intervals=intervals))
    return panels


def servers(rows: Saved) -> list[plots.Panel]:
    """Show how many parameter servers and where, the division of tensors, and the transport."""
    one = "two workers, 1 Gbit/s, times as fast as one server apart"
    places = {
        "one apart": 1.0,
        "two apart": rows.value(f"two parameter servers on machines of their own, {one}"),
        "two beside the workers": rows.value(f"two parameter servers beside the workers, {one}"),
    }
    ways = {"large tensors cut": "partition", "whole, by size": "greedy", "whole, in turn": "round_robin"}
    fullest = {
        words: rows.value(f"VGG16 over 4 parameter servers, {way}, the fullest against the mean")
        for words, way in ways.items()
    }
    moved = "parameter server, push and pull of 25 MB"
    speeds = {
        "raw TCP, 1 Gbit/s": rows.value(f"{moved}, 1 Gbit/s, of the speed of raw TCP"),
        "raw TCP, one host": rows.value(f"{moved}, one host, of the speed of raw TCP"),
        "gRPC, one host": rows.value(f"{moved}, one host, times as fast as gRPC"),
    }
    return [
        plots.Panel("servers: times as fast as one apart", places, marks=(1.0,)),
        plots.Panel("VGG16 over 4 servers: fullest / mean", fullest, marks=(1.0,)),
        plots.Panel("push and pull: times as fast as", speeds, marks=(1.0,)),
    ]


def recovery(rows: Saved) -> list[plots.Panel]:
    """Show the time to recover from the death of a worker."""
    kinds = ("elastic workers", "restart of the gang", "torchrun")
    seconds = {kind: rows.value(f"a worker's SIGKILL to the next step, {kind}") for kind in kinds}
    return [plots.Panel("seconds from a worker's SIGKILL to the next step", seconds)]


def advising(rows: Saved) -> list[plots.Panel]:
    """Show the speedups that `oarlock advise` predicts, and those that were measured."""
    panels = []
    for count in (4, 8):
        speedups = {}
        for name in ("allreduce", "dgc", "ps"):
            what = f"`advise`, {name}, speedup with {count} workers, error of the prediction"
            ((predicted, measured),) = rows.told(what, r"predicted ([\d.]+), measured ([\d.]+)")
            speedups |= {f"{name}, predicted": float(predicted), f"{name}, measured": float(measured)}
        panels.append(plots.Panel(f"{count} workers: speedup over one", speedups))
    return panels


PICTURES: dict[str, Callable[[Saved], Sequence[plots.Panel]]] = {
    "links": links,
    "choosing": choosing,
    "workers": workers,
    "embedding": embedding,
    "stragglers": stragglers,
    "accuracy": accuracy,
    "servers": servers,
    "recovery": recovery,
    "advising": advising,
}
