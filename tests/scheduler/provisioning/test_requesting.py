"""The life of a request for nodes: when it is made, answered, made anew and withdrawn, and its words."""

from __future__ import annotations

import msgspec
import pytest

from oarlock.scheduler.provisioning import requesting
from oarlock.spec import holdings
from oarlock.spec.cluster import provisioning

Answer = provisioning.Answer
NOW = 10_000.0


def need(count: int = 2) -> provisioning.Need:
    task = provisioning.Tasks(role="worker", amount=holdings.Resources(1000), node_class="big", count=count)
    return provisioning.Need(nodes={"big": count}, tasks=(task,))


def request(answer: Answer = Answer.NONE, ago_s: float = 0.0, message: str = "") -> provisioning.NodeRequest:
    at = None if answer is Answer.NONE else NOW - ago_s
    return provisioning.NodeRequest(
        number=3, need=need(), at=NOW - 1000, answer=answer, answered_at=at, message=message
    )


def seen(answer: Answer, message: str = "") -> provisioning.Answered:
    return provisioning.Answered(job="j", number=3, answer=answer, message=message)


def test_a_gang_that_lacks_nodes_requests_them_and_one_that_lacks_none_withdraws() -> None:
    made = requesting.following(None, need(), NOW, answering=True)
    assert made == provisioning.NodeRequest(number=1, need=need(), at=NOW)
    assert requesting.following(made, need(), NOW + 1, answering=True) is made
    assert requesting.following(made, None, NOW + 1, answering=True) is None
    assert requesting.following(None, None, NOW, answering=True) is None


def test_another_need_is_another_request() -> None:
    changed = requesting.following(request(), need(3), NOW, answering=True)
    assert changed == provisioning.NodeRequest(number=4, need=need(3), at=NOW)
    measured = requesting.following(request(), need(1), NOW, answering=False)
    assert measured == msgspec.structs.replace(request(), need=need(1)), "a measurement keeps its beginning"


@pytest.mark.parametrize("answer", sorted(provisioning.ENDED))
def test_a_request_that_came_to_nothing_is_made_again_after_a_while(answer: Answer) -> None:
    early = request(answer, ago_s=requesting.AGAIN_S - 1)
    assert requesting.following(early, need(1), NOW, answering=True) is early
    late = requesting.following(request(answer, ago_s=requesting.AGAIN_S), need(1), NOW, answering=True)
    assert late == provisioning.NodeRequest(number=4, need=need(1), at=NOW)
    assert requesting.following(early, None, NOW, answering=True) is None


def test_an_answer_is_taken_once_and_its_time_stays() -> None:
    once = requesting.answered(request(), seen(Answer.ACCEPTED), NOW)
    assert (once.answer, once.answered_at) == (Answer.ACCEPTED, NOW)
    assert requesting.answered(once, seen(Answer.ACCEPTED), NOW + 5) is once
    more = requesting.answered(once, seen(Answer.ACCEPTED, "2 of 4"), NOW + 5)
    assert (more.message, more.answered_at) == ("2 of 4", NOW)
    assert requesting.answered(once, None, NOW + 5) is once
    failed = request(Answer.FAILED)
    assert requesting.answered(failed, seen(Answer.ACCEPTED), NOW) is failed, "the end of a request is final"


def test_nodes_that_do_not_come_end_the_request() -> None:
    early = request(Answer.PROVISIONED, ago_s=requesting.ARRIVAL_S - 1)
    assert requesting.answered(early, seen(Answer.PROVISIONED), NOW) is early
    late = requesting.answered(request(Answer.PROVISIONED, ago_s=requesting.ARRIVAL_S), None, NOW)
    assert (late.answer, late.answered_at) == (Answer.EXPIRED, NOW)
    assert not late.open


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (request(), "2 nodes of big were requested 17 min ago; no autoscaler has answered yet."),
        (
            request(Answer.ACCEPTED, 60.0),
            "2 nodes of big were requested 17 min ago; the autoscaler accepted that 60 s ago.",
        ),
        (
            request(Answer.PROVISIONED, 60.0),
            "2 nodes of big were requested 17 min ago; the autoscaler said 60 s ago that they are there.",
        ),
        (
            request(Answer.FAILED, 60.0, "out of quota."),
            "2 nodes of big were requested 17 min ago; the autoscaler refused that 60 s ago (out of quota); it is "
            "made again soon.",
        ),
        (
            request(Answer.EXPIRED, 60.0),
            "2 nodes of big were requested 17 min ago; that request ended 60 s ago; it is made again soon.",
        ),
        (
            msgspec.structs.replace(request(), need=msgspec.structs.replace(need(), nodes={"b": 1, "a": 2})),
            "2 nodes of a and 1 node of b were requested 17 min ago; no autoscaler has answered yet.",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_words_name_classes_numbers_times_and_the_answer(of: provisioning.NodeRequest, words: str) -> None:
    assert requesting.told(of, NOW) == words
