"""`hyperpod-kit rehearse …` as far as it goes without root and machines."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from click.testing import CliRunner

from hyperpod_kit.environment import HPK_REHEARSAL_STATE
from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.system.process import Process, is_alive, this_process
from hyperpod_rehearsal import boot
from hyperpod_rehearsal.cli.commands import rehearse
from hyperpod_rehearsal.credentials.keys import Keys
from hyperpod_rehearsal.machines import host, layer
from hyperpod_rehearsal.records import state, trusted_directory
from hyperpod_rehearsal.records.layout import Layout
from hyperpod_rehearsal.records.settings import RehearsalSettings, parse_share, resolve_tree_directory


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv(HPK_REHEARSAL_STATE, str(tmp_path / "state"))
    monkeypatch.setenv("HPK_CACHE", str(tmp_path / "cache"))


def run(*arguments):
    return CliRunner().invoke(rehearse, list(arguments))


def test_without_root_two_sentences_and_the_sandbox(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = run("up").exception
    assert isinstance(error, RehearsalError) and error.exit_code == 1
    assert "root" in error.message and error.message.count(". ") == 1 and error.message.endswith(".")
    assert "rehearse sandbox" in (error.hint or "")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool == "mmdebstrap" else "/bin/x")
    assert any("mmdebstrap" in reason for reason in host.missing_requirements())


@pytest.mark.parametrize(
    "arguments", [("status",), ("env",), ("kill-node", "x"), ("logs", "x"), ("exec", "x", "--", "id")]
)
def test_commands_on_a_rehearsal_that_is_not_up(monkeypatch, arguments):
    monkeypatch.setattr(host, "require_root", lambda what: None)
    error = run(*arguments).exception
    assert isinstance(error, RehearsalError) and "not up" in error.message
    assert error.hint == "hyperpod-kit rehearse up"


def test_down_twice_is_fine(monkeypatch):
    monkeypatch.setattr(host, "require_root", lambda what: None)
    result = run("down")
    assert result.exit_code == 0 and "was not up" in result.output


@pytest.fixture
def up(monkeypatch):
    """State files of a rehearsal whose daemon is this process."""
    monkeypatch.setattr(host, "require_root", lambda what: None)
    layout = Layout.for_name("demo")
    trusted_directory.create_trusted_directory(layout.root)
    state.write_process_identity(layout.daemon_file, this_process())
    state.write_json(layout.ready_file, {"endpoint": "http://127.0.0.1:1"})
    Keys.generate().save(layout.root)
    node = {
        "instance_id": "i-1",
        "place": "gpu/0",
        "host": "ip-10-1-41-18",
        "ip": "10.1.41.18",
        "role": "",
        "pid": 0,
        "pid_started": 0,
        "group": "gpu",
        "index": 0,
        "status": "Failure",
        "message": "why\nmore",
        "booted_at": 0,
    }
    state.write_json(
        layout.state_file,
        {
            "name": "demo",
            "endpoint": "http://127.0.0.1:1",
            "gateway": "10.1.0.1",
            "clusters": [{"name": "one", "status": "Failed", "failure_message": "because", "nodes": [node]}],
        },
    )
    return layout


def test_env_is_shell(up):
    lines = run("env").output.splitlines()
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:1" in lines and "export HPK_SSH_USER=root" in lines
    assert f"export HPK_KNOWN_HOSTS={up.known_hosts}" in lines
    key = Keys.load(up.root).admin
    assert f"export AWS_ACCESS_KEY_ID={key.id}" in lines and "export AWS_SESSION_TOKEN=''" in lines
    assert (up.root / "keys.json").stat().st_mode & 0o777 == 0o600


def test_status_as_a_table_and_as_json(up):
    assert json.loads(run("status", "--json").output)["clusters"][0]["nodes"][0]["machine"] == "dead"
    shown = run("status").output
    assert "gpu/0" in shown and "Failure: why" in shown and "because" in shown


def test_killing_a_dead_node_says_so(up):
    error = run("kill-node", "gpu/0").exception
    assert isinstance(error, RehearsalError) and "does not run" in error.message


def test_a_daemon_that_died_is_not_up(up):
    assert boot.is_daemon_ready(up)
    state.write_process_identity(up.daemon_file, Process(os.getpid(), 1))
    assert not boot.is_daemon_ready(up)


def test_a_process_is_its_pid_and_its_start():
    process = this_process()
    assert is_alive(process) and not is_alive(Process(process.pid, process.started + 1)) and not is_alive(None)


def test_settings_survive_the_way_to_the_daemon(tmp_path):
    settings = RehearsalSettings("demo", "/image", (("/a", "/b"),), cred_expire=5, trees=("/c",))
    settings.save(tmp_path)
    assert RehearsalSettings.load(tmp_path) == settings


def test_shares(tmp_path):
    assert parse_share(f"{tmp_path}:/data") == (str(tmp_path), "/data")
    assert parse_share(str(tmp_path)) == (str(tmp_path), str(tmp_path))
    for wrong in (f"{tmp_path}/none:/x", f"{tmp_path}:relative", f"{tmp_path}:/a:/b"):
        with pytest.raises(RehearsalError):
            parse_share(wrong)


def test_what_every_node_has_besides(tmp_path):
    tree, layer_directory = tmp_path / "tree", tmp_path / "layer"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tool").write_text("")
    (tree / "usr/bin/tool").chmod(0o755)
    (tree / "usr/bin/link").symlink_to("tool")
    layer.rebuild_layer(layer_directory, [resolve_tree_directory(str(tree))])
    assert os.access(layer_directory / "usr/bin/link", os.X_OK) and (layer_directory / "usr/bin/mount-s3").exists()
    (tree / "lib").mkdir()
    with pytest.raises(RehearsalError, match="lib would take the place of the image's own"):
        resolve_tree_directory(str(tree))
    with pytest.raises(RehearsalError, match="is not a directory"):
        resolve_tree_directory(f"{tmp_path}/none")
