"""slurmctld's state on shared storage: where it comes from, and that one machine at a time works on it."""

from __future__ import annotations

import multiprocessing
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, List

import pytest

from hyperpod_kit import audit
from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.node.slurm import controller, hooks, lease, state
from hyperpod_kit.node.slurm.lease_keeper import LeaseKeeper

pytestmark = pytest.mark.needs("root")
FSX = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
KILL = "systemctl kill --signal=KILL slurmctld.service"
OTHER = lease.LeaseOwner("i-0other", "ip-10-1-0-9")
CONF = "SlurmUser=root\nStateSaveLocation=/var/spool/slurmctld\n"
BASE = "/fsx/.hyperpod-kit/demo-4add21d3c8fc"


@pytest.fixture
def fake(make_node: Any) -> Any:
    """A controller with /fsx, which is where the configuration wants Slurm's state."""
    found = make_node([FSX], role="controller")
    found.node = replace(
        found.node,
        config=replace(found.node.config, slurm_state="fsx"),
        facts=replace(found.node.facts, cluster="4add21d3c8fc", instance_id="i-0me"),
    )
    found.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    os.chmod(found.root / "fsx", 0o755)
    return found


def saved(at: float, next_job: int, *jobs: str) -> bytes:
    """A job_state as slurmctld writes it, with such jobs."""
    header = struct.pack(">I", 17) + b"PROTOCOL_VERSION\0" + struct.pack(">HqI", 0x2600, int(at), next_job)
    return header + bytes(8) + b"".join(job.encode().ljust(120, b".") for job in jobs)


def prepared(fake: Any, before: str = "") -> state.StateLocation:
    where = state.shared_state_location(fake.node)
    assert where is not None and where.base == BASE
    state.make_chosen_copy_the_shared_one(
        fake.node, where, "root", before, state.decide_which_state_copy_goes_on(fake.node, where, before).choice
    )
    return where


def keeper(fake: Any) -> tuple[LeaseKeeper, List[str]]:
    said: List[str] = []
    return LeaseKeeper(fake.node, prepared(fake), said.append), said


def each_sleep(fake: Any, act: Callable[[], object]) -> None:
    """Do this whenever somebody sleeps."""
    slept = fake.clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        act()

    fake.clock.sleep = sleep


def leases(fake: Any) -> str:
    return str(fake.root) + BASE + "/lease"


def test_a_lease_is_nobodys_then_ours_and_renewed(fake: Any) -> None:
    one, _ = keeper(fake)
    one.claim()
    assert fake.clock.slept == [] and lease.read_owner(leases(fake), 1) == lease.LeaseOwner("i-0me", "ip-10-1-0-20")
    beats = []

    def look() -> None:
        beats.append(lease.read_heartbeat(leases(fake), 1))
        one.stopping = len(beats) == 4

    each_sleep(fake, look)
    assert one.renew_until_stopped_or_lost() == "" and len(set(beats)) == 4 and KILL not in fake.runner.calls
    fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    one.release_if_slurmctld_ended()
    other = lease.list_owner_generations(leases(fake))[-1]
    assert lease.is_free_to_take_at_once(leases(fake), other, OTHER), "whoever comes next need not wait"


@pytest.mark.full
def test_a_machine_that_renews_is_waited_for_and_one_that_has_ceased_is_replaced(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions: List[Any] = []
    monkeypatch.setattr(
        audit, "record_root_action_in_journal", lambda action, *_, owner, **__: actions.append((action, owner))
    )
    one, said = keeper(fake)
    assert lease.try_take_and_delete_older(leases(fake), 0, OTHER) == 1
    alive_until = fake.clock.now + 90

    def other() -> None:
        if fake.clock.now < alive_until:
            assert lease.write_heartbeat_if_still_owner(leases(fake), 1, str(fake.clock.now))

    each_sleep(fake, other)
    one.claim()
    assert fake.clock.now - alive_until == pytest.approx(lease.TAKEOVER, abs=2)
    assert said == [
        "ip-10-1-0-9 (i-0other) has Slurm's state: waiting until it has not renewed for 40 s, so that no "
        "two slurmctlds ever write it",
        f"Slurm's state in {BASE}/slurmctld is this machine's: ip-10-1-0-9 (i-0other) has not renewed for 40 s",
    ]
    assert actions == [("took over", "ip-10-1-0-9 (i-0other)")]
    assert lease.write_heartbeat_if_still_owner(leases(fake), 1, "again") is False, (
        "the machine before finds out at its next renewal"
    )
    assert lease.list_owner_generations(leases(fake)) == [2]


def test_a_lease_that_was_taken_kills_slurmctld_at_once(fake: Any) -> None:
    one, _ = keeper(fake)
    one.claim()
    each_sleep(fake, lambda: lease.try_take_and_delete_older(leases(fake), 1, OTHER))
    assert one.renew_until_stopped_or_lost() == "another machine has taken Slurm's state: slurmctld was killed here"
    assert fake.runner.calls[-1] == KILL and fake.clock.slept == [lease.RENEW]


def test_storage_that_does_not_take_a_renewal_kills_slurmctld_before_another_machine_may_start_one(fake: Any) -> None:
    one, said = keeper(fake)
    one.claim()
    began = fake.clock.now
    os.rename(leases(fake), leases(fake) + ".away")
    assert "could not be renewed for 20 s" in one.renew_until_stopped_or_lost()
    assert fake.runner.calls[-1] == KILL and fake.clock.now - began < lease.TAKEOVER - lease.RENEW
    assert any("not renewed: renew at" in words and "No such file" in words for words in said)


def test_the_same_machine_goes_on_at_once_and_waits_for_its_mount(fake: Any) -> None:
    one, said = keeper(fake)
    assert lease.try_take_and_delete_older(leases(fake), 0, lease.LeaseOwner("i-0me", "before the reboot")) == 1
    fake.unmounted("/fsx")
    sleeps = []

    def mount_later() -> None:
        sleeps.append(1)
        if len(sleeps) == 3:
            fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")

    each_sleep(fake, mount_later)
    one.claim()
    assert len(sleeps) == 3 and said[0].startswith("waiting for /fsx, which has Slurm's state: it is absent")
    assert lease.list_owner_generations(leases(fake)) == [2]


def taking(place: str, barrier: Any, answers: Any, number: int) -> None:
    barrier.wait()
    answers.put(lease.try_take_and_delete_older(place, 1, lease.LeaseOwner(f"i-{number}", "x")))


def test_of_machines_that_want_it_at_the_same_moment_one_gets_it(tmp_path: Path) -> None:
    assert lease.try_take_and_delete_older(str(tmp_path), 0, OTHER) == 1
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(8), context.Queue()
    racers = [context.Process(target=taking, args=(str(tmp_path), barrier, answers, number)) for number in range(8)]
    for racer in racers:
        racer.start()
    found = sorted(answers.get(timeout=30) for _ in racers)
    for racer in racers:
        racer.join()
    assert found == [0] * 7 + [2]


def test_the_first_state_is_what_slurmctld_had_and_is_never_taken_again(fake: Any) -> None:
    local = fake.root / "var/spool/slurmctld"
    local.mkdir(parents=True)
    began = fake.clock.now
    (local / "job_state").write_bytes(saved(began - 900, 8, "7"))
    seed = Path(f"{fake.root}{BASE}/slurmctld.seed-i-0me")
    seed.mkdir(parents=True)
    os.chmod(seed.parent, 0o755)
    (seed / "half").write_text("of a copy that was killed")
    where = prepared(fake, "/var/spool/slurmctld")
    there = Path(f"{fake.root}{where.state}")
    assert [path.name for path in there.iterdir()] == ["job_state"] and there.stat().st_mode & 0o777 == 0o700
    (there / "job_state").write_bytes(saved(began - 60, 91, "90"))
    (local / "job_state").write_bytes(saved(began - 1, 1))
    prepared(fake, "/var/spool/slurmctld")
    assert (there / "job_state").read_bytes() == saved(began - 60, 91, "90"), (
        "that of a controller that began anew is not"
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: os.chmod(root / "fsx", 0o777), "lets every user rename"),
        (lambda root: os.symlink("/tmp", root / "fsx/.hyperpod-kit"), "must be a directory of uid 0"),
        (
            lambda root: (os.mkdir(root / "fsx/.hyperpod-kit"), os.chown(root / "fsx/.hyperpod-kit", 2001, 2001)),
            "it is of uid 2001",
        ),
        (
            lambda root: (os.mkdir(root / "fsx/.hyperpod-kit"), os.chmod(root / "fsx/.hyperpod-kit", 0o777)),
            "mode 40777",
        ),
    ],
)
def test_a_directory_that_others_can_write_to_is_refused(fake: Any, spoil: Callable[[Path], Any], words: str) -> None:
    """Whoever writes slurmctld's state decides what runs as whom."""
    spoil(fake.root)
    with pytest.raises(NodeError, match=words) as caught:
        prepared(fake)
    assert '"own-disk"' in (caught.value.hint or "")


@pytest.fixture
def conf(fake: Any) -> Path:
    bundled = fake.root / "opt/hyperpod-kit/current/slurm"
    bundled.mkdir(parents=True)
    (bundled / "hooks.conf").write_text("PrologFlags=Alloc\n")
    path = Path(fake.node.paths.slurm_conf)
    path.parent.mkdir(parents=True)
    path.write_text(CONF)
    return path


def test_slurmctld_that_hyperpod_has_started_is_stopped_for_the_move_and_started_again(fake: Any, conf: Path) -> None:
    local = fake.root / "var/spool/slurmctld"
    local.mkdir(parents=True)
    (local / "job_state").write_text("jobs")
    assert controller.describe_pending_hooks_and_state_move(fake.node).startswith(
        f"keep Slurm's state in {BASE}/slurmctld; the kit's lines into "
    )
    runs = [True]
    fake.runner.on("systemctl is-active --quiet slurmctld", 0)
    fake.runner.on(
        "systemctl stop slurmctld.service",
        do=lambda: (runs.clear(), fake.runner.on("systemctl is-active --quiet slurmctld", 3)),
    )
    fake.runner.on(
        "systemctl start slurmctld.service",
        do=lambda: (runs.append(True), fake.runner.on("systemctl is-active --quiet slurmctld", 0)),
    )
    fake.runner.on(f"{fake.node.paths.scontrol} ping", out="Slurmctld(primary) at ip-10-1-0-10 is UP\n")
    changed, notes = controller.install_hooks_and_move_state(fake.node)
    assert changed and notes == [
        f"Slurm's state is now kept in {fake.root}{BASE}/slurmctld, as it was in {fake.root}/var/spool/slurmctld",
        f"/var/spool/slurmctld now points to {BASE}/slurmctld; its previous content is kept in "
        f"{local}.kept-20270115T080000Z",
    ]
    assert os.readlink(local) == f"{BASE}/slurmctld" and Path(f"{local}.kept-20270115T080000Z/job_state").exists()
    assert hooks.parse_slurm_conf_settings(conf.read_text())["statesavelocation"] == f"{BASE}/slurmctld"
    drop_in = (fake.root / "etc/systemd/system/slurmctld.service.d/hyperpod-kit.conf").read_text()
    assert "BindsTo=hyperpod-kit-slurm-state.service\n" in drop_in and "fsx.mount" in drop_in
    orders = [call for call in fake.runner.calls if "slurmctld.service" in call and "is-active" not in call]
    assert orders == ["systemctl stop slurmctld.service", "systemctl start slurmctld.service"]
    reload = fake.runner.calls.index("systemctl daemon-reload")
    assert reload < fake.runner.calls.index("systemctl start slurmctld.service")
    assert fake.runner.calls[-1].endswith("scontrol reconfigure"), "nodes that run already are told"
    assert controller.describe_pending_hooks_and_state_move(
        fake.node
    ) == "" and controller.install_hooks_and_move_state(fake.node) == (
        False,
        [],
    )


def test_a_start_that_waits_for_another_machine_says_so(fake: Any, conf: Path) -> None:
    fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    controller.install_hooks_and_move_state(fake.node)
    fake.runner.on("systemctl start slurmctld.service", 1, "Job for slurmctld.service timed out.")
    fake.runner.on(
        "journalctl --unit hyperpod-kit-slurm-state.service",
        out='{"MESSAGE": "ip-10-1-0-9 (i-0other) has Slurm\'s state: waiting"}\n',
    )
    with pytest.raises(NodeError, match=r"slurmctld does not start: ip-10-1-0-9 \(i-0other\) has Slurm's state"):
        controller.start_slurmctld(fake.node)


def test_a_configuration_that_wants_the_own_disk_again_moves_nothing_by_itself(fake: Any, conf: Path) -> None:
    fake.runner.on("systemctl is-active --quiet slurmctld", 3)
    controller.install_hooks_and_move_state(fake.node)
    fake.node = replace(fake.node, config=replace(fake.node.config, slurm_state=""))
    _, notes = controller.install_hooks_and_move_state(fake.node)
    assert hooks.parse_slurm_conf_settings(conf.read_text())["statesavelocation"] == f"{BASE}/slurmctld"
    assert notes == [f"StateSaveLocation stays {BASE}/slurmctld: to move it, stop slurmctld and do so by hand"]
