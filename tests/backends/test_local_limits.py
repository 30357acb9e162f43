"""The limits of a task: those that the kernel keeps, and devices and ports claimed on the whole machine."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
from tests import needs
from tests.backends import contract, local_rig

from oarlock.backends import gpunames
from oarlock.backends.local import backend, cgroups, devices, gpus, locks, machine, ports
from oarlock.spec import attempts, errors, holdings
from oarlock.spec.cluster import nodes

KEY = contract.key()
State = contract.State
MIB = 1 << 20


LIMITED = {what: needs.mark("control groups", there=local_rig.can_limit(what)) for what in ("memory", "cpus")}


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


async def end_of(rig: local_rig.LocalRig, command: list[str], amount: holdings.Resources) -> attempts.Exit:
    await rig.backend.launch([rig.launch_of(KEY, command, amount=amount)])
    seen = await contract.until_state(rig, KEY, State.GONE)
    assert seen.exit is not None
    return seen.exit


@LIMITED["memory"]
async def test_a_task_above_its_memory_limit_is_killed_and_it_is_said(rig: local_rig.LocalRig) -> None:
    end = await end_of(rig, python("x = b'x' * (256 << 20)"), holdings.Resources(memory_bytes=64 * MIB))
    assert end.cause is attempts.Cause.OOM
    await rig.reopen()
    again = (await contract.seen(rig))[KEY].exit
    assert again is not None
    assert again.cause is attempts.Cause.OOM, "a later server says the same, though the counter is gone"


@LIMITED["memory"]
async def test_a_child_that_was_killed_for_memory_is_named_as_the_cause(rig: local_rig.LocalRig) -> None:
    code = "import os; pid = os.fork(); x = b'x' * (256 << 20) if not pid else 0; os.wait(); os._exit(9)"
    end = await end_of(rig, python(code), holdings.Resources(memory_bytes=64 * MIB))
    assert (end.code, end.cause) == (9, attempts.Cause.OOM)


@LIMITED["memory"]
async def test_a_task_that_succeeds_in_spite_of_it_has_succeeded(rig: local_rig.LocalRig) -> None:
    code = "import os; pid = os.fork(); x = b'x' * (256 << 20) if not pid else 0; os.wait(); os._exit(0)"
    end = await end_of(rig, python(code), holdings.Resources(memory_bytes=64 * MIB))
    assert end.cause is attempts.Cause.SUCCEEDED


@LIMITED["memory"]
async def test_within_the_limit_nothing_happens(rig: local_rig.LocalRig) -> None:
    end = await end_of(rig, python("x = b'x' * (32 << 20)"), holdings.Resources(memory_bytes=64 * MIB))
    assert end.cause is attempts.Cause.SUCCEEDED


@LIMITED["cpus"]
async def test_the_kernel_is_told_how_many_cpus(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE, amount=holdings.Resources(cpus_milli=1500))])
    group = groups_of(rig)
    files = [Path(directory) / name for directory in group.directories for name in ("cpu.max", "cpu.cfs_quota_us")]
    assert [path.read_text().split()[0] for path in files if path.exists()] == ["150000"]


@LIMITED["cpus"]
async def test_a_command_inside_is_limited_with_the_task(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.sleeper(KEY)])
    await rig.until((rig.directory(KEY) / "env.json").exists, "it runs")
    nap = local_rig.nap()
    process = await rig.backend.exec(KEY, ["sleep", nap])
    await rig.until(
        lambda: set(local_rig.living(nap)) <= cgroups.pids(groups_of(rig)) and bool(local_rig.living(nap)),
        "it is inside",
    )
    await process.kill()
    await local_rig.collect(process.output())


@local_rig.grouped
async def test_nothing_is_left_of_the_groups(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.sleeper(KEY)])
    directories = [Path(directory) for directory in groups_of(rig).directories]
    assert all(directory.is_dir() for directory in directories)
    await contract.kill_and_see(rig, KEY)
    await rig.backend.discard(KEY.job, KEY.attempt)
    assert not any(directory.exists() for directory in directories)
    await rig.backend.close()
    assert not any(directory.parent.exists() for directory in directories), "the home's own group too"


@local_rig.grouped
async def test_groups_of_homes_that_never_came_back_are_taken_away(rig: local_rig.LocalRig) -> None:
    """One that was only idle has its own made again: with its limits."""
    bases = rig.backend._groups.bases
    dead = bases[0].with_name("oarlock-test-dead")
    dead.mkdir()
    for base in (dead, *bases):
        os.utime(base, (0, 0))
    cgroups.probe(f"oarlock-test-{os.getpid()}").close()
    assert not dead.exists()
    assert not any(base.exists() for base in bases)
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE, amount=holdings.Resources(cpus_milli=1500))])
    assert all(Path(directory).is_dir() for directory in groups_of(rig).directories)
    await contract.kill_and_see(rig, KEY)


def groups_of(rig: local_rig.LocalRig) -> cgroups.Group:
    record = msgspec.json.decode((rig.directory(KEY) / "launch.json").read_bytes())
    return msgspec.convert(record["group"], cgroups.Group)


async def test_without_control_groups_it_is_said_that_nothing_is_enforced(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, groups=cgroups.Cgroups())
    (node,) = await rig.backend.nodes()
    assert node.labels["limit.memory"] == node.labels["limit.cpus"] == "not enforced"
    assert rig.backend.capabilities()["kill"] == "session"


async def test_this_machine_is_the_node(rig: local_rig.LocalRig) -> None:
    (node,) = await rig.backend.nodes()
    assert node.capacity.cpus_milli <= len(os.sched_getaffinity(0)) * 1000
    assert 0 < node.capacity.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (node.ready, node.devices) == (True, ())
    assert node.ports is not None
    low, _ = ports.ephemeral()
    assert node.ports[1] < low, "out of a range from which the kernel gives no program any"


LIMITS = [
    ("v2", {"cpu.max": "150000 100000", "memory.max": "1073741824"}, (1500, 1 << 30)),
    ("v2 free", {"cpu.max": "max 100000", "memory.max": "max"}, (0, 0)),
    ("v1", {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": "4096"}, (500, 4096)),
    (
        "v1 free",
        {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": str(2**63 - 4096)},
        (0, 0),
    ),
    ("none", {}, (0, 0)),
]


@pytest.mark.parametrize(("files", "limit"), [case[1:] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_the_limits_of_our_own_group_and_those_above_count(
    tmp_path: Path, files: dict[str, str], limit: tuple[int, int]
) -> None:
    own = tmp_path / "above" / "own"
    own.mkdir(parents=True)
    for name, text in files.items():
        (own.parent / name).write_text(text + "\n")
    found = cgroups.limits([cgroups.Mount(tmp_path, own)])
    assert (found.cpus_milli, found.memory_bytes) == limit


MOUNTS = """\
30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate
31 23 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
32 23 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 23 0:30 / /tmp rw - tmpfs tmpfs rw
"""
PLACES = "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/\n0::/user.slice/one.scope\n"


def test_the_mounts_are_found_with_our_place_in_each(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    (tmp_path / "cgroup").write_text(PLACES)
    root = Path("/sys/fs/cgroup")
    assert cgroups.find_mounts(tmp_path) == [
        cgroups.Mount(root, root / "user.slice/one.scope"),
        cgroups.Mount(root / "memory", root / "memory/inner", frozenset({"memory"})),
        cgroups.Mount(root / "cpu,cpuacct", root / "cpu,cpuacct", frozenset({"cpu"})),
    ]


def test_a_group_that_no_process_can_enter_is_not_used(tmp_path: Path) -> None:
    """Directories can be made, but they are none of the kernel's: nothing is left of the trial."""
    mount = cgroups.Mount(tmp_path, tmp_path / "own")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "oarlock-x").write_text("in the way")
    found = cgroups.probe("oarlock-x/y", mounts=[mount])
    assert (found.unified, found.enforced) == (None, {})


async def test_virtual_nodes_share_the_machine_and_pretend_devices(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, virtual_nodes=3, virtual_gpus=2)
    found = await rig.backend.nodes()
    assert [node.name for node in found] == ["virtual-0", "virtual-1", "virtual-2"]
    assert {node.capacity for node in found} == {machine.capacity() + holdings.Resources(gpus=2)}
    assert all(device.virtual and device.type == "virtual" for node in found for device in node.devices)
    taken = [port for node in found for port in range(node.ports[0], node.ports[1] + 1)]
    assert len(taken) == len(set(taken)) > 0, "no port of one is a port of another"
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE, node="virtual-2", devices=(1,))])
    await rig.until((rig.directory(KEY) / "env.json").exists, "tasks are real")
    assignment = msgspec.json.decode((rig.directory(KEY) / "assignment.json").read_bytes())
    assert assignment["gpus"] == [], "a pretended device is none: a real one stays hidden"
    with pytest.raises(errors.Unavailable):
        await rig.backend.launch([rig.launch_of(contract.key(1), "true", node="virtual-3")])
    with pytest.raises(errors.Unavailable):
        await rig.backend.launch([rig.launch_of(contract.key(1), "true", node="local")])


@pytest.mark.parametrize(("count", "pretended"), [(-1, 0), (0, 2), (1001, 0), (1, 10**9)])
def test_a_cluster_that_cannot_be_pretended_is_refused(home: Path, count: int, pretended: int) -> None:
    with pytest.raises(errors.InvalidInput):
        backend.LocalBackend(home, agent=home / "a.pyz", virtual_nodes=count, virtual_gpus=pretended)


TWO = [
    gpus.Gpu(0, "GPU-aa", "NVIDIA H100 80GB HBM3", 80 << 30),
    gpus.Gpu(1, "GPU-bb", "NVIDIA H100 80GB HBM3", 80 << 30),
]


async def test_a_task_sees_its_devices_and_no_other(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, found_gpus=gpus.Pretended(TWO))
    (node,) = await rig.backend.nodes()
    assert node.capacity.gpus == 2
    assert node.devices[1] == nodes.Device(index=1, type="h100", memory_bytes=80 << 30, uuid="GPU-bb")
    await rig.backend.launch(
        [rig.launch_of(KEY, local_rig.IMMUNE, devices=(1,)), rig.launch_of(contract.key(1), local_rig.IMMUNE)]
    )
    given = [
        msgspec.json.decode((rig.directory(key) / "assignment.json").read_bytes()) for key in (KEY, contract.key(1))
    ]
    assert [one["gpus"] for one in given] == [[1], []]
    assert given[0]["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


async def test_two_homes_do_not_share_a_device(home: Path, rigs: local_rig.Rigs, tmp_path: Path) -> None:
    here = rigs(home, found_gpus=gpus.Pretended(TWO))
    there = rigs(tmp_path / "second", found_gpus=gpus.Pretended(TWO))

    async def offered(rig: local_rig.LocalRig) -> list[int]:
        (node,) = await rig.backend.nodes()
        return [device.index for device in node.devices]

    await here.backend.launch([here.launch_of(KEY, local_rig.IMMUNE, devices=(0,))])
    assert (await offered(here), await offered(there)) == ([0, 1], [1])
    with pytest.raises(errors.Unavailable, match="another Oarlock home"):
        await there.backend.launch([there.launch_of(KEY, local_rig.IMMUNE, devices=(0,))])
    await contract.until_state(there, KEY, State.RUNNING)
    await contract.kill_and_see(there, KEY)
    await there.backend.launch([there.launch_of(contract.key(1), local_rig.IMMUNE, devices=(1,))])

    await here.backend.close()
    assert await offered(there) == [1], "the server is away, its task and the agent's claim are not"
    await here.reopen()
    assert await offered(here) == [0], "the new one knows its own"
    await contract.kill_and_see(here, KEY)
    assert (await offered(here), await offered(there)) == ([0], [0, 1])


async def test_a_device_is_free_for_others_once_its_task_is_gone(
    home: Path, rigs: local_rig.Rigs, tmp_path: Path
) -> None:
    """Both ways in which that is found out: by a look, and in discarding."""
    here = rigs(home, found_gpus=gpus.Pretended(TWO))
    there = rigs(tmp_path / "second", found_gpus=gpus.Pretended(TWO))
    await here.backend.launch([here.launch_of(KEY, local_rig.IMMUNE, devices=(0,))])
    await contract.kill_and_see(here, KEY)
    assert (await there.backend.nodes())[0].capacity.gpus == 2
    await here.backend.launch([here.launch_of(contract.key(1), "exit 0", devices=(0,))])
    await here.until((here.directory(contract.key(1)) / "exit.json").exists, "it has ended")
    await here.until(lambda: not local_rig.living(str(here.directory(contract.key(1)))), "its agent too")
    await here.backend.discard(KEY.job, KEY.attempt)
    assert (await there.backend.nodes())[0].capacity.gpus == 2


async def test_a_device_stays_claimed_while_anything_outlives_the_agent(
    home: Path, rigs: local_rig.Rigs, tmp_path: Path
) -> None:
    here = rigs(home, found_gpus=gpus.Pretended(TWO))
    there = rigs(tmp_path / "second", found_gpus=gpus.Pretended(TWO))
    await here.backend.launch([here.launch_of(KEY, local_rig.IMMUNE, devices=(0,))])
    await here.until((here.directory(KEY) / "env.json").exists, "it runs")
    await here.backend.close()
    await here.reopen()
    await contract.until_state(here, KEY, State.RUNNING)
    os.kill(int((here.directory(KEY) / "agent.pid").read_text().split()[0]), 9)
    await contract.until_state(here, KEY, State.ENDED)
    (node,) = await there.backend.nodes()
    assert [device.index for device in node.devices] == [1]


async def test_a_device_that_is_gone_is_said(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home, found_gpus=gpus.Pretended(TWO))
    with pytest.raises(errors.Unavailable, match="GPU 7"):
        await rig.backend.launch([rig.sleeper(KEY), rig.launch_of(contract.key(1), "true", devices=(7,))])
    assert await contract.seen(rig) == {}, "nothing is half-made"


NAMES = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA A100-SXM4-40GB": "a100",
    "NVIDIA A100-PCIE-40GB": "a100",
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla T4": "t4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce GTX 1080 Ti": "gtx1080ti",
    "NVIDIA RTX A6000": "a6000",
    "Quadro RTX 8000": "rtx8000",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "": "gpu",
}


@pytest.mark.parametrize(("name", "word"), NAMES.items(), ids=list(NAMES))
def test_types_are_named_as_jobs_name_them(name: str, word: str) -> None:
    assert gpunames.type_name(name) == word


VISIBLE = {None: [0, 1], "": [], "1": [1], "1,0": [0, 1], "GPU-a": [0], "1,7,0": [1], "-1": [], "0,0": [0], "GPU-": []}


@pytest.mark.parametrize(("variable", "left"), VISIBLE.items(), ids=repr)
def test_devices_that_are_hidden_from_the_server_are_not_handed_out(variable: str | None, left: list[int]) -> None:
    assert [gpu.index for gpu in gpus.visible(TWO, variable)] == left


class FakeNvml:
    """NVML as nvidia-ml-py speaks it; `broken` names the call that fails."""

    class NVMLError(Exception):
        pass

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    def __getattr__(self, name: str) -> object:
        if name == self._broken:
            raise self.NVMLError(name)
        return {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda handle: holdings_like(total=80 << 30),
            "nvmlDeviceGetUUID": lambda handle: ("GPU-aa", b"GPU-bb")[handle],
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H100 80GB HBM3",
        }[name]


class holdings_like:
    def __init__(self, total: int) -> None:
        self.total = total


def test_nvml_is_asked() -> None:
    assert gpus.Nvml(library=FakeNvml()).look() == TWO
    assert gpus.Nvml("1", library=FakeNvml()).look() == TWO[1:]


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_driver_that_fails_has_no_devices(broken: str) -> None:
    assert gpus.Nvml(library=FakeNvml(broken)).look() == []


def test_without_a_driver_the_package_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes 4 % of the time in which a server starts."""
    asked = []

    def library(name: str) -> None:
        asked.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", library)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert gpus.Nvml().look() == []
    assert asked == ["libnvidia-ml.so.1"]
    assert "pynvml" not in sys.modules


def test_a_lock_is_one_for_the_whole_machine_and_follows_nobodys_link(tmp_path: Path) -> None:
    held = locks.claim("gpu-x", where=tmp_path)
    assert held is not None
    assert locks.claim("gpu-x", where=tmp_path) is None
    assert (tmp_path / "oarlock-gpu-x.lock").stat().st_mode & 0o777 == 0o444, "others can claim it, nobody can write"
    os.close(held)
    again = locks.claim("gpu-x", where=tmp_path)
    assert again is not None
    os.close(again)
    (tmp_path / "victim").write_text("")
    (tmp_path / "oarlock-gpu-y.lock").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "oarlock-gpu-z.lock")
    for name in ("gpu-y", "gpu-z"):
        with pytest.raises(OSError):  # noqa: PT011  (which error is the kernel's affair)
            locks.claim(name, where=tmp_path)
    assert locks.place() in (Path("/run/lock"), Path("/tmp"))


def test_a_broken_lock_directory_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    broken = devices.Devices(
        gpus.Pretended(TWO),
        lambda name: locks.claim(name, where=missing),
        lambda name: locks.share(name, 1, where=missing),
    )
    for shared in (False, True):
        with pytest.raises(errors.Unavailable):
            broken.take(KEY, ["GPU-aa"], shared=shared)


def test_shares_of_one_owner_stand_beside_each_other_and_nothing_else(tmp_path: Path) -> None:
    """Two servers of different homes, each with several tasks; a restarted server has nothing of the first one's."""
    ours, theirs = 5, 2**62 - 1
    first = locks.share("gpu-x", ours, where=tmp_path)
    again = locks.share("gpu-x", ours, where=tmp_path)
    assert first is not None
    assert again is not None
    assert locks.share("gpu-x", theirs, where=tmp_path) is None
    assert locks.share("gpu-x", 0, where=tmp_path) is None
    assert locks.claim("gpu-x", where=tmp_path) is None
    os.close(first)
    assert locks.share("gpu-x", theirs, where=tmp_path) is None, "one of ours is left"
    os.close(again)
    other = locks.share("gpu-x", theirs, where=tmp_path)
    assert other is not None
    assert locks.share("gpu-x", ours, where=tmp_path) is None
    os.close(other)
    whole = locks.claim("gpu-x", where=tmp_path)
    assert whole is not None
    assert locks.share("gpu-x", ours, where=tmp_path) is None
    os.close(whole)


async def test_two_tasks_share_a_device_of_this_home_and_no_other(
    home: Path, rigs: local_rig.Rigs, tmp_path: Path
) -> None:
    """A restarted server starts a third beside them; another home is not even shown the device."""
    here = rigs(home, found_gpus=gpus.Pretended(TWO))
    there = rigs(tmp_path / "second", found_gpus=gpus.Pretended(TWO))
    keys = [contract.key(index) for index in range(3)]
    half = holdings.Resources(gpu_milli=300)
    tasks = [here.launch_of(key, local_rig.IMMUNE, devices=(1,), amount=half) for key in keys]
    await here.backend.launch(tasks[:2])
    await here.until(lambda: all((here.directory(key) / "env.json").exists() for key in keys[:2]), "they run")
    await here.backend.close()
    await here.reopen()
    await here.backend.launch(tasks[2:])
    await here.until((here.directory(keys[2]) / "env.json").exists, "it runs")
    for key in keys:
        assert json.loads((here.directory(key) / "env.json").read_text())["CUDA_VISIBLE_DEVICES"] == "1"
    assert [device.index for device in (await there.backend.nodes())[0].devices] == [0]
    assert len((await here.backend.nodes())[0].devices) == 2
    with pytest.raises(errors.Unavailable, match="another Oarlock home"):
        await there.backend.launch([there.launch_of(KEY, "true", devices=(1,), amount=half)])
    with pytest.raises(errors.Unavailable, match="another Oarlock home"):
        await here.backend.launch([here.launch_of(contract.key(7), "true", devices=(1,))])
    for key in keys:
        await contract.kill_and_see(here, key)
    assert len((await there.backend.nodes())[0].devices) == 2


ROOMS = [
    ("usual", (32_768, 60_999), (20_000, 29_999)),
    ("low", (22_500, 60_999), (20_000, 22_499)),
    ("lower", (15_000, 60_999), (10_000, 14_999)),
    ("everything", (1_024, 60_999), (61_000, 65_535)),
    ("no room", (1_024, 65_535), (20_000, 29_999)),
]


@pytest.mark.parametrize(("ephemeral", "room"), [case[1:] for case in ROOMS], ids=[case[0] for case in ROOMS])
def test_ports_come_from_where_the_kernel_takes_none(ephemeral: tuple[int, int], room: tuple[int, int]) -> None:
    assert ports.room(*ephemeral) == room


async def test_two_homes_have_no_port_in_common_and_a_restart_finds_its_own(
    rigs: local_rig.Rigs, tmp_path: Path
) -> None:
    four = [rigs(tmp_path / "homes" / str(number)) for number in range(4)]
    ranges = sorted([(await rig.backend.nodes())[0].ports for rig in four])
    assert all(one[1] < two[0] for one, two in itertools.pairwise(ranges))
    before = (await four[2].backend.nodes())[0].ports
    await four[2].backend.close()
    await four[2].reopen()
    assert (await four[2].backend.nodes())[0].ports == before


def test_where_no_port_is_left_it_is_said() -> None:
    taken = ports.take("ff", 1000, lambda _: None)
    assert not taken.certain
    assert taken.last - taken.first + 1 == 1000


async def test_a_disk_that_is_full_leaves_nothing_half_made(tmp_path: Path) -> None:
    with needs.small_disk(tmp_path / "full", "64k") as home:
        rig = local_rig.LocalRig(home)
        try:
            big = {"FILL": "x" * 100_000}
            launches = [rig.sleeper(contract.key(0)), rig.launch_of(contract.key(1), "true", env=big)]
            with pytest.raises(errors.Unavailable, match="No space"):
                await rig.backend.launch(launches)
            assert await contract.seen(rig) == {}
            assert not [path for path in (home / "tasks").rglob("*") if path.is_file()]
        finally:
            await rig.close()


async def test_a_home_that_cannot_be_written_is_said(home: Path, rigs: local_rig.Rigs) -> None:
    rig = rigs(home)
    home.mkdir(exist_ok=True)
    (home / "tasks").write_text("a file in the way")
    with pytest.raises(errors.Unavailable):
        await rig.backend.launch([rig.sleeper(KEY)])
    (home / "tasks").unlink()
