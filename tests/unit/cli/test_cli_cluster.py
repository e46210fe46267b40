"""The cluster's life by the commands that a user types, against an endpoint that checks every request's shape."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

from tests.unit.cli.conftest import put_bundle, put_cluster

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

BUCKET = "sagemaker-hyperpod-kit-demo"
BOTH = {"controller-machine": 1, "worker-group": 3}


def test_the_whole_life(cloud: Cloud, project: Path, hk: Hk) -> None:
    cloud.store.create_bucket(BUCKET)
    assert hk("validate").code == 0
    sent = hk("upload", "--json")
    assert sent.code == 0
    bundle = json.loads(sent.out)
    assert bundle["uri"] == f"s3://{BUCKET}/hyperpod-kit/demo/{bundle['bundle_id']}/"
    assert json.loads(hk("upload", "--json").out)["sent"] == 0
    cloud.control.script = [("Creating", {}, ""), ("Creating", {"controller-machine": 1}, ""), ("InService", BOTH, "")]
    made = hk("create-cluster", "--wait", "--interval", "0.2", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["bundle_id"] == bundle["bundle_id"]
    assert "Creating · controller-machine 1/1 · worker-group 0/3" in made.err
    assert made.err.splitlines()[-1] == "cluster demo is ready; next: hyperpod-kit validate-mounts"
    assert cloud.control.clusters["demo"]["InstanceGroups"][0]["LifeCycleConfig"] == {
        "SourceS3Uri": bundle["uri"],
        "OnCreate": "on_create.sh",
    }
    assert "worker-group" in hk("describe-cluster").out
    assert json.loads(hk("describe-cluster", "--json").out)["ClusterStatus"] == "InService"
    listed = json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]
    assert [node["address"] for node in listed] == ["10.0.0.1", "10.0.1.1", "10.0.1.2", "10.0.1.3"]
    assert "4 nodes, 4 running" in hk("list-cluster-nodes", "--cluster", "demo", "--region", "us-east-1").err
    assert hk("replace-node", "worker-group/1", "--yes").code == 0
    assert cloud.control.replaced == [listed[2]["instance_id"]]
    assert hk("wait", "--json").code == 0
    gone = hk("delete-cluster", "--yes", "--wait", "--interval", "0.2")
    assert (gone.code, gone.err.splitlines()[-1]) == (0, "cluster demo is gone")
    assert hk("describe-cluster").code == 3


def test_upload_leaves_what_the_service_model_refuses_to_the_commands_that_send_it(
    cloud: Cloud, project: Path, hk: Hk
) -> None:
    cloud.store.create_bucket(BUCKET)
    file = project / "provisioning_parameters.json"
    values = json.loads(file.read_text())
    values["hyperpod_kit"]["cluster"]["instance_groups"][1]["instance_type"] = "ml.p99.48xlarge"
    file.write_text(json.dumps(values))
    assert hk("upload").code == 0
    for command in (["validate"], ["create-cluster"], ["update-cluster", "--dry-run"]):
        refused = hk(*command)
        assert refused.code == 1 and "error HPK-R004" in refused.out + refused.err, command
    assert not cloud.control.clusters


def test_a_cluster_follows_its_configuration(
    cloud: Cloud, project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    same = hk("update-cluster")
    assert (same.code, cloud.control.updates) == (0, []), same.out + same.err
    assert "cluster demo matches" in same.err
    path = project / "provisioning_parameters.json"
    values = json.loads(path.read_text())
    groups = values["hyperpod_kit"]["cluster"]["instance_groups"]
    workers = next(group for group in groups if group["name"] == "worker-group")
    workers["count"] = 1
    path.write_text(json.dumps(values))
    shown = hk("update-cluster", "--dry-run", "--json")
    [change] = json.loads(shown.out)["changes"]
    assert (change["field"], change["before"], change["after"], change["destroys"]) == ("InstanceCount", 3, 1, 2)
    assert cloud.control.updates == []
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    asked = hk("update-cluster")
    assert "2 nodes and everything on their own disks will be deleted" in asked.err
    assert asked.code == 2 and "--yes" in asked.err and cloud.control.updates == []
    cloud.control.script = [
        ("InService", BOTH, ""),
        ("Updating", BOTH, ""),
        ("InService", {**BOTH, "worker-group": 1}, ""),
    ]
    done = hk("update-cluster", "--yes", "--wait", "--interval", "0.2")
    assert done.code == 0, done.err
    assert len(cloud.control.updates) == 1 and "cluster demo is ready" in done.err
    workers["instance_type"] = "ml.g5.xlarge"
    path.write_text(json.dumps(values))
    refused = hk("update-cluster", "--yes")
    assert refused.code == 1 and "not possible" in refused.out and len(cloud.control.updates) == 1
    assert hk("reboot-node", "worker-group/0", "--yes").code == 0 and len(cloud.control.rebooted) == 1


def test_an_update_says_which_nodes_run_an_unsupported_bundle(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    cloud.control.script = [("InService", BOTH, "")]
    assert json.loads(hk("update-cluster", "--dry-run", "--json").out)["unsupported_bundles"] == []
    prefix = "hyperpod-kit/demo/0123456789abcdef/"
    cloud.store.put(BUCKET, f"{prefix}bundle.json", b'{"format": "hpk-bundle/1"}')
    for group in cloud.control.clusters["demo"]["InstanceGroups"]:
        group["LifeCycleConfig"]["SourceS3Uri"] = f"s3://{BUCKET}/{prefix}"
    shown = hk("update-cluster", "--dry-run", "--json")
    workers = [f"i-00000001{number:09x}" for number in range(3)]
    assert json.loads(shown.out)["unsupported_bundles"] == [
        {"group": "controller-machine", "format": "hpk-bundle/1", "nodes": ["i-00000000000000000"]},
        {"group": "worker-group", "format": "hpk-bundle/1", "nodes": workers},
    ]
    created = "was created from hpk-bundle/1, which this release does not support"
    assert f"controller-machine {created}: run the new bundle's entry script on i-00000000000000000\n" in shown.err
    assert f"worker-group {created}: hyperpod-kit replace-node {' '.join(workers)}, or run" in shown.err
    assert hk("update-cluster").code == 0 and len(cloud.control.updates) == 1


def test_no_cluster_without_its_bundle(cloud: Cloud, project: Path, hk: Hk) -> None:
    cloud.store.create_bucket(BUCKET)
    refused = hk("create-cluster")
    assert (refused.code, cloud.control.clusters) == (1, {})
    assert "nothing is uploaded\nhint: hyperpod-kit upload\n" in refused.err


def test_a_failed_cluster(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_bundle(cloud.store)
    cloud.control.script = [("Creating", {}, ""), ("Failed", {}, "Lifecycle scripts did not run successfully.")]
    failed = hk("create-cluster", "--wait", "--interval", "0.2")
    assert failed.code == 1
    assert "error: cluster demo failed: Lifecycle scripts did not run successfully." in failed.err
    described = hk("describe-cluster")
    assert described.code == 1 and "failure: Lifecycle scripts did not run successfully." in described.out


def test_time_is_up(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_bundle(cloud.store)
    cloud.control.script = [("Creating", {}, "")]
    late = hk("create-cluster", "--wait", "--interval", "0.2", "--timeout", "1")
    assert late.code == 3 and "not ready after 1 s: status Creating" in late.err


def test_nothing_answers(project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_MAX_ATTEMPTS", "1"),
    ):
        monkeypatch.setenv(name, value)
    answer = hk("describe-cluster")
    assert (answer.code, answer.err.splitlines()[0]) == (
        3,
        "error: DescribeCluster demo: http://127.0.0.1:1 does not answer",
    )


def test_nothing_is_deleted_without_a_yes(cloud: Cloud, project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    put_cluster(cloud.control, hk)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    lines = [(name, "worker-group/0") for name in ("replace-node", "reboot-node", "health-check")]
    for line in (("delete-cluster",), *lines):
        unanswered = hk(*line)
        assert (
            unanswered.code == 2
            and "error: cannot ask for confirmation: standard input is not a terminal\nhint: --yes" in unanswered.err
        )
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert hk(*line).code == 130
        assert hk(*line, "--dry-run").code == 0
    assert list(cloud.control.clusters) == ["demo"] and cloud.control.replaced == cloud.control.rebooted == []
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert hk("delete-cluster").code == 0 and cloud.control.clusters == {}


@pytest.mark.full
def test_what_was_done_can_be_asked_for_again(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_bundle(cloud.store)
    assert "is being created" in hk("create-cluster").err
    again = hk("create-cluster", "--wait", "--json")
    assert again.code == 0 and "exists already and matches" in again.err and json.loads(again.out)["existed"]
    assert hk("update-cluster", "--wait").err.splitlines()[-1] == "cluster demo is ready"
    file = project / "provisioning_parameters.json"
    file.write_text(file.read_text().replace('"count": 3', '"count": 4'))
    other = hk("create-cluster")
    assert other.code == 1
    assert "differs from the configuration in 1 place, first InstanceCount of worker-group" in other.err
    assert ": 3 on AWS, 4 in the configuration" in other.err
    cloud.control.clusters["demo"]["Orchestrator"] = {"Slurm": {"SlurmConfigStrategy": "Merge"}}
    two = hk("create-cluster")
    strategy = '{"Slurm": {"SlurmConfigStrategy": "Merge"}}'
    assert two.code == 1 and "differs from the configuration in 2 places" in two.err and "'Slurm'" not in two.err
    assert f"Orchestrator of cluster: {strategy} on AWS, - in the configuration" in two.err
    cloud.control.script = [("Failed", {}, "no capacity")]
    failed = hk("create-cluster")
    assert failed.code == 1 and "with status Failed: no capacity\nhint: hyperpod-kit delete-cluster" in failed.err
    assert hk("delete-cluster", "--yes").code == 0
    nothing = hk("delete-cluster", "--yes", "--wait", "--json")
    assert nothing.code == 0 and "nothing to delete" in nothing.err and json.loads(nothing.out)["status"] == "gone"


def test_a_deletion_that_is_under_way_is_waited_for(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_cluster(cloud.control, hk)
    cloud.control.script = [("Deleting", {}, ""), ("Deleting", {}, ""), ("Deleting", {}, "an ENI is in use")]
    late = hk("delete-cluster", "--wait", "--interval", "0.2", "--timeout", "1")
    assert late.code == 3 and "is already being deleted" in late.err and "still exists after 1 s" in late.err
    assert list(cloud.control.clusters) == ["demo"]


def test_part_of_the_nodes_can_be_refused(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_cluster(cloud.control, hk)
    nodes = json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]
    cloud.control.busy = {nodes[1]["instance_id"]}
    part = hk("replace-node", "worker-group/0", "worker-group/1", "--yes", "--json")
    assert part.code == 1
    told = json.loads(part.out)
    assert told["replaced"] == [nodes[2]["instance_id"]]
    assert [one["NodeId"] for one in told["refused"]] == [nodes[1]["instance_id"]]
    assert "1 of 2 nodes are not being replaced" in part.err and "InstanceIdInUse" in part.err


@pytest.mark.parametrize("mode", ["on_create", "on_init_complete"])
@pytest.mark.needs("aws")
def test_the_dry_run_is_what_awss_own_command_line_takes(cloud: Cloud, project: Path, hk: Hk, mode: str) -> None:
    file = project / "provisioning_parameters.json"
    file.write_text(file.read_text().replace('"on_create"', f'"{mode}"'))
    dry = hk("create-cluster", "--dry-run", "--json")
    assert dry.code == 0 and cloud.control.clusters == {}
    (project / "request.json").write_text(dry.out)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "awscli",
            "sagemaker",
            "create-cluster",
            "--cli-input-json",
            "file://request.json",
            "--endpoint-url",
            cloud.url,
            "--region",
            "us-east-1",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert cloud.control.clusters["demo"] == json.loads(dry.out)


def test_a_cluster_is_named_by_file_or_by_name(
    cloud: Cloud, tmp_path: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nameless = hk("describe-cluster")
    assert nameless.code == 3 and "hint: --cluster NAME, or the path of the configuration file" in nameless.err
    (tmp_path / "provisioning_parameters.json").write_text("{}")
    unknown = hk("describe-cluster", "--cluster", "other", "--region", "us-east-1")
    assert unknown.code == 3 and "ResourceNotFound" in unknown.err
    assert hk("describe-cluster").code == 1
