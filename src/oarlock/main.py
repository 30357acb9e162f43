"""The composition root: the only place that chooses implementations.

`serve(settings)` is a server from its start to its end: it takes the home's lock, opens the store and the data
directories, starts the backend and the control loops on a thread of their own, and answers HTTP on this one. Settings
(`configuration`) are read once, here.

    this thread         uvicorn, the application; logs, blobs and metrics through their own small thread pools
    "controllers"       an event loop with the backend and every control loop: a long plan holds up no request
    store threads       one writer, a few readers
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import getpass
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import oarlock
from oarlock import configuration
from oarlock.scheduler.reuse import memos
from oarlock.spec import errors
from oarlock.spec.access import privacy
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    import uvicorn

    from oarlock.api.process import checkpoints, claimedcheckpoints, homefolder, results
    from oarlock.api.security import secretfiles
    from oarlock.api.services import meters, provided
    from oarlock.backends import backends, provisioners, remains, tensorboards
    from oarlock.backends.kubernetes import examining, site
    from oarlock.controllers import running, timing
    from oarlock.controllers.guarding import assigning, launching
    from oarlock.data import storage
    from oarlock.spec import jobs
    from oarlock.store import stores

Settings = configuration.Settings
read_settings = configuration.read
ENGINE_GRACE_S = 10.0
"""The time that control loops have to finish their work at the end."""
GRACE_S = 5.0  # how long requests that are under way may take when the server ends
ORPHAN_TIMEOUT_S = 600.0
"""The time without a server after which the agent of a pod ends its task. A local agent waits for ever."""


def serve(settings: Settings) -> None:
    """Run a server until it is told to end (SIGTERM, SIGINT, POST /api/v1/shutdown). Its jobs run on.

    Raises Conflict where the home has a server already, Unavailable where home, store or port cannot be used.
    """
    from oarlock.api.process import arming, collecting, connections, ending, homefolder, serverlog

    home = homefolder.Home(settings.home)
    home.lock()
    try:
        serverlog.open_log(settings.home / "server.log", settings.log_level.upper())
        arming.arm(os.environ)
        connections.allow_many()
        collecting.rarely()
        ending.without_collection()
        asyncio.run(Server(settings, home).run())
    finally:
        home.unlock()


class Server:
    """One server, from the sockets to the last thread."""

    def __init__(self, settings: Settings, home: homefolder.Home) -> None:
        self._settings = settings
        self._home = home
        self._started_at = time.time()
        self._ending = asyncio.Event()

    async def run(self) -> None:
        from oarlock.api import application
        from oarlock.api.process import connections, ending, listening, serverlog
        from oarlock.api.security import authentication
        from oarlock.api.services import meters
        from oarlock.controllers import succession
        from oarlock.store.sql import database

        settings = self._settings
        sock = listen(settings.host, settings.port, self._home.earlier_port())
        port = sock.getsockname()[1]
        url = settings.url or settings.own_url(port, socket.gethostname())
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(sock.close)
            store = await asyncio.to_thread(
                database.open_store, settings.database or f"sqlite:///{settings.home / 'oarlock.db'}"
            )
            stack.push_async_callback(store.close)
            token = self._home.token(secrets.token_bytes)
            await authentication.admit_owner(store, getpass.getuser(), token, at=self._started_at)
            standby = settings.standby or settings.backend != configuration.LOCAL  # every server sees the same pods
            clock = await _clock(store)
            await succession.succeed(
                store, succession.home_id(settings.home), shared=settings.database is not None, standby=standby
            )
            kept = Kept.opened(settings, stack)
            measured = meters.Meters()
            loop = asyncio.get_running_loop()
            engine = Engine(settings, self._home, store, kept, measured, url, clock)
            engine.on_end = lambda: loop.call_soon_threadsafe(self.end)
            await stack.enter_async_context(engine.living())
            stack.callback(kept.checkpoints.close)  # before the engine ends: it may be waiting for a long reading
            made = self._services(store, kept, engine, measured, url)
            if settings.backend == configuration.KUBERNETES:
                await self._show(made, engine, stack)
            counted = connections.OpenConnections.within_limits(serverlog.report)
            listener = connections.Listener(sock, counted)
            stack.callback(listener.close)
            pages = self._with_pages(application.make(made), made)
            http = listening.http(pages, counted, grace_s=GRACE_S, tls_cert=settings.tls_cert, tls_key=settings.tls_key)
            stack.callback(self._home.withdraw)

            async def begin() -> None:
                """Announce the server. Raises Unavailable where pods do not reach it, or the home takes no file."""
                await engine.check_reached()
                self._home.announce(self._file(url), port)
                serverlog.report("started", {"url": url, "seconds": round(time.time() - self._started_at, 3)})

            try:
                with ending.by_signals(self.end):
                    await self._until_ended(http, listener, made, begin())
            except errors.OarlockError as error:
                serverlog.report("not_begun", {"url": url, "error": error})
                raise
            if engine.failure is not None:
                serverlog.report("control_loops_failed", {"error": engine.failure})
                raise errors.Unavailable(
                    f"the control loops ended: {engine.failure!r}",
                    hint=f"Start it again; {settings.home / 'server.log'} says more, please report it.",
                )
            serverlog.report("ended", {"url": url})

    async def _show(self, made: provided.Services, engine: Engine, stack: contextlib.AsyncExitStack) -> None:
        """Serve OarlockJobs and OarlockPools until the stack ends."""
        from oarlock.api.customresources import face, poolface
        from oarlock.backends.kubernetes import oarlockjobs, oarlockpools

        site, times = engine.site, {"clock": time.time, "monotonic": time.monotonic}
        jobs = oarlockjobs.connect(site, os.environ, **times)
        leads, launches = engine.leads, engine.launches
        faced = face.serving(made, jobs, site.namespaces, leads=leads, launches=launches, monotonic=time.monotonic)
        await stack.enter_async_context(faced)
        pools = oarlockpools.connect(site, os.environ, **times)
        await stack.enter_async_context(poolface.serving(made, pools, leads=engine.leads))

    def _with_pages(self, api: Any, made: provided.Services) -> Any:
        """Return the API with the pages around it."""
        from oarlock.api import application
        from oarlock.spec.protocol import tasktokens
        from oarlock.web import opening

        paths = frozenset(route.path.split("/")[1] for route in application.TABLE)
        server, secure = tasktokens.of_server(made.task_secret), made.about.url.startswith("https:")
        told = opening.Settings(server=server, api=paths, hosts=made.hosts, secure=secure, report=made.report)
        return opening.Opening(api, told)

    async def _until_ended(
        self, http: uvicorn.Server, sock: socket.socket, made: provided.Services, begin: Coroutine[Any, Any, None]
    ) -> None:
        """Answer requests until the end is requested, or `begin` fails; then let them end, and raise its error."""
        serving = asyncio.create_task(http.serve(sockets=[sock]))
        ending = asyncio.create_task(self._ending.wait())
        beginning = asyncio.create_task(begin)
        beginning.add_done_callback(lambda begun: self.end() if begun.cancelled() or begun.exception() else None)
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        [begun] = await asyncio.gather(beginning, return_exceptions=True)
        made.wakes.close()
        http.should_exit = True
        ending.cancel()
        await serving
        if isinstance(begun, Exception):  # not where it was merely canceled
            raise begun

    def _services(
        self, store: stores.Store, kept: Kept, engine: Engine, measured: meters.Meters, url: str
    ) -> provided.Services:
        from oarlock.api.jobs import capabilities
        from oarlock.api.process import crossing, examination, health, serverlog
        from oarlock.api.security import authentication
        from oarlock.api.services import forecaster, inbox, provided, wakes
        from oarlock.client import programs
        from oarlock.controllers import nodeclasses

        root, settings = self._settings.home, self._settings
        over = crossing.Crossing(engine.loop)
        woken = wakes.Wakes(store, time.monotonic, measured.queue_wait_s.observe)
        secret = self._home.task_secret(secrets.token_bytes)
        words: frozenset[str] = capabilities.LOCAL
        examine = examination.Examination(lambda: programs.find(os.environ.get("PATH")), time.monotonic)
        image: str | None = None
        if settings.backend == configuration.KUBERNETES:
            own, image = settings.kubernetes, engine.site.image
            words = capabilities.kubernetes(own.offered, own.profile_mounts(), *own.claims, own.checkpoint_url)
        return provided.Services(
            store=store,
            logs=kept.logs,
            metrics=kept.metrics,
            blobs=kept.blobs,
            exec=crossing.Exec(over, engine.backend),
            secrets=kept.secrets,
            checkpoints=kept.checkpoints,
            results=kept.results,
            files=kept.files,
            received=kept.received,
            health=health.Health(store, lambda: over.over(engine.backend.nodes), engine.clock, kept.folders),
            about=provided.About(
                version=oarlock.__version__,
                backend=engine.backend.name,
                home=str(root),
                url=url,
                started_at=self._started_at,
                local=settings.host in configuration.LOOPBACK,
                capabilities=capabilities.told(words, engine.backend.capabilities()),
                currency=settings.prices.currency,
            ),
            image=image,
            task_secret=secret,
            clock=engine.clock,
            entropy=secrets.token_bytes,
            shutdown=self.end,
            report=serverlog.report,
            wakes=woken,
            inbox=inbox.Inbox(store, engine.clock, woken.touched),
            meters=measured,
            authenticator=authentication.Authenticator(store, secret, time.monotonic, engine.clock),
            rules=nodeclasses.NodeClasses(settings.rules, engine.adds).rules,
            manifests=crossing.crossed(over, engine.manifests) if engine.manifests else None,
            tensorboards=crossing.TensorBoards(over, engine.tensorboards) if engine.tensorboards else None,
            forecaster=forecaster.Forecaster(names=privacy.Names(settings.private_jobs, secret)),
            examine=examine if settings.backend == configuration.LOCAL else None,
            snapshot_limit_bytes=settings.snapshot_limit_bytes,
            settings=settings.shown,
            hosts=settings.hosts,
        )

    def end(self) -> None:
        self._ending.set()

    def _file(self, url: str) -> homefolder.ServerFile:
        from oarlock.api.process import homefolder

        return homefolder.ServerFile(
            url=url,
            pid=os.getpid(),
            started_at=self._started_at,
            version=oarlock.__version__,
            token_file=str(self._settings.home / "token"),
        )


class Kept(msgspec.Struct, frozen=True):
    """The content of the home's data directories."""

    logs: storage.Logs
    metrics: storage.Metrics
    blobs: storage.Blobs
    secrets: secretfiles.SecretFiles
    checkpoints: checkpoints.CheckpointDirectories | claimedcheckpoints.ClaimedCheckpoints
    results: results.ResultDirectories
    files: storage.JobFiles
    received: storage.ReceivedFiles
    folders: Mapping[str, Path]  # those that must take files

    @classmethod
    def opened(cls, settings: Settings, stack: contextlib.AsyncExitStack) -> Kept:
        from oarlock.api.process import checkpoints, claimedcheckpoints, results
        from oarlock.api.security import secretfiles
        from oarlock.data import jobfiles, receivedfiles
        from oarlock.data.checkpoints import storedfiles
        from oarlock.data.logs import logfiles
        from oarlock.data.metrics import metricfiles
        from oarlock.data.snapshots import blobs
        from oarlock.data.transfers import authorities

        root, in_pods = settings.home, settings.backend == configuration.KUBERNETES
        shared = in_pods and settings.database is not None  # by servers of one cluster and one database
        kept_logs = logfiles.DirectoryLogs(root / "logs", shared=shared)
        kept_metrics = metricfiles.DirectoryMetrics(root / "metrics", shared=shared)
        stack.callback(kept_logs.close)
        stack.callback(kept_metrics.close)
        saved: Any = checkpoints.CheckpointDirectories(root / "checkpoints")
        if in_pods:
            stack.enter_context(authorities.trusted(settings.store_authorities))
            saved = claimedcheckpoints.opened(settings.claimed_checkpoints, settings.kubernetes.checkpoint_url)
        files: storage.JobFiles = jobfiles.DirectoryJobFiles(root)
        return cls(
            logs=kept_logs,
            metrics=kept_metrics,
            blobs=blobs.DirectoryBlobs(root / "blobs"),
            secrets=secretfiles.SecretFiles(root / "secrets"),
            checkpoints=saved,
            results=results.ResultDirectories(root / "results", root / "files"),
            files=storedfiles.StoredJobFiles(files, saved.objects) if saved.objects is not None else files,
            received=receivedfiles.DirectoryReceivedFiles(root),
            # Blobs begin as drafts, and a file beside them would be taken for a folder of blobs.
            folders={"home": root, "blobs": root / "blobs/drafts", "logs": root / "logs", "metrics": root / "metrics"},
        )


class Engine:
    """The thread on which the backend and the control loops live."""

    def __init__(
        self,
        settings: Settings,
        home: homefolder.Home,
        store: stores.Store,
        kept: Kept,
        measured: meters.Meters,
        url: str,
        clock: timing.Clock,
    ) -> None:
        self.clock = clock
        self._settings = settings
        self._home = home
        self._store = store
        self._kept = kept
        self._meters = measured
        self._url = url
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stop = asyncio.Event()
        self.on_end: Callable[[], object] = lambda: None  # called on the engine's thread
        self.adds: provisioners.Provisioner | None = None  # nodes
        self._owner: launching.OwnerOf | None = None
        self._remains: remains.Remains | None = None
        self._references: launching.ReferencesOf | None = None
        self.tensorboards: tensorboards.TensorBoards | None = None
        self._check: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.manifests: Callable[[jobs.Job], Coroutine[Any, Any, list[dict[str, Any]]]] | None = None
        self.leads: Callable[[], bool] = lambda: False
        self.launches: Callable[[], bool] = lambda: False
        self.failure: BaseException | None = None  # the error that ended it: a server without it must not go on
        self.loop: asyncio.AbstractEventLoop
        self.backend: backends.Backend
        self.site: site.Site

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Run the engine's thread. Raises the error that keeps the backend from starting."""
        thread = threading.Thread(target=self._thread, name="controllers", daemon=True)
        thread.start()
        await asyncio.wrap_future(self._ready)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # it has ended by itself: its loop is closed
                self.loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, ENGINE_GRACE_S)

    async def check_reached(self) -> None:
        """Let a pod try whether it reaches the server. Raises Unavailable where it does not."""
        if self._check is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._check(), self.loop))

    def _thread(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - told to all callers that wait for the engine
            if self._ready.done():
                self.failure = error
            else:
                self._ready.set_exception(error)
        with contextlib.suppress(RuntimeError):  # no caller waits any more
            self.on_end()

    async def _live(self) -> None:
        from oarlock.agent import zipapp

        self.loop = asyncio.get_running_loop()
        self.backend = await self._kubernetes() if self._settings.backend != configuration.LOCAL else self._local()
        try:
            runner = self._runner(zipapp.hook_directory())
            self._ready.set_result(None)
            await runner.run(self._stop)
        finally:
            await self.backend.close()

    def _local(self) -> backends.Backend:
        from oarlock.agent import zipapp
        from oarlock.api.process import libraries
        from oarlock.backends.local import backend, cgroups

        root, settings = self._settings.home, self._settings
        return backend.LocalBackend(
            root,
            agent=zipapp.build(root / "agent" / f"agent-{libraries.digest(zipapp.PACKAGE)}.pyz"),
            virtual_nodes=settings.virtual_nodes,
            virtual_gpus=settings.virtual_gpus,
            groups=None if settings.cgroups else cgroups.Cgroups(),
            clock=self.clock,
        )

    async def _kubernetes(self) -> backends.Backend:
        """Raise InvalidInput where there is no kubeconfig, Unavailable where the cluster does not answer."""
        try:
            from oarlock.backends.kubernetes import backend, site
        except ModuleNotFoundError as error:
            raise errors.Unsupported(
                f"The Kubernetes backend needs the package {error.name}, which is not installed.",
                hint="Install it: pip install 'oarlock[kubernetes]'",
            ) from error
        from oarlock.api.security import jobsecrets
        from oarlock.controllers.guarding import launching

        settings = self._settings
        told = site.completed(settings.kubernetes, self._home.task_secret(secrets.token_bytes), settings.tls_ca)
        opened = await backend.connect(told, os.environ, clock=self.clock, wall=time.time, monotonic=time.monotonic)
        self._check = lambda: opened.check_reached(settings.pods_url(self._url))
        self.site, self._owner = opened.site, opened.owner
        self.adds, self._remains = opened.provisioner(), opened.remains()
        boards = opened.boards(settings.pods_url(self._url), self._home.task_secret(secrets.token_bytes))
        self.tensorboards = boards
        self._references = references = functools.partial(jobsecrets.references, self._store, self._kept.secrets)
        agents = self._told_to_agents(Path())
        self.manifests = launching.rehearsal(functools.partial(opened.manifests, boards=boards), references, agents)
        return opened

    def _runner(self, hook: Path) -> running.Runner:
        """Return the control loops, each over the same store and the one backend."""
        from oarlock.agent.protocol import blanking
        from oarlock.api.security import jobsecrets
        from oarlock.controllers import (
            inventory,
            leadership,
            measuring,
            provisioning,
            retention,
            running,
            sampling,
            succession,
            sweeping,
            tensorboards,
            timing,
        )
        from oarlock.controllers.guarding import guardian, leftovers
        from oarlock.controllers.scheduling import scheduling
        from oarlock.data import jobarchive
        from oarlock.scheduler import planning

        store, kept, clock, settings = self._store, self._kept, self.clock, self._settings
        process = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        holder = succession.holder(succession.home_id(settings.home), process)
        leader = leadership.Leading(store, holder=holder, clock=clock)
        self.leads = lambda: leader.epoch is not None
        blanker = jobsecrets.covering(kept.secrets, blanking.Blanker)
        left = leftovers.Leftovers(self.backend, kept.logs, kept.metrics, blanker=blanker, clock=clock)
        report, told = running.report, self._told_to_agents(hook)
        owner, named = self._owner, self._references
        guard = guardian.Guardian(
            store, self.backend, leader, left, told, clock=clock, report=report, owner=owner, references=named
        )
        self.launches = guard.is_launching
        return running.Runner(
            [
                timing.Timing(store, leader, clock),
                inventory.Inventory(store, self.backend, leader, clock=clock, prices=settings.prices),
                scheduling.Scheduling(
                    store,
                    leader,
                    planning.plan,
                    clock=clock,
                    report=report,
                    rules=settings.rules,
                    provisioner=self.adds,
                    names=privacy.Names(settings.private_jobs, self._home.task_secret(secrets.token_bytes)),
                    memo=memos.Memo(),
                ),
                guard,
                provisioning.Provisioning(store, self.adds, leader, clock=clock, report=report, rules=settings.rules),
                tensorboards.TensorBoards(store, self.tensorboards, leader, clock=clock),
                sweeping.Sweeping(store, self._remains, leader, clock=clock),
                measuring.Measuring(store, leader, clock=clock, report=report),
                sampling.Sampling(store, leader, clock=clock, rules=settings.rules),
                retention.Retention(
                    store,
                    leader,
                    kept.logs,
                    kept.metrics,
                    kept.blobs,
                    jobarchive.ArchiveFile(settings.home / "archive.jsonl"),
                    kept.checkpoints,
                    kept.results,
                    clock=clock,
                    report=report,
                    policy=retention.Policy(keep_jobs_s=quantities.seconds(settings.keep_jobs)),
                ),
            ],
            leader,
            store,
            self.backend,
            clock=clock,
            monotonic=time.monotonic,
            cpu=time.thread_time,
            observer=self._meters,
        )

    def _told_to_agents(self, hook: Path) -> assigning.Settings:
        from oarlock.api.process import libraries
        from oarlock.controllers.guarding import assigning

        root = self._settings.home
        if self._settings.backend == configuration.KUBERNETES:
            from oarlock.backends.kubernetes.pods import rendering

            return assigning.Settings(
                server=self._settings.pods_url(self._url),
                task_secret=self._home.task_secret(secrets.token_bytes),
                checkpoints=self._settings.claimed_checkpoints,
                stored_checkpoints=self._settings.stored_checkpoints,
                checkpoints_visible=False,
                results="oarlock:results",
                files="oarlock:files",
                shell=rendering.SHELL,
                shell_server=rendering.SHELL_SERVER,
                orphan_timeout_s=ORPHAN_TIMEOUT_S,
            )
        return assigning.Settings(
            server=self._url,
            server_file=str(root / "server.json"),
            task_secret=self._home.task_secret(secrets.token_bytes),
            ca_file=self._settings.tls_ca,
            checkpoints=str(root / "checkpoints"),
            results=(root / "results").as_uri(),
            files=(root / "files").as_uri(),
            environments=str(root / "environments"),
            helper=(sys.executable, "-m", "oarlock.data", "--home", str(root)),
            train_path=str(libraries.library(root / "library", Path(oarlock.__file__).parent)),
            hook_path=str(hook),
        )


async def _clock(store: stores.Store) -> timing.Clock:
    """Return the server's clock, which goes on where an earlier server's stood."""
    from oarlock.backends.local import processes
    from oarlock.controllers import timing

    processes.require()
    boottime = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)  # noqa: E731  (a value of a struct)
    machine = timing.Machine(boot=processes.boot(), wall=time.time, monotonic=time.monotonic, boottime=boottime)
    return timing.Clock(machine, await store.read(lambda view: view.clock_anchor()))


def listen(host: str, port: int, earlier: int = 0) -> socket.socket:
    """Do as `listening.listen` says: `oarlock doctor` tries it too."""
    from oarlock.api.process import listening

    return listening.listen(host, port, earlier)


def examine(settings: Settings, url: str) -> list[examining.Result]:
    """Examine the cluster of the settings. `url` is that of a running server, or empty. Blocks."""
    from oarlock.backends.kubernetes import examining, site
    from oarlock.data.checkpoints import trying

    async def examined() -> list[examining.Result]:
        told = site.completed(settings.kubernetes, b"", settings.tls_ca)
        found = await examining.of(told, os.environ, url, clock=time.time, monotonic=time.monotonic)
        stored, trusted = settings.kubernetes.checkpoint_url, settings.store_authorities
        return [*found, examining.Result("checkpoints", *await trying.finding(stored, trusted))] if stored else found

    return asyncio.run(examined())


def main(arguments: Sequence[str]) -> int:
    """Run a server in the foreground: `python -m oarlock.main [--port 7317] ...`."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m oarlock.main", description="Run an Oarlock server.")
    for name in configuration.FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}")
    try:
        serve(read_settings(flags=vars(parser.parse_args(arguments))))
    except errors.OarlockError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
