"""What AWS does to a cluster beside its nodes, as describe-cluster, wait and diagnose show it; operations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from hyperpod_kit.aws.service_contract import OPERATIONS
from hyperpod_kit.aws.shapes import service_model
from hyperpod_kit.aws.verdicts import FieldVerdict
from hyperpod_kit.errors import Unreachable
from hyperpod_rehearsal.sagemaker.listing import find_operation
from tests.support.aws import ARN
from tests.unit.cli.conftest import put_cluster

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

PLAN = "arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine"
WORKERS = [f"i-{1:08x}{number:09x}" for number in range(3)]
SCALING: dict[str, Any] = {
    "OperationId": "0b7a3c1e-5d4f-4a6b-8c9d-0e1f2a3b4c5d",
    "ClusterArn": ARN,
    "Type": "Scaling",
    "Status": "Done",
    "CreationTime": 1767225600.0,
    "ScalingDetails": [
        {
            "InstanceGroupName": "worker-group",
            "Status": "Done",
            "Original": {"CurrentCount": 1, "TargetCount": 1, "MinCount": 0},
            "Desired": {"CurrentCount": 3, "TargetCount": 3, "MinCount": 2},
        }
    ],
}
CHECK: dict[str, Any] = {
    "OperationId": "1b7a3c1e-5d4f-4a6b-8c9d-0e1f2a3b4c5d",
    "ClusterArn": ARN,
    "Type": "DeepHealthCheck",
    "Status": "InProgress",
    "CreationTime": 1767229200.0,
    "DeepHealthCheckDetails": [
        {"InstanceGroupName": "worker-group", "InstanceIds": WORKERS[:1], "DeepHealthChecks": ["InstanceStress"]}
    ],
}


@pytest.fixture
def made(cloud: Cloud, project: Path, hk: Hk) -> Cloud:
    put_cluster(cloud.control, hk)
    return cloud


@pytest.fixture(autouse=True)
def _no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node of this cloud is a machine; what they would say is nothing of AWS's."""

    def refuse(*_: object) -> None:
        raise Unreachable("no way leads to any node")

    monkeypatch.setattr("hyperpod_kit.remote.transports.transport_choice.open_ssh_or_ssm_connector", refuse)


GROUPS: list[tuple[dict[str, Any], str]] = [
    ({"ActiveOperations": {"Scaling": 1}}, "worker-group: Scaling in progress (1)"),
    (
        {"SoftwareUpdateStatus": "InProgress", "TargetStateCount": 1, "DesiredImageReleaseVersion": "1.4.2"},
        "worker-group: software update InProgress: 1 of 3 nodes run image 1.4.2",
    ),
    (
        {"SoftwareUpdateStatus": "RollbackComplete", "TargetStateCount": 3},
        "worker-group: the last software update failed (RollbackComplete): 3 of 3 nodes run the target image",
    ),
    ({"Status": "SystemUpdating"}, "worker-group: software update in progress"),
    ({"TrainingPlanStatus": "Expired"}, "worker-group: training plan Expired: it provides no nodes any more"),
    ({"TrainingPlanStatus": "Scheduled"}, "worker-group: training plan Scheduled: it provides no nodes yet"),
    (
        {"ImageVersionStatus": "SecurityUpdateRequired", "CurrentImageReleaseVersion": "1.2.0"},
        "worker-group: image 1.2.0: SecurityUpdateRequired",
    ),
    (
        {"ImageVersionStatus": "UpdateAvailable", "CurrentImageReleaseVersion": "1.2.0"},
        "worker-group: a newer image than 1.2.0 is available",
    ),
    ({"CapacityRequirements": {"Spot": {}}}, "worker-group: Spot: AWS may reclaim its nodes"),
    (
        {"InstanceTypeDetails": [{"InstanceType": "ml.p5.48xlarge", "CurrentCount": 2}]},
        "worker-group: types: 2 ml.p5.48xlarge",
    ),
    (
        {"InstanceRequirements": {"DesiredInstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]}},
        "worker-group: types: ml.p5.48xlarge or ml.p5e.48xlarge",
    ),
    (
        {
            "AutoPatchConfig": {
                "PatchingStrategy": "WhenIdle",
                "CurrentPatchSchedule": {"NextPatchDate": 1767225600.0},
                "DesiredPatchSchedule": {"NextPatchDate": 1767312000.0},
            }
        },
        "worker-group: next patch (WhenIdle): 2026-01-01 00:00:00Z, will change to 2026-01-02 00:00:00Z",
    ),
]


@pytest.mark.parametrize(("members", "line"), GROUPS)
def test_describe_cluster_says_what_aws_does_to_a_group(
    made: Cloud, hk: Hk, members: dict[str, Any], line: str
) -> None:
    made.control.described["worker-group"] = members
    shown = hk("describe-cluster")
    assert shown.code == 0 and line in " ".join(shown.out.split()), shown.out


def test_what_takes_nodes_is_in_the_line_of_a_wait(made: Cloud, hk: Hk) -> None:
    made.control.script = [("SystemUpdating", {"controller-machine": 1, "worker-group": 2}, ""), ("InService", {}, "")]
    made.control.script[1] = ("InService", {"controller-machine": 1, "worker-group": 3}, "")
    made.control.described["worker-group"] = {"SoftwareUpdateStatus": "InProgress", "TargetStateCount": 0}
    waited = hk("wait", "--interval", "0.2", "--json")
    assert waited.code == 0 and "software update InProgress: 0 of" in waited.err
    groups = {group["name"]: group for group in json.loads(waited.out)["groups"]}
    assert groups["worker-group"]["activity"]["doing"] and not groups["controller-machine"]["activity"]["doing"]


def test_a_plan_that_has_ended_makes_a_cluster_unwell(made: Cloud, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    connectors = "hyperpod_kit.remote.transports.transport_choice.open_ssh_or_ssm_connector"
    monkeypatch.setattr(connectors, lambda *_: nullcontext(None))
    monkeypatch.setattr("hyperpod_kit.remote.diagnosis.cluster_diagnosis.diagnose", lambda *_, **__: [])
    assert hk("diagnose").code == 0
    made.control.described["worker-group"] = {"SoftwareUpdateStatus": "InProgress"}
    running = hk("diagnose")
    assert running.code == 0 and "worker-group: software update InProgress" in running.out
    made.control.described["worker-group"] = {"TrainingPlanStatus": "Expired"}
    unwell = hk("diagnose", "--json")
    assert unwell.code == 1
    assert json.loads(unwell.out)["groups"]["worker-group"]["troubles"] == [
        "training plan Expired: it provides no nodes any more"
    ]


def test_until_when_a_plan_serves(made: Cloud, hk: Hk) -> None:
    made.control.clusters["demo"]["InstanceGroups"][1]["TrainingPlanArn"] = PLAN
    unknown = hk("describe-cluster")
    assert unknown.code == 0 and "training plan mine: end unknown: DescribeTrainingPlan" in unknown.out
    made.control.plans[PLAN] = {
        "Status": "Active",
        "EndTime": 1767225600.0,
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 1,
    }
    shown = " ".join(hk("describe-cluster").out.split())
    assert "training plan mine: Active, ends 2026-01-01 00:00:00Z, 1 of 4 nodes free" in shown


def test_every_field_that_is_said_to_be_shown_is_shown(made: Cloud, hk: Hk) -> None:
    """Fields of the group in the service contract that `describe-cluster` reads: each changes what it says."""
    rows = [row for row in OPERATIONS["DescribeCluster"].response if "describe-cluster" in row.source.split(", ")]
    fields = {field for row in rows for field in row.fields if field.startswith("InstanceGroups[].")}
    shown = {re.sub(r"\[\d+\]", "[]", f"InstanceGroups[].{path}") for members, _ in GROUPS for path in leaves(members)}
    counts = {f"InstanceGroups[].{name}" for name in ("InstanceGroupName", "CurrentCount", "TargetCount")}
    same = {
        "InstanceGroups[].InstanceRequirements.CurrentInstanceTypes",  # where there are no desired ones
        "InstanceGroups[].CapacityRequirements.OnDemand",  # what nodes are where nothing is said
    }
    assert fields - shown - counts - same == set()
    assert all(row.verdict is FieldVerdict.READ for row in rows)


def leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict) and value and not path.endswith("ActiveOperations"):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return leaves(value[0], f"{path}[0]")
    return [path]


def test_operations_are_listed_and_described(made: Cloud, hk: Hk) -> None:
    assert hk("operations").err == "0 operations of cluster demo\n"
    made.control.operations = [SCALING, CHECK]
    shown = hk("operations")
    assert shown.code == 0 and shown.err == "2 operations of cluster demo\n"
    assert shown.out.index("DeepHealthCheck") < shown.out.index("Scaling"), "the newest first"
    found = json.loads(hk("operations", "--status", "InProgress", "--json").out)["operations"]
    assert [entry["OperationId"] for entry in found] == [CHECK["OperationId"]]
    found = json.loads(hk("operations", "--type", "Scaling", "--json").out)["operations"]
    assert [entry["OperationId"] for entry in found] == [SCALING["OperationId"]]
    assert len(json.loads(hk("operations", "--limit", "1", "--json").out)["operations"]) == 1
    scaling = " ".join(hk("operations", "--id", SCALING["OperationId"]).out.split())
    group = "worker-group Done: 1 of 1 nodes at the start, 3 requested"
    assert f"Scaling Done, started 2026-01-01 00:00:00Z {group}" in scaling
    check = " ".join(hk("operations", "--id", CHECK["OperationId"]).out.split())
    assert f"worker-group: InstanceStress of {WORKERS[0]}" in check
    whole = json.loads(hk("operations", "--id", CHECK["OperationId"], "--json").out)
    assert whole["DeepHealthCheckDetails"] == CHECK["DeepHealthCheckDetails"]
    absent = hk("operations", "--id", "2b7a3c1e-5d4f-4a6b-8c9d-0e1f2a3b4c5d")
    assert absent.code == 3 and "not found" in absent.err
    assert find_operation([SCALING], {"OperationId": SCALING["OperationId"]}) == SCALING


def test_a_health_check_is_asked_for_group_by_group(made: Cloud, hk: Hk) -> None:
    refused = hk("health-check", "--yes")
    assert refused.code == 2
    done = hk("health-check", "worker-group/0", "worker-group/2", "--yes", "--json")
    assert done.code == 0 and json.loads(done.out)["checked"] == [WORKERS[0], WORKERS[2]]
    assert "being checked" in done.err
    assert made.control.checked == [
        {
            "InstanceGroupName": "worker-group",
            "InstanceIds": [WORKERS[0], WORKERS[2]],
            "DeepHealthChecks": ["InstanceStress", "InstanceConnectivity"],
        }
    ]
    made.control.checked.clear()
    assert hk("health-check", "worker-group/1", "--check", "InstanceStress", "--yes").code == 0
    assert made.control.checked[0]["DeepHealthChecks"] == ["InstanceStress"]


def test_the_checks_are_those_of_the_model() -> None:
    from hyperpod_kit.cli.cluster.node_commands import DEEP_HEALTH_CHECKS
    from hyperpod_kit.cli.cluster.operations_command import KINDS, STATUSES

    model = service_model("sagemaker")
    assert list(DEEP_HEALTH_CHECKS) == list(model.shape_for("DeepHealthChecks").member.enum)
    request = model.operation_model("ListClusterOperations").input_shape.members
    assert (list(STATUSES), list(KINDS)) == (list(request["Status"].enum), list(request["Type"].enum))
