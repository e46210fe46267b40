"""What the service would refuse is found without asking it."""

from __future__ import annotations

from typing import Any

import pytest

from hyperpod_kit.aws.request_shape import problems

ROLE = "arn:aws:iam::111122223333:role/R"


def request(**changes: Any) -> dict[str, Any]:
    group = {"InstanceGroupName": "g", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "ExecutionRole": ROLE}
    return {"ClusterName": "c", "InstanceGroups": [{**group, **changes}]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"InstanceGroupName": "a_b"}, "InstanceGroups[0].InstanceGroupName: `a_b` does not match"),
        (
            {"InstanceType": "ml.p99.large"},
            "InstanceGroups[0].InstanceType: `ml.p99.large` is not known to the installed botocore",
        ),
        ({"InstanceCount": 7000}, "InstanceGroups[0].InstanceCount: 7000: expected 0 to 6758"),
        ({"SlurmConfig": {"NodeType": "Worker"}}, "InstanceGroups[0].SlurmConfig.NodeType: `Worker` is not known"),
        (
            {"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["a", "b"]}},
            "InstanceGroups[0].SlurmConfig.PartitionNames: 2 items: expected 0 to 1",
        ),
        ({"InstanceCount": "1"}, "Invalid type for parameter InstanceGroups[0].InstanceCount"),
        ({"Nonsense": 1}, 'Unknown parameter in InstanceGroups[0]: "Nonsense"'),
    ],
)
def test_one_problem(changes: dict[str, Any], problem: str) -> None:
    found = problems("sagemaker", "CreateCluster", request(**changes))
    assert len(found) == 1 and found[0].startswith(problem), found


def test_a_right_request() -> None:
    assert problems("sagemaker", "CreateCluster", request()) == []
    assert problems("sagemaker", "CreateCluster", {**request(), "Tags": [{"Key": "größe", "Value": "x"}]}) == []
