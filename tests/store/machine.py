"""A Hypothesis state machine: any sequence of changes does to a database what it does to the store in memory.

Both are given the same changes, one after another, several in one transaction, some of which fail at their end; after
each, the answers and the whole of what can be read are compared. Few names, so that they collide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import stateful
from hypothesis import strategies as st
from tests.store import nouns

from oarlock.spec import errors, events, intents, phases
from oarlock.spec.access import users
from oarlock.spec.cluster import pools
from oarlock.store import memory, stores

replace = msgspec.structs.replace

IDS = st.sampled_from(["j-1", "j-2", "j-3", "j-4"])
NAMES = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["", "k1", "k2"])
NODES = st.sampled_from(["n1", "n2"])
NUMBERS = st.lists(st.integers(0, 4), max_size=2).map(tuple)
VERSIONS = st.integers(-1, 1)
EPOCHS = st.integers(1, 3)

Step = Callable[[stores.Transaction], Any]


class Abandoned(Exception):
    """The end of a transaction that is given up."""


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """One change. What it reads it reads from the transaction."""
    return draw(
        st.one_of(
            st.builds(add_job, IDS, NAMES, NAMES, KEYS, st.integers(0, 2)),
            st.builds(put_job, IDS, st.sampled_from(phases.Phase), st.sampled_from(intents.Intent), VERSIONS),
            st.builds(remove_jobs, st.lists(IDS, max_size=3), st.integers(3, 5)),
            st.builds(lambda before: lambda t: t.forget_keys(float(before)), st.integers(3, 6)),
            st.builds(hold, st.lists(st.tuples(IDS, st.integers(1, 2), st.integers(0, 1), NODES, NUMBERS), max_size=2)),
            st.builds(
                share, st.lists(st.tuples(IDS, st.integers(0, 1), NODES, st.sampled_from((300, 500))), max_size=3)
            ),
            st.builds(lambda job, attempt: lambda t: t.release(job, attempt), IDS, st.integers(1, 2)),
            st.builds(lambda job, index: lambda t: t.release(job, 1, [f"worker-{index}"]), IDS, st.integers(0, 1)),
            st.builds(put_named, st.sampled_from(["node", "pool", "user"]), NODES, VERSIONS),
            st.builds(lambda name: lambda t: t.remove_node(name), NODES),
            st.builds(lambda name: lambda t: t.remove_user(name), NODES | NAMES),
            st.builds(lambda name: lambda t: t.tell("nodes", [name], at=2.0), NODES),
            st.builds(lambda job, step: lambda t: t.add_checkpoint(nouns.checkpoint(job, step=step)), IDS, EPOCHS),
            st.builds(
                lambda job, step: lambda t: t.remove_checkpoint(job, nouns.checkpoint(job, step=step).path), IDS, EPOCHS
            ),
            st.builds(put_token, NODES, NAMES),
            st.builds(lambda sha256: lambda t: t.remove_token(sha256), NAMES),
            st.builds(put_session, NODES, NAMES, NAMES, st.booleans()),
            st.builds(lambda sha256: lambda t: t.remove_session(sha256), NAMES),
            st.builds(lambda before: lambda t: t.forget_sessions(before), st.sampled_from((30.0, 90.0, 1e9))),
            st.builds(add_usage, IDS, NAMES, st.integers(1, 3)),
            st.builds(
                lambda back, since: lambda t: t.compact(t.last_seq() - back, cluster_before=t.last_seq() - since),
                st.integers(-2, 6),
                st.integers(-2, 6),
            ),
            st.builds(lambda count, of: lambda t: t.newest_seq(count, of_jobs=of), st.integers(1, 6), st.booleans()),
        )
    )


def add_job(job_id: str, name: str, owner: str, key: str, at: int) -> Step:
    job = nouns.job(job_id, name=name, owner=owner, at=float(at), snapshot=f"sha256:{name}")
    return lambda t: t.add_job(job, at=1.0, idempotency_key=key, request_sha256=name)


def put_job(job_id: str, phase: phases.Phase, intent: intents.Intent, off: int) -> Step:
    def step(t: stores.Transaction) -> Any:
        job = t.job(job_id) or nouns.job(job_id, version=1)
        job = replace(job, phase=phase, intent=intent, version=job.version + off)
        return t.put_job(job, [events.Intended(intent=intent, by="ann")], at=2.0)

    return step


def remove_jobs(ids: list[str], at: int) -> Step:
    return lambda t: t.remove_jobs(ids, at=float(at))


def hold(wanted: list[tuple[str, int, int, str, tuple[int, ...]]]) -> Step:
    claims = [
        nouns.claim(
            job,
            attempt=attempt,
            index=index,
            node=node,
            cpus=3,
            devices=numbers,
            ports=tuple(20_000 + n for n in numbers),
        )
        for job, attempt, index, node, numbers in wanted
    ]
    return lambda t: t.hold(claims)


def share(wanted: list[tuple[str, int, str, int]]) -> Step:
    claims = [nouns.share(job, index=2 + index, device=0, milli=milli, node=node) for job, index, node, milli in wanted]
    return lambda t: t.hold(claims)


def put_named(kind: str, name: str, off: int) -> Step:
    def step(t: stores.Transaction) -> Any:
        stored = next((one for one in getattr(t, f"{kind}s")() if one.name == name), None)
        made = {"node": nouns.node(name), "pool": pools.Pool(name=name), "user": users.User(name=name)}[kind]
        item = stored if stored is not None else made
        return getattr(t, f"put_{kind}")(replace(item, version=max(0, item.version + off)))

    return step


def put_token(user: str, sha256: str) -> Step:
    return lambda t: t.put_token(users.Token(sha256=sha256, user=user, created_at=1.0))


def put_session(user: str, token: str, sha256: str, once: bool) -> Step:
    made = users.Session(sha256=sha256, user=user, token=token, created_at=1.0, used_at=2.0, once=once)
    return lambda t: t.put_session(made)


def add_usage(job: str, owner: str, attempt: int) -> Step:
    used = stores.Usage(owner=owner, pool="p", job=job, attempt=attempt, ended_at=float(attempt), device_seconds=2.0)
    return lambda t: t.add_usage(used)


def everything(view: stores.View) -> list[object]:
    """All that can be asked, answers and refusals alike."""
    every = view.jobs(stores.JobFilter(limit=1000))
    asked: list[object] = [every, view.active(), view.count(), view.holdings(), view.last_seq(), view.nodes()]
    asked += [view.pools(), view.users(), view.usage(), view.usage(since=1.0), view.snapshots_in_use(), view.leader()]
    asked += [view.submitted(owner, key) for owner in "ab" for key in ("k1", "k2")]
    asked += [found for one in "ab" for found in (view.token(one), view.session(one))]
    asked += [view.sessions(user) for user in ("n1", "n2")] + [
        view.find(name, owner) for name in "ab" for owner in ("a", "b", None)
    ]
    asked += [view.checkpoints(job_id) for job_id in ("j-1", "j-2", "j-3", "j-4")]
    for after in (0, view.last_seq() - 3):
        asked += [refused(lambda after=after, job=job: view.records(after, job=job)) for job in (None, "j-1", "j-2")]
    for filtered in (stores.JobFilter(owner="a"), stores.JobFilter(name="b", limit=1), stores.JobFilter(after="j-2")):
        asked.append(refused(lambda filtered=filtered: view.jobs(filtered)))
    return asked


def refused(ask: Callable[[], Any]) -> object:
    """The answer, or the error that took its place: by kind and words, since programs read both."""
    try:
        return ask()
    except (errors.OarlockError, Abandoned) as failure:
        return type(failure), str(failure)


def transaction(changes: list[tuple[Step, bool]], *, abandon: bool) -> Step:
    """Several steps in one; a refused one ends it, unless it is to be survived."""

    def change(t: stores.Transaction) -> list[object]:
        answers: list[object] = []
        for step, survive in changes:
            answers.append(refused(lambda step=step: step(t)) if survive else step(t))
            answers.append(t.last_seq())
        answers.append(everything(t))
        if abandon:
            raise Abandoned
        return answers

    return change


class StoreMachine(stateful.RuleBasedStateMachine):
    """`make` gives an empty database store, in the loop that all of its coroutines run in."""

    make: Callable[[], stores.Store]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.oracle = memory.MemoryStore()
        self.store = type(self).make()

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def both(self, ask: Callable[[stores.Store], Any]) -> None:
        given = [
            refused(lambda store=store: self.loop.run_until_complete(ask(store))) for store in (self.oracle, self.store)
        ]
        assert given[1] == given[0]

    @stateful.rule(
        changes=st.lists(st.tuples(steps(), st.booleans()), min_size=1, max_size=4),
        abandon=st.sampled_from([False, False, False, True]),
        epoch=st.none() | EPOCHS,
    )
    def write(self, changes: list[tuple[Step, bool]], abandon: bool, epoch: int | None) -> None:
        self.both(lambda store: store.write(transaction(changes, abandon=abandon), epoch=epoch))

    @stateful.rule(groups=st.lists(st.tuples(steps(), st.booleans()), min_size=2, max_size=5))
    def write_together(self, groups: list[tuple[Step, bool]]) -> None:
        """Queued at once: they may share a commit, and are done in their order."""

        async def ask(store: stores.Store) -> list[object]:
            asked = [store.write(transaction([(step, False)], abandon=abandon)) for step, abandon in groups]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            return [(type(one), str(one)) if isinstance(one, BaseException) else one for one in answers]

        self.both(ask)

    @stateful.rule(holder=NAMES, now=st.integers(0, 30))
    def lead(self, holder: str, now: int) -> None:
        self.both(lambda store: store.lead(holder, now=float(now), ttl_s=10.0))

    @stateful.rule(holder=NAMES, epoch=EPOCHS)
    def resign(self, holder: str, epoch: int) -> None:
        self.both(lambda store: store.resign(holder, epoch))

    @stateful.invariant()
    def the_same_is_read(self) -> None:
        self.both(lambda store: store.read(everything))
