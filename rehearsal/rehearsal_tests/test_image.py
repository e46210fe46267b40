"""The image cache and the shape of the root; building for real needs root and is the rehearsal tests' business."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.machines import apt_release, image, image_root
from hyperpod_rehearsal.machines.image import Recipe
from tests.support.wait import until

RECIPE = Recipe("bookworm", "x86_64", ("systemd",), ("deb http://x bookworm main",), "0")


@pytest.mark.parametrize(
    "field, value",
    [
        ("packages", ("systemd", "jq")),
        ("sources", ()),
        ("customize", "1"),
        ("architecture", "aarch64"),
        ("codename", "jammy"),
    ],
)
def test_every_input_is_in_the_digest(field, value):
    assert dataclasses.replace(RECIPE, **{field: value}).digest != RECIPE.digest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "recipe_for_release", lambda release, profile: RECIPE)
    return tmp_path


def test_an_image_that_is_there_is_used(cache):
    RECIPE.image_path(cache).write_bytes(b"image")
    assert image.ensure_image_built(cache) == RECIPE.image_path(cache)


def fake_build(monkeypatch, log):
    """Programs of the build replaced by one that writes the files which they would have written."""

    def run(argv, progress, log_file):
        log.append(argv[0])
        if argv[0] == "mmdebstrap":
            os.mkdir(argv[-2])
        else:
            with open(argv[2], "wb") as file:
                file.write(b"squashed")

    monkeypatch.setattr(image, "_run_build_command_reporting_progress", run)
    monkeypatch.setattr(image_root, "customize", lambda root, runner: None)


def test_a_build_appears_complete_and_leaves_nothing_else(cache, monkeypatch):
    steps: list[Any] = []
    fake_build(monkeypatch, steps)
    (cache / "build-interrupted").mkdir()
    assert image.ensure_image_built(cache).read_bytes() == b"squashed"
    assert steps == ["mmdebstrap", "mksquashfs"] and list(cache.glob("build-*")) == []


def test_a_second_builder_waits_and_uses_the_first_ones(cache, monkeypatch):
    steps: list[Any] = []
    messages: list[Any] = []
    fake_build(monkeypatch, steps)
    with open(cache / "image.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = []
        waiting = threading.Thread(target=lambda: result.append(image.ensure_image_built(cache, messages.append)))
        waiting.start()
        while not messages:
            waiting.join(0.01)
        RECIPE.image_path(cache).write_bytes(b"the other one's")
    waiting.join(10)
    assert result == [RECIPE.image_path(cache)] and steps == []


FORKY = Recipe("forky", "x86_64", ("systemd",), ("deb http://mirror.example/debian forky main",), "0")


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """A mirror whose archive of forky is of the day that the test sets; without one it does not answer."""
    said: dict[str, Any] = {}

    def day_of(codename, sources, runner):
        if "day" not in said:
            raise RehearsalError("mirror.example does not say of which day it is")
        return said["day"]

    monkeypatch.setattr(image, "recipe_for_release", lambda release, profile: FORKY)
    monkeypatch.setattr(apt_release, "fetch_archive_timestamp_if_changing", day_of)
    return said


def test_an_image_of_a_changing_release_is_of_a_day(changing, tmp_path, monkeypatch):
    steps: list[Any] = []
    fake_build(monkeypatch, steps)
    changing["day"] = "20261030T080801"
    first = image.ensure_image_built(tmp_path)
    assert first.name == f"node-forky-{FORKY.digest}-20261030T080801.squashfs"
    assert image.ensure_image_built(tmp_path) == first and steps == ["mmdebstrap", "mksquashfs"]
    changing["day"] = "20261031T080802"
    assert image.ensure_image_built(tmp_path) != first and len(steps) == 4


def test_where_the_mirror_is_silent_the_newest_image_is_taken_and_that_is_said(changing, tmp_path):
    for day in ("20261030T080801", "20261029T080801"):
        dataclasses.replace(FORKY, day=day).image_path(tmp_path).touch()
    dataclasses.replace(FORKY, packages=(), day="20261031T080801").image_path(tmp_path).touch()
    messages: list[Any] = []
    assert "20261030" in image.ensure_image_built(tmp_path, messages.append).name
    assert messages == ["mirror.example does not say of which day it is; the image of 2026-10-30 is taken"]


def test_where_the_mirror_is_silent_and_no_image_is_there_nothing_is_built(changing, tmp_path):
    with pytest.raises(RehearsalError, match="does not say of which day"):
        image.ensure_image_built(tmp_path)


def test_a_failed_build_shows_the_end_of_its_log(cache, tmp_path):
    with pytest.raises(RehearsalError, match=r"(?s)exited 3.*no such package"):
        image._run_build_command_reporting_progress(
            ["sh", "-c", "echo 'E: no such package' >&2; exit 3"], lambda text: None, tmp_path / "log"
        )


def test_only_the_last_images_stay(cache):
    for number in range(image.KEPT_IMAGES + 2):
        path = cache / f"node-bookworm-{number}.squashfs"
        path.touch()
        os.utime(path, (number, number))
    image._delete_oldest_images(cache)
    assert sorted(path.name[-10] for path in cache.glob("node-*")) == ["2", "3", "4", "5", "6", "7"]


def test_an_image_has_no_identity(tmp_path):
    for path in ("etc/hostname", "etc/munge/munge.key", "etc/ssh/ssh_host_rsa_key", "etc/slurm/x", "etc/fuse.conf"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("#user_allow_other\n")
    (tmp_path / "etc/passwd").write_text("ubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n")

    from tests.support.runner import RecordingRunner

    runner = RecordingRunner(otherwise="")
    image_root.customize(tmp_path, runner)
    for path in ("etc/hostname", "etc/munge/munge.key", "etc/ssh/ssh_host_rsa_key"):
        assert not (tmp_path / path).exists()
    assert (tmp_path / "etc/machine-id").read_text() == ""
    assert (tmp_path / "etc/slurm").readlink().as_posix() == "/opt/slurm/etc"
    assert (
        "ExecStart=/opt/slurm/sbin/slurmd -D $SLURMD_OPTIONS"
        in (tmp_path / "etc/systemd/system/slurmd.service").read_text()
    )
    enabled = next(command.split() for command in runner.calls if "systemctl -q enable" in command)
    # AWS's own bundle starts Slurm's daemons and counts on munge.
    assert {"ssh.service", "munge.service"} <= set(enabled)
    assert not any("disable munge" in command for command in runner.calls)


@pytest.mark.needs("root")
def test_a_build_does_not_outlive_a_killed_command(tmp_path):
    marker = "86399.25"
    program = (
        "from pathlib import Path; from hyperpod_rehearsal.machines import image; "
        f"image._run_build_command_reporting_progress(['sh', '-c', 'sleep {marker}; true'], print, "
        f"Path({str(tmp_path / 'log')!r}))"
    )
    command = subprocess.Popen([sys.executable, "-c", program])

    def sleeping():
        return [entry for entry in Path("/proc").glob("[0-9]*") if cmdline(entry) == f"sleep {marker}"]

    try:
        until(sleeping)
    finally:
        command.kill()
        command.wait(timeout=60)
    until(lambda: not sleeping())


def cmdline(entry):
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
