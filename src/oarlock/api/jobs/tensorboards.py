"""The TensorBoard that runs beside a job: its state, and connections to it.

A connection is a web socket with the frames of `exec` (`execution`): `0` and bytes go in, `1` and bytes come out, and a
text frame tells the end. It has the right that `exec` needs: the job's owner, or an administrator.
"""

from __future__ import annotations

from oarlock.api import failures, routes
from oarlock.api.jobs import execution
from oarlock.spec import bodies, errors, intents, jobs
from oarlock.spec.access import users

_State = bodies.TensorBoardState


async def show(call: routes.Call) -> bodies.TensorBoard:
    job = await call.access.job(call.path["job"])
    return await _state(call, job)


async def _state(call: routes.Call, job: jobs.Job) -> bodies.TensorBoard:
    way = call.services.tensorboards
    if way is None or not way.makes or not asks(job):
        return bodies.TensorBoard(state=_State.NONE)
    if job.live is None:
        why = f"`oarlock why {call.path['job']}`"
        return bodies.TensorBoard(state=_State.STARTING, reason=f"the job is {job.phase} ({why})")
    board = await way.of(job)
    reason = board.reason if board is not None else "it is not made yet"
    return bodies.TensorBoard(state=_State.STARTING if reason else _State.RUNNING, reason=reason)


def asks(job: jobs.Job) -> bool:
    """Return whether the job has a TensorBoard, or will have one with its next attempt."""
    return job.spec.tensorboard and not job.terminal and job.intent is intents.Intent.RUN


async def connect(call: routes.Call) -> None:
    job = await call.access.job(call.path["job"])
    way = call.services.tensorboards
    if way is None or not job.spec.tensorboard:
        raise errors.NotFound(
            f"{job.name} has no TensorBoard beside it.",
            hint="`tensorboard: true` in a job file asks for one, on a cluster whose settings name an image for it.",
        )
    if job.live is None:
        raise errors.Conflict(f"{job.name} does not run: {job.phase}.", hint=execution.instead(job, call.path["job"]))
    socket = execution.Socket(call.receive, call.send)
    await socket.accept()
    try:
        process = await way.connect(job)
    except errors.OarlockError as error:
        await socket.text(failures.body(error))
        await socket.close()
        return
    await execution.converse(socket, process)


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/tensorboard",
        show,
        "the TensorBoard that runs beside the job",
        bodies.TensorBoard,
    ),
    routes.Route(
        method="WS",
        path="/api/v1/jobs/{job}/tensorboard/connection",
        handler=connect,
        needs=users.Right.USER,
        summary="one connection to the job's TensorBoard",
        long=True,
    ),
)
