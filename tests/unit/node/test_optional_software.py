"""Docker, Podman, SSSD and pam_slurm_adopt: what each leaves on a node, and that nobody's own settings are lost."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.optional_steps import Docker, Enroot, OptionalSteps, PamSlurmAdopt, Podman, Pyxis, Sssd
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.creation.apply import apply
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import ALL, OFF_STEP
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.optional import docker, enroot, local_disk, pam_slurm_adopt, podman, sssd, upkeep
from hyperpod_kit.node.slurm import controller, pyxis_line
from hyperpod_kit.node.slurm.hooks import with_kit_block

pytestmark = pytest.mark.needs("root")

PAM = "auth required pam_env.so\naccount required pam_nologin.so\n@include common-account\n"
NVME = "/opt/dlami/nvme"
READER = Secret("reader", "arn:aws:secretsmanager:us-east-1:111122223333:secret:reader-a1b2c3")
LDAP = Sssd("ldaps://a.example.com,ldaps://b.example.com", "dc=example,dc=com", allow=("res",), sudo=("admins",))


@pytest.fixture
def fake(make_node: Any) -> Any:
    """A compute node with NVMe, sshd and every program that these steps stand on."""
    found = make_node([])
    found.mounted(NVME, "ext4", "/dev/mapper/vg.01-lv_ephemeral")
    security = f"usr/lib/{os.uname().machine}-linux-gnu/security"
    programs = ("usr/bin/dockerd", "usr/bin/podman", "usr/bin/enroot", sssd.LDAP[1:])
    modules = (f"{security}/pam_succeed_if.so", "lib/security/pam_slurm_adopt.so", pyxis_line.PLUGINS[0][1:])
    for path in (*programs, *modules):
        (found.root / path).parent.mkdir(parents=True, exist_ok=True)
        (found.root / path).touch(0o755 if path in programs else 0o644)
    (found.root / "etc/pam.d").mkdir(parents=True)
    (found.root / "etc/pam.d/sshd").write_text(PAM)
    (found.root / "etc/nsswitch.conf").write_text("passwd: files sss\n")
    session = found.root / "etc/pam.d/common-session"
    session.write_text("session required pam_unix.so\n")
    found.runner.on("sshd -T", out="port 22\nusepam yes\n")
    found.runner.on("visudo --check")
    found.runner.on("pam-auth-update --enable", do=lambda: session.write_text("session optional pam_mkhomedir.so\n"))
    found.runner.on("pam-auth-update --package", do=lambda: session.write_text("session required pam_unix.so\n"))
    found.runner.on("getent passwd ubuntu", out="ubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n")
    found.runner.on("getent group docker", out="docker:x:990:\n")
    found.runner.on("gpasswd --delete")

    def joined() -> None:
        found.runner.on("getent group docker", out="docker:x:990:ubuntu\n")

    found.runner.on("usermod --append --groups docker ubuntu", do=joined)
    return found


def with_steps(node: Node, **steps: Any) -> Node:
    return replace(node, config=replace(node.config, steps=OptionalSteps(**steps), secrets=(READER,)))


def run(node: Node) -> Dict[str, Any]:
    planned = plan((*ALL, OFF_STEP), node.config, node.facts.role, "g", "on_create")
    return apply(node, planned, "on_create", lambda line: None)


def etc(root: Path) -> Dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in (root / "etc").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"docker": Docker()}, "etc/docker/daemon.json"),
        ({"podman": Podman()}, "etc/containers/storage.conf"),
        ({"enroot": Enroot()}, "etc/enroot/enroot.conf.d/50-hyperpod-kit.conf"),
        ({"pam_slurm_adopt": PamSlurmAdopt()}, "etc/pam.d/sshd"),
        ({"sssd": LDAP}, "etc/sssd/sssd.conf"),
    ],
)
def test_on_twice_and_off(fake: Any, asked: Dict[str, Any], left: str) -> None:
    before = etc(fake.root)
    node = with_steps(fake.node, **asked)
    first = run(node)
    assert [(one["status"], one["error"]) for one in first["steps"][:1]] == [("changed", "")]
    there = etc(fake.root)
    assert there[left] != before.get(left, "")
    assert (NVME in there[left]) == ("docker" in left or "containers" in left or "enroot" in left)
    assert run(node)["changed"] == 0 and etc(fake.root) == there
    assert [step.pending(node) for step in ALL if step.key in asked] == [""]
    assert run(with_steps(fake.node))["steps"][0]["status"] == "changed"
    assert etc(fake.root) == before
    assert run(with_steps(fake.node))["changed"] == 0


def test_enroot_has_a_place_for_everybody_again_after_a_boot(fake: Any) -> None:
    node = with_steps(fake.node, enroot=Enroot())
    run(node)
    places = [fake.root / path[1:] for path in ("/run/enroot", f"{NVME}/enroot", f"{NVME}/enroot/tmp")]
    assert all(place.stat().st_mode & 0o7777 == 0o1777 for place in places)
    for place in reversed(places):
        place.rmdir()
    assert (
        enroot.ensure_directories(node)
        and not enroot.ensure_directories(node)
        and all(place.is_dir() for place in places)
    )
    assert f"{enroot.WITHOUT_DISK}/enroot" in enroot.TEXT.format(
        runtime="", place=enroot._data_directory(without_disk(node))
    )


def without_disk(node: Node) -> Node:
    Path(node.paths.mountinfo).write_text("")
    return node


@pytest.mark.parametrize(
    ("said", "beside", "lines"),
    [
        ("", "", 1),
        ("required /usr/local/lib/slurm/spank_pyxis.so\n", "", 0),
        ("include /opt/slurm/etc/plugstack.conf.d/*\n", "optional /a/spank_pyxis.so", 0),
    ],
)
def test_pyxis_is_loaded_once_whoever_has_it_loaded(fake: Any, said: str, beside: str, lines: int) -> None:
    node = with_steps(fake.node, enroot=Enroot(), pyxis=Pyxis())
    assert run(node)["ok"] and run(node)["changed"] == 0
    place = Path(node.paths.plugstack_conf)
    if beside:
        (place.parent / f"{place.name}.d").mkdir(parents=True)
        (place.parent / f"{place.name}.d" / "pyxis.conf").write_text(beside)
    found = pyxis_line.plugstack_lines(node, said)
    assert len(found) == lines and all(f"required {pyxis_line.PLUGINS[0]} " in line for line in found)
    assert pyxis_line.plugstack_lines(node, with_kit_block(said, found)) == found, "our own line is not somebody else's"
    assert pyxis_line.plugstack_lines(with_steps(fake.node), said) == []


def test_daemon_json_of_others_is_added_to_and_given_back(fake: Any) -> None:
    daemon = fake.root / "etc/docker/daemon.json"
    daemon.parent.mkdir()
    theirs = {"log-driver": "local", "runtimes": {"kata": {"path": "/usr/bin/kata"}}}
    daemon.write_text(json.dumps(theirs))
    (fake.root / docker.NVIDIA[1:]).touch(0o755)
    node = with_steps(fake.node, docker=Docker())
    assert run(node)["ok"] and run(node)["changed"] == 0
    said = json.loads(daemon.read_text())
    assert said["data-root"] == f"{NVME}/docker" and set(said["runtimes"]) == {"kata", "nvidia"}
    assert said["log-driver"] == "local"
    run(with_steps(fake.node))
    assert json.loads(daemon.read_text()) == theirs
    fake.runner.calls.clear()
    daemon.write_text('{"data-root": "/mine"}')
    assert run(node)["ok"] and json.loads(daemon.read_text())["data-root"] == "/mine"
    assert "systemctl disable" not in "".join(fake.runner.calls)


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": 7}', "null", "\x00"])
def test_a_daemon_json_that_is_none_is_said_and_left(fake: Any, text: str) -> None:
    daemon = fake.root / "etc/docker/daemon.json"
    daemon.parent.mkdir()
    daemon.write_text(text)
    [one] = run(with_steps(fake.node, docker=Docker()))["steps"][:1]
    assert one["status"] == "failed" and "daemon.json is no" in one["error"], one
    assert daemon.read_text() == text


def test_docker_that_was_there_before_goes_on(fake: Any) -> None:
    fake.runner.on("systemctl is-enabled --quiet docker.service")
    run(with_steps(fake.node, docker=Docker()))
    fake.runner.calls.clear()
    run(with_steps(fake.node))
    said = "\n".join(fake.runner.calls)
    assert "systemctl try-restart containerd.service docker.service" in said and "systemctl disable" not in said
    assert "gpasswd --delete ubuntu docker" in said


def test_without_a_local_disk_nothing_is_said_of_one(make_node: Any) -> None:
    node = make_node([]).node
    assert local_disk.find_local_disk_or_volume_path(node) == "" and not podman.ensure_directory(
        with_steps(node, podman=Podman())
    )
    assert docker.missing_settings({}, "", False) == {}


def test_the_disk_that_is_empty_after_a_boot(fake: Any) -> None:
    node = with_steps(fake.node, podman=Podman())
    run(node)
    place = fake.root / f"{NVME[1:]}/podman"
    assert place.stat().st_mode & 0o7777 == 0o1777 and not podman.ensure_directory(node)
    place.rmdir()
    assert podman.ensure_directory(node) and place.stat().st_mode & 0o7777 == 0o1777


def test_root_and_the_named_never_reach_the_module() -> None:
    assert pam_slurm_adopt.pam_lines(("ubuntu",), ("admins", "ops"), "/lib/security/m.so") == [
        "account [success=3 default=ignore] pam_succeed_if.so quiet user in root:ubuntu",
        "account [success=2 default=ignore] pam_succeed_if.so quiet user ingroup admins",
        "account [success=1 default=ignore] pam_succeed_if.so quiet user ingroup ops",
        "account required /lib/security/m.so",
    ]
    assert "user in root" in pam_slurm_adopt.pam_lines((), (), "m")[0]


def test_the_lines_stand_before_what_ends_the_stack_for_local_users(fake: Any) -> None:
    assert run(with_steps(fake.node, pam_slurm_adopt=PamSlurmAdopt()))["ok"]
    text = (fake.root / "etc/pam.d/sshd").read_text()
    assert text.index("account required /lib/security/pam_slurm_adopt.so") < text.index("@include common-account")


def test_no_lines_without_the_door_or_without_pam_or_beside_others(fake: Any) -> None:
    node = with_steps(fake.node, pam_slurm_adopt=PamSlurmAdopt())
    sshd = fake.root / "etc/pam.d/sshd"
    fake.runner.on("sshd -T", out="usepam no\n")
    assert "UsePAM off" in run(node)["steps"][0]["error"] and sshd.read_text() == PAM
    fake.runner.on("sshd -T", out="usepam yes\n")
    door = fake.root / f"usr/lib/{os.uname().machine}-linux-gnu/security/pam_succeed_if.so"
    door.unlink()
    assert "root could not log in either" in run(node)["steps"][0]["error"] and sshd.read_text() == PAM
    door.touch()
    sshd.write_text(PAM + "account required pam_slurm_adopt.so\n")
    (fake.root / "lib/security/pam_slurm_adopt.so").unlink()
    fake.runner.calls.clear()
    assert "outside the kit's block" in run(node)["steps"][0]["error"]
    assert fake.runner.calls == [], "refused before anything is installed"


def test_sssd_conf_says_what_was_asked(fake: Any) -> None:
    asked = replace(LDAP, bind_dn="cn=reader,dc=example,dc=com", secret_arn=READER.arn)
    node = with_steps(fake.node, sssd=asked)
    assert "the secret reader is not on this node" in run(node)["steps"][0]["error"]
    secret = Path(node.paths.secret("reader"))
    secret.parent.mkdir(parents=True)
    secret.write_text('hunter2"#x\n')
    assert run(node)["ok"]
    path = fake.root / "etc/sssd/sssd.conf"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600 and 'ldap_default_authtok = hunter2"#x\n' in text
    assert "ldap_uri = ldaps://a.example.com, ldaps://b.example.com\n" in text
    assert "access_provider = simple\n" in text and "simple_allow_groups = res\n" in text
    assert (fake.root / "etc/sudoers.d/60-hyperpod-kit-directory").stat().st_mode & 0o777 == 0o440
    assert "ldap_id_use_start_tls = True" in sssd.conf_text(replace(LDAP, uri="ldap://a"), "")
    assert "ldap_id_mapping = True" in sssd.conf_text(replace(LDAP, schema="ad"), "")


def test_nothing_of_the_directory_is_known_any_more(fake: Any) -> None:
    """A daemon that rests still answers out of its files: names, and what passwords are compared with."""
    run(with_steps(fake.node, sssd=LDAP))
    for name in ("mc/passwd", "mc/group", "db/cache_hyperpod-kit.ldb", "db/config.ldb"):
        path = fake.root / "var/lib/sss" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run(with_steps(fake.node))
    assert [path.name for path in (fake.root / "var/lib/sss").rglob("*") if path.is_file()] == ["config.ldb"]


def test_sudo_is_not_closed_by_a_file_that_it_does_not_take(fake: Any) -> None:
    fake.runner.on("visudo --check", 1, "stdin:1:18: syntax error")
    assert "sudo rejects" in run(with_steps(fake.node, sssd=LDAP))["steps"][0]["error"]
    assert not (fake.root / "etc/sudoers.d/60-hyperpod-kit-directory").exists()


def test_sssd_of_somebody_else_is_left_alone(fake: Any) -> None:
    conf = fake.root / "etc/sssd/sssd.conf"
    conf.parent.mkdir()
    conf.write_text("[sssd]\n")
    assert "was not written by hyperpod-kit" in run(with_steps(fake.node, sssd=LDAP))["steps"][0]["error"]
    fake.runner.calls.clear()
    run(with_steps(fake.node))
    assert conf.read_text() == "[sssd]\n" and "disable" not in "\n".join(fake.runner.calls)


@pytest.mark.parametrize("text", ["a\nldap_uri = evil", "", "a\\b"])
def test_a_password_that_would_be_more_than_one(fake: Any, text: str) -> None:
    node = with_steps(fake.node, sssd=replace(LDAP, bind_dn="cn=a,dc=b", secret_arn=READER.arn))
    secret = Path(node.paths.secret("reader"))
    secret.parent.mkdir(parents=True)
    secret.write_text(text)
    with pytest.raises(NodeError, match="has no password"):
        sssd._expected_files(node)


@pytest.mark.parametrize("hyperpod", [False, True])
def test_slurm_makes_a_step_for_each_job_where_the_module_asks_for_it(fake: Any, hyperpod: bool) -> None:
    hooks = fake.root / "opt/hyperpod-kit/current/slurm/hooks.conf"
    hooks.parent.mkdir(parents=True)
    hooks.write_text((Path(__file__).parents[3] / "slurm/hooks.conf").read_text())
    conf = Path(fake.node.paths.slurm_conf)
    conf.parent.mkdir(parents=True)
    conf.write_text("ClusterName=demo\nPrologFlags=X11\n")
    if hyperpod:
        Path(fake.node.paths.hyperpod_node_directory).mkdir(parents=True)
    asked = with_steps(fake.node, pam_slurm_adopt=PamSlurmAdopt())
    assert "\nPrologFlags=X11,Alloc,Contain\n" in controller.expected_files(asked)[0][str(conf)]
    plain = controller.expected_files(with_steps(fake.node))[0][str(conf)]
    assert "Contain" not in plain and ("Alloc" in plain) != hyperpod


def test_a_recurring_part_that_fails_is_named_and_the_others_are_done(fake: Any, monkeypatch: Any) -> None:
    node = with_steps(fake.node, podman=Podman(), enroot=Enroot())
    done: list[Node] = []

    def no_room(node: Node) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(upkeep.PARTS, "podman", no_room)
    monkeypatch.setitem(upkeep.PARTS, "enroot", done.append)
    assert upkeep.run_upkeep_parts_and_list_failures(node) == ["podman: [Errno 28] No space left on device"]
    assert done == [node]
    with hold_lock(node, "upkeep", seconds=0.0):
        assert upkeep.run_upkeep_parts_and_list_failures(node) == [], "another run is at it"
