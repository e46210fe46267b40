"""The guard beside a real slurmctld: what it prints is understood, what was taken away is put back, no job notices."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from hyperpod_kit.node.machine.files import write_json
from hyperpod_kit.node.slurm import controller, hooks
from hyperpod_kit.node.slurm.guard import commands
from tests.support.slurm_commands import PrivateSlurmPaths, SlurmCommands
from tests.support.wait import until
from tests.unit.job import private_slurm

REPOSITORY = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.needs("slurm"),
    pytest.mark.needs("slurm-of-this-host"),
]


@dataclass(frozen=True)
class PathsOfPrivate(PrivateSlurmPaths):
    """The plugin, too, is the private Slurm's."""

    @property
    def plugstack_conf(self) -> str:
        return f"{self.base}/plugstack.conf"

    @property
    def spank_plugin(self) -> str:
        return f"{self.base}/auto_resume.so"


class RunnerOfPrivate(SlurmCommands):
    """Commands of Slurm are about the private one, by the configuration `conf`; systemd has nothing to do."""

    def __init__(self, conf: str) -> None:
        super().__init__({**os.environ, "SLURM_CONF": conf})

    def systemctl(self, arguments: List[str]) -> tuple[int, str]:
        """The main process of slurmd's unit."""
        return 0, f"MainPID={os.getpid()}\n"


@pytest.fixture(scope="module")
def slurm() -> Iterator[private_slurm.PrivateSlurm]:
    with private_slurm.running(nodes=1) as found:
        yield found


@pytest.fixture
def fake(slurm: private_slurm.PrivateSlurm, make_node: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The controller of a private Slurm, with our lines in its configuration."""
    made = make_node([], role="controller")
    bundled = made.root / "opt/hyperpod-kit/b1/slurm"
    shutil.copytree(REPOSITORY / "slurm", bundled)
    # No bundle is installed on this host, and a Prolog that is not there drains the node.
    lines = (bundled / "hooks.conf").read_text()
    (bundled / "hooks.conf").write_text(re.sub(r"(?m)^(Prolog|Epilog)=.*$", r"\1=/bin/true", lines))
    (made.root / "opt/hyperpod-kit/current").symlink_to("b1")
    (made.root / "usr/include").mkdir(parents=True)
    place = next(path for path in ("/usr/include", "/opt/slurm/include") if Path(path, "slurm/spank.h").exists())
    (made.root / "usr/include/slurm").symlink_to(f"{place}/slurm")
    monkeypatch.setattr(controller, "SPANK_PLUGIN", f"{slurm.base}/auto_resume.so")
    made.clock.wall = time.time
    paths = PathsOfPrivate(str(made.root), str(slurm.base))
    made.node = replace(made.node, paths=paths, runner=RunnerOfPrivate(paths.slurm_conf))
    write_json(paths.apply_status, {"ok": True, "bundle_id": "b1", "finished_at": time.time()})
    theirs = {path: Path(path).read_text() for path in (paths.slurm_conf, paths.plugstack_conf)}
    Path(paths.plugstack_conf).write_text("")
    for path, text in controller.expected_files(made.node)[0].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_text(text)
    slurm.call("scontrol", "reconfigure")
    until(lambda: codes(made.node) == [], what="a Slurm that is as it should be")
    yield made
    for path, text in theirs.items():
        Path(path).write_text(text)
    slurm.call("scontrol", "reconfigure")


def codes(node: Any) -> List[str]:
    done = commands.check_and_mend_slurm(node)
    assert done is not None
    return [finding.code for finding in done.record.findings]


@contextlib.contextmanager
def running_job(slurm: private_slurm.PrivateSlurm) -> Iterator[str]:
    """A job whose script runs; it has gone afterwards."""
    job = slurm.sbatch("--wrap", "sleep 600", "-o", "/dev/null", cwd=slurm.base)
    try:
        slurm.wait_for_script(job)
        yield job
    finally:
        slurm.call("scancel", job)
        until(lambda: not slurm.call("squeue", "-h", "-o", "%i").split(), what="a queue without it")


def test_lines_that_were_removed_are_put_back_under_a_job(fake: Any, slurm: private_slurm.PrivateSlurm) -> None:
    node = fake.node
    wanted = {path: Path(path).read_text() for path in (node.paths.slurm_conf, node.paths.plugstack_conf)}
    shown = slurm.call("scontrol", "show", "config")
    with running_job(slurm) as job:
        for path, text in wanted.items():
            Path(path).write_text(hooks.without_kit_block(text))
        slurm.call("scontrol", "reconfigure")
        until(lambda: "UnkillableStepTimeout   = 60 sec" in slurm.call("scontrol", "show", "config"), what="the loss")
        assert codes(node) == ["put-back"]
        assert {path: Path(path).read_text() for path in wanted} == wanted
        settings = [row for row in shown.splitlines() if "=" in row and "Configuration data" not in row]
        now = slurm.call("scontrol", "show", "config").splitlines()
        assert [row for row in settings if row.split()[0] not in ("BOOT_TIME", "NEXT_JOB_ID") and row not in now] == []
        assert slurm.state(job) == "RUNNING", slurm.lines_about(job)


def test_a_file_that_nobody_had_read_is_taken(fake: Any, slurm: private_slurm.PrivateSlurm) -> None:
    """Our lines are in the file, and slurmctld goes by an older one."""
    conf = Path(fake.node.paths.slurm_conf)
    text = conf.read_text()
    conf.write_text(hooks.without_kit_block(text))
    slurm.call("scontrol", "reconfigure")
    until(lambda: "UnkillableStepTimeout   = 60 sec" in slurm.call("scontrol", "show", "config"), what="the loss")
    conf.write_text(text)
    assert codes(fake.node) == ["put-back"]
    assert "UnkillableStepTimeout   = 180 sec" in slurm.call("scontrol", "show", "config")


def test_a_plugin_of_another_slurm_is_built_for_this_one(fake: Any, slurm: private_slurm.PrivateSlurm) -> None:
    other = slurm.base / "other"
    shutil.copytree(fake.root / "usr/include/slurm", other / "slurm")
    header = other / "slurm/slurm_version.h"
    words = [line for line in header.read_text().splitlines() if "define SLURM_VERSION_NUMBER" not in line]
    header.write_text("\n".join([*words, "#define SLURM_VERSION_NUMBER 0x190b00"]).replace("#endif", "") + "\n#endif\n")
    place = slurm.base / "auto_resume.so"
    source = str(REPOSITORY / "slurm/plugin/auto_resume.c")
    made = subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{other}", "-o", f"{place}.other", source], text=True, capture_output=True
    )
    assert made.returncode == 0, made.stderr
    os.replace(f"{place}.other", place)
    assert "--auto-resume" not in slurm.call("sbatch", "--help", as_user=True)
    assert codes(fake.node) == ["plugin-built"]
    assert "--auto-resume" in slurm.call("sbatch", "--help", as_user=True)
    place.chmod(0o600)
    try:
        assert codes(fake.node)[0] == "plugin-not-loaded", "root could load it, and no user can"
    finally:
        place.chmod(0o755)


@contextlib.contextmanager
def other_munge(base: Path) -> Iterator[Path]:
    """A munged of another key; its socket."""
    place = base / "other-munge"
    place.mkdir()
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o400)
    options = [f"--{name}={place}/{name[:4]}" for name in ("pid-file", "seed-file", "log-file")]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    daemon = subprocess.Popen(
        ["munged", "--foreground", "--force", f"--key-file={place}/key", f"--socket={place}/socket", *options],
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until((place / "socket").exists, what="munge socket")
        yield place / "socket"
    finally:
        daemon.terminate()
        daemon.wait(10)
        shutil.rmtree(place)


def test_a_worker_knows_its_own_key_from_a_controller_that_is_away(
    fake: Any, slurm: private_slurm.PrivateSlurm
) -> None:
    text = Path(fake.node.paths.slurm_conf).read_text()
    facts = replace(fake.node.facts, role="compute", node="n1")
    worker = replace(fake.node, facts=facts)
    until(lambda: codes(worker) == [], what="an idle node")
    assert codes(replace(worker, facts=replace(facts, node="n9"))) == ["node-unknown"]
    with other_munge(slurm.base) as socket:
        conf = slurm.base / "other.conf"
        conf.write_text(text.replace(f"{slurm.base}/munge.socket", str(socket)))
        assert codes(replace(worker, runner=RunnerOfPrivate(str(conf)))) == ["credential-refused"]
    assert codes(replace(worker, runner=RunnerOfPrivate(str(conf)))) == ["munge-down"]
    away = slurm.base / "away.conf"
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    away.write_text(text.replace(port, "SlurmctldPort=9"))
    assert codes(replace(worker, runner=RunnerOfPrivate(str(away)))) == ["controller-silent"]


@pytest.mark.parametrize(
    ("reason", "code", "undrained"),
    [("Duplicate jobid", "undrained", True), ("a fan is loud", "drained-by-others", False)],
)
def test_a_drain_for_a_job_that_is_over_is_taken_back_and_no_other(
    fake: Any, slurm: private_slurm.PrivateSlurm, reason: str, code: str, undrained: bool
) -> None:
    worker = replace(fake.node, facts=replace(fake.node.facts, role="compute", node="n1"))
    slurm.call("scontrol", "update", "nodename=n1", "state=drain", f"reason={reason}")
    try:
        first = codes(worker)
        assert first == (["duplicate-job"] if undrained else ["drained-by-others"]), (
            "slurmctld may still be at that job"
        )
        wall = fake.clock.wall
        fake.clock.wall = lambda: wall() + 45
        assert code in codes(worker)
        assert (
            "DRAIN" not in slurm.call("scontrol", "-o", "show", "node", "n1").split("State=")[1].split()[0]
        ) is undrained
    finally:
        with contextlib.suppress(AssertionError):
            slurm.call("scontrol", "update", "nodename=n1", "state=undrain")
        fake.clock.wall = time.time
