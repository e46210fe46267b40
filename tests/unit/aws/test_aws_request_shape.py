"""What the service would refuse is found without asking it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import botocore
import pytest

from hyperpod_kit.aws.request_shape import field_constraints, find_request_problems

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
            "InstanceGroups[0].InstanceType: `ml.p99.large` is not a known ClusterInstanceType in botocore ",
        ),
        ({"InstanceCount": 7000}, "InstanceGroups[0].InstanceCount: 7000: expected 0 to 6758"),
        (
            {"SlurmConfig": {"NodeType": "Worker"}},
            "InstanceGroups[0].SlurmConfig.NodeType: `Worker` is not a known ClusterSlurmNodeType",
        ),
        (
            {"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["a", "b"]}},
            "InstanceGroups[0].SlurmConfig.PartitionNames: 2 items: expected 0 to 1",
        ),
        ({"InstanceCount": "1"}, "InstanceGroups[0].InstanceCount: expected a whole number, found '1'"),
        ({"InstanceCount": True}, "InstanceGroups[0].InstanceCount: expected a whole number, found True"),
        ({"SlurmConfig": {}}, "InstanceGroups[0].SlurmConfig.NodeType: missing"),
        ({"LifeCycleConfig": "x"}, "InstanceGroups[0].LifeCycleConfig: expected an object, found 'x'"),
        ({"OnStartDeepHealthChecks": []}, "InstanceGroups[0].OnStartDeepHealthChecks: 0 items: expected 1 to 3"),
        ({"InstanceStorageConfigs": [{}]}, "InstanceGroups[0].InstanceStorageConfigs[0]: expected exactly one of Ebs"),
        ({"KubernetesConfig": {"Labels": {"a b": "x"}}}, "InstanceGroups[0].KubernetesConfig.Labels.a b: `a b` does"),
        ({"Nonsense": 1}, "InstanceGroups[0].Nonsense: botocore "),
    ],
)
def test_one_problem(changes: dict[str, Any], problem: str) -> None:
    found = find_request_problems("sagemaker", "CreateCluster", request(**changes))
    assert len(found) == 1 and str(found[0]).startswith(problem), found


def test_a_right_request() -> None:
    assert find_request_problems("sagemaker", "CreateCluster", request()) == []
    assert (
        find_request_problems("sagemaker", "CreateCluster", {**request(), "Tags": [{"Key": "größe", "Value": "x"}]})
        == []
    )


def test_botocore_refuses_what_its_own_validator_refuses_too() -> None:
    """Ours finds more than botocore's ParamValidator, never less."""
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape
    wrong: tuple[dict[str, Any], ...] = (
        {"InstanceCount": "1"},
        {"Nonsense": 1},
        {"SlurmConfig": {}},
        {"InstanceStorageConfigs": [{}]},
    )
    for changes in wrong:
        assert ParamValidator().validate(request(**changes), shape).has_errors()
        assert find_request_problems("sagemaker", "CreateCluster", request(**changes))


def test_limits_are_those_of_the_installed_model() -> None:
    assert field_constraints("sagemaker", "CreateCluster", "ClusterName")["max"] == 63
    assert field_constraints("sagemaker", "CreateCluster", "InstanceGroups[].InstanceCount")["type_name"] == "integer"
    assert "Compute" in field_constraints("sagemaker", "CreateCluster", "InstanceGroups[].SlurmConfig.NodeType")["enum"]
    assert field_constraints("sagemaker", "CreateCluster", "InstanceGroups[].OfTomorrow") == {}


def test_a_field_that_the_installed_botocore_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older botocore: the same model without the fields of 2026, where botocore itself looks first."""
    source = Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
    model = json.loads(gzip.decompress(source.read_bytes()))
    del model["shapes"]["ClusterLifeCycleConfig"]["members"]["OnInitComplete"]
    del model["shapes"]["ClusterInstanceGroupSpecification"]["members"]["SlurmConfig"]
    place = tmp_path / "sagemaker/2017-07-24/service-2.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(model))
    new = {"LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/", "OnInitComplete": "a.sh"},
           "SlurmConfig": {"NodeType": "Controller"}}  # fmt: skip
    assert find_request_problems("sagemaker", "CreateCluster", request(**new)) == []
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    found = find_request_problems("sagemaker", "CreateCluster", request(**new))
    assert [problem.path for problem in found] == [
        "InstanceGroups[0].LifeCycleConfig.OnInitComplete",
        "InstanceGroups[0].SlurmConfig",
    ]
    assert all(problem.newer and f"botocore {botocore.__version__} has no such" in str(problem) for problem in found)
