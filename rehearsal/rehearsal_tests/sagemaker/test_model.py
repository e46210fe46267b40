import pytest

from hyperpod_rehearsal.sagemaker.model import (
    WrongType,
    request_violations,
    response_shape_violations,
    validation_message,
)

NODES = {"ClusterName": "demo", "NodeIds": ["i-0123456789abcdef0"]}


def failed(value, member, constraint):
    return f"Value {value} at '{member}' failed to satisfy constraint: Member must {constraint}"


def test_a_right_request(request_body):
    assert request_violations("CreateCluster", request_body) == []


@pytest.mark.parametrize(
    ("operation", "request_body", "expected"),
    [
        ("DescribeCluster", {}, failed("null", "clusterName", "not be null")),
        ("DescribeCluster", {"ClusterName": None}, failed("null", "clusterName", "not be null")),
        ("ListClusters", {"MaxResults": 0}, failed("'0'", "maxResults", "have value greater than or equal to 1")),
        ("ListClusters", {"MaxResults": 101}, failed("'101'", "maxResults", "have value less than or equal to 100")),
        (
            "ListClusters",
            {"SortOrder": "Up"},
            failed("'Up'", "sortOrder", "satisfy enum value set: [Ascending, Descending]"),
        ),
        (
            "BatchReplaceClusterNodes",
            {**NODES, "NodeIds": []},
            failed("'[]'", "nodeIds", "have length greater than or equal to 1"),
        ),
        (
            "AddTags",
            {
                "ResourceArn": "arn:aws:sagemaker:us-east-1:111122223333:cluster/a",
                "Tags": [{"Key": "k", "Value": "v"}] * 51,
            },
            failed(f"'[{', '.join(['{Key=k, Value=v}'] * 51)}]'", "tags", "have length less than or equal to 50"),
        ),
        (
            "BatchReplaceClusterNodes",
            {**NODES, "NodeIds": ["web-1"]},
            failed("'web-1'", "nodeIds.1.member", "satisfy regular expression pattern: i-[a-f0-9]{8}(?:[a-f0-9]{9})?"),
        ),
    ],
)
def test_every_constraint(operation, request_body, expected):
    assert request_violations(operation, request_body) == [expected]
    assert validation_message([expected]) == f"1 validation error detected: {expected}"


def test_length_of_text():
    violations = request_violations("CreateCluster", {"ClusterName": "a" * 64, "InstanceGroups": []})
    assert failed(f"'{'a' * 64}'", "clusterName", "have length less than or equal to 63") in violations


def test_unknown_members(request_body):
    request_body["InstanceGroups"][0]["LifecycleConfig"] = {}
    (violation,) = request_violations("CreateCluster", request_body)
    assert "at 'instanceGroups.1.member.lifecycleConfig'" in violation and "'LifeCycleConfig'" in violation


def test_a_union_has_one_member(request_body):
    group = request_body["InstanceGroups"][0]
    group["InstanceStorageConfigs"] = [{}]
    assert len(request_violations("CreateCluster", request_body)) == 1
    group["InstanceStorageConfigs"] = [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}]
    assert request_violations("CreateCluster", request_body) == []


@pytest.mark.parametrize("wrong", [7, True, ["demo"], {"a": 1}, 1.5])
def test_wrong_types_do_not_reach_validation(wrong):
    with pytest.raises(WrongType, match="can not be converted to a String at 'clusterName'"):
        request_violations("DescribeCluster", {"ClusterName": wrong})


def test_a_boolean_is_no_number():
    with pytest.raises(WrongType, match="TRUE_VALUE can not be converted to an Integer"):
        request_violations("ListClusters", {"MaxResults": True})


def test_answers():
    assert response_shape_violations("BatchReplaceClusterNodes", {"Successful": [], "Failed": []}) == []
    assert response_shape_violations("DeleteCluster", {}) == [failed("null", "clusterArn", "not be null")]
    with pytest.raises(WrongType):
        response_shape_violations("ListClusters", {"ClusterSummaries": "none"})
