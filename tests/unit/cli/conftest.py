"""A cloud for the command line: the rehearsal's endpoint with a control plane that a test scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.cli.cluster import jobs_first
from hyperpod_kit.command_line.documents import FORMAT_NUMBERS, format_name
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import Unreachable
from hyperpod_rehearsal.s3.bucket import Conditions
from hyperpod_rehearsal.s3.objects import Attributes, Checksums
from hyperpod_rehearsal.s3.receive import receive_verified_body_into_blob
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.sagemaker.api import ApiError
from tests.support import kept_sources
from tests.support.aws import ARN, endpoint

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"


AWS_DOCUMENTS = {"InstanceGroups", "AWSTemplateFormatVersion"}
"""A key of what AWS's own commands read: the request of `create-cluster --dry-run`, the template of `infra`."""


class Control:
    """Clusters that come up step by step: every describe_cluster takes one step of `script`, and the last one stays.

    A step is (ClusterStatus, {group: running nodes}, FailureMessage).
    """

    def __init__(self) -> None:
        self.clusters: dict[str, dict[str, Any]] = {}
        self.script: list[tuple[str, Mapping[str, int], str]] = []
        self.replaced: list[str] = []
        self.rebooted: list[str] = []
        self.deleted: list[str] = []
        self.updates: list[dict[str, Any]] = []
        self.software: list[dict[str, Any]] = []
        self.checked: list[dict[str, Any]] = []
        self.operations: list[dict[str, Any]] = []
        self.plans: dict[str, dict[str, Any]] = {}
        self.described: dict[str, dict[str, Any]] = {}
        """Group -> further members of DescribeCluster's answer about it."""
        self.updated: dict[str, float] = {}
        self.busy: set[str] = set()
        self.events: list[dict[str, Any]] | None = None
        self.looks = self.event_looks = 0

    def create_cluster(self, request: Mapping[str, Any]) -> str:
        name = request["ClusterName"]
        if name in self.clusters:
            raise ApiError("ResourceInUse", f"Cluster {name} already exists")
        self.clusters[name] = dict(request)
        return ARN

    def describe_cluster(self, name: str) -> dict[str, Any]:
        self.looks += 1
        request = self._find(name)
        status, running, failure = self._step(take=True)
        groups = [
            {
                **{key: group[key] for key in ("LifeCycleConfig", "ExecutionRole") if key in group},
                "InstanceGroupName": group["InstanceGroupName"],
                "CurrentCount": running.get(group["InstanceGroupName"], 0),
                "TargetCount": group["InstanceCount"],
                **{key: group[key] for key in ("InstanceType", "TrainingPlanArn") if key in group},
                **self.described.get(group["InstanceGroupName"], {}),
            }
            for group in request["InstanceGroups"]
        ]
        fields = ("VpcConfig", "NodeRecovery", "Orchestrator", "NodeProvisioningMode")
        kept = {key: request[key] for key in fields if key in request}
        answer = {**kept, "ClusterArn": ARN, "ClusterName": name, "ClusterStatus": status, "InstanceGroups": groups}
        return {**answer, "FailureMessage": failure} if failure else answer

    def list_clusters(self) -> list[dict[str, Any]]:
        status = self._step(take=False)[0]
        return [
            {"ClusterArn": ARN, "ClusterName": name, "CreationTime": 1767225600.0, "ClusterStatus": status}
            for name in self.clusters
        ]

    def list_cluster_nodes(self, name: str) -> list[dict[str, Any]]:
        request = self._find(name)
        _, running, _ = self._step(take=False)
        return [
            {
                "InstanceGroupName": group["InstanceGroupName"],
                "InstanceId": f"i-{index:08x}{number:09x}",
                "InstanceType": group["InstanceType"],
                "LaunchTime": 1767225600.0,
                **self._software_of(group["InstanceGroupName"]),
                "InstanceStatus": {"Status": "Running", "Message": ""},
                "PrivateDnsHostname": f"ip-10-0-{index}-{number + 1}.ec2.internal",
            }
            for index, group in enumerate(request["InstanceGroups"])
            for number in range(running.get(group["InstanceGroupName"], 0))
        ]

    def describe_cluster_node(self, name: str, node_id: str) -> dict[str, Any]:
        node = next(node for node in self.list_cluster_nodes(name) if node["InstanceId"] == node_id)
        return {**node, "PrivatePrimaryIp": "10.0." + ".".join(node["PrivateDnsHostname"].split(".")[0].split("-")[3:])}

    def list_cluster_events(self, name: str) -> list[dict[str, Any]]:
        self.event_looks += 1
        self._find(name)
        if self.events is None:
            raise ApiError(
                "ValidationException",
                "ListClusterEvents is only supported for cluster with NodeProvisioningMode set to Continuous",
            )
        return self.events

    def update_cluster(self, request: Mapping[str, Any]) -> str:
        self._find(request["ClusterName"]).update(request)
        self.updates.append(dict(request))
        return ARN

    def update_cluster_software(self, request: Mapping[str, Any]) -> str:
        self._find(request["ClusterName"])
        self.software.append(dict(request))
        return ARN

    def delete_cluster(self, name: str) -> str:
        self._find(name)
        del self.clusters[name]
        return ARN

    def batch_replace_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, ids = request["ClusterName"], request["NodeIds"]
        self._find(name)
        known = {node["InstanceId"] for node in self.list_cluster_nodes(name)} - self.busy
        self.replaced += [node for node in ids if node in known]
        refused = [
            {"NodeId": node, "ErrorCode": "InstanceIdInUse", "Message": "another operation works on it"}
            for node in ids
            if node not in known
        ]
        return {"Successful": [node for node in ids if node in known], "Failed": refused}

    def batch_delete_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._find(request["ClusterName"])
        free = [node for node in request["NodeIds"] if node not in self.busy]
        self.deleted += free
        refused = [
            {"NodeId": node, "Code": "NodeIdInUse", "Message": "another operation works on it"}
            for node in request["NodeIds"]
            if node in self.busy
        ]
        return {"Successful": free, "Failed": refused}

    def batch_reboot_cluster_nodes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._find(request["ClusterName"])
        self.rebooted += request["NodeIds"]
        return {"Successful": list(request["NodeIds"]), "Failed": []}

    def start_cluster_health_check(self, request: Mapping[str, Any]) -> str:
        self._find(request["ClusterName"])
        self.checked += request["DeepHealthCheckConfigurations"]
        return ARN

    def list_cluster_operations(self, name: str) -> list[dict[str, Any]]:
        self._find(name)
        return self.operations

    def describe_training_plan(self, name: str) -> dict[str, Any]:
        if name not in self.plans:
            raise ApiError("ResourceNotFound", f"Training plan {name} does not exist")
        return {"TrainingPlanArn": name, "TrainingPlanName": name.rpartition("/")[2], **self.plans[name]}

    def _software_of(self, group: str) -> dict[str, Any]:
        return {"LastSoftwareUpdateTime": self.updated[group]} if group in self.updated else {}

    def _find(self, name: str) -> dict[str, Any]:
        if name not in self.clusters:
            raise ApiError("ResourceNotFound", f"Cluster {name} does not exist")
        return self.clusters[name]

    def _step(self, *, take: bool) -> tuple[str, Mapping[str, int], str]:
        if not self.script:
            return ("InService", {"controller-machine": 1, "worker-group": 3}, "")
        return self.script.pop(0) if take and len(self.script) > 1 else self.script[0]


@dataclass
class Cloud:
    """An endpoint on loopback, its buckets and its clusters."""

    url: str
    store: StoredBuckets
    control: Control


@dataclass
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str
    words: list[str] = field(default_factory=list)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    store, control = StoredBuckets(tmp_path / "s3"), Control()
    with endpoint(monkeypatch, store, control) as url:
        yield Cloud(url, store, control)


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node of a cloud on loopback can be reached; slurm_queue.py is for tests that want a Slurm."""

    def nobody(*_: Any) -> Any:
        raise Unreachable("no node of this cloud is a machine")

    monkeypatch.setattr(jobs_first, "open_runner_for_slurm", nobody)


@pytest.fixture(autouse=True)
def _sources_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_sources.keep(monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the example as its configuration, and the working directory."""
    directory = tmp_path / "project"
    directory.mkdir()
    shutil.copy(EXAMPLE, directory / "provisioning_parameters.json")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def hk(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """hk("upload", "--json") runs one command line in this process."""
    from hyperpod_kit.cli.main import run_command_line

    def call(*words: str) -> Outcome:
        capsys.readouterr()
        code = run_command_line(list(words))
        captured = capsys.readouterr()
        if "--json" in words:
            require_format(" ".join(words), captured.out)
        return Outcome(code, captured.out, captured.err, list(words))

    return call


def require_format(line: str, output: str) -> None:
    """Fail where what a command line printed with --json has not the format of the command, and is none of AWS's."""
    try:
        documents = [json.loads(output)] if output else []
    except ValueError:
        documents = [json.loads(line) for line in output.splitlines()]
    for each in documents:
        if AWS_DOCUMENTS & each.keys() and "format" not in each:
            continue
        command = max((name for name in FORMAT_NUMBERS if f"{name} " in f"{line} "), key=len)
        assert next(iter(each.items())) == ("format", format_name(command)), each


def put_bundle(store: StoredBuckets) -> None:
    """The bundle of the working directory's configuration in its bucket, as `upload` leaves it, without its calls."""
    bundle = render(load(Path("provisioning_parameters.json")))
    bucket = store.create_bucket(bundle.bucket)
    for place, data in bundle.files.items():
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        received = receive_verified_body_into_blob(iter([data]), bucket.blobs, {"x-amz-checksum-sha256": digest})
        sums = Checksums(received.checksums)
        bucket.commit(bundle.prefix + place, (received.segment,), received.md5, Attributes(), sums, Conditions())


def put_cluster(control: Control, hk: Callable[..., Outcome]) -> None:
    """The cluster of the working directory's configuration, without the calls that make one."""
    control.create_cluster(json.loads(hk("create-cluster", "--dry-run", "--json").out))
