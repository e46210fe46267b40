"""Making mounts, recognising them, tending them: real code on a root of our own, commands answered by the test."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any, Callable

import pytest

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.mounts.ensure import clear_path_for_mount_daemon, detach_dead_mount, ensure_mounted
from hyperpod_kit.node.mounts.kinds.mountpoint_s3 import parse_mount_s3_command
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.node.observe.check import check_mount, observe_mounts
from hyperpod_kit.node.setup.fuse_conf import enable_user_allow_other
from hyperpod_kit.system.mountinfo import find_mount_at, parse_mountinfo

FS, AP = "fs-0123456789abcdef0", "fsap-0123456789abcdef0"
EFS = EfsMount("home", "/efs/trainer", FS, AP)
S3 = S3Mount("data", "/mnt/data", "sagemaker-data", "corpus/")
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
S3_UNIT = "hyperpod-kit-s3-data.service"
S3_ARGV = ["/usr/bin/mount-s3", "--foreground", "--prefix", "corpus/", "sagemaker-data", "/mnt/data"]


def test_the_kernels_list() -> None:
    text = (
        "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
        "31 22 0:45 / /mnt/a\\040b rw,nosuid shared:3 - fuse mountpoint-s3 ro,user_id=0\n"
        "32 22 0:46 / /mnt/a\\040b rw - nfs4 127.0.0.1:/ rw,port=20049\n"
        "garbage\n"
    )
    assert len(list(parse_mountinfo(text))) == 3
    top = find_mount_at(text, "/mnt/a b/")
    assert top is not None
    assert (top.source, top.stacked, top.option_value_or_none("port"), top.read_only) == (
        "127.0.0.1:/",
        2,
        "20049",
        False,
    )
    assert next(entry for entry in parse_mountinfo(text) if entry.source == "mountpoint-s3").read_only
    assert find_mount_at(text, "/mnt") is None


@pytest.mark.parametrize(
    "fs_type, source, state",
    [
        ("lustre", "10.1.0.1@tcp:/abcdefgh", "ok"),
        ("fuse.lustre", "10.1.0.1@tcp:/abcdefgh", "ok"),
        ("lustre", "10.1.0.1@tcp:10.1.0.2@tcp:/abcdefgh", "ok"),
        ("lustre", "10.1.0.1@tcp:/otherone", "wrong_target"),
        ("ext4", "/dev/nvme1n1", "wrong_target"),
        ("nfs4", "127.0.0.1:/", "wrong_target"),
    ],
)
def test_lustre_is_known_by_its_mount_name(make_node: Any, fs_type: str, source: str, state: str) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", fs_type, source)
    assert check_mount(fake.node, LUSTRE).state == state


@pytest.mark.parametrize(
    "words, found",
    [
        (S3_ARGV, ("sagemaker-data", "corpus/", "/mnt/data")),
        (["/usr/bin/python3", "-I", "-S", "/usr/lib/x", "mount-s3", "--prefix=a/", "b", "/m"], ("b", "a/", "/m")),
        (["mount-s3", "b", "/m/"], ("b", "", "/m")),
        (["/usr/bin/sleep", "1", "2", "3"], None),
        ([""], None),
    ],
)
def test_a_bucket_is_known_by_the_command_line(words: Any, found: Any) -> None:
    assert parse_mount_s3_command([*words, ""]) == found


def test_two_buckets_look_alike_and_are_told_apart(make_node: Any) -> None:
    fake = make_node([S3])
    fake.mounted("/mnt/data", "fuse", "mountpoint-s3")
    fake.serve_s3(S3_UNIT, S3_ARGV)
    assert check_mount(fake.node, S3).state == "ok"
    fake.serve_s3(S3_UNIT, [*S3_ARGV[:-2], "another", "/mnt/data"])
    status = check_mount(fake.node, S3)
    assert (status.state, status.source) == ("wrong_target", "s3://another/corpus/")
    # Not our unit's process: somebody started mount-s3 by hand.
    fake.runner.on(f"systemctl show --property MainPID {S3_UNIT}", out="MainPID=0\n")
    status = check_mount(fake.node, S3)
    assert (status.state, status.source) == ("wrong_target", "s3://another/corpus/")
    fake.serve_s3(S3_UNIT, ["/usr/bin/sleep", "1000"])
    fake.runner.on(f"systemctl show --property MainPID {S3_UNIT}", out="MainPID=0\n")
    assert check_mount(fake.node, S3).state == "unknown"


def test_efs_is_known_by_the_helpers_state_file(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/", "rw,port=20049")
    assert (check_mount(fake.node, EFS).state, check_mount(fake.node, EFS).detail) == (
        "ok",
        "known by source and path only",
    )
    state = fake.root / "var/run/efs"
    state.mkdir(parents=True)
    note = state / f"{FS}.efs.trainer.20049"
    note.write_text(json.dumps({"pid": 1, "accessPoint": AP}))
    (state / "stunnel-config").write_text("")
    assert (check_mount(fake.node, EFS).state, check_mount(fake.node, EFS).source) == ("ok", f"{FS}:/ {AP}")
    note.write_text(json.dumps({"pid": 1, "accessPoint": "fsap-0000000000000000f"}))
    assert check_mount(fake.node, EFS).state == "wrong_target"


def test_efs_is_known_by_our_own_note_without_one(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.runner.on("mount -t efs", do=lambda: fake.mounted("/efs/trainer", "fuse.efs", "127.0.0.1:/"))
    assert ensure_mounted(fake.node, EFS) is True
    assert check_mount(fake.node, EFS).source == f"{FS}:/ {AP}"
    other = EfsMount("home", "/efs/trainer", FS, "fsap-0000000000000000f")
    assert check_mount(fake.node, other).state == "wrong_target"
    assert ensure_mounted(fake.node, EFS) is False


def test_a_tls_proxy_that_is_gone_makes_a_hang_a_death(make_node: Any) -> None:
    fake = make_node([EFS])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        fake.mounted("/efs/trainer", "nfs4", "127.0.0.1:/", f"rw,port={port}")
        entry = find_mount_at((fake.root / "proc/self/mountinfo").read_text(), "/efs/trainer")
        assert entry is not None
        listener.listen(1)
        assert kind_of(EFS).endpoint_is_dead(fake.node, EFS, entry) is False
    assert kind_of(EFS).endpoint_is_dead(fake.node, EFS, entry) is True


def test_without_tls_the_source_says_it(make_node: Any) -> None:
    plain = EfsMount("home", "/efs/trainer", FS, tls=False)
    fake = make_node([plain])
    fake.mounted("/efs/trainer", "nfs4", f"{FS}.efs.us-east-1.amazonaws.com:/")
    assert check_mount(fake.node, plain).state == "ok"
    assert check_mount(fake.node, EFS).state == "wrong_target"


def test_ensure_tries_again_and_says_what_the_helper_said(make_node: Any) -> None:
    fake = make_node([EFS])
    fake.runner.on("mount -t efs", 32, "access denied by server")
    with pytest.raises(MountFailed, match="access denied by server") as caught:
        ensure_mounted(fake.node, EFS)
    tries = sum(call.startswith("mount -t efs") for call in fake.runner.calls)
    assert 8 <= tries <= 12 and 115 <= sum(fake.clock.slept) <= 125
    assert "mount -t efs" in (caught.value.hint or "")


def test_ensure_leaves_what_lives_there(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "ext4", "/dev/nvme1n1")
    with pytest.raises(MountFailed, match="wrong_target"):
        ensure_mounted(fake.node, LUSTRE)
    with pytest.raises(MountFailed, match="is taken by"):
        clear_path_for_mount_daemon(fake.node, LUSTRE)
    assert detach_dead_mount(fake.node, LUSTRE) is False
    assert not any("umount" in call for call in fake.runner.calls)


@pytest.mark.parametrize("gone", [True, False])
def test_what_is_mounted_says_more_than_umounts_exit_status(
    make_node: Any, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    fake = make_node([LUSTRE])
    states = [MountState.STALE]
    monkeypatch.setattr(
        "hyperpod_kit.node.mounts.ensure.check_mount",
        lambda *_: replace(check_mount(fake.node, LUSTRE), state=states[-1]),
    )
    said = "umount: /fsx: filesystem was unmounted, but any subsequent operation failed: Operation not permitted."
    fake.runner.on("umount --lazy /fsx", 1, said, do=lambda: states.append(MountState.ABSENT) if gone else None)
    if gone:
        assert detach_dead_mount(fake.node, LUSTRE) is True
    else:
        with pytest.raises(RunError, match="any subsequent operation failed"):
            detach_dead_mount(fake.node, LUSTRE)


def test_the_directory_beneath_does_not_answer_for_a_mount_that_went_meanwhile(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    source = ("lustre", "10.1.0.1@tcp:/abcdefgh")

    def look(during: Callable[[], None]) -> str:
        """The state, where `during` happens after the kernel's list was read and before the path is touched."""
        fake.unmounted("/fsx")
        fake.mounted("/fsx", *source)

        def modes(*_: object) -> str:
            during()
            return ""

        return observe_mounts(fake.node, [LUSTRE], modes=modes)[0].status.state

    steady = look(lambda: None)
    assert steady != "absent"
    assert look(lambda: fake.unmounted("/fsx")) == "absent"

    def anew() -> None:
        fake.mounted("/elsewhere", "ext4", "/dev/vdb")  # so that the next one has another number
        fake.unmounted("/fsx")
        fake.mounted("/fsx", *source)

    once = iter([anew])
    assert look(lambda: next(once, lambda: None)()) == steady
    assert look(anew) == "unknown", "and so on for ever"


def test_fuse_conf_once(make_node: Any) -> None:
    fake = make_node([S3])
    (fake.root / "etc").mkdir()
    (fake.root / "etc/fuse.conf").write_text("#user_allow_other\nmount_max = 1000")
    assert enable_user_allow_other(fake.node) is True
    assert enable_user_allow_other(fake.node) is False
    assert (fake.root / "etc/fuse.conf").read_text() == "#user_allow_other\nmount_max = 1000\nuser_allow_other\n"
