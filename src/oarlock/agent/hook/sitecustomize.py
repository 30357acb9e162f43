"""A hook in a user's Python process that writes its stacks on request. It is first on PYTHONPATH: Python imports it.

It acts only if OARLOCK_REPORT is set. SIGUSR2 then makes the interpreter write every thread's stack into a file. That
happens in C, so it works in a hung collective and in an endless loop. The ready file shows that this process can
answer. If the program takes SIGUSR2 for itself, the ready file is deleted.

If the agent asked for it, standard output is flushed at the end of each line.

Then the sitecustomize that this one hides, if there is one, runs as usual. The hook prints nothing, and none of its
errors reaches the program. Python 3.6 and newer.
"""


def _answer_with_stacks() -> None:
    import os

    report = os.environ.get("OARLOCK_REPORT")
    if not report or not os.path.isdir(report):
        return
    import _signal  # type: ignore[import-not-found]  # the core of `signal`, without its enums: 3 ms less
    import atexit
    import faulthandler

    state = {"fd": -1, "pid": 0}

    def path(suffix: str) -> str:
        return os.path.join(report, f"stack-{state['pid']}.{suffix}")

    def withdraw() -> None:
        if state["pid"] == os.getpid():
            for suffix in ("ready", "txt"):
                try:
                    os.unlink(path(suffix))
                except Exception:
                    pass

    def register() -> None:
        try:
            if state["fd"] >= 0:
                os.close(state["fd"])  # the parent's file, after a fork
            state["fd"], state["pid"] = -1, os.getpid()
            fd = os.open(path("txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                import fcntl

                # A high number: programs may count on 3 being free.
                high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
                os.close(fd)
                fd = high
            except Exception:
                pass
            state["fd"] = fd
            faulthandler.register(_signal.SIGUSR2, file=fd, all_threads=True, chain=False)
            ready = os.open(path("ready"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.write(ready, path("txt").encode())
            os.close(ready)
        except Exception:
            pass

    set_handler = _signal.signal

    def signal(signalnum: int, handler: object) -> object:
        if signalnum == _signal.SIGUSR2:
            withdraw()
        return set_handler(signalnum, handler)

    register()
    _signal.signal = signal  # the signal module calls this
    atexit.register(withdraw)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=register)


def _flush_by_line() -> None:
    """Write each line of output at once, so that a process that dies loses none of them."""
    import os
    import sys

    if os.environ.get("PYTHONUNBUFFERED") == "lines":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def _run_hidden() -> None:
    import os
    import sys
    from _frozen_importlib_external import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from _frozen_importlib import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)  # `site` reports its errors, as without this hook


for step in (_answer_with_stacks, _flush_by_line):
    try:
        step()
    except Exception:
        pass
_run_hidden()
