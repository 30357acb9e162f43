"""The measure of gangs that are bound in part sees what it is for, and forgives a slow machine."""

from __future__ import annotations

from tests.e2e.kubernetes import clocks, parts

from oarlock.spec import attempts

ROUNDS = round(parts.BOUND_S / clocks.ROUND_S)


def life(index: int, *, bound: bool = True, over: bool = False) -> parts.Life:
    return parts.Life(attempts.TaskKey("j-1", 1, "worker", index, 1), bound, over)


def looked(*lives: parts.Life, rounds: int, round_s: float) -> parts.Parts:
    seen = parts.Parts(size=2)
    for _ in range(rounds):
        seen.look(lives)
        seen.clock.add(round_s)
    seen.look(lives)
    return seen


def test_a_gang_that_is_bound_in_part_for_too_long_is_late() -> None:
    there = life(0), life(1, bound=False)
    assert not looked(*there, rounds=ROUNDS - 1, round_s=clocks.ROUND_S).late()
    assert list(looked(*there, rounds=ROUNDS + 1, round_s=clocks.ROUND_S).late()) == [("j-1", 1)]


def test_slow_rounds_count_as_those_of_an_idle_machine() -> None:
    assert not looked(life(0), rounds=ROUNDS - 1, round_s=60.0).late()


def test_neither_a_whole_gang_that_ends_nor_one_that_was_removed_is_bound_in_part() -> None:
    assert not looked(life(0, over=True), life(1), rounds=2 * ROUNDS, round_s=clocks.ROUND_S).late()
    assert not looked(life(0, over=True), rounds=2 * ROUNDS, round_s=clocks.ROUND_S).late()


def test_the_time_begins_anew_with_another_gang() -> None:
    seen = looked(life(0), rounds=ROUNDS - 1, round_s=clocks.ROUND_S)
    again = parts.Life(attempts.TaskKey("j-1", 2, "worker", 0, 1), bound=True, over=False)
    for _ in range(ROUNDS - 1):
        seen.look([life(0, over=True), again])
        seen.clock.add(clocks.ROUND_S)
    assert not seen.late()
