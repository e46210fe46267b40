"""Which steps run where, users, and our lines in Slurm's configuration."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.errors import NodeError, RunError, UsageError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import NodeConfig, User
from hyperpod_kit.node.creation.apply import apply
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import STEPS
from hyperpod_kit.node.setup import logind
from hyperpod_kit.node.setup.users import create_user_or_correct_home
from hyperpod_kit.node.setup.wait_for_dns import mount_host_names, wait_until_resolvable
from hyperpod_kit.node.slurm.controller import start_munge_and_slurmctld
from hyperpod_kit.node.slurm.hooks import merge_hooks, with_kit_block, without_kit_block
from hyperpod_kit.node.slurm.worker import has_registered, parse_slurmd_start_time, start_worker_and_await_registration

HOOKS = (Path(__file__).parents[3] / "slurm/hooks.conf").read_text()
MOUNTS = (
    EfsMount("home", "/efs", "fs-0123456789abcdef0"),
    S3Mount("data", "/d", "b", roles=("compute",)),
    LustreMount("fsx", "/fsx", "fs-1.fsx.eu-west-1.amazonaws.com", "abcdefgh", required=False),
)
CONFIG = NodeConfig("demo", "on_create", {}, MOUNTS)


ORDER = [
    "names",
    "users",
    "groups",
    "secrets",
    "clients",
    "fuse",
    "retire",
    "units",
    "packet-rules",
    "mount:home",
    "mount:data",
    "mount:fsx",
    "homes",
    "shares",
    "health",
    "containers",
    "logind",
    "spank-plugin",
    "slurm-hooks",
    "slurm-controller",
    "slurm-worker",
    "switched-off",
]


@pytest.mark.parametrize(
    "role, mode, left_out",
    [
        ("compute", "on_create", "slurm-hooks slurm-controller"),
        ("controller", "on_create", "mount:data slurm-worker"),
        ("login", "on_create", "mount:data slurm-hooks slurm-controller"),
        ("controller", "on_init_complete", "mount:data slurm-controller slurm-worker"),
        # Run by hand, where HyperPod runs nothing: Slurm stays HyperPod's.
        ("controller", "ami_only", "mount:data spank-plugin slurm-hooks slurm-controller slurm-worker switched-off"),
        ("compute", "on_init_complete", "slurm-hooks slurm-controller slurm-worker"),
    ],
)
def test_plan(role: str, mode: str, left_out: str) -> None:
    planned = plan(STEPS, CONFIG, role, "g", mode)
    assert [step.name for step in planned] == [title for title in ORDER if title not in left_out.split()]
    optional = {step.name for step in planned if not step.required}
    assert {"names", "containers", "logind", "spank-plugin", "mount:fsx", "switched-off"} >= optional


def test_the_task_prolog_of_an_earlier_bundle_goes() -> None:
    """pyxis runs a TaskProlog inside of the container: with ours no container task of anybody starts."""
    task_prolog = "TaskProlog=/opt/hyperpod-kit/current/slurm/task_prolog.sh"
    earlier = with_kit_block("ClusterName=demo\n", [*HOOKS.splitlines(), task_prolog])
    text, notes = merge_hooks(earlier, HOOKS)
    assert "TaskProlog" not in text and "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh" in text and notes == []


def test_plan_knows_three_modes() -> None:
    with pytest.raises(UsageError, match="no mode on_start; there are on_init_complete, on_create, ami_only"):
        plan(STEPS, CONFIG, "compute", "g", "on_start")


def test_a_defect_in_one_step_is_a_line_in_the_log(make_node: Any) -> None:
    fake = make_node([])
    fake.runner.on("getent", 2)
    broken = plan(STEPS, replace(CONFIG, mounts=MOUNTS[:1]), "compute", "g", "on_create")
    said: list[str] = []
    # The plan names a mount that the node's own configuration does not have.
    assert apply(fake.node, broken, "on_create", said.append)["ok"] is False
    lines = [json.loads(line) for line in Path(fake.node.paths.provisioning_log).read_text().splitlines()]
    by_step = {line["step"]: line for line in lines}
    assert by_step["mount:home"]["status"] == "failed"
    assert by_step["slurm-worker"]["status"] == "skipped"
    # There is no bundle on this node, so there are no units either.
    reasons = "; ".join(f"{name}: {by_step[name]['error']}" for name in ("units", "mount:home"))
    assert by_step["summary"]["error"] == f"failed: {reasons}"
    assert {"ts", "node", "role", "step", "status", "duration_ms", "error", "hint"} <= set(lines[0])


def test_names(make_node: Any) -> None:
    fake = make_node(MOUNTS)
    assert mount_host_names(MOUNTS, fake.node.facts) == [
        "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com",
        "s3.us-east-1.amazonaws.com",
        "fs-1.fsx.eu-west-1.amazonaws.com",
    ]
    fake.runner.on("getent ahosts s3.", 2)
    with pytest.raises(NodeError, match=r"s3\.us-east-1\.amazonaws\.com does not resolve"):
        wait_until_resolvable(fake.node)
    assert 59 <= sum(fake.clock.slept) <= 61


def test_users(make_node: Any) -> None:
    trainer = User("trainer", 2001, 2001)
    fake = make_node([])
    fake.runner.on("getent", 2)
    assert create_user_or_correct_home(fake.node, trainer) is True
    assert fake.runner.calls[-2:] == [
        "groupadd --gid 2001 trainer",
        "useradd --uid 2001 --gid 2001 --create-home --shell /bin/bash trainer",
    ]
    fake.runner.on("getent passwd trainer", out="trainer:x:2001:2001::/home/trainer:/bin/bash\n")
    assert create_user_or_correct_home(fake.node, trainer) is False
    fake.runner.on("getent passwd trainer", out="trainer:x:1001:2001::/home/trainer:/bin/bash\n")
    with pytest.raises(NodeError, match="has ids 1001:2001 on this node, expected 2001:2001"):
        create_user_or_correct_home(fake.node, trainer)
    fake.runner.on("getent passwd trainer", 2)
    fake.runner.on("getent passwd 2001", out="ubuntu:x:2001:2001::/home/ubuntu:/bin/bash\n")
    with pytest.raises(NodeError, match="uid 2001 for trainer already belongs to ubuntu"):
        create_user_or_correct_home(fake.node, trainer)


def test_a_home_that_another_node_makes_at_the_same_moment(make_node: Any) -> None:
    """/home is shared: useradd looks, finds no home, and fails with 12 when its mkdir comes second."""
    fake = make_node([])
    fake.runner.on("getent", 2)
    statuses = [12, 0]
    fake.runner.answers["useradd"] = lambda _: (statuses.pop(0), "useradd: cannot create directory /home/trainer")
    assert create_user_or_correct_home(fake.node, User("trainer", 2001, 2001)) is True
    assert statuses == []
    fake.runner.on("useradd", 12)
    with pytest.raises(RunError, match="useradd"):
        create_user_or_correct_home(fake.node, User("trainer", 2001, 2001))


def test_hooks_are_added_once_and_taken_out_whole() -> None:
    conf = "ClusterName=demo\nNodeName=ip-10-1-0-20 CPUs=2\n"
    once, notes = merge_hooks(conf, HOOKS)
    twice, _ = merge_hooks(once, HOOKS)
    assert once == twice and notes == []
    assert without_kit_block(once) == conf
    assert "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh\n" in once
    assert once.endswith("# <<< hyperpod-kit\n")
    # Another version of the block replaces the first, and what stands behind it stays.
    later = without_kit_block(with_kit_block(once + "PartitionName=x Nodes=ALL\n", ["Epilog=/new"]))
    assert later == conf + "PartitionName=x Nodes=ALL\n"


def test_what_somebody_else_set_stays() -> None:
    conf = "Prolog=/opt/site/prolog.sh\nprologflags = Contain,X11  # for pam\nPrologEpilogTimeout=60\n"
    text, notes = merge_hooks(conf, HOOKS)
    assert notes == ["Prolog is already /opt/site/prolog.sh and stays so"]
    assert "PrologFlags=Contain,X11,Alloc\n" in text
    assert "\nProlog=/opt/hyperpod-kit" not in text
    assert text.startswith(conf)


@pytest.mark.parametrize(
    "shown, known",
    [
        ("NodeName=a State=IDLE SlurmdStartTime=2026-01-02T03:04:05", True),
        ("NodeName=a State=DOWN SlurmdStartTime=2026-01-02T03:04:05", True),
        ("NodeName=a State=IDLE*", False),
        ("NodeName=a State=DOWN*+NOT_RESPONDING", False),
        ("NodeName=a State=UNKNOWN SlurmdStartTime=None", False),
        ("NodeName=a State=DOWN SlurmdStartTime=None", False),
        ("NodeName=a State=DOWN SlurmdStartTime=2001-01-02T03:04:05", False),
        ("Node a not found", False),
    ],
)
def test_registered(shown: str, known: bool) -> None:
    import time

    since = time.mktime(time.strptime("2026-01-02T03:04:05", "%Y-%m-%dT%H:%M:%S"))
    assert has_registered(shown, "", since) is known


def test_another_slurmd_is_told_by_another_start_not_by_a_later_one() -> None:
    """The clock of a node is set when it boots, hours back as well."""
    old = "NodeName=a State=IDLE SlurmdStartTime=2026-01-02T03:04:05"
    for start in ("2026-01-02T01:04:06", "2026-01-02T05:04:06"):
        new = f"NodeName=a State=IDLE SlurmdStartTime={start}"
        assert not has_registered(old, parse_slurmd_start_time(old)) and has_registered(
            new, parse_slurmd_start_time(old)
        )
    assert has_registered(
        old, parse_slurmd_start_time("NodeName=a State=UNKNOWN SlurmdStartTime=None")
    ) and has_registered(old, None)


@pytest.mark.parametrize(
    "begin, daemon", [(start_munge_and_slurmctld, "slurmctld"), (start_worker_and_await_registration, "slurmd")]
)
def test_munge_is_enabled_and_started_before_the_daemon_where_the_image_does_not(
    make_node: Any, begin: Callable[[Any], object], daemon: str
) -> None:
    fake = make_node([])
    fake.runner.on("systemctl is-enabled", 1)
    fake.runner.on("systemctl is-active", 3)
    fake.runner.on("/opt/slurm/bin/scontrol ping", out="Slurmctld(primary) at head is UP")
    with suppress(NodeError):  # whether it registers is another matter
        begin(fake.node)
    calls = fake.runner.calls
    assert f"systemctl enable --quiet --no-reload munge.service {daemon}.service" in calls
    assert calls.index("systemctl start munge.service") < calls.index(f"systemctl start {daemon}.service")


def test_a_worker_that_never_registers(make_node: Any) -> None:
    fake = make_node([])
    fake.runner.on("systemctl is-active", 3)
    fake.runner.on("systemctl start slurmd.service", 1)
    with pytest.raises(NodeError, match=r"has not registered with the controller 10\.1\.0\.10 after 300 s"):
        start_worker_and_await_registration(fake.node)
    text = (fake.root / "etc/systemd/system/slurmd.service.d/hyperpod-kit.conf").read_text()
    assert "Environment=SLURMD_OPTIONS=--conf-server=10.1.0.10\n" in text


def test_logind_leaves_the_memory_of_jobs_alone(make_node: Any) -> None:
    fake = make_node([])
    fake.runner.on("busctl", 0, "b true\n")
    fake.runner.on("systemctl kill --signal=HUP systemd-logind.service")
    assert logind.describe_pending_changes(fake.node).startswith("write ") and logind.disable_remove_ipc(fake.node)
    assert "RemoveIPC=no" in Path(fake.node.paths.under_root(logind.CONF)).read_text()
    assert any("HUP" in call for call in fake.runner.calls)
    # The file was written and the node died before logind was told.
    assert logind.describe_pending_changes(fake.node) == "make systemd-logind reload its configuration"
    fake.runner.on("busctl", 0, "b false\n")
    assert logind.describe_pending_changes(fake.node) == "" and not logind.disable_remove_ipc(fake.node)
    fake.runner.on("busctl", 1, "")
    assert logind.describe_pending_changes(fake.node) == "" and not logind.disable_remove_ipc(fake.node)
