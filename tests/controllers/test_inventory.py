"""The inventory looks now and then, and soon after the backend has told of a change."""

from __future__ import annotations

import pytest

from oarlock.backends import fake
from oarlock.controllers import inventory, leadership
from oarlock.spec import holdings
from oarlock.spec.cluster.nodes import Node
from oarlock.store import memory


class Telling(fake.Fake):
    """A backend that knows when its machines change."""

    told = False
    looks = 0

    async def nodes(self) -> list[Node]:
        self.told = False
        self.looks += 1
        return await super().nodes()

    def nodes_changed(self) -> bool:
        return self.told


async def test_a_change_is_read_soon_but_not_at_once_again_and_again() -> None:
    now = [1000.0]
    clock = lambda: now[0]  # noqa: E731
    store = memory.MemoryStore()
    node = Node(name="n", capacity=holdings.Resources(8000))
    backend = Telling(fake.World([node], lambda task: fake.Behaviour(), clock))
    leading = leadership.Leading(store, holder="h:1", clock=clock)
    await leading.tick()
    controller = inventory.Inventory(store, backend, leading, clock=clock)
    await controller.tick()
    assert backend.looks == 1

    now[0] += 1.0
    await controller.tick()
    assert backend.looks == 1, "nothing was told, and the period is not over"
    assert controller.wake_at() == 1000.0 + inventory.PERIOD_S
    taken = holdings.Resources(3000)
    backend.world.add(Node(name="n", capacity=holdings.Resources(8000), taken=taken))
    backend.told = True
    await controller.tick()
    assert backend.looks == 2
    (stored,) = await store.read(lambda view: view.nodes())
    assert stored.taken == taken
    lines = await store.read(lambda view: view.records(0))
    assert [(one.kind, one.job, one.data["names"]) for one in lines] == [("nodes", "", ["n"])] * 2, "joined, changed"

    backend.told = True
    now[0] += inventory.SPACING_S / 2
    await controller.tick()
    assert backend.looks == 2
    assert controller.wake_at() == 1001.0 + inventory.SPACING_S, "no other wake-up is needed"
    now[0] = 1001.0 + inventory.SPACING_S
    await controller.tick()
    assert backend.looks == 3
    assert controller.wake_at() == now[0] + inventory.PERIOD_S
    now[0] += inventory.PERIOD_S
    await leading.tick()
    await controller.tick()
    assert backend.looks == 4
    assert await store.read(lambda view: view.last_seq()) == 2, "nothing has changed since"


async def test_a_look_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend has told its change, and does not tell it once more."""
    now = [1000.0]
    clock = lambda: now[0]  # noqa: E731
    store = memory.MemoryStore()
    backend = Telling(fake.World([], lambda task: fake.Behaviour(), clock))
    leading = leadership.Leading(store, holder="h:1", clock=clock)
    controller = inventory.Inventory(store, backend, leading, clock=clock)
    backend.told = True
    assert controller.wake_at() is None, "another server leads"
    await leading.tick()
    await controller.tick()
    now[0] += 1.0
    backend.world.add(Node(name="n", capacity=holdings.Resources(8000)))
    backend.told = True
    with monkeypatch.context() as failing:
        failing.setattr(store, "write", None)
        with pytest.raises(TypeError):
            await controller.tick()
    await controller.tick()
    assert [node.name for node in await store.read(lambda view: view.nodes())] == ["n"]
    now[0] -= 100.0  # the clock steps back
    looks = backend.looks
    await controller.tick()
    assert backend.looks == looks + 1
    assert controller.wake_at() == now[0] + inventory.PERIOD_S
