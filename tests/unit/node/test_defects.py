"""Behaviours of the scripts that came before, each with a test: the table of docs/design/packages/bundle.md."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Tuple

import pytest
from click.testing import CliRunner

from hyperpod_kit.aws.request_shape import find_request_problems
from hyperpod_kit.cli.table import cli
from hyperpod_kit.config.load import load
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.machine.facts import facts_from_resource_config
from hyperpod_kit.system.mountinfo import find_mount_at

CHECKOUT = Path(__file__).parents[3]
EXAMPLE = CHECKOUT / "provisioning_parameters.example.json"


def units(bundle: Any) -> Iterator[Tuple[str, str]]:
    yield from ((place, data.decode()) for place, data in bundle.files.items() if place.startswith("units/"))


def validated(path: Path) -> Any:
    return CliRunner().invoke(cli, ["validate", str(path)], standalone_mode=False)


# A1  validate-config.py: the last check overwrites the verdict, the controller group is never looked up, exit code 0.
def test_every_finding_counts_and_the_exit_code_says_so(tmp_path: Path) -> None:
    good = json.loads(EXAMPLE.read_text())
    wrong = json.loads(EXAMPLE.read_text())
    wrong["controller_group"] = "nowhere"
    wrong["hyperpod_kit"]["cluster"]["instance_groups"][0]["instance_type"] = "trn1.32xlarge"
    wrong["hyperpod_kit"]["mounts"][0]["access_point_id"] = "fsap-1"
    # The last thing that is looked at is right, as it was when everything before it went unnoticed.
    for values, code in ((good, 0), (wrong, 1)):
        path = tmp_path / f"{code}.json"
        path.write_text(json.dumps(values))
        done = validated(path)
        assert done.return_value == code, done.output
    for named in ("HPK-G001", "HPK-G009", "HPK-E"):
        assert named in done.output
    assert "Write `ml.trn1.32xlarge`" in done.output


# A1  an FSx file system is demanded although it is optional.
def test_a_cluster_without_fsx_is_valid(tmp_path: Path) -> None:
    values = {key: value for key, value in json.loads(EXAMPLE.read_text()).items() if not key.startswith("fsx")}
    path = tmp_path / "no_fsx.json"
    path.write_text(json.dumps(values))
    done = validated(path)
    assert done.return_value == 0, done.output


# A2, A7  hyperpod-precheck.py and add_users.sh: `/fsx` and `/home` are found in any path that contains them.
@pytest.mark.parametrize(
    "path, mounted",
    [
        ("/fsx", "/data/fsx"),
        ("/fsx", "/fsx2"),
        ("/home", "/efs/home"),
        ("/home", "/home/alice"),
        ("/mount-s3", "/mount-s3-old"),
    ],
)
def test_a_path_is_that_path_and_not_one_that_contains_it(path: str, mounted: str) -> None:
    line = "36 1 0:36 / {} rw shared:1 - fuse mountpoint-s3 rw\n"
    assert find_mount_at(line.format(mounted), path) is None
    assert find_mount_at(line.format(path), path) is not None


# §7.2  the check stops its own timer after the first good result.
# A2  always exit code 0; A3 a pipe to `tee` hides the exit code.
@pytest.mark.full
def test_a_good_check_stops_nothing_and_a_bad_one_is_an_exit_code(make_sandbox: Any) -> None:
    sandbox = make_sandbox("compute")
    sandbox.install()
    assert sandbox.node("apply", "--mode", "on_create").returncode == 0
    before = len(sandbox.calls)
    assert sandbox.node("health").returncode == 0
    assert not [call for call in sandbox.calls[before:] if re.match(r"systemctl (stop|disable|mask|kill)", call)]
    assert sandbox.run(["systemctl", "is-active", "hyperpod-kit-health.timer"]).returncode == 0
    sandbox.run(["umount", "/fsx"])
    assert sandbox.node("mounts").returncode == 1


# A3, §7.5  oneshot + RemainAfterExit (a dead daemon stays "active"), Type=forking, network.target, pipes in Exec lines.
def test_the_daemon_is_the_unit(render_example: Any) -> None:
    mounts = (S3Mount("data", "/data", "bucket-a"), S3Mount("out", "/out", "bucket-b", prefix="runs/"))
    found = [text for place, text in units(render_example(mounts=mounts)) if "s3" in place]
    assert len(found) == 2  # as many buckets as one likes, a unit each
    for text in found:
        assert "Type=exec\n" in text and "Restart=always\n" in text and "StartLimitIntervalSec=0\n" in text
        assert "RemainAfterExit" not in text and "Type=forking" not in text
        assert "After=network-online.target\n" in text and "Wants=network-online.target\n" in text
        assert "--foreground" in text and "--allow-other" in text
        assert "node mounts prepare" in text  # clears the endpoint of a dead daemon
        for line in text.splitlines():
            assert not (line.startswith("Exec") and re.search(r"[|>&]|\btee\b", line)), line


# §7.3  AssertPathIsDirectory on the mount point: on a dead endpoint the assertion fails and nothing is repaired.
def test_no_unit_of_ours_touches_its_mount_point_through_systemd(bundle: Any) -> None:
    for place, text in units(bundle):
        keys = re.findall(r"^(?:Assert|Condition|RequiresMountsFor|WorkingDirectory|ReadWritePaths).*", text, re.M)
        assert [key for key in keys if "=/dev/shm/" not in key] == [], place


# §7.4  --dir-mode 777 after a repair: nothing is writable by everybody unless the configuration says so.
def test_nothing_is_world_writable_by_default(render_example: Any) -> None:
    mounts = (S3Mount("data", "/data", "bucket", read_only=False, allow_overwrite=True),)
    for _, text in units(render_example(mounts=mounts)):
        for mode in re.findall(r"--(?:dir|file)-mode \"?([0-7]+)", text):
            assert int(mode, 8) & 0o002 == 0


# A4  mount_fsx.sh: any mount point but /fsx fails the cluster.
@pytest.mark.full
def test_lustre_is_mounted_anywhere(make_sandbox: Any, render_example: Any) -> None:
    deep = LustreMount("scratch", "/shared/deep/lustre", "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh")
    sandbox = make_sandbox("compute", render_example(mounts=(deep,)))
    sandbox.install()
    done = sandbox.node("apply", "--mode", "on_create")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " /shared/deep/lustre " in sandbox.mountinfo()


# A2, A4  no timeout anywhere: each command that a node runs has one in its call, and LocalRunner keeps it.
def test_every_command_of_a_node_has_a_deadline() -> None:
    calls = 0
    for path in sorted((CHECKOUT / "hyperpod_kit/node").rglob("*.py")):
        for item in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(item, ast.Call)
                and isinstance(item.func, ast.Attribute)
                and item.func.attr == "run"
                and ast.unparse(item.func.value).split(".")[-1] in ("runner", "subprocess")
            ):
                continue
            calls += 1
            assert any(keyword.arg == "timeout" for keyword in item.keywords), f"{path}:{item.lineno}"
    assert calls > 30


# A5 (#1028)  provisioning_parameters.json is opened although HyperPod refuses it beside SlurmConfig.
@pytest.mark.full
def test_no_parameters_are_needed_on_a_node(make_sandbox: Any, render_example: Any) -> None:
    cluster = replace(load(EXAMPLE).cluster, lifecycle_mode="on_init_complete")
    sandbox = make_sandbox("compute", render_example(cluster=cluster, mounts=()))
    assert not list(sandbox.staging.rglob("provisioning_parameters.json"))
    assert not (sandbox.root / "opt/ml/config/provisioning_parameters.json").exists()
    done = sandbox.run(["/bin/bash", str(sandbox.staging / "on_init_complete.sh")])
    assert done.returncode == 0, done.stdout + done.stderr


# A8  pam_adopt_cgroup_wheel.sh: names of instance groups are written into the scripts.
def test_groups_may_have_any_name() -> None:
    raw = {
        "InstanceGroups": [
            {"Name": "kopf", "Instances": [{"CustomerIpAddress": "10.1.0.10"}]},
            {"Name": "p5-a", "Instances": [{"CustomerIpAddress": "10.1.0.20"}]},
        ]
    }
    facts = facts_from_resource_config(
        raw, {"kopf": "controller", "p5-a": "login"}, "h", lambda address: address == "10.1.0.20"
    )
    assert facts is not None and (facts.role, facts.controller_address) == ("login", "10.1.0.10")
    for place in ("lifecycle_scripts", "slurm", "templates", "hyperpod_kit/node", "hyperpod_kit/model"):
        for path in sorted((CHECKOUT / place).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                text = path.read_text(errors="replace")
                assert not re.search(r"controller-machine|login-group|worker-group", text), path


# A6  appends with `>>` and unconditional `mv`: a second run doubles lines or fails.
# A8  TaskPlugin is overwritten, which auto-resume needs as HyperPod wrote it.
@pytest.mark.full
def test_a_second_run_writes_no_line_twice_and_the_platforms_lines_stay(make_sandbox: Any) -> None:
    sandbox = make_sandbox("controller")
    conf = sandbox.root / "opt/slurm/etc/slurm.conf"
    theirs = "ClusterName=demo\nTaskPlugin=task/none\nSchedulerParameters=permit_job_expansion\nNodeName=a CPUs=2\n"
    conf.write_text(theirs)
    sandbox.install()
    texts = []
    for _ in range(2):
        assert sandbox.node("apply", "--mode", "on_init_complete").returncode == 0
        texts.append(
            {
                path: path.read_text()
                for path in sorted((sandbox.root / "etc").rglob("*"))
                + sorted((sandbox.root / "opt/slurm/etc").rglob("*"))
                if path.is_file()
            }
        )
    assert texts[0] == texts[1] and len(texts[0]) > 5
    assert conf.read_text().startswith(theirs) and conf.read_text().count("TaskPlugin") == 1


# Blog 001  `lifecycleConfig` and other spellings that the API does not know.
def test_a_request_with_awss_old_spelling_is_refused_before_it_is_sent() -> None:
    group = {
        "InstanceGroupName": "g",
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 1,
        "ExecutionRole": "arn:aws:iam::111122223333:role/R",
        "ThreadsPerCore": 1,
    }
    config = {"SourceS3Uri": "s3://sagemaker-x/y/", "OnCreate": "on_create.sh"}
    right = {"ClusterName": "demo", "InstanceGroups": [{**group, "LifeCycleConfig": config}]}
    assert find_request_problems("sagemaker", "CreateCluster", right) == []
    wrong = {"ClusterName": "demo", "InstanceGroups": [{**group, "lifecycleConfig": config}]}
    assert any(
        "lifecycleConfig" in str(problem) for problem in find_request_problems("sagemaker", "CreateCluster", wrong)
    )


# The blogs' access points: an access point without TLS is refused, and each mount says which it is.
def test_an_access_point_needs_tls(tmp_path: Path) -> None:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["mounts"][0]["tls"] = False
    path = tmp_path / "no_tls.json"
    path.write_text(json.dumps(values))
    done = validated(path)
    assert done.return_value == 1 and "tls" in done.output


# The table itself: every test that docs/design/packages/bundle.md names exists under that name.
def test_the_table_names_tests_that_exist() -> None:
    table = (CHECKOUT / "docs/design/packages/bundle.md").read_text()
    named = re.findall(r"`((?:unit|rehearsal)/[\w/]+\.py)::(\w+)`", table)
    assert {row for row in re.findall(r"^\| (A\d|B\d) \|", table, re.M)} == {
        *(f"A{number}" for number in range(1, 9)),
        *(f"B{number}" for number in range(1, 7)),
    }
    assert len(named) > 30
    for path, test in named:
        assert f"def {test}(" in (CHECKOUT / "tests" / path).read_text(), f"{path}::{test}"
