"""The Lustre client: the module for the running kernel, no other kernel, and nothing that moves it later."""

from __future__ import annotations

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.clients.install import (
    describe_pending_changes,
    install_missing_mount_clients,
    parse_unheld_upgradable_packages,
)
from tests.unit.node.clients.debian_root import KERNEL, DebianRoot

FSX = LustreMount("fsx", "/fsx", "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh")
MODULE = f"lib/modules/{KERNEL}/lustre.ko"
HELPER = "usr/sbin/mount.lustre"


def present(debian: DebianRoot, *places: str) -> None:
    for place in places:
        path = debian.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)


def test_a_module_that_works_is_left_alone_and_held(debian: DebianRoot) -> None:
    present(debian, HELPER, MODULE)
    debs = [
        debian.deb("lustre-client-modules-aws", "6.8.0-1057"),
        debian.deb("linux-image-aws", "6.8.0-1057"),
        debian.deb("linux-image-6.8.0-1057-aws", "6.8.0-1057"),
        debian.deb("lustre-client-utils", "2.15.6-1"),
    ]
    newer = debian.listed(debian.deb(f"lustre-client-modules-{KERNEL}", "9.9-1", files=[MODULE, HELPER]))
    node = debian.node([FSX], [newer])
    apt.install_package_files_only(node, [str(deb) for deb in debs], [deb.name.split("_")[0] for deb in debs])
    said = "held linux-image-aws, lustre-client-modules-aws, lustre-client-utils"
    assert describe_pending_changes(node) == said.replace("held", "hold")
    assert install_missing_mount_clients(node) == (True, said)
    assert debian.installed() == {
        "linux-image-6.8.0-1057-aws": "6.8.0-1057 install installed",  # one kernel cannot move
        "linux-image-aws": "6.8.0-1057 hold installed",
        "lustre-client-modules-aws": "6.8.0-1057 hold installed",
        "lustre-client-utils": "2.15.6-1 hold installed",
    }
    assert install_missing_mount_clients(node) == (False, "") and describe_pending_changes(node) == ""
    # And that is what an upgrade then does.
    debian.put_in_sources(debian.deb("linux-image-aws", "6.17.0-1"), debian.deb("lustre-client-utils", "2.16-1"))
    node.runner.run(["apt-get", "-y", "upgrade"], timeout=60)
    assert debian.installed()["linux-image-aws"] == "6.8.0-1057 hold installed"


def test_a_module_that_is_loaded_needs_no_modinfo(debian: DebianRoot) -> None:
    present(debian, HELPER)
    (debian.root / "sys/module/lustre").mkdir(parents=True)
    assert install_missing_mount_clients(debian.node([FSX])) == (False, "")


def test_the_module_of_the_running_kernel_is_chosen_from_several(debian: DebianRoot) -> None:
    own, other = f"lustre-client-modules-{KERNEL}", "lustre-client-modules-6.8.0-1057-aws"
    packages = [
        debian.listed(debian.deb(other, "2.15.6-1")),
        debian.listed(debian.deb(own, "2.15.6-1", depends="lustre-client-utils", files=[MODULE])),
        debian.listed(debian.deb("lustre-client-utils", "2.15.6-1", files=[HELPER]), client="lustre"),
    ]
    changed, detail = install_missing_mount_clients(debian.node([FSX], packages))
    assert changed and detail == (
        f"installed {own} 2.15.6-1: /usr/sbin/mount.lustre is not installed; "
        f"held {', '.join(sorted([own, 'lustre-client-utils']))}"
    )
    assert set(debian.installed()) == {own, "lustre-client-utils"}


def test_only_modules_of_other_kernels_are_listed(debian: DebianRoot) -> None:
    present(debian, HELPER)
    other = debian.listed(debian.deb("lustre-client-modules-6.8.0-1057-aws", "2.15.6-1"))
    with pytest.raises(NodeError, match=f"no module lustre for kernel {KERNEL}") as caught:
        install_missing_mount_clients(debian.node([FSX], [other]))
    assert f"list lustre-client-modules-{KERNEL} for" in str(caught.value.hint)
    assert "listed are lustre-client-modules-6.8.0-1057-aws for" in str(caught.value.hint)
    assert debian.changes() == []


def test_a_lock_that_keeps_us_from_holding_does_not_cost_the_node(debian: DebianRoot) -> None:
    present(debian, HELPER, MODULE)
    node = debian.node([FSX])
    apt.install_package_files_only(node, [str(debian.deb("linux-image-aws", "6.8.0-1057"))], ["linux-image-aws"])
    debian.shim("apt-mark", "echo 'E: Sub-process /usr/bin/dpkg returned an error code (2)' >&2; exit 100")
    assert install_missing_mount_clients(node) == (
        False,
        "cannot hold linux-image-aws: E: Sub-process /usr/bin/dpkg returned an error code (2)",
    )


def test_without_lustre_nothing_is_held(debian: DebianRoot) -> None:
    present(debian, "usr/bin/mount-s3")
    apt.install_package_files_only(
        debian.node([]), [str(debian.deb("linux-image-aws", "6.8.0-1057"))], ["linux-image-aws"]
    )
    assert install_missing_mount_clients(debian.node([S3Mount("data", "/d", "bucket")])) == (False, "")


def test_what_moves() -> None:
    listing = (
        "linux-image-aws\tinstall\tinstalled\nlinux-image-6.8.0-1057-aws\tinstall\tinstalled\n"
        "linux-image-generic\tdeinstall\tconfig-files\nlinux-image-unsigned-6.8.0-1057-aws\tinstall\tinstalled\n"
        "linux-image-aws-6.8\tinstall\tinstalled\nlustre-client-modules-6.8.0-1057-aws\tinstall\tinstalled\n"
        "lustre-client-modules-aws\thold\tinstalled\nlustre-client\tunknown\tnot-installed\n"
    )
    assert parse_unheld_upgradable_packages(listing) == [
        "linux-image-aws",
        "linux-image-aws-6.8",
        "lustre-client-modules-6.8.0-1057-aws",
    ]


def test_after_a_change_of_kernel_what_we_hold_is_no_obstacle(debian: DebianRoot) -> None:
    node = debian.node([])
    apt.install_package_files_only(
        node, [str(debian.deb("lustre-client-utils", "2.12.8-1", files=[HELPER]))], ["lustre-client-utils"]
    )
    apt.hold_packages(node, ["lustre-client-utils"], seconds=10)
    own = f"lustre-client-modules-{KERNEL}"
    packages = [
        debian.listed(debian.deb(own, "2.15.6-1", depends="lustre-client-utils (>= 2.15)", files=[MODULE])),
        debian.listed(debian.deb("lustre-client-utils", "2.15.6-1", files=[HELPER]), client="lustre"),
    ]
    node = debian.node([FSX], packages)
    assert install_missing_mount_clients(node)[0] is True and install_missing_mount_clients(node) == (False, "")
    assert debian.installed() == {own: "2.15.6-1 hold installed", "lustre-client-utils": "2.15.6-1 hold installed"}


def test_what_an_admin_holds_stays(debian: DebianRoot) -> None:
    old = debian.deb("mount-s3", "1.7.0", files=["usr/bin/mount-s3"])
    apt.install_package_files_only(debian.node([]), [str(old)], ["mount-s3"])
    apt.hold_packages(debian.node([]), ["mount-s3"], seconds=10)
    new = debian.listed(debian.deb("mount-s3", "1.22.0", files=["usr/bin/mount-s3"]))
    with pytest.raises(NodeError, match="cannot install mount-s3: E: Held packages were changed"):
        install_missing_mount_clients(debian.node([S3Mount("data", "/d", "bucket")], [new]))
    assert debian.installed() == {"mount-s3": "1.7.0 hold installed"}
