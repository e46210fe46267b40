"""The training environment: made once by real venv and pip, or uv, from local wheels, whoever dies in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.optional_steps import OptionalSteps, TrainingEnvironment
from hyperpod_kit.node.creation.apply import apply
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import ALL, OFF_STEP
from hyperpod_kit.node.environments import maker
from hyperpod_kit.node.environments.maker import EnvironmentSpec
from hyperpod_kit.node.health.warnings import warning_lines_about_node
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.optional import training_environment
from hyperpod_kit.node.slurm import lease
from hyperpod_kit.node.slurm.lease import LeaseOwner
from tests.support.wait import until
from tests.support.wheels import make_wheel, sha256_of

CHECKOUT = Path(__file__).parents[3]
MACHINE = os.uname().machine
KIT = "0.1.0+c0123456789ab"

PROGRAM = """
import json, sys
from hyperpod_kit.node.environments import maker
from hyperpod_kit.node.slurm.lease import LeaseOwner
raw = json.loads(sys.argv[1])
raw["node"] = LeaseOwner(**raw["node"])
print(json.dumps(maker.ensure_version(maker.EnvironmentSpec(**raw), lambda text: None)))
"""

HOLDING = """#!/bin/sh
if [ "$2" = -m ]; then
    echo "$$" >>"{place}/makers"
    "{python}" "$@" --without-pip || exit 1
    while [ -e "{place}/hold" ]; do sleep 0.05; done
    exit 0
fi
exec "{python}" "$@"
"""
"""An interpreter that makes an environment, and then takes its time."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with the kit's wheel and a lock of one package that lies in a directory."""
    package = make_wheel(tmp_path / "wheels", "train-code", "1.2", "ANSWER = 42\n")
    directory = tmp_path / "node/opt/hyperpod-kit/abc"
    make_wheel(directory / "lib", "hyperpod-kit", KIT, "")
    (directory / "training_environment").mkdir()
    arch = training_environment.ARCHITECTURES[MACHINE]
    (directory / f"training_environment/{arch}.lock").write_text(
        f"--no-index\n--find-links {tmp_path}/wheels\ntrain-code==1.2 \\\n    --hash=sha256:{sha256_of(package)}\n"
    )
    (directory.parent / "current").symlink_to("abc")
    return directory


@pytest.fixture
def spec(bundle: Path, tmp_path: Path) -> EnvironmentSpec:
    arch = training_environment.ARCHITECTURES[MACHINE]
    lock = bundle / f"training_environment/{arch}.lock"
    [kit] = (bundle / "lib").glob("*.whl")
    return EnvironmentSpec(
        str(tmp_path / "fsx/environments/training"),
        MACHINE,
        str(lock),
        sha256_of(lock),
        str(kit),
        sys.executable,
        "",
        LeaseOwner("i-0a", "node-a"),
        300.0,
        1.0,
    )


def started(spec: EnvironmentSpec, node: str) -> subprocess.Popen[str]:
    """A node that ensures the environment."""
    raw = asdict(replace(spec, node=LeaseOwner(f"i-0{node}", f"node-{node}")))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(raw)],
        cwd=CHECKOUT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def result(process: subprocess.Popen[str]) -> Dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    answer: Dict[str, Any] = json.loads(out)
    return answer


def names(spec: EnvironmentSpec) -> List[str]:
    return sorted(os.listdir(f"{spec.directory}/versions"))


def holding(spec: EnvironmentSpec, tmp_path: Path) -> EnvironmentSpec:
    """The same with a maker that stops in the middle until the file `hold` has gone; without packages."""
    python = tmp_path / "python"
    python.write_text(HOLDING.format(place=tmp_path, python=sys.executable))
    python.chmod(0o755)
    (tmp_path / "hold").touch()
    return replace(spec, python=str(python), uv=fake_uv(tmp_path))


def fake_uv(tmp_path: Path) -> str:
    """In place of uv, where what is tested is not how packages come: it starts the interpreter that it is given, and
    unpacks wheels, as `--no-deps` does."""
    program = tmp_path / "uv"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = venv ]; then\n'
        '    while [ $# -gt 2 ]; do [ "$1" = --python ] && python=$2; shift; done\n'
        '    exec "$python" -I -m venv "$2" --without-pip\nfi\n'
        'while [ $# -gt 1 ]; do [ "$1" = --python ] && python=$2; shift; done\n'
        'case "$1" in\n'
        '*.whl) exec "$python" -I -c "import sys, sysconfig, zipfile; '
        'zipfile.ZipFile(sys.argv[1]).extractall(sysconfig.get_path(\'purelib\'))" "$1";;\nesac\n'
    )
    program.chmod(0o755)
    return str(program)


def test_pip_makes_it_once_and_it_is_checked_afterwards(spec: EnvironmentSpec) -> None:
    log: List[str] = []
    first = maker.ensure_version(spec, log.append)
    assert first["made"] and first["moved"] and "train_code" in "".join(log)
    python = f"{spec.directory}/{MACHINE}/bin/python"
    code = "import train_code, hyperpod_kit; print(train_code.ANSWER)"
    assert subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout == "42\n"
    activate = f". {spec.directory}/{MACHINE}/bin/activate && command -v python"
    active = subprocess.run(["bash", "-c", activate], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    assert active == f"{first['path']}/bin/python", "who activates it keeps this version when the link moves"
    assert maker.describe_pending(spec) == ""
    assert maker.ensure_version(spec, log.append) == {"path": first["path"], "made": False, "moved": False}
    shutil.rmtree(f"{first['path']}/lib")
    with pytest.raises(NodeError, match="does not import hyperpod_kit"):
        maker.ensure_version(spec, log.append)


@pytest.mark.needs("uv")
def test_uv_makes_it(spec: EnvironmentSpec) -> None:
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    uv = shutil.which("uv", path=path) or ""
    made = maker.ensure_version(replace(spec, uv=uv), lambda text: None)
    site = next(Path(made["path"]).glob("lib/python*/site-packages"))
    assert made["made"] and (site / "train_code/__init__.py").is_file()
    assert list(site.glob("hyperpod_kit/__pycache__/*.pyc")), "no rank compiles, where the directory is not its own"


@pytest.mark.full
def test_a_package_with_another_hash_is_not_installed(spec: EnvironmentSpec, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "train-code", "1.2", "ANSWER = 43\n")
    with pytest.raises(NodeError, match="update the hashes"):
        maker.ensure_version(spec, lambda text: None)
    assert names(spec) == [], "what has failed is removed"


def test_a_new_lock_is_a_new_version_and_the_old_one_stays(spec: EnvironmentSpec, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    spec = holding(spec, tmp_path)
    (tmp_path / "hold").unlink()
    first = maker.ensure_version(spec, lambda text: None)
    second = maker.ensure_version(replace(spec, lock_digest="another"), lambda text: None)
    assert second["made"] and second["moved"] and len(names(spec)) == 2 and first["path"] != second["path"]
    back = maker.ensure_version(spec, lambda text: None)
    assert back == {"path": first["path"], "made": False, "moved": True}, "an earlier bundle has its version again"


def test_a_maker_is_killed_and_another_node_goes_on(spec: EnvironmentSpec, tmp_path: Path) -> None:
    spec = holding(spec, tmp_path)
    first = started(spec, "a")
    until(lambda: (tmp_path / "makers").exists(), what="a version that is not complete")
    [pid] = (tmp_path / "makers").read_text().split()
    second = started(spec, "b")
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    until(lambda: not os.path.exists(f"/proc/{pid}"), what="the end of what it started")
    [unfinished] = names(spec)
    (tmp_path / "hold").unlink()
    done = result(second)
    assert done["made"] and [os.path.basename(done["path"])] == names(spec) and unfinished not in names(spec)


def test_a_maker_is_killed_and_the_same_node_does_not_wait(spec: EnvironmentSpec, tmp_path: Path) -> None:
    spec = replace(holding(spec, tmp_path), takeover=3600.0)
    first = started(spec, "a")
    until(lambda: (tmp_path / "makers").exists(), what="a version that is not complete")
    first.kill()
    first.communicate(timeout=60)
    (tmp_path / "hold").unlink()
    assert result(started(spec, "a"))["made"]


def test_two_makers_at_once_make_one_version(spec: EnvironmentSpec, tmp_path: Path) -> None:
    spec = replace(holding(spec, tmp_path), takeover=3600.0)
    both = [started(spec, node) for node in "ab"]
    until(lambda: (tmp_path / "makers").exists(), what="a maker")
    (tmp_path / "hold").unlink()
    answers = [result(process) for process in both]
    assert sorted(answer["made"] for answer in answers) == [False, True]
    assert len({answer["path"] for answer in answers}) == 1 and len(names(spec)) == 1


def test_a_lease_that_comes_after_the_version_is_complete_makes_nothing(
    spec: EnvironmentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = holding(spec, tmp_path)
    (tmp_path / "hold").unlink()
    take = lease.try_take_and_delete_older

    def take_late(directory: str, generation: int, local: LeaseOwner) -> int:
        assert result(started(spec, "b"))["made"]
        return take(directory, generation + 1, local)

    monkeypatch.setattr(lease, "try_take_and_delete_older", take_late)
    assert not maker.ensure_version(spec, lambda text: None)["made"] and len(names(spec)) == 1


def test_a_maker_that_pauses_comes_back_to_no_harm(spec: EnvironmentSpec, tmp_path: Path) -> None:
    """Its lease is taken: what it goes on with completes nothing, and it takes the other's version."""
    spec = holding(spec, tmp_path)
    first = started(spec, "a")
    until(lambda: (tmp_path / "makers").exists(), what="a version that is not complete")
    first.send_signal(signal.SIGSTOP)
    (tmp_path / "hold").unlink()
    done = result(started(spec, "b"))
    first.send_signal(signal.SIGCONT)
    assert result(first) == {"path": done["path"], "made": False, "moved": False}
    assert [os.path.basename(done["path"])] == [name for name in names(spec) if "removed" not in name]


def test_who_waits_gives_up_when_others_fail(spec: EnvironmentSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(spec.lease_directory).mkdir(parents=True)
    watch = maker._LeaseWatch(spec)
    note = Path(spec.lease_directory, "failure")
    note.write_text("node-b: no such package (attempt 1)")
    watch.raise_if_maker_failed()
    note.write_text("node-c: no such package (attempt 2)")
    with pytest.raises(NodeError, match="node-c: no such package"):
        watch.raise_if_maker_failed()
    maker._LeaseWatch(spec).raise_if_maker_failed()


def test_an_interpreter_that_is_not_there_is_named(spec: EnvironmentSpec) -> None:
    with pytest.raises(NodeError, match="/usr/bin/python9 cannot be run"):
        maker.ensure_version(replace(spec, python="/usr/bin/python9"), lambda text: None)


def test_the_time_of_the_step_is_a_bound(spec: EnvironmentSpec, tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="the step timed out during: "):
        maker.ensure_version(replace(holding(spec, tmp_path), timeout=0.5), lambda text: None)


# --- The step --------------------------------------------------------------------------------------------------------

FSX = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")


@pytest.fixture
def node(make_node: Any, bundle: Path, tmp_path: Path) -> Iterator[Node]:
    fake = make_node([FSX])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    uv = fake.root / "usr/local/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(fake_uv(tmp_path))
    wanted = TrainingEnvironment("/fsx/environments", {"x86_64": "a.lock"}, python=sys.executable, owner="root")
    config = replace(fake.node.config, steps=OptionalSteps(training_environment=wanted))
    yield replace(fake.node, config=config)


def run(node: Node) -> List[Any]:
    planned = plan((*ALL, OFF_STEP), node.config, node.facts.role, "g", "on_create")
    done = apply(node, planned, "on_create", lambda line: None)
    return [(step["step"], step["status"], step["error"]) for step in done["steps"]]


def test_the_step_makes_it_and_finds_it(node: Node) -> None:
    step = training_environment.STEP
    assert step.pending(node) == f"make a version of {node.paths.root}/fsx/environments/training for {MACHINE}"
    assert run(node)[0] == ("training-environment", "changed", "")
    assert run(node)[0] == ("training-environment", "ok", "") and step.pending(node) == ""
    assert warning_lines_about_node(node, {}) == []
    assert (Path(node.paths.root) / "var/log/provision/training-environment.log").exists()
    off = replace(node, config=replace(node.config, steps=OptionalSteps()))
    assert run(off) == [("switched-off", "changed", "")]
    assert os.path.exists(f"{node.paths.root}/fsx/environments/training/{MACHINE}/bin/python"), "jobs may use it"


def test_a_failure_does_not_fail_the_node_and_is_reported_until_it_is_mended(node: Node) -> None:
    [link] = Path(node.paths.root).glob("usr/local/bin/uv")
    program = os.readlink(link)
    text = Path(program).read_text()
    Path(program).write_text("#!/bin/sh\necho no route to the index; exit 1\n")
    [(name, status, error)] = run(node)[:1]
    assert (name, status) == ("training-environment", "failed") and "no route to the index" in error
    [line] = warning_lines_about_node(node, {})
    assert line.startswith("no usable training environment on this node: ") and line.endswith(
        "; then: hyperpod-kit node apply"
    )
    Path(program).write_text(text)
    assert run(node)[0] == ("training-environment", "changed", "") and warning_lines_about_node(node, {}) == []


def test_without_its_mount_nothing_is_made_below_the_mount_point(node: Node, make_node: Any) -> None:
    Path(node.paths.mountinfo).write_text("")
    [(_, status, error)] = run(node)[:1]
    assert status == "failed" and "mount fsx" in error and not os.listdir(f"{node.paths.root}/fsx")


def test_a_controller_has_none(node: Node) -> None:
    assert "training-environment" not in [step.name for step in plan(ALL, node.config, "controller", "g", "on_create")]


@pytest.mark.needs("root", "system-python")
def test_the_owner_makes_it_and_root_runs_none_of_it(node: Node, tmp_path: Path) -> None:
    """On a file system that refuses root the directory is the owner's already."""
    asked = node.config.steps.training_environment
    assert asked is not None
    for path in (*reversed(tmp_path.parents), tmp_path, Path(node.paths.root)):
        if path.stat().st_uid == 0 and Path(tempfile.gettempdir()) in path.parents:
            path.chmod(0o755)
    asked = replace(asked, owner="nobody", python="/usr/bin/python3")
    node = replace(node, config=replace(node.config, steps=OptionalSteps(training_environment=asked)))
    assert run(node)[0] == ("training-environment", "changed", "")
    top = Path(node.paths.root, "fsx/environments")
    owners = {path.lstat().st_uid for path in (top, *top.rglob("*"))}
    assert owners == {65534}


@pytest.mark.needs("root")
@pytest.mark.parametrize(("uid", "mode"), [(4001, 0o755), (0, 0o777)])
def test_a_directory_in_which_others_could_exchange_it_is_refused(node: Node, uid: int, mode: int) -> None:
    place = Path(node.paths.root, "fsx/environments")
    place.mkdir()
    os.chown(place, uid, uid)
    place.chmod(mode)
    [(_, status, error)] = run(node)[:1]
    assert status == "failed" and "other users could replace the training environment" in error
    assert list(place.iterdir()) == []


@pytest.mark.needs("root")
def test_where_root_is_refused_the_owner_makes_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """root_squash as root meets it: what it makes is nobody's, and it may give nothing away."""

    def refuse(path: str, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr("hyperpod_kit.untrusted.by_descriptor.set_owner", refuse)
    assert not training_environment._make_directory_for_owner(f"{tmp_path}/environments", 4001)
    assert list(tmp_path.iterdir()) == [], "a directory of nobody's would keep the owner out"
