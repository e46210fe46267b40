"""Of two copies of slurmctld's state the newer one goes on, and the other one is kept."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.slurm_state import StateCopy
from hyperpod_kit.node.slurm import controller, hooks, lease, state
from hyperpod_kit.node.slurm.saved_state import (
    RunningSlurmctld,
    SavedState,
    choose_state_copy_or_none,
    parse_job_state,
    read_saved_state,
)
from hyperpod_kit.run import Completed
from tests.support.slurm_commands import PrivateSlurmPaths, SlurmCommands
from tests.support.wait import until
from tests.unit.job import private_slurm

NOW = 1_800_000_000.0
OTHER = lease.LeaseOwner("i-0other", "ip-10-1-0-9")
needs_root = pytest.mark.needs("root")
needs_slurm = pytest.mark.needs("slurm")


def content(at: float, next_job: int, *jobs: str, version: bytes = b"PROTOCOL_VERSION\0", backfill: int = 8) -> bytes:
    header = struct.pack(">I", len(version)) + version + struct.pack(">HqI", 0x2600, int(at), next_job)
    return header + bytes(backfill) + b"".join(job.encode().ljust(150, b".") for job in jobs)


def copy(at: float, next_job: int, *jobs: str) -> SavedState:
    return parse_job_state("somewhere", content(at, next_job, *jobs))


CHOICES = [
    ("only the shared one", copy(NOW - 9, 5, "4"), None, StateCopy.SHARED),
    ("only the own one", None, copy(NOW - 9, 5, "4"), StateCopy.LOCAL),
    ("none at all", None, None, StateCopy.SHARED),
    ("both the same", copy(NOW - 9, 5, "4"), copy(NOW - 9, 5, "4"), StateCopy.SHARED),
    ("slurmctld went on in its own", copy(NOW - 99, 25, "24"), copy(NOW - 1, 26, "25"), StateCopy.LOCAL),
    ("the same second, another number", copy(NOW - 1, 25, "24"), copy(NOW - 1, 3, "2"), None),
    ("its last job may have ended there", copy(NOW - 99, 26, "25"), copy(NOW - 1, 26), None),
    ("the same number, saved later", copy(NOW - 99, 26, "25"), copy(NOW - 1, 26, "24"), None),
    ("all jobs ended there", copy(NOW - 99, 25, "24"), copy(NOW - 1, 30), StateCopy.LOCAL),
    ("slurmctld went on in the shared one", copy(NOW - 1, 26, "25"), copy(NOW - 99, 25, "24"), StateCopy.SHARED),
    ("a controller began anew", copy(NOW - 99, 25, "24"), copy(NOW - 1, 1), StateCopy.SHARED),
    ("both began anew", copy(NOW - 99, 1), copy(NOW - 1, 1), StateCopy.SHARED),
    ("the shared directory was emptied", copy(NOW - 1, 1), copy(NOW - 99, 25, "24"), StateCopy.LOCAL),
    ("a controller began anew, and has a job", copy(NOW - 99, 25, "24"), copy(NOW - 1, 3, "2"), None),
    ("numbers went round", copy(NOW - 99, 67_000_000, "66999999"), copy(NOW - 1, 3, "2"), None),
    ("the same second, the same number", copy(NOW - 1, 25, "24"), copy(NOW - 1, 25, "x"), None),
    ("a clock that was ahead", copy(NOW + 86_400, 25, "24"), copy(NOW - 1, 25, "x"), None),
    ("a clock in the first year", copy(5, 25, "24"), copy(NOW - 1, 26, "25"), None),
    ("no header of Slurm's", parse_job_state("s", b"jobs"), copy(NOW - 1, 26, "25"), None),
    ("nor in the own one", copy(NOW - 1, 26, "25"), parse_job_state("s", b"\0" * 99), None),
]


@pytest.mark.parametrize("shared, own, choice", [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_which_copy_goes_on(
    shared: Optional[SavedState], own: Optional[SavedState], choice: Optional[StateCopy]
) -> None:
    assert choose_state_copy_or_none(shared, own, NOW) == choice
    mirrored = {StateCopy.SHARED: StateCopy.LOCAL, StateCopy.LOCAL: StateCopy.SHARED, None: None}
    if shared and own and (shared.has_jobs or own.has_jobs) and shared.digest != own.digest:
        assert choose_state_copy_or_none(own, shared, NOW) == mirrored[choice], (
            "neither place counts more than the other"
        )
    while_created = choose_state_copy_or_none(shared, own, NOW, is_new_controller=True)
    assert while_created == (choice or StateCopy.SHARED), "a controller that is being created stops for nobody"


PROOF = object()
"""The copy that was saved later, if it is proved to go on from the other one."""

SHA, OWN, PRO, NON = StateCopy.SHARED, StateCopy.LOCAL, PROOF, None
COMBINATIONS = [
    # own is saved later, in the same second, earlier; its next number is each time higher, the same, lower
    ("both have jobs", (True, True), (OWN, PRO, NON, NON, NON, NON, NON, PRO, SHA)),
    ("only shared has jobs", (True, False), (OWN, PRO, SHA, NON, SHA, SHA, NON, SHA, SHA)),
    ("only own has jobs", (False, True), (OWN, OWN, NON, OWN, OWN, NON, OWN, PRO, SHA)),
    ("neither has jobs", (False, False), (OWN, SHA, SHA, OWN, SHA, SHA, OWN, SHA, SHA)),
]
RUNNING = {
    "no slurmctld runs": (None, None, None),
    "on shared": (RunningSlurmctld(SHA, NOW - 500, True), None, SHA),
    "on own, since before shared was saved, with the lease": (RunningSlurmctld(OWN, NOW - 500, True), OWN, None),
    "on own, since the second in which shared was saved": (RunningSlurmctld(OWN, NOW - 50, True), None, None),
    "on own, since then": (RunningSlurmctld(OWN, NOW - 49, True), None, None),
    "on own, the lease was another's": (RunningSlurmctld(OWN, NOW - 500, False), None, None),
}
"""What runs -> (it, what a later own copy is then, what a later shared copy is then)."""


@pytest.mark.parametrize("running", RUNNING)
@pytest.mark.parametrize("jobs, choices", [row[1:] for row in COMBINATIONS], ids=[row[0] for row in COMBINATIONS])
def test_all_combinations(jobs: Tuple[bool, bool], choices: Sequence[Any], running: str) -> None:
    """Of equal numbers the later copy goes on only where it is proved to be the other one's successor."""
    slurmctld, own_later, shared_later = RUNNING[running]
    shared = copy(NOW - 50, 26, *(["25"] if jobs[0] else []))
    seen = []
    for at in (NOW - 10, NOW - 50, NOW - 90):
        for number in (27, 26, 25):
            own = copy(at, number, *(["24"] if jobs[1] else []))
            seen.append(choose_state_copy_or_none(shared, own, NOW, running=slurmctld))
    proved = {1: own_later, 7: shared_later}
    expected = [proved[place] if choice is PROOF else choice for place, choice in enumerate(choices)]
    assert seen == expected


@pytest.mark.parametrize("backfill", [0, 8], ids=["before 22.05", "since 22.05"])
def test_the_header_as_each_release_writes_it(backfill: int) -> None:
    empty, one = content(NOW, 7, backfill=backfill), content(NOW, 7, "6", backfill=backfill)
    assert (
        parse_job_state("p", empty).saved_at,
        parse_job_state("p", empty).next_job,
        parse_job_state("p", empty).has_jobs,
    ) == (int(NOW), 7, False)
    assert parse_job_state("p", one).has_jobs
    for cut in range(len(content(NOW, 7, backfill=0))):
        assert parse_job_state("p", one[:cut]).saved_at is None, "a file that was cut off has no age"
    assert parse_job_state("p", content(NOW, 7, version=b"PROTOCOL_VERSIOM\0")).saved_at is None


def test_a_file_that_slurmctld_was_just_replacing_is_read_as_slurmctld_reads_it(tmp_path: Path) -> None:
    assert read_saved_state(str(tmp_path / "nowhere")) is None and read_saved_state(str(tmp_path)) is None
    (tmp_path / "job_state.old").write_bytes(content(NOW, 7))
    (tmp_path / "job_state.new").write_bytes(content(NOW, 8))
    found = read_saved_state(str(tmp_path))
    assert found is not None and found.next_job == 7
    (tmp_path / "job_state").write_bytes(content(NOW, 9))
    found = read_saved_state(str(tmp_path))
    assert found is not None and found.next_job == 9


class Copies:
    """A shared state and a newer own one, in a directory."""

    def __init__(self, base: Path) -> None:
        self.mount, self.base, self.own = base / "fsx", base / "fsx/.hyperpod-kit/demo", base / "own"
        shutil.rmtree(base, ignore_errors=True)
        (self.base / "slurmctld/hash.1/job.1").mkdir(parents=True)
        self.own.mkdir()
        for path in (self.mount, self.base.parent, self.base, self.base / "slurmctld"):
            path.chmod(0o755)
        self.old, self.new = content(NOW - 99, 25, "24"), content(NOW - 1, 26, "25")
        (self.base / "slurmctld/job_state").write_bytes(self.old)
        (self.own / "job_state").write_bytes(self.new)

    def take_own(self, now: float = NOW) -> str:
        return state._make_chosen_copy_shared_in_child(
            str(self.mount), str(self.base), "root", str(self.own), "i-0me", StateCopy.LOCAL, now
        )

    def kept(self) -> List[bytes]:
        return [path.read_bytes() for path in sorted(self.base.glob("slurmctld.kept-*/job_state"))]


OPERATIONS = ("rename", "mkdir", "chown", "chmod", "fsync", "unlink", "rmdir")


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Do that in a process that is killed before its operation of that number; whether it was."""
    pid = os.fork()
    if pid == 0:
        count = [0]

        def counted(name: str) -> Any:
            real = getattr(os, name)

            def act(*given: Any, **named: Any) -> Any:
                count[0] += 1
                if count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **named)

            return act

        for name in OPERATIONS:
            setattr(os, name, counted(name))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@needs_root
def test_an_exchange_that_is_killed_anywhere_ends_at_the_next_run_with_both_copies(tmp_path: Path) -> None:
    number = 0
    killed = True
    while killed:
        number += 1
        copies = Copies(tmp_path / "c")
        killed = killed_before(number, copies.take_own)
        before = state._read_shared_state(str(copies.base))
        assert before is not None, f"operation {number}: no moment without a state"
        if choose_state_copy_or_none(before, read_saved_state(str(copies.own)), NOW) == StateCopy.LOCAL:
            copies.take_own()
        else:
            state._make_chosen_copy_shared_in_child(
                str(copies.mount), str(copies.base), "root", str(copies.own), "i-0me", StateCopy.SHARED, NOW
            )
        assert (copies.base / "slurmctld/job_state").read_bytes() == copies.new, f"operation {number}"
        assert copies.old in copies.kept(), f"operation {number}: the older one is kept"
        assert (copies.own / "job_state").read_bytes() == copies.new
        left = sorted(path.name for path in copies.base.iterdir() if ".kept-" not in path.name)
        assert left in (["lease", "slurmctld"], ["lease", "slurmctld", "slurmctld.seed-i-0me"]), f"operation {number}"
    assert number > 8, "operations were met"


@needs_root
def test_a_machine_that_is_lost_in_the_middle_of_the_exchange_leaves_the_newer_state(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "c")
    os.rename(copies.own, copies.base / "slurmctld.next")
    os.rename(copies.base / "slurmctld", copies.base / "slurmctld.kept-20270115T075959Z")
    # Another machine, whose own slurmctld has begun anew.
    copies.own.mkdir()
    (copies.own / "job_state").write_bytes(content(NOW, 1))
    shared, own = state._read_shared_state(str(copies.base)), read_saved_state(str(copies.own))
    assert choose_state_copy_or_none(shared, own, NOW) == StateCopy.SHARED
    state._make_chosen_copy_shared_in_child(
        str(copies.mount), str(copies.base), "root", str(copies.own), "i-1", StateCopy.SHARED, NOW
    )
    assert (copies.base / "slurmctld/job_state").read_bytes() == copies.new


@needs_root
def test_so_many_copies_are_kept_and_each_has_a_name_of_its_own(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "c")
    for number in range(state.KEEPS + 3):
        (copies.own / "job_state").write_bytes(content(NOW + number, 30 + number))
        assert "its previous content is kept in" in copies.take_own(NOW + number)
    assert copies.kept() == [content(NOW + number, 30 + number) for number in range(2, state.KEEPS + 2)]
    (copies.own / "job_state").write_bytes(content(NOW, 99))
    copies.take_own(5.0)
    assert len(copies.kept()) == state.KEEPS and content(NOW + state.KEEPS + 2, 32 + state.KEEPS) in copies.kept()


class SlurmOfNode(SlurmCommands):
    """systemctl and scontrol are about the private slurmctld; nothing else is there."""

    def __init__(self, slurm: private_slurm.PrivateSlurm) -> None:
        super().__init__(slurm.environment)
        self.slurm = slurm

    def answer(self, argv: List[str], env: Mapping[str, str], input: Optional[str]) -> Completed:
        if Path(argv[0]).name not in ("systemctl", "scontrol"):
            return Completed(tuple(argv), 0, "", "")
        return super().answer(argv, env, input)

    def systemctl(self, arguments: List[str]) -> tuple[int, str]:
        daemon = self.slurm._daemons.get("slurmctld")
        if arguments[0] == "is-active":
            return (0 if daemon is not None and daemon.poll() is None else 3), ""
        if arguments[0] == "stop" and daemon is not None:
            daemon.terminate()
            daemon.wait(60)
        if arguments[0] == "start":
            self.slurm.start_controller()
        return 0, ""


@pytest.fixture
def slurm() -> Iterator[private_slurm.PrivateSlurm]:
    with private_slurm.running(nodes=2) as found:
        yield found


@pytest.fixture
def controller_node(slurm: private_slurm.PrivateSlurm, make_node: Any) -> Any:
    """The controller of a private Slurm, with its configuration where a node has it and a mount for its state."""
    mount = LustreMount("fsx", f"{slurm.base}/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
    os.mkdir(mount.path)
    fake = make_node([mount], role="controller")
    paths = PrivateSlurmPaths(str(fake.root), str(slurm.base))
    bundled = fake.root / "opt/hyperpod-kit/current/slurm"
    bundled.mkdir(parents=True)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\n")
    (fake.root / "var/lib/hyperpod-kit").mkdir(parents=True)
    (fake.root / "var/lib/hyperpod-kit/status.json").write_text("{}")
    fake.mounted(mount.path, "lustre", "10.1.0.1@tcp:/abcdefgh")
    fake.clock.wall = time.time
    fake.node = replace(
        fake.node,
        paths=paths,
        runner=SlurmOfNode(slurm),
        config=replace(fake.node.config, slurm_state="fsx"),
        facts=replace(fake.node.facts, cluster="4add21d3c8fc", instance_id="i-0me"),
    )
    return fake


def submit(slurm: private_slurm.PrivateSlurm) -> str:
    job = slurm.sbatch("--ntasks=1", "--wrap", "sleep 600", "-o", "/dev/null", cwd=slurm.base)
    slurm.wait_for_script(job)
    return job


def change(slurm: private_slurm.PrivateSlurm, job: str, name: str, saved_in: str) -> None:
    """Rename a job, and wait until slurmctld has saved that."""
    slurm.call("scontrol", "update", f"jobid={job}", f"name={name}")
    until(lambda: name.encode() in Path(saved_in, "job_state").read_bytes(), timeout=180, what=f"{name} in {saved_in}")


def drop_our_lines(fake: Any, slurm: private_slurm.PrivateSlurm) -> None:
    conf = Path(fake.node.paths.slurm_conf)
    conf.write_text(hooks.without_kit_block(conf.read_text()))
    slurm.call("scontrol", "reconfigure")
    shown = f"StateSaveLocation       = {slurm.base}/state"
    until(lambda: shown in slurm.call("scontrol", "show", "config"), what="its own place")


def _is_cancelled(slurm: private_slurm.PrivateSlurm, job: str) -> bool:
    return slurm.state(job) == "CANCELLED"


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize("linked", [True, False], ids=["its own place leads there", "its own place is a directory"])
def test_a_slurm_conf_that_lost_our_lines_costs_no_job_and_no_number(
    controller_node: Any, slurm: private_slurm.PrivateSlurm, linked: bool
) -> None:
    """Real slurmctld: it goes on elsewhere after `scontrol reconfigure`, and comes back with what it knows by then."""
    node = controller_node.node
    where = state.shared_state_location(node)
    assert where is not None
    assert controller.install_hooks_and_move_state(node)[0] and os.readlink(slurm.base / "state") == where.state
    first, second = submit(slurm), submit(slurm)
    if not linked:
        os.unlink(slurm.base / "state")
        (slurm.base / "state").mkdir()
    drop_our_lines(controller_node, slurm)
    third = submit(slurm)
    for job in (first, second):
        slurm.call("scancel", job)
        until(partial(_is_cancelled, slurm, job), timeout=180, what=f"job {job} cancelled")
    planned = controller.describe_pending_hooks_and_state_move(node)
    assert planned.startswith(f"keep Slurm's state in {where.state}")
    changed, notes = controller.install_hooks_and_move_state(node)
    assert (
        changed
        and hooks.parse_slurm_conf_settings(Path(node.paths.slurm_conf).read_text())["statesavelocation"] == where.state
    )
    until(lambda: slurm.state(third) == "RUNNING", what="the third job, running on")
    assert [slurm.state(job) for job in (first, second)] == ["CANCELLED", "CANCELLED"]
    fourth = submit(slurm)
    assert int(fourth) == int(third) + 1, "no number is given twice"
    kept = sorted(Path(where.base).glob("slurmctld.kept-*"))
    assert len(kept) == (0 if linked else 1)
    if not linked:
        assert any(str(kept[0]) in note for note in notes), notes
        assert read_saved_state(str(kept[0])) is not None
    assert os.readlink(slurm.base / "state") == where.state
    assert controller.describe_pending_hooks_and_state_move(node) == "" and controller.install_hooks_and_move_state(
        node
    ) == (False, [])


def copy_while_slurmctld_saves(state: str, copy: Path) -> None:
    """Copy a state whose files slurmctld exchanges one by one; a copy that misses one of them is made again."""

    def is_copied() -> bool:
        shutil.rmtree(copy, ignore_errors=True)
        try:
            shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.new"))
        except shutil.Error:
            return False
        return True

    until(is_copied, what="a copy of Slurm's state")


@pytest.mark.full
@needs_slurm
@pytest.mark.parametrize(
    "went_on", [True, False], ids=["the same slurmctld went on", "another was started on an old copy"]
)
def test_equal_job_numbers_need_one_slurmctld_that_saved_both(
    controller_node: Any, slurm: private_slurm.PrivateSlurm, went_on: bool
) -> None:
    """Nothing is submitted after our lines are lost, and what was saved later is not always what is newer."""
    node = controller_node.node
    where = state.shared_state_location(node)
    assert where is not None
    os.chmod(where.mount.path, 0o755)
    state.make_state_directories(node, where)
    assert lease.try_take_and_delete_older(where.lease, 0, lease.LeaseOwner("i-0me", node.facts.node)) == 1
    job, own = submit(slurm), slurm.base / "state"
    assert controller.install_hooks_and_move_state(node)[0]
    os.unlink(own)
    copy_while_slurmctld_saves(where.state, own)
    change(slurm, job, "changed", where.state)
    if not went_on:
        node.runner.systemctl(["stop", "slurmctld.service"])
        conf = Path(node.paths.slurm_conf)
        conf.write_text(hooks.without_kit_block(conf.read_text()))
        slurm.start_controller()
    else:
        drop_our_lines(controller_node, slurm)
    change(slurm, job, "once-more", str(own))
    shared = read_saved_state(where.state)
    assert shared is not None
    if not went_on:
        with pytest.raises(state.UndecidedState, match=f"shared is .*{shared.next_job}; own is .*{shared.next_job}"):
            controller.install_hooks_and_move_state(node)
        assert slurm.state(job) == "RUNNING" and not list(Path(where.base).glob("slurmctld.kept-*"))
        return
    planned = controller.describe_pending_hooks_and_state_move(node)
    assert "of the two copies of Slurm's state, `own` is used: shared is " in planned, planned
    changed, notes = controller.install_hooks_and_move_state(node)
    assert changed and any("`own` is used: shared is " in note for note in notes), notes
    assert "JobName=once-more" in slurm.call("scontrol", "show", "job", job) and slurm.state(job) == "RUNNING"


@needs_slurm
def test_two_copies_that_contradict_each_other_stop_the_command_and_not_slurmctld(
    controller_node: Any, slurm: private_slurm.PrivateSlurm
) -> None:
    node = controller_node.node
    where = state.shared_state_location(node)
    assert where is not None
    running = submit(slurm)
    (Path(where.base) / "slurmctld").mkdir(parents=True)
    for path in (where.mount.path, Path(where.base).parent, where.base):
        os.chmod(path, 0o755)
    os.chmod(where.state, 0o700)
    until((slurm.base / "state/job_state").exists, what="a saved state")
    (Path(where.state) / "job_state").write_bytes(content(NOW - 4e8, 99, "98"))
    with pytest.raises(state.UndecidedState, match="next job number 99; own is ") as caught:
        controller.install_hooks_and_move_state(node)
    assert "--slurm-state shared" in (caught.value.hint or "")
    assert not any("stop" in call for call in node.runner.calls) and slurm.state(running) == "RUNNING"
    with pytest.raises(state.UndecidedState):
        controller.describe_pending_hooks_and_state_move(node)
    _, notes = controller.install_hooks_and_move_state(replace(node, requested_state_copy=StateCopy.LOCAL))
    assert slurm.state(running) == "RUNNING" and "its previous content is kept in" in notes[0]
    kept = list(Path(where.base).glob("slurmctld.kept-*/job_state"))
    assert [path.read_bytes() for path in kept] == [content(NOW - 4e8, 99, "98")]


@pytest.fixture
def fake(make_node: Any) -> Any:
    mount = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
    found = make_node([mount], role="controller")
    found.node = replace(
        found.node,
        config=replace(found.node.config, slurm_state="fsx"),
        facts=replace(found.node.facts, cluster="4add21d3c8fc", instance_id="i-0me"),
    )
    found.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    os.chmod(found.root / "fsx", 0o755)
    return found


@pytest.mark.full
@needs_root
def test_a_shared_state_that_another_machine_may_work_on_is_not_put_aside(fake: Any) -> None:
    where = state.shared_state_location(fake.node)
    assert where is not None
    state.make_chosen_copy_the_shared_one(fake.node, where, "root", "", StateCopy.SHARED)
    place = fake.node.paths.under_root(where.lease)
    assert lease.try_take_and_delete_older(place, 0, OTHER) == 1
    slept = fake.clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        lease.write_heartbeat_if_still_owner(place, 1, str(fake.clock.now))

    fake.clock.sleep = sleep
    with pytest.raises(NodeError, match=r"ip-10-1-0-9 \(i-0other\) has Slurm's state"):
        controller.claim_lease_or_require_others_down(fake.node, where)
    fake.clock.sleep = slept
    controller.claim_lease_or_require_others_down(fake.node, where)  # it has ceased to renew
    before = lease.list_owner_generations(place)
    controller.claim_lease_or_require_others_down(fake.node, where)
    assert lease.list_owner_generations(place) == before, "the lease that this machine has is left to its unit"


def test_with_two_controllers_the_other_one_must_be_down(fake: Any) -> None:
    where = state.shared_state_location(fake.node)
    assert where is not None
    node = replace(fake.node, config=replace(fake.node.config, controllers=2))
    scontrol = f"{node.paths.scontrol} ping"
    fake.runner.on(scontrol, out="Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at ip-10-1-0-11 is UP\n")
    with pytest.raises(NodeError, match="while slurmctld runs on ip-10-1-0-11"):
        controller.claim_lease_or_require_others_down(node, where)
    fake.runner.on(scontrol, out="Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is DOWN\n")
    controller.claim_lease_or_require_others_down(node, where)


def test_a_slurmctld_that_cannot_be_moved_is_started_again(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = fake.node
    bundled = fake.root / "opt/hyperpod-kit/current/slurm"
    bundled.mkdir(parents=True)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\n")
    conf = Path(node.paths.slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text("SlurmUser=root\nStateSaveLocation=/var/spool/slurmctld\n")
    active = [0]
    fake.runner.answers["systemctl is-active --quiet slurmctld.service"] = lambda _: (active[0], "")
    fake.runner.on("systemctl stop slurmctld.service", do=lambda: active.__setitem__(0, 3))
    fake.runner.on("systemctl start slurmctld.service", do=lambda: active.__setitem__(0, 0))

    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state, "_make_chosen_copy_shared_in_child", full)
    with pytest.raises(NodeError, match="No space left"):
        controller.install_hooks_and_move_state(node)
    assert active == [0] and "StateSaveLocation=/var/spool/slurmctld" in conf.read_text()


def test_machines_without_an_id_are_two(tmp_path: Path) -> None:
    place = str(tmp_path)
    nobody, other = lease.LeaseOwner("", "controller-1"), lease.LeaseOwner("", "controller-2")
    known = lease.LeaseOwner("i-0me", "controller-3")
    for act in (
        lambda: lease.try_take_and_delete_older(place, 0, nobody),
        lambda: lease.is_free_to_take_at_once(place, 0, nobody),
    ):
        with pytest.raises(NodeError, match="the instance id of controller-1 is unknown"):
            act()
    # As a release that did not look wrote it.
    (tmp_path / "owner-1").write_text('{"instance": "", "host": "controller-1"}')
    with pytest.raises(NodeError, match="controller-2"):
        lease.is_free_to_take_at_once(place, 1, other)
    assert not lease.is_free_to_take_at_once(place, 1, known) and not nobody.is_same(other) and known.is_same(known)
