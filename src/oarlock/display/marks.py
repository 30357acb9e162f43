"""Colour and glyph of each phase of a job, and of each state of a finding. Colours mean states and nothing else.

The command line turns the colours' names into escape codes, a page into its style sheet. Every colour stands beside a
glyph and a word, so that no meaning is lost without it.
"""

from __future__ import annotations

from typing import NamedTuple

from oarlock.spec import phases

FROZEN = "FROZEN"
"""The word shown in place of the phase while a failed job keeps its place for inspection."""


class Mark(NamedTuple):
    colour: str
    glyph: str


PHASES: dict[str, Mark] = {
    phases.Phase.QUEUED: Mark("amber", "○"),
    phases.Phase.DEPLOYING: Mark("cyan", "◔"),
    phases.Phase.DOWNLOADING: Mark("cyan", "↓"),
    phases.Phase.PROCESSING: Mark("blue", "▶"),
    phases.Phase.STORING: Mark("cyan", "↑"),
    phases.Phase.COMPLETED: Mark("green", "✓"),
    phases.Phase.FAILED: Mark("red", "✗"),
    phases.Phase.CANCELED: Mark("violet", "■"),
    phases.Phase.HALTED: Mark("violet", "‖"),
    FROZEN: Mark("red", "✱"),
}


def word(phase: str, *, unicode: bool = True) -> str:
    """Return the phase behind its glyph; without `unicode` the phase alone."""
    return f"{PHASES[phase].glyph} {phase}" if unicode else phase


COLOURS = {word(phase, unicode=unicode): mark.colour for phase, mark in PHASES.items() for unicode in (True, False)}
"""The colour of each word that a phase is shown as."""
