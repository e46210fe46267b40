"""Scripts of the configuration on a node, run for real: order, stamp, deadline, what is said of one that fails."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.scripts import CustomScript
from hyperpod_kit.node.creation.apply import apply, preview
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import STEPS
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.node.setup.scripts import AFTER_MOUNTS_STEPS, AFTER_SLURM_STEPS, BEFORE_MOUNTS_STEPS
from hyperpod_kit.run import LocalRunner
from tests.support.wait import until

PLACES = (BEFORE_MOUNTS_STEPS, AFTER_MOUNTS_STEPS, AFTER_SLURM_STEPS)


class Scripts:
    """A node whose bundle has scripts."""

    def __init__(self, fake: Any) -> None:
        self.node: Node = replace(fake.node, runner=LocalRunner())
        self.bundle = Path(fake.root, "opt/hyperpod-kit/0123456789abcdef")
        self.bundle.mkdir(parents=True)
        (self.bundle.parent / "current").symlink_to(self.bundle.name)
        self.trace = Path(fake.root, "trace")

    def has(self, body: str, name: str = "own", **how: Any) -> None:
        """One script more; its body may name $TRACE."""
        script = CustomScript(name, "run.sh", **how)
        place = self.bundle / script.bundle_directory / "run.sh"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"#!/bin/bash\nTRACE={self.trace}\n{body}\n")
        others = tuple(one for one in self.node.config.scripts if one.name != name)
        self.node = replace(self.node, config=replace(self.node.config, scripts=(*others, script)))

    def steps(self) -> List[Step]:
        return list(plan(PLACES, self.node.config, "compute", "g", "on_create"))

    def apply(self) -> Dict[str, Any]:
        return apply(self.node, self.steps(), "on_create", lambda line: None)

    def records(self) -> Dict[str, Any]:
        return {one["step"]: one for one in self.apply()["steps"]}

    @property
    def ran(self) -> List[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []


@pytest.fixture
def scripts(make_node: Any) -> Scripts:
    return Scripts(make_node([]))


def test_once_for_the_same_files_and_arguments(scripts: Scripts) -> None:
    scripts.has('echo "$@" >>$TRACE', arguments=("one", "two words"))
    [foreseen] = preview(scripts.node, scripts.steps())
    assert foreseen["would"] == "run run.sh"
    first, second = scripts.apply(), scripts.apply()
    assert (first["changed"], second["changed"]) == (1, 0) and first["ok"] and second["ok"]
    assert scripts.ran == ["one two words"]
    assert [one["would"] for one in preview(scripts.node, scripts.steps())] == [""]


@pytest.mark.parametrize("what", ["file", "arguments"])
def test_another_one_runs_again(scripts: Scripts, what: str) -> None:
    scripts.has("echo $1 >>$TRACE", arguments=("one",))
    scripts.apply()
    scripts.has("echo $1 >>$TRACE; :" if what == "file" else "echo $1 >>$TRACE", arguments=("two",))
    assert "it has changed" in preview(scripts.node, scripts.steps())[0]["would"]
    assert scripts.apply()["changed"] == 1
    assert scripts.ran == ["one", "two"]


def test_always(scripts: Scripts) -> None:
    scripts.has("echo x >>$TRACE", always=True)
    scripts.apply()
    scripts.apply()
    assert scripts.ran == ["x", "x"]


def test_it_may_write_beside_itself_and_the_bundle_stays_as_it_was(scripts: Scripts) -> None:
    scripts.has("ls | tr '\\n' ' ' >>$TRACE; pwd >>$TRACE; echo made >made", always=True)
    scripts.apply()
    scripts.apply()
    directory = scripts.node.paths.script_directory("own")
    assert scripts.ran == [f"run.sh {directory}"] * 2, "what an earlier run left is gone"
    assert os.listdir(scripts.bundle / "scripts/own") == ["run.sh"]


def test_what_it_is_told(scripts: Scripts) -> None:
    scripts.has('echo "$HPK_CLUSTER $HPK_GROUP $HPK_ROLE $LC_ALL $SAGEMAKER_RESOURCE_CONFIG_PATH" >>$TRACE')
    scripts.apply()
    assert scripts.ran == [f"demo g compute C.UTF-8 {scripts.node.paths.resource_config}"]


def test_arguments_that_only_the_node_knows(scripts: Scripts) -> None:
    """As AWS's motd.sh and start_slurm.sh want them: the role, the controllers, the login nodes."""
    node = scripts.node
    Path(node.paths.resource_config).parent.mkdir(parents=True, exist_ok=True)
    Path(node.paths.resource_config).write_text(
        json.dumps({"InstanceGroups": [{"Name": "l", "Instances": [{"CustomerIpAddress": "10.0.0.7"}]}]})
    )
    config = replace(node.config, roles={**node.config.roles, "l": "login"})
    facts = replace(node.facts, controllers=("10.0.0.1", "10.0.0.2"))
    scripts.node = replace(node, config=config, facts=facts)
    words = ("{role}", "{controllers}", "{logins}", "{cluster}/{group}", "{group}", "{cluster}")
    scripts.has('echo "$@" "$HPK_CONTROLLERS" "$HPK_LOGINS" >>$TRACE', arguments=words)
    assert scripts.apply()["ok"]
    heads = "10.0.0.1,10.0.0.2"
    assert scripts.ran == [f"compute {heads} 10.0.0.7 {{cluster}}/{{group}} g demo {heads} 10.0.0.7"]
    scripts.node = replace(scripts.node, facts=replace(facts, controllers=("10.0.0.3",)))
    assert scripts.apply()["changed"] == 0, "another controller is no other script"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.sh", "echo bash $BASH_VERSION $1 | cut -c1-6 >>$TRACE"),
        ("setup.py", "import os, sys; open(os.environ['TRACE'], 'a').write('python\\n')"),
    ],
)
def test_a_file_without_a_first_line_of_its_own(
    scripts: Scripts, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS's setup_sssd.py and install_observability.py begin with a comment and an import."""
    monkeypatch.setenv("TRACE", str(scripts.trace))
    place = scripts.bundle / "scripts/own" / name
    place.parent.mkdir(parents=True)
    place.write_text(f"# Copyright\n{text}\n")
    script = CustomScript("own", name)
    scripts.node = replace(scripts.node, config=replace(scripts.node.config, scripts=(script,)))
    assert scripts.apply()["ok"]
    assert scripts.ran[0].strip() in ("bash 5", "python")


def test_one_that_fails_says_why_and_runs_again(scripts: Scripts) -> None:
    scripts.has("echo starting; printf 'no such \\033[2Jpackage\\n' >&2; exit 3")
    record = scripts.records()["script:own"]
    assert record["status"] == "failed"
    assert record["error"] == "run.sh exited 3: starting | no such [2Jpackage"
    assert record["hint"] == f"on the node: less {scripts.node.paths.script_log('own')}"
    assert Path(scripts.node.paths.script_log("own")).read_bytes() == b"starting\nno such \033[2Jpackage\n"
    scripts.has("echo good >>$TRACE")
    assert scripts.records()["script:own"]["status"] == "changed"


def test_one_that_is_not_required_fails_no_node(scripts: Scripts) -> None:
    scripts.has("exit 1", required=False)
    assert scripts.apply()["ok"] is True


def test_the_deadline_ends_it_and_its_children(scripts: Scripts) -> None:
    scripts.has("sleep 600 & echo $! >>$TRACE; wait", timeout=2.0)
    record = scripts.records()["script:own"]
    assert record["error"].startswith("it did not end within 2 s and was killed")
    [child] = scripts.ran
    until(lambda: not Path("/proc", child, "stat").exists() or _is_dead(child), what="the end of its child")


def _is_dead(pid: str) -> bool:
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_daemon_that_it_leaves_is_not_waited_for(scripts: Scripts) -> None:
    scripts.has("setsid sleep 600 & echo $! >>$TRACE", timeout=60.0)
    assert scripts.apply()["ok"]
    [daemon] = scripts.ran
    os.kill(int(daemon), signal.SIGKILL)


def test_one_whose_interpreter_is_not_there(scripts: Scripts) -> None:
    scripts.has("")
    (scripts.bundle / "scripts/own/run.sh").write_text("#!/opt/none/python\n")
    assert "exited 12" in scripts.records()["script:own"]["error"]


def test_places_roles_and_groups(scripts: Scripts) -> None:
    places: Dict[str, Dict[str, Any]] = {
        "last": {"when": "after-slurm"},
        "first": {"when": "before-mounts"},
        "second": {"when": "before-mounts", "groups": ("g",)},
        "middle": {},
        "elsewhere": {"roles": ("controller",)},
        "others": {"groups": ("h",)},
    }
    for name, how in places.items():
        scripts.has(f"echo {name} >>$TRACE", name, **how)
    assert scripts.apply()["ok"]
    assert scripts.ran == ["first", "second", "middle", "last"]


def test_where_they_stand_among_our_steps() -> None:
    scripts = tuple(
        CustomScript(when, "run.sh", when=when) for when in ("after-slurm", "after-mounts", "before-mounts")
    )
    mount = EfsMount("home", "/home", file_system_id="fs-0123456789abcdef0")
    config = NodeConfig("demo", "on_create", {"g": "compute"}, (mount,), scripts=scripts)
    names = [step.name for step in plan(STEPS, config, "compute", "g", "on_create")]
    before, after, last = (names.index(f"script:{one}") for one in ("before-mounts", "after-mounts", "after-slurm"))
    assert names.index("users") < before < names.index("mount:home") < names.index("homes") < after
    assert after < names.index("slurm-worker") < last == len(names) - 1


def test_behind_a_mount_that_failed_nothing_of_it_runs(scripts: Scripts) -> None:
    """What it wrote would lie below the mount point, and be hidden once the mount is there."""
    for when in ("before-mounts", "after-mounts", "after-slurm"):
        scripts.has(f"echo {when} >>$TRACE", when, when=when)

    def fail(node: Node) -> Any:
        raise OSError("no route to host")

    steps = scripts.steps()
    apply(scripts.node, [steps[0], Step("mount:home", fail), *steps[1:]], "on_create", lambda line: None)
    assert scripts.ran == ["before-mounts"]


@pytest.mark.parametrize(("timeout", "ends"), [(600.0, True), (3.0, False)])
def test_killed_in_the_middle_it_runs_again(scripts: Scripts, tmp_path: Path, timeout: float, ends: bool) -> None:
    """The program dies with the script at work; the next run lets that one have its time, and begins it anew."""
    scripts.has("ls >>$TRACE; touch half; [ -e $TRACE.go ] || { echo waiting >>$TRACE; sleep 600; }", timeout=timeout)
    program = tmp_path / "apply.py"
    program.write_text(
        "import sys, pickle\n"
        "from tests.unit.node.test_scripts import PLACES\n"
        "from hyperpod_kit.node.creation.apply import apply\n"
        "from hyperpod_kit.node.creation.plan import plan\n"
        "node = pickle.load(sys.stdin.buffer)\n"
        "apply(node, plan(PLACES, node.config, 'compute', 'g', 'on_create'), 'on_create')\n"
    )
    child = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert child.stdin
    child.stdin.write(pickle.dumps(replace(scripts.node, clock=Clock())))
    child.stdin.close()
    until(lambda: "waiting" in scripts.ran, what="the script at work")
    left = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _runs_in(pid, scripts)]
    child.kill()
    child.wait()
    assert not os.path.exists(scripts.node.paths.script_stamp("own"))
    Path(f"{scripts.trace}.go").touch()
    scripts.node = replace(scripts.node, clock=Clock())
    soon = threading.Timer(0.5, lambda: [os.kill(pid, signal.SIGTERM) for pid in left])
    if ends:
        soon.start()
    assert scripts.apply()["ok"]
    assert scripts.ran == ["run.sh", "waiting", "run.sh"], "the half of it is gone"
    until(lambda: not any(_runs_in(str(pid), scripts) for pid in left), what="the end of the first, with its children")
    assert not os.path.exists(scripts.node.paths.running_script_record("own"))


def _runs_in(pid: str, scripts: Scripts) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd") == scripts.node.paths.script_directory("own")
    except OSError:
        return False


def test_a_configuration_of_an_earlier_release_has_none() -> None:
    config = NodeConfig("demo", "on_create", {"g": "compute"}, scripts=(CustomScript("own", "run.sh", ("a",)),))
    assert NodeConfig.from_json(config.to_json()) == config
    earlier = json.loads(config.to_json())
    del earlier["scripts"]
    assert NodeConfig.from_json(json.dumps(earlier)).scripts == ()
