"""What becomes of the lifecycle scripts that a cluster had: each file has a line, and nothing of theirs is executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.importing.legacy_scripts import classify_scripts
from hyperpod_kit.config.settings.findings import select_errors
from hyperpod_kit.config.starting.starter import add_legacy_scripts_users_and_steps
from hyperpod_kit.config.validate import validate
from tests.property.every_field import document

NAMES = """
add_users.sh apply_hotfix.sh config.py hotfix/hold-lustre-client.sh hotfix/mock-gpu-driver-deb.sh
lifecycle_script.py mount_fsx.sh mount_fsx_openzfs.sh multi_headnode_setup/headnode_setup.sh
observability/install_observability.py on_create.sh provisioning_parameters.json setup_mariadb_accounting.sh
setup_rds_accounting.sh setup_sssd.py setup_user_associations.sh shared_users.txt start_slurm.sh
utils/enable_slurm_log_rotation.sh utils/enroot.conf utils/fsx_auto_detect.sh utils/fsx_ubuntu.sh
utils/gen-keypair-ubuntu.sh utils/install_ansible.sh utils/install_docker.sh utils/install_enroot_pyxis.sh
utils/motd.sh utils/motd.txt utils/mount-s3.sh utils/pam_adopt_cgroup_wheel.sh utils/slurm_fix_plugstackconf.sh
utils/ssh-to-compute.sh utils/update_neuron_sdk.sh
"""
"""Those in AWS's base-config at 7217859, 21 February 2026, as far as they differ in kind."""
AWS = NAMES.split()
FLAGS = b"class Config:\n    enable_docker_enroot_pyxis = True\n    enable_sssd = False\n    enable_mount_s3 = False\n"
OFF = (b"enable_update_neuron_sdk = False", b"enable_pam_slurm_adopt = False", b"enable_slurm_log_rotation = True")
CONFIG = FLAGS + b"".join(b"    " + line + b"\n" for line in OFF)


def fates(lines: tuple[str, ...]) -> dict[str, str]:
    return {place: fate for place, _, fate in (line.partition(": ") for line in lines)}


def test_each_file_of_awss_set_has_a_line() -> None:
    found = classify_scripts(AWS, {"config.py": CONFIG}, "earlier", "on_create.sh")
    fate = fates(found.lines)
    assert sorted(fate) == sorted(AWS)
    assert fate["mount_fsx.sh"] == "done by hyperpod_kit.mounts, kind lustre"
    assert fate["utils/install_docker.sh"].startswith("done by hyperpod_kit.steps.docker")
    assert fate["utils/install_enroot_pyxis.sh"] == "kept as your script `enroot`"
    assert fate["utils/pam_adopt_cgroup_wheel.sh"].startswith("not run: enable_pam_slurm_adopt is off")
    assert fate["setup_sssd.py"] == "not run: enable_sssd is off in config.py"
    assert fate["utils/motd.sh"] == "done by hyperpod_kit.steps.login_message"
    assert fate["setup_mariadb_accounting.sh"] == "done by hyperpod_kit.steps.accounting"
    assert fate["utils/enroot.conf"] == "goes with utils/install_enroot_pyxis.sh"
    assert {line.split(" ")[0] for line in fate.values()} == {"done", "kept", "not", "goes"}
    names = [script["name"] for script in found.scripts]
    assert names == ["ansible", "hotfix", "ubuntu-home", "enroot"]
    on = {"accounting": {}, "log_rotation": {"keep": 2}, "login_message": {}, "ssh_between_nodes": {}, "docker": {}}
    assert found.steps == on, "what AWS's config.py has on, and our exporter in place of none"
    assert fate["observability/install_observability.py"].startswith("not run: enable_observability is off")


def test_what_is_kept_is_a_configuration() -> None:
    values = document()
    values["hyperpod_kit"]["scripts"] = list(classify_scripts(AWS, {}, "earlier").scripts)
    settings, findings = decode_settings(values)
    found = [*findings, *validate(settings)]
    assert [one.code for one in found if one.path.startswith("hyperpod_kit.scripts")] == ["HPK-O009"], "time, a warning"
    assert [one.script.arguments for one in settings.scripts if one.script.name == "enroot"] == [("{role}",)]


@pytest.mark.parametrize(
    ("mounts", "left_out"),
    [
        ([("nvme", "/fsx")], []),
        ([], ["your script `ubuntu-home`: nothing is mounted at /fsx"]),
        ([("nvme", "/fsx"), ("nvme", "/home")], ["your script `ubuntu-home`: homes lie on the mount at /home"]),
    ],
)
def test_a_script_that_would_fail_on_every_node_is_left_out(mounts: list[tuple[str, str]], left_out: list[str]) -> None:
    """AWS's own lifecycle_script.py starts fsx_ubuntu.sh only where it has mounted FSx."""
    listed = [{"kind": kind, "name": path[1:], "path": path} for kind, path in mounts]
    values: dict[str, Any] = {"hyperpod_kit": {"mounts": listed}}
    earlier = replace(classify_scripts(AWS, {"config.py": CONFIG}, "earlier"), steps={})
    assert add_legacy_scripts_users_and_steps(values, earlier) == left_out
    names = [script["name"] for script in values["hyperpod_kit"]["scripts"]]
    assert ("ubuntu-home" in names) is not bool(left_out) and "enroot" in names


def test_steps_of_ours_take_the_place_of_awss_scripts_where_they_can() -> None:
    earlier = classify_scripts([*AWS, "observability/install_node_exporter.sh"], {"config.py": b""}, "earlier")
    values = document()
    del values["hyperpod_kit"]["steps"]
    assert add_legacy_scripts_users_and_steps(values, earlier) == [
        "your script `ubuntu-home`: homes lie on the mount at /home"
    ]
    assert set(values["hyperpod_kit"]["steps"]) == set(earlier.steps)
    settings, _ = decode_settings(values)
    assert [one for one in select_errors(validate(settings)) if "steps" in one.path] == []
    bare = document()
    bare["hyperpod_kit"].update(mounts=[], homes=None)
    for key in ("steps", "slurm"):
        bare["hyperpod_kit"].pop(key, None)
    for key in ("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name", "bucketname"):
        bare.pop(key)
    [_, left_out] = add_legacy_scripts_users_and_steps(bare, earlier)
    assert left_out.startswith("hyperpod_kit.steps.ssh_between_nodes: nodes cannot find each other's host keys")
    assert "ssh_between_nodes" not in bare["hyperpod_kit"]["steps"]


def test_without_a_directory_they_are_lost_and_it_is_said() -> None:
    found = classify_scripts(AWS, {}, None)
    assert found.scripts == ()
    assert fates(found.lines)["utils/install_enroot_pyxis.sh"] == (
        "lost, unless it is kept as a script of yours: --scripts DIR"
    )


def test_a_file_of_somebodys_own_among_awss() -> None:
    fate = fates(classify_scripts([*AWS, "utils/license.sh"], {}, "earlier").lines)
    assert fate["utils/license.sh"].startswith("lost: no file of AWS's set; list it under hyperpod_kit.scripts")


def test_a_set_of_somebodys_own_is_kept_whole() -> None:
    found = classify_scripts(["setup.sh", "lib/x.sh"], {}, "earlier", "setup.sh")
    assert found.scripts == (
        {"name": "earlier", "path": "earlier", "run": "setup.sh", "when": "after-mounts", "timeout": 900},
    )
    assert found.lines[0] == "lib/x.sh: kept, of your script `earlier`" and "runs whole" in found.notes[0]
    assert "lost: there is no on_create.sh" in classify_scripts(["setup.sh"], {}, "earlier").lines[0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"class Config:\n  x = ",
        b"\0",
        b"import os; os.abort()",
        b"class Config:\n    enable_sssd = 1",
        b"(" * 5000,
    ],
)
def test_config_py_is_never_run_and_may_be_anything(text: bytes) -> None:
    """What it does not say is taken as on: rather a script too much than one lost."""
    fate = fates(classify_scripts(AWS, {"config.py": text}, "earlier").lines)
    assert fate["setup_sssd.py"].startswith("kept as your script `sssd`; hyperpod_kit.steps.sssd does it")


def test_shared_users() -> None:
    text = b"alice,2001,/fsx/alice\n\n# a comment\n bob , 2002 ,/home/bob\nbroken\neve,0x1,/fsx/eve\n\xff,1,/x\n"
    found = classify_scripts(AWS, {"shared_users.txt": text}, None)
    assert [(user["name"], user["uid"], user["gid"]) for user in found.users][:2] == [
        ("alice", 2001, 2001),
        ("bob", 2002, 2002),
    ]
    assert "the home /fsx/alice of alice: here it is /home/alice" in found.notes[0]
    assert [note for note in found.notes if "expected name,uid,home" in note] == [
        "line 5 of shared_users.txt: expected name,uid,home",
        "line 6 of shared_users.txt: expected name,uid,home",
    ]
    assert any("gids of shared_users.txt" in note for note in found.notes)
