"""Two Slurms on one image: which bytes change, what lies where. That they run is shown on machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.machines import apt_sources, image, two_slurms
from hyperpod_rehearsal.machines.two_slurms import SecondSlurm, replace_in_c_strings
from hyperpod_rehearsal.platform import node_files
from hyperpod_rehearsal.records.profiles import HYPERPOD, HYPERPOD_2026
from tests.support.runner import RecordingRunner

PLUGINS = "usr/lib/x86_64-linux-gnu/slurm-wlm"
COMPILED_IN = f"/{PLUGINS}".encode()


def test_a_path_is_replaced_wherever_it_begins_a_c_string_and_nothing_moves():
    data = b"\x7fELF\0" + COMPILED_IN + b"\0one\0" + COMPILED_IN + b"/x.so\0two\0"
    changed = replace_in_c_strings(data, COMPILED_IN, b"/opt/s")
    assert len(changed) == len(data) and changed.index(b"one") == data.index(b"one")
    assert changed.split(b"\0")[1] == b"/opt/s" and b"\0/opt/s/x.so\0" in changed and changed.endswith(b"two\0")
    with pytest.raises(ValueError, match="longer"):
        replace_in_c_strings(b"/a\0", b"/a", b"/bc")


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """An image after `customize`, and another release's packages, unpacked."""
    root, unpacked = tmp_path / "root", tmp_path / "second"
    for top in (root, unpacked):
        for directory in (PLUGINS, "usr/bin", "usr/sbin", "usr/include/slurm"):
            (top / directory).mkdir(parents=True)
        (top / PLUGINS / "libslurmfull.so").write_bytes(COMPILED_IN + b"\0")
        (top / "usr/bin/srun").write_bytes(COMPILED_IN + b"\0")
        (top / "usr/bin/ls").write_bytes(b"ls")
        for daemon in ("slurmd", "slurmctld", "slurmdbd", "slurmstepd"):
            (top / "usr/sbin" / f"{daemon}-wlm").write_bytes(COMPILED_IN + b"\0")
            (top / "usr/sbin" / daemon).symlink_to(f"/etc/alternatives/{daemon}")
        (top / "usr/include/slurm/spank.h").write_text(top.name)
    for directory in ("bin", "sbin", "lib", "etc"):
        (root / "opt/slurm" / directory).mkdir(parents=True)
    (root / "opt/slurm/bin/srun").symlink_to("/usr/bin/srun")
    (unpacked / "usr/lib/x86_64-linux-gnu/libhwloc.so.15").write_bytes(b"hwloc")
    (unpacked / "usr/lib/x86_64-linux-gnu/libllhttp.so.9.4").write_bytes(b"http")
    return root, unpacked


SECOND = SecondSlurm("24.11", "26.05", "forky", (), "")


class VersionRunner(RecordingRunner):
    """Answers `slurmctld -V` by the tree that is asked."""

    def __init__(self, version: str = "") -> None:
        super().__init__(otherwise="")
        self._version = version

    def run(self, argv, **more):
        version = self._version or argv[2].split("/")[2].removeprefix("slurm-")
        self._otherwise = f"slurm-wlm {version}.5\n"
        return super().run(argv, **more)


def test_each_slurm_has_a_tree_of_its_own_and_the_link_leads_to_the_first(roots):
    root, unpacked = roots
    two_slurms.lay_out(root, unpacked, SECOND, VersionRunner())
    assert os.readlink(root / "opt/slurm") == "slurm-24.11"
    first, second = root / "opt/slurm-24.11", root / "opt/slurm-26.05"
    assert not (root / "usr/bin/srun").exists() and (first / "bin/srun").read_bytes() == COMPILED_IN + b"\0"
    assert (second / "bin/srun").read_bytes().startswith(b"/opt/slurm-26.05/lib/slurm\0")
    assert not (second / "bin/ls").exists() and os.access(second / "sbin/slurmctld", os.X_OK)
    assert "-d /opt/slurm-26.05/sbin/slurmstepd" in (second / "sbin/slurmd").read_text()
    assert (second / "libexec/slurmd").read_bytes().startswith(b"/opt/slurm-26.05/")
    assert (second / "include/slurm/spank.h").read_text() == "second"
    assert (second / "lib/slurm/libhwloc.so.15").exists() and not (second / "lib/slurm/libllhttp.so.9.4").exists()
    assert (root / "usr/lib/x86_64-linux-gnu/libllhttp.so.9.4").exists()


def test_a_tree_of_another_version_than_its_name_is_refused(roots):
    with pytest.raises(RehearsalError, match=r"/opt/slurm-24.11 of the image has 'slurm-wlm 25.11.5'"):
        two_slurms.lay_out(roots[0], roots[1], SECOND, VersionRunner("25.11"))


def test_files_of_a_node_go_where_the_link_leads_within_the_node(tmp_path):
    assert node_files.within_slurm(tmp_path, node_files.SLURM_CONF) == node_files.SLURM_CONF
    (tmp_path / "opt").mkdir()
    # As an administrator may lay it: on this host it would lead out of the node.
    (tmp_path / "opt/slurm").symlink_to("/opt/slurm-26.05")
    assert node_files.within_slurm(tmp_path, node_files.SLURM_CONF) == "/opt/slurm-26.05/etc/slurm.conf"


def test_the_second_slurm_makes_another_image_and_no_other_one_changes(monkeypatch):
    monkeypatch.setattr(apt_sources, "apt_sources_for_release", lambda release, host: [f"deb http://x {release}"])
    plain, both = (image.recipe_for_release(profile=profile) for profile in (HYPERPOD, HYPERPOD_2026))
    assert plain.codename == both.codename == "trixie" and plain.digest != both.digest
    assert both.second is not None and both.second.sources == ("deb http://x forky",)
    assert plain.second is None
