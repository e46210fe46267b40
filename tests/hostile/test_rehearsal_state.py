"""A user who is first where root's rehearsal keeps its state, or who waits for root to end the wrong process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.environment import HPK_CACHE, HPK_REHEARSAL_STATE
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system.process import Process, identify_unless_gone_or_zombie, is_alive
from hyperpod_rehearsal import boot, cleanup
from hyperpod_rehearsal.machines import host, processes
from hyperpod_rehearsal.records import layout, state, trusted_directory
from hyperpod_rehearsal.records.layout import Layout
from tests.hostile.users import ATTACKER, ROOT, as_user, place

pytestmark = ROOT


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """A sticky directory of root's that everybody may write to, with the state's place in it."""
    with place() as found:
        monkeypatch.setenv(HPK_REHEARSAL_STATE, str(found / "state"))
        monkeypatch.setenv(HPK_CACHE, str(tmp_path / "cache"))
        monkeypatch.setattr(host, "require_rehearsal_support", lambda: None)
        yield found


@pytest.fixture
def daemon_of_roots():
    """Some process of root's that has nothing to do with a rehearsal."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(30)


def plant(where: Path, pid: int) -> None:
    """As the attacker: a rehearsal's directory whose daemon is that process."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])

    def work() -> None:
        os.makedirs(where)
        for name in ("daemon.json", "guardian.json"):
            (where / name).write_text(json.dumps({"pid": pid, "started": started}))
        (where / "ready.json").write_text('{"endpoint": "http://127.0.0.1:9"}')
        (where / "state.json").write_text('{"endpoint": "http://127.0.0.1:9", "clusters": []}')

    assert as_user(ATTACKER, work) == 0


COMMANDS = {
    "up": lambda: boot.start_rehearsal("demo", (), lambda text: None),
    "down": lambda: boot.take_down_rehearsal("demo"),
    "down --all": cleanup.stop_and_remove_all_returning_names,
    "status": lambda: boot.require_running("demo"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_directory_that_a_user_made_first(shared, daemon_of_roots, command):
    plant(shared / "state/demo", daemon_of_roots.pid)
    with pytest.raises(Untrusted, match=rf"{shared}/state belongs to uid {ATTACKER}, expected root"):
        COMMANDS[command]()
    assert daemon_of_roots.poll() is None
    assert (shared / "state/demo/daemon.json").exists()


def test_a_link_of_a_users_to_a_directory_of_roots(shared, tmp_path):
    (tmp_path / "roots").mkdir()
    assert as_user(ATTACKER, lambda: os.symlink(tmp_path / "roots", shared / "state")) == 0
    with pytest.raises(Untrusted, match=rf"state is a symbolic link to {tmp_path}/roots of uid {ATTACKER}"):
        boot.take_down_rehearsal("demo")
    with pytest.raises(Untrusted):
        trusted_directory.create_trusted_directory(shared / "state/demo")
    assert list((tmp_path / "roots").iterdir()) == []


def test_a_directory_of_roots_below_one_that_a_user_may_rename(shared, monkeypatch):
    assert as_user(ATTACKER, lambda: os.mkdir(shared / "theirs", 0o777)) == 0
    (shared / "theirs/state").mkdir(mode=0o700)
    monkeypatch.setenv(HPK_REHEARSAL_STATE, str(shared / "theirs/state"))
    with pytest.raises(Untrusted, match=f"theirs belongs to uid {ATTACKER}"):
        boot.start_rehearsal("demo", (), lambda text: None)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_state_directory_that_others_may_write_to(shared, mode):
    (shared / "state/demo").mkdir(parents=True)
    (shared / "state/demo").chmod(mode)
    with pytest.raises(Untrusted, match="may be written to by others"):
        boot.require_running("demo")


def test_what_root_makes_is_roots_alone(shared):
    before = os.umask(0)
    try:
        trusted_directory.create_trusted_directory(Layout.for_name("demo").root)
    finally:
        os.umask(before)
    for level in (shared / "state", shared / "state/demo"):
        assert level.stat().st_mode & 0o7777 == 0o700 and level.stat().st_uid == 0
    assert as_user(ATTACKER, lambda: os.listdir(shared / "state")) == 1


def test_an_image_cache_of_a_users(shared, monkeypatch):
    assert as_user(ATTACKER, lambda: os.mkdir(shared / "cache")) == 0
    monkeypatch.setenv(HPK_CACHE, str(shared / "cache"))
    with pytest.raises(Untrusted, match=f"cache belongs to uid {ATTACKER}"):
        boot.start_rehearsal("demo", (), lambda text: None)
    with pytest.raises(Untrusted):
        layout.lock_file_path_with_directory_made("network")


def process_of(pid: int) -> Process:
    process = identify_unless_gone_or_zombie(pid)
    assert process is not None
    return process


@pytest.mark.parametrize("file", ["daemon_file", "guardian_file"])
def test_the_number_of_a_daemon_that_died_is_another_process_now(shared, daemon_of_roots, file):
    """The identity fits to the clock tick, the place is root's; only it is no daemon of a rehearsal."""
    demo = Layout.for_name("demo")
    trusted_directory.create_trusted_directory(demo.root)
    state.write_process_identity(getattr(demo, file), process_of(daemon_of_roots.pid))
    cleanup.stop_daemon_and_guardian(demo)
    assert daemon_of_roots.poll() is None


@pytest.mark.parametrize("module", ["hyperpod_rehearsal.daemon", "hyperpod_kit.rehearsal.daemon"])
def test_the_daemon_of_another_rehearsal_is_not_ours(shared, module):
    """Same program, also under its former name, same user, another state directory."""
    demo = Layout.for_name("demo")
    trusted_directory.create_trusted_directory(demo.root)
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "-m", module, "--state", str(demo.root) + "2"], stdin=subprocess.PIPE
    ) as other, subprocess.Popen(
        [sys.executable, "-c", "input()", "-m", module, "--state", str(demo.root)], stdin=subprocess.PIPE
    ) as own:
        state.write_process_identity(demo.daemon_file, process_of(other.pid))
        cleanup.stop_daemon_and_guardian(demo)
        assert other.poll() is None
        state.write_process_identity(demo.daemon_file, process_of(own.pid))
        cleanup.stop_daemon_and_guardian(demo)
        assert own.wait(30) != 0
        other.kill()


def test_a_process_that_was_started_a_moment_ago_is_known_by_its_words():
    """Its exec goes on when its starter already looks: of a hundred, some six showed no words yet."""
    for _ in range(100):
        with subprocess.Popen(["sleep", "60"]) as started:
            assert processes.is_running_command(process_of(started.pid), ["sleep", "60"])
            started.kill()


def test_a_users_process_that_says_it_is_the_daemon(shared):
    """Even so root signals nothing of another user's: he could have it take a number that root then trusts."""
    demo = Layout.for_name("demo")
    trusted_directory.create_trusted_directory(demo.root)
    words = ["-m", "hyperpod_rehearsal.daemon", "--state", str(demo.root)]
    argv = ["/usr/bin/python3", "-c", "input()", *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, user=ATTACKER) as theirs:
        process = identify_unless_gone_or_zombie(theirs.pid)
        assert is_alive(process) and not processes.is_running_command(process, words)
        theirs.kill()


def test_a_fifo_or_a_file_of_a_users_in_the_place_of_a_state_file(shared):
    os.mkfifo(shared / "daemon.json")
    assert state.read_process_identity_or_none(shared / "daemon.json") is None
    assert as_user(ATTACKER, lambda: (shared / "ready.json").write_text('{"endpoint": "x"}')) == 0
    assert state.read_own_json_object_or_none(shared / "ready.json") is None
    (shared / "state.json").write_text("[" * 200_000)
    assert state.read_own_json_object_or_none(shared / "state.json") is None
