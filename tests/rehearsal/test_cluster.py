"""The cluster itself: what the API says, what the mounts are, and bundles that are not ours."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import Iterator

import boto3
import pytest
from driver import CONFIG, Driver, wait_until

from hyperpod_rehearsal.machines.machine import command_in_machine
from hyperpod_rehearsal.machines.processes import children
from hyperpod_rehearsal.records.layout import Layout
from hyperpod_rehearsal.targets import all_nodes

GROUP = {
    "InstanceGroupName": "only",
    "InstanceType": "ml.m5.large",
    "InstanceCount": 1,
    "ExecutionRole": "arn:aws:iam::111122223333:role/Bare",
    "ThreadsPerCore": 1,
}


def bare_cluster(driver: Driver, name: str, script: str) -> None:
    """A cluster of one node whose whole bundle is `script`."""
    address = driver.environment["AWS_ENDPOINT_URL"]
    boto3.client("s3", endpoint_url=address).put_object(
        Bucket="sagemaker-hyperpod-kit-demo", Key=f"{name}/start.sh", Body=script.encode()
    )
    uri = f"s3://sagemaker-hyperpod-kit-demo/{name}/"
    boto3.client("sagemaker", endpoint_url=address).create_cluster(
        ClusterName=name, InstanceGroups=[{**GROUP, "LifeCycleConfig": {"SourceS3Uri": uri, "OnCreate": "start.sh"}}]
    )


def status_of(driver: Driver, name: str) -> dict[str, object]:
    return driver.aws("sagemaker", "describe-cluster", "--cluster-name", name)


def delete(driver: Driver, name: str) -> None:
    driver.aws("sagemaker", "delete-cluster", "--cluster-name", name)

    def gone() -> bool:
        listed = driver.aws("sagemaker", "list-clusters")["ClusterSummaries"]
        return name not in [entry["ClusterName"] for entry in listed]

    wait_until(f"end of cluster {name}", gone, timeout=180)


@pytest.mark.full
def test_a_bundle_of_three_lines_of_bash_boots_too(endpoint: Driver) -> None:
    bare_cluster(endpoint, "bare", "#!/bin/bash\nset -e\ntouch /root/was-here\n")
    try:
        wait_until("bare in service", lambda: status_of(endpoint, "bare")["ClusterStatus"] == "InService", timeout=180)
        node = endpoint.aws("sagemaker", "list-cluster-nodes", "--cluster-name", "bare")
        instance = node["ClusterNodeSummaries"][0]["InstanceId"]
        endpoint.on(instance, "test -e /root/was-here")
    finally:
        delete(endpoint, "bare")


def test_a_script_that_fails_makes_the_cluster_failed_with_its_message(endpoint: Driver) -> None:
    bare_cluster(endpoint, "broken", "#!/bin/bash\necho the disk is made of cheese >&2\nexit 7\n")
    try:
        wait_until("broken failed", lambda: status_of(endpoint, "broken")["ClusterStatus"] == "Failed", timeout=180)
        message = str(status_of(endpoint, "broken")["FailureMessage"])
        assert "Lifecycle scripts did not run successfully" in message
        assert "the disk is made of cheese" in message
    finally:
        delete(endpoint, "broken")


def test_every_mount_of_every_node_is_ok(cluster: Driver) -> None:
    report = cluster.data("validate-mounts", str(CONFIG))
    assert report["healthy"] and len(report["nodes"]) == 4, report
    for node in report["nodes"]:
        assert {mount["kind"]: mount["state"] for mount in node["mounts"]} == {
            "efs": "ok",
            "mountpoint-s3": "ok",
            "lustre": "ok",
        }, node
    table = cluster.kit("validate-mounts", str(CONFIG))
    assert "sagemaker-hyperpod-kit-data" in table


@contextmanager
def ssh_closed(driver: Driver) -> Iterator[None]:
    """The nodes refuse port 22; what is done to them meanwhile comes from their own namespaces."""
    state = json.loads(Layout.for_name(driver.name).state_file.read_text())
    leaders = [children(node["pid"])[0] for node in all_nodes(state)]
    try:
        for leader in leaders:
            subprocess.run(command_in_machine(leader, ["systemctl", "stop", "ssh.service"]), check=True, timeout=60)
        yield
    finally:
        for leader in leaders:
            subprocess.run(command_in_machine(leader, ["systemctl", "start", "ssh.service"]), check=True, timeout=60)


@pytest.mark.full
def test_where_nodes_refuse_ssh_what_they_have_sent_is_the_answer(cluster: Driver) -> None:
    """As on a HyperPod in its private subnet, seen from a machine without the plugin for sessions."""
    sent = ["validate-mounts", str(CONFIG), "--via", "pull"]
    wait_until("first reports of all nodes", lambda: cluster.data(*sent, check=False)["healthy"], timeout=120)
    with ssh_closed(cluster):
        report = cluster.data("validate-mounts", str(CONFIG))
        assert report["healthy"] and {node["via"] for node in report["nodes"]} == {"pull"}, report
        said = cluster.said("validate-mounts", str(CONFIG))
        assert said.startswith("asked: 4 nodes by their reports in CloudWatch; closed: ssh: "), said
        assert "refuses the connection" in said and "SSM sessions: session-manager-plugin is not on PATH" in said
        diagnosis = cluster.data("diagnose", str(CONFIG))
        assert all(node["healthy"] and node["sent_at"] for node in diagnosis["nodes"]), diagnosis
    assert {node["via"] for node in cluster.data("validate-mounts", str(CONFIG))["nodes"]} == {"ssh"}


def test_a_second_creation_changes_nothing(cluster: Driver) -> None:
    cluster.on("worker-group/0", "hyperpod-kit node apply --mode on_create", timeout=180)
    log = cluster.on("worker-group/0", "grep changed= /var/log/provision/provisioning.log")
    details = [json.loads(line)["detail"] for line in log.splitlines()]
    assert details[0] != "changed=0" and details[-1] == "changed=0", details


def test_a_dead_mount_daemon_is_reported_and_comes_back(cluster: Driver) -> None:
    daemon = "systemctl show -P MainPID hyperpod-kit-s3-data.service"
    old = cluster.on("worker-group/0", daemon).strip()
    cluster.on("worker-group/0", f"kill -9 {old}")

    def healed() -> bool:
        fresh = cluster.on("worker-group/0", daemon, check=False).strip()
        return fresh not in ("", "0", old) and cluster.data("validate-mounts", str(CONFIG), check=False)["healthy"]

    wait_until("repair of the mount", healed, timeout=180)
    cluster.on("worker-group/0", "ls /mnt/data/ast.py", user="trainer")


@pytest.mark.full
def test_the_sweep_works_within_the_rights_of_its_unit(cluster: Driver) -> None:
    """As SlurmUser, root here, and as an ordinary user: Slurm, munge and the journal are reached."""
    unit = "hyperpod-kit-sweep.service"
    drop_in = f"/run/systemd/system/{unit}.d/zz.conf"
    job = cluster.on(
        "controller",
        "cd /tmp && sbatch --parsable --requeue --comment=hpk:elsewhere -o /dev/null --wrap 'exit 3'",
        user="trainer",
    ).strip()
    wait_until(
        "the job's second run",
        lambda: " Restarts=1 " in cluster.on("controller", f"scontrol -o show job {job}"),
        timeout=180,
        every=1,
    )
    said = cluster.on("controller", "journalctl --no-pager -o cat HYPERPOD_KIT_ACTION=requeued")
    assert f"requeued job {job} of uid " in said and "for job sweep" in said, said
    try:
        for user in ("root", "slurm"):
            cluster.on(
                "controller",
                f"mkdir -p {drop_in.rpartition('/')[0]} && printf '[Service]\\nUser={user}\\n' "
                f">{drop_in} && systemctl daemon-reload && systemctl start {unit}",
            )
            shown = cluster.on("controller", f"systemctl show {unit} -p User,Result,ExecMainStatus").split()
            assert set(shown) == {f"User={user}", "Result=success", "ExecMainStatus=0"}
    finally:
        cluster.on("controller", f"rm -f {drop_in}; systemctl daemon-reload")
