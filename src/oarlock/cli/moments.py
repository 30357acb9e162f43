"""The options that name a moment: `--since 2h`, `--until 2026-01-31T12:00`."""

from __future__ import annotations


def read(**told: str | None) -> dict[str, float]:
    """Return Unix seconds for each option that was given, by its name. The error for a wrong one names its option."""
    from oarlock.client import verbs

    return {name: verbs.since_of(text, path=f"--{name}") for name, text in told.items() if text is not None}
