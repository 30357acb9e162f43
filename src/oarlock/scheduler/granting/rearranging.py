"""Moves of running gangs to another type of GPU, or to another size there, as their policy wishes.

Where a policy divides several types at once, the new place of one gang is often the present place of another: neither
could move first. So all gangs that are to change give up their places together, in a trial, and are placed again, the
largest first. A gang for which there is no place stays where it is, and the others are placed again around it. The
result is carried out as resizes and moves. Waiting gangs have their turns afterwards, in the space that is left.
"""

from __future__ import annotations

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.granting import drafts, growing, heldtypes
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.placement import placing
from oarlock.spec import holdings, plans


def carry_out(draft: drafts.Draft) -> None:
    """Resize and move the running gangs that a policy wishes on another type, or at another size on their type."""
    changing = [
        turn
        for turn in draft.order.listed()
        if turn.wish.on
        and (running := turn.candidate.running) is not None
        and draft.victims.may_restart(running)
        and _changes(draft, turn)
    ]
    if not changing:
        return
    for turn, claims in _placed(draft, changing):
        running = turn.candidate.running
        if running is None:
            continue
        if sizes.of_claims(running.gang, claims) == draft.facts.held(running).size:
            draft.move(running, claims, turn.wish.reason)
        else:
            draft.resize(running, claims, turn.wish.reason)


def _changes(draft: drafts.Draft, turn: turns.Turn) -> bool:
    running = turn.candidate.running
    if running is None:
        return False
    return turn.wish.size != draft.facts.held(running).size or turn.wish.on != heldtypes.held_type(draft, running)


def _placed(draft: drafts.Draft, changing: list[turns.Turn]) -> list[tuple[turns.Turn, holdings.Claims]]:
    """Return the gangs that have a new place, with that place. The free space is left as it was."""
    space = draft.timeline.later
    order = sorted(changing, key=lambda turn: (-amounts.weight(_amount(draft, turn)), turn.wish.job))
    while order:
        found, lacking = [], None
        with space.trial():
            for turn in order:
                space.give_back(turn.candidate.running.holdings if turn.candidate.running else ())
            for turn in order:
                claims = _place(draft, turn)
                if claims is None:
                    lacking = turn
                    break
                space.take(claims)
                found.append((turn, claims))
        if lacking is None:
            return found
        order.remove(lacking)
    return []


def _amount(draft: drafts.Draft, turn: turns.Turn) -> amounts.Amount:
    return draft.facts.of(turn.candidate.gang).amount(turn.wish.size)


def _place(draft: drafts.Draft, turn: turns.Turn) -> holdings.Claims | None:
    running = turn.candidate.running
    if running is None or growing.over(draft, running, turn.wish.size) is not None:
        return None
    near = draft.facts.held(running).nodes
    wanted = plans.on(running.gang, turn.wish.on)
    return placing.place(wanted, draft.timeline.later, turn.wish.size, prefer=near)
