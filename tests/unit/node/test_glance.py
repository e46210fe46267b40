"""The timer's short way: run as the unit runs it. Whatever is not as it was leads to the whole check."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.checkpoint.repository import saves_note
from hyperpod_kit.model.mounts import EfsMount, LustreMount, S3Mount
from hyperpod_kit.node.health import calm, glance
from hyperpod_kit.node.health.look import DEEP_EVERY
from hyperpod_kit.node.health.tick import tick

LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
EFS = EfsMount("home", "/efs/trainer s", "fs-0123456789abcdef0", "fsap-0123456789abcdef0")
TEXTFILE = "var/lib/node_exporter/textfile_collector/hyperpod_kit.prom"


def run(root: Path) -> str:
    """What the unit's command came to: "" when all is calm, "whole" when it went on to the whole check."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", glance.__file__],
        env={"HPK_ROOT": str(root), "PATH": "/bin"},
        text=True,
        timeout=30,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode == 0:
        return done.stdout
    # The whole check needs a configuration, which this node has not.
    assert "no bundle is installed on this machine" in done.stdout
    return "whole"


@pytest.fixture
def fake(make_node: Any) -> Any:
    """A node with two mounts, ticked once at the present time."""
    made = make_node([LUSTRE, EFS])
    made.clock.now = time.time()
    (made.root / "opt/hyperpod-kit/one").mkdir(parents=True)
    (made.root / "opt/hyperpod-kit/current").symlink_to("one")
    made.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    made.table.append(f"77 1 0:77 / {calm.escaped(EFS.path)} rw - nfs4 127.0.0.1:/ rw")
    (made.root / "efs/trainer s").mkdir(parents=True)
    made._write()
    assert tick(made.node).records["home"].state == "ok"
    return made


def test_a_munged_that_ceases_to_run_ends_the_calm(fake: Any) -> None:
    procs = fake.root / "sys/fs/cgroup/system.slice/munge.service/cgroup.procs"
    for path in (procs, fake.root / "etc/munge/munge.key"):
        path.parent.mkdir(parents=True)
        path.write_text("4321\n")
    assert tick(fake.node).records["home"].state == "ok" and run(fake.root) == ""
    procs.write_text("")
    assert run(fake.root) == "whole"
    procs.unlink()
    assert run(fake.root) == "whole"


def test_nothing_new_costs_nothing_and_renews_the_times(fake: Any) -> None:
    for path in ("run/hyperpod-kit/health.json", TEXTFILE):
        os.utime(fake.root / path, (1, 1))
    assert run(fake.root) == ""
    for path in ("run/hyperpod-kit/health.json", TEXTFILE):
        assert time.time() - (fake.root / path).stat().st_mtime < 60
    assert not fake.runner.calls


def edit(path: str, before: str, after: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert before in text
        (root / path).write_text(text.replace(before, after))

    return change


def switch(root: Path) -> None:
    (root / "opt/hyperpod-kit/two").symlink_to("one")
    (root / "opt/hyperpod-kit/current").unlink()
    (root / "opt/hyperpod-kit/current").symlink_to("two")


def stack(root: Path) -> None:
    listed = root / "proc/self/mountinfo"
    listed.write_text(listed.read_text() + "99 1 0:99 / /fsx rw - fuse mountpoint-s3 rw\n")


def age(seconds: float) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        note = root / "run/hyperpod-kit/calm"
        head, _, rest = note.read_text().partition("\n")
        fields = head.split("\t")
        fields[1:3] = [repr(float(field) - seconds) for field in fields[1:3]]
        note.write_text("\t".join(fields) + "\n" + rest)

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda root: (root / "fsx").rmdir(), id="a mount answers with an error"),
        pytest.param(edit("proc/self/mountinfo", "50 1 0:50 / /fsx rw", "51 1 0:51 / /fsx rw"), id="mounted anew"),
        pytest.param(edit("proc/self/mountinfo", "/fsx rw", "/fsx ro"), id="remounted read-only"),
        pytest.param(edit("proc/self/mountinfo", " /fsx ", " /elsewhere "), id="gone"),
        pytest.param(stack, id="something lies above"),
        pytest.param(switch, id="another bundle"),
        pytest.param(age(DEEP_EVERY + 5), id="time for a whole check"),
        pytest.param(age(-60), id="the clock was set back"),
        pytest.param(
            lambda root: (root / "run/hyperpod-kit/gate-closed.json").write_text("{}"), id="the gate was closed"
        ),
        pytest.param(lambda root: (root / TEXTFILE).unlink(), id="the metrics are gone"),
        pytest.param(lambda root: (root / "run/hyperpod-kit/calm").write_bytes(b"\xff\t\n"), id="a damaged note"),
        pytest.param(lambda root: (root / "run/hyperpod-kit/calm").unlink(), id="no note"),
        pytest.param(edit("run/hyperpod-kit/calm", "\td0\t", "\td1\t"), id="not read-only any more"),
    ],
)
def test_anything_new_leads_to_the_whole_check(fake: Any, change: Callable[[Path], object]) -> None:
    change(fake.root)
    assert run(fake.root) == "whole"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_full_mount_leads_to_the_whole_check(fake: Any) -> None:
    place = fake.root / "fsx"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], timeout=20).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        assert run(fake.root) == ""
        with pytest.raises(OSError, match="No space"):
            (place / "ballast").write_bytes(bytes(100_000))
        assert run(fake.root) == "whole"
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)


@pytest.mark.rehearsal
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
def test_a_mount_that_hangs_is_left_to_the_whole_check(fake: Any, silent_mount: Any) -> None:
    with silent_mount(fake.root / "fsx"):
        started = time.monotonic()
        assert run(fake.root) == "whole"
        assert time.monotonic() - started < 10, "it was waited for"


def test_no_note_while_anything_is_wrong_or_owed(make_node: Any) -> None:
    made = make_node([LUSTRE, S3Mount("data", "/mnt/data", "sagemaker-data", required=False)])
    made.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    note = Path(made.node.paths.calm)
    note.parent.mkdir(parents=True)
    note.write_text("from before")
    tick(made.node)
    assert not note.exists()


def test_paths_are_escaped_as_the_kernel_does() -> None:
    assert calm.escaped("/a b\\c\td") == "/a\\040b\\134c\\011d"


def imported(modules: str) -> set[str]:
    """What the standard library is made to load by these modules, in a new interpreter as units start it."""
    checkout = str(Path(__file__).parents[3])
    program = f"import sys; sys.path.insert(0, {checkout!r}); import {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], text=True, timeout=30, stdout=subprocess.PIPE, check=True
    )
    return set(done.stdout.split())


def test_a_check_imports_nothing_that_it_does_not_need() -> None:
    """Each of these costs as much as the probes of ten mounts."""
    node = "hyperpod_kit.node"
    dear = {"argparse", "socket", "subprocess", "shutil", "configparser", "calendar", "datetime", "threading"}
    assert not dear & imported(f"{node}.cli, {node}.mount_commands, {node}.health.tick")
    assert not {"re", "typing", "enum", "dataclasses", "json", "contextlib"} & imported(
        f"{node}.health.glance, {node}.health.prober, hyperpod_kit.checkpoint.repository.places"
    )


def test_a_word_of_a_run_about_its_saves_gets_into_the_metrics(fake: Any) -> None:
    """And costs nothing while it stays as it is; what is none is passed over, and waited for never."""
    shm, text = fake.root / "dev/shm", fake.root / TEXTFILE
    shm.mkdir(parents=True)
    path = shm / f"hpk-{os.getuid()}-0123456789ab-00000.saves"
    word = saves_note.Note('llama "a"', "/fsx/run", "7", None, None, 1, "full")
    saves_note.write(str(path), word)
    assert run(fake.root) == "whole"
    assert tick(fake.node).records["home"].state == "ok" and run(fake.root) == ""
    labels = f'{{run="llama \\"a\\"",id="0123456789ab",uid="{os.getuid()}",job="7"}}'
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 1\n" in text.read_text()
    assert "hyperpod_kit_checkpoint_durable_timestamp_seconds{" not in text.read_text()
    saves_note.write(str(path), word._replace(durable_step=80, durable_at=1.5, lost_in_row=0))
    os.utime(path, (5, 5))
    assert run(fake.root) == "whole" and tick(fake.node) and run(fake.root) == ""
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 0\n" in text.read_text()
    assert f"hyperpod_kit_checkpoint_durable_timestamp_seconds{labels} 1.5\n" in text.read_text()
    path.unlink()
    os.mkfifo(path)
    assert tick(fake.node) and "checkpoint" not in text.read_text() and run(fake.root) == ""
    path.unlink()
    assert run(fake.root) == ""
    own = shm / f"hyperpod-kit-{os.getuid()}"
    own.mkdir()
    saves_note.write(str(own / path.name), word)
    assert run(fake.root) == "whole" and tick(fake.node) and run(fake.root) == ""
    assert f"hyperpod_kit_checkpoint_lost_saves{labels} 1\n" in text.read_text()
