"""The loops of the faces for `kubectl`, which go on after any error: one fault must not end `kubectl` for all users."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn

from oarlock.api.services import provided

AGAIN_FIRST_S, AGAIN_MOST_S = 1.0, 60.0
"""A loop is started again so long after an error that it did not expect, at first, and at most."""


@contextlib.asynccontextmanager
async def serving(
    services: provided.Services,
    run: Callable[[], Awaitable[object]],
    close: Callable[[], Awaitable[object]],
    *,
    told: str,
    meter: str,
) -> AsyncIterator[None]:
    """Run a face's loop within the context (`forever`), and close its objects in the end."""
    running = asyncio.create_task(forever(services, run, told=told, meter=meter))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await close()


async def forever(
    services: provided.Services, run: Callable[[], Awaitable[object]], *, told: str, meter: str
) -> NoReturn:
    """Run the loop, and start it again where it ends. An error is reported as `told`, and counted by `meter`."""
    now = asyncio.get_running_loop().time
    pause_s = AGAIN_FIRST_S
    while True:
        began = now()
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - it is reported and counted
            services.report(told, {"error": error})
            services.meters.failed(meter)
        if now() - began > AGAIN_MOST_S:
            pause_s = AGAIN_FIRST_S
        await asyncio.sleep(pause_s)
        pause_s = min(AGAIN_MOST_S, pause_s * 2)
