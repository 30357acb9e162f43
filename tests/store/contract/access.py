"""Tokens of users, and sessions."""

from __future__ import annotations

import msgspec
import pytest
from tests.store.contract import writing

from oarlock.spec import errors, phases
from oarlock.spec.access import users
from oarlock.store import stores


class Access:
    async def test_tokens_belong_to_users(self, store: stores.Store) -> None:
        token = users.Token(sha256="f" * 64, user="ann", created_at=1.0, note="laptop")
        with pytest.raises(errors.NotFound, match="no user ann"):
            await store.write(lambda t: t.put_token(token))
        await store.write(lambda t: (t.put_user(users.User(name="ann")), t.put_token(token)))
        await store.write(lambda t: t.put_token(msgspec.structs.replace(token, note="desk")))
        assert (await store.read(lambda v: v.token("f" * 64))).note == "desk"
        await store.write(lambda t: (t.remove_token("f" * 64), t.remove_token("f" * 64)))
        assert await store.read(lambda v: v.token("f" * 64)) is None

    async def test_sessions_end_with_their_token_and_with_time(self, store: stores.Store) -> None:
        def made(sha256: str, user: str = "ann", used: float = 2.0, **more) -> users.Session:
            return users.Session(sha256=sha256, user=user, token="t", created_at=used, used_at=used, **more)

        with pytest.raises(errors.NotFound, match="no such token"):
            await store.write(lambda t: t.put_session(made("a")))
        for user in ("ann", "bob"):
            await store.write(lambda t, user=user: t.put_user(users.User(name=user)))
        await store.write(lambda t: t.put_token(users.Token(sha256="t", user="ann", created_at=1.0)))
        with pytest.raises(errors.NotFound, match="bob has no such token"):
            await store.write(lambda t: t.put_session(made("a", user="bob")))
        await store.write(lambda t: t.put_token(users.Token(sha256="s", user="ann", created_at=1.0, note="laptop")))
        found = await store.read(lambda v: [(one.sha256, one.note) for one in v.tokens("ann")])
        assert (found, await store.read(lambda v: v.tokens("bob"))) == ([("s", "laptop"), ("t", "")], [])
        code, session = made("c", once=True), made("a", used=3.0, note="Firefox")
        await store.write(
            lambda t: (t.put_session(session), t.put_session(code), t.put_session(msgspec.structs.replace(session)))
        )
        assert await store.read(lambda v: (v.session("a"), v.sessions("ann"))) == (session, [code, session])
        assert await store.read(lambda v: (v.session("x"), v.sessions("bob"))) == (None, [])
        await store.write(lambda t: t.forget_sessions(2.0 + users.CODE_S))
        assert await store.read(lambda v: v.session("c")) == code, "it expires only after that moment"
        await store.write(lambda t: t.forget_sessions(2.1 + users.CODE_S))
        assert await store.read(lambda v: v.sessions("ann")) == [session]
        await store.write(lambda t: (t.put_session(code), t.remove_session("c"), t.remove_session("c")))
        assert await store.read(lambda v: v.sessions("ann")) == [session]
        token = users.Token(sha256="t", user="ann", created_at=1.0, note="made anew")
        for end in (lambda t: t.put_token(token), lambda t: t.remove_token("t")):
            await store.write(end)
            assert await store.read(lambda v: v.sessions("ann")) == []
            await store.write(lambda t: (t.put_token(token), t.put_session(session)))

    async def test_many_are_found_together_and_unknown_ones_are_left_out(self, store: stores.Store) -> None:
        token = users.Token(sha256="t", user="ann", created_at=1.0)
        session = users.Session(sha256="s", user="ann", token="t", created_at=1.0, used_at=1.0)
        for name in ("ann", "bob", "eve"):
            await store.write(lambda t, name=name: t.put_user(users.User(name=name)))
        await store.write(lambda t: (t.put_token(token), t.put_session(session)))
        odd = ["x", "nul\0", *map(str, range(2000))]
        found = await store.read(lambda v: v.users_by_name({"ann", "bob", *odd}))
        assert {name: one.name for name, one in found.items()} == {"ann": "ann", "bob": "bob"}
        assert await store.read(lambda v: v.tokens_by_digest({"t", "s", *odd})) == {"t": token}
        assert await store.read(lambda v: v.sessions_by_digest({"t", "s", *odd})) == {"s": session}
        none = await store.read(lambda v: (v.users_by_name([]), v.tokens_by_digest([]), v.sessions_by_digest([])))
        assert none == ({}, {}, {})

    async def test_a_user_is_removed_with_tokens_and_sessions_once_the_jobs_are_over(self, store: stores.Store) -> None:
        for name in ("ann", "bob"):
            token = users.Token(sha256=f"of-{name}", user=name, created_at=1.0)
            session = users.Session(sha256=f"s-{name}", user=name, token=f"of-{name}", created_at=1.0, used_at=1.0)
            await store.write(
                lambda t, name=name, token=token, session=session: (
                    t.put_user(users.User(name=name, right=users.Right.ADMIN)),
                    t.put_token(token),
                    t.put_token(msgspec.structs.replace(token, sha256=f"more-{name}")),
                    t.put_session(session),
                )
            )
        await writing.add(store, "j-1")
        await writing.add(store, "j-2", phase=phases.Phase.HALTED)
        for ended in ("j-2", "j-1"):
            with pytest.raises(errors.Conflict, match="of ann is not over"):
                await store.write(lambda t: t.remove_user("ann"))
            assert len(await store.read(lambda v: v.tokens("ann"))) == 2, "nothing is lost by a refusal"
            await writing.finish(store, ended)
        before = await store.read(lambda v: (v.tokens("bob"), v.sessions("bob"), v.last_seq()))
        await store.write(lambda t: (t.remove_user("ann"), t.remove_user("ann"), t.remove_user("\ud800")))
        found = await store.read(lambda v: (v.user("ann"), v.tokens("ann"), v.sessions("ann"), v.session("s-ann")))
        assert found == (None, [], [], None)
        assert [one.name for one in await store.read(lambda v: v.users())] == ["bob"]
        assert await store.read(lambda v: (v.tokens("bob"), v.sessions("bob"), v.last_seq())) == before
        assert await store.read(lambda v: v.job("j-1").owner) == "ann", "a job that is over keeps its owner's name"
        again = await store.write(lambda t: t.put_user(users.User(name="ann")))
        assert (again.version, again.right) == (1, users.Right.USER)
        assert await store.read(lambda v: (v.tokens("ann"), v.sessions("ann"))) == ([], [])
