"""What AWS may answer besides the plain truth: no permission, pages, half an answer, an odd one."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, Callable

import pytest
from botocore.stub import Stubber
from moto import mock_aws
from moto.core import set_initial_no_auth_action_count
from moto.core.botocore_stubber import BotocoreStubber
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.buckets import BucketHead, Buckets, directory_bucket_zone
from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.aws.s3files import S3Files
from hyperpod_kit.aws.session import client
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import AwsError, Throttled
from hyperpod_kit.preflight import client as querying
from hyperpod_kit.preflight.aws_facts import fsx
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import AccessPointFacts, FileSystem, NotQueried
from hyperpod_kit.preflight.mounts import efs as efs_kind
from hyperpod_kit.preflight.mounts import s3files
from hyperpod_kit.preflight.mounts import shared_file_systems as shared
from hyperpod_kit.preflight.run.check import run_all_preflight_checks
from hyperpod_kit.preflight.run.gather import gather_account_facts
from tests.unit.preflight.world import REGION, World, group, subnet

Report = tuple[int, dict[str, Any]]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials for a stubbed client, and no endpoint of one's own."""
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


def report(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Report:
    capsys.readouterr()
    code = run_command_line(["validate", str(path), "--aws", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_what_the_caller_may_not_ask_is_a_warning_each_and_the_rest_is_checked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An admin who may read EC2's subnets and S3 and nothing else; moto's IAM decides."""
    iam = world.client("iam")
    iam.create_user(UserName="admin")
    allowed = {"Effect": "Allow", "Action": ["ec2:DescribeSubnets", "s3:*", "sts:*"], "Resource": "*"}
    iam.put_user_policy(
        UserName="admin", PolicyName="p", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    )
    key = iam.create_access_key(UserName="admin")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    path = world.write(
        tmp_path,
        lambda values: values["hyperpod_kit"]["cluster"]["vpc"].update(subnet_ids=["subnet-0123456789abcdef0"]),
    )
    code, found = set_initial_no_auth_action_count(0)(lambda: report(path, capsys))()
    codes = {finding["code"] for finding in found["findings"]}
    assert code == 1 and codes == {"HPK-V001", "HPK-V301"}
    missing = {one["action"] for one in found["aws"]["not_checked"]}
    assert {
        "iam:GetRole",
        "ec2:DescribeSecurityGroups",
        "elasticfilesystem:DescribeFileSystems",
        "fsx:DescribeFileSystems",
        "servicequotas:ListServiceQuotas",
        "iam:SimulatePrincipalPolicy",
    } <= missing
    assert all(one["denied"] for one in found["aws"]["not_checked"]), found["aws"]["not_checked"]
    assert any(
        "Allow arn:aws:iam::123456789012:user/admin the action iam:GetRole" in finding["hint"]
        for finding in found["findings"]
    )
    # One question, one warning: ten simulated needs are one.
    said = [(finding["path"], finding["message"]) for finding in found["findings"]]
    assert len(said) == len(set(said))


def test_an_answer_that_is_none_makes_the_exit_code_3(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(self: Any) -> str:
        raise NoSuchResource

    monkeypatch.setattr(ServiceQuotasResponse, "list_service_quotas", nothing)
    path = world.write(tmp_path)
    code, found = report(path, capsys)
    assert code == 3 and [finding["code"] for finding in found["findings"]] == ["HPK-V002"]
    code, found = report(path, capsys, "--fail-on", "warning")
    assert code == 1 and not found["ok"]
    code, found = report(path, capsys, "--suppress", "HPK-V002", "--fail-on", "warning")
    assert (code, found["findings"], [one["code"] for one in found["suppressed"]]) == (3, [], ["HPK-V002"])


def test_every_third_call_is_turned_away_and_nobody_notices(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """moto answers 503 to every third request. botocore asks once more (or no answer of three pages ever got through);
    where the threads' turns make that a third one too, the kit's own patience is what is left."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setitem(retry_while_throttled.__kwdefaults__ or {}, "sleep", lambda seconds: None)
    path, sent = world.write(tmp_path), count(1)
    answer = BotocoreStubber.process_request

    def busy(self: BotocoreStubber, request: Any) -> Any:
        return answer(self, request) if next(sent) % 3 else (503, {}, b"")

    monkeypatch.setattr(BotocoreStubber, "process_request", busy)
    code, found = report(path, capsys)
    assert (code, found["findings"], found["aws"]["not_checked"]) == (0, [], []) and next(sent) > 50


def test_a_network_as_networks_are(world: World, tmp_path: Path) -> None:
    """A subnet with the VPC's main table, rules by a prefix list and of another account, an endpoint of S3."""
    ec2 = world.client("ec2")
    plain = subnet(world, "10.0.2.0/24", "us-east-1b")
    main = ec2.describe_route_tables(
        Filters=[{"Name": "association.main", "Values": ["true"]}, {"Name": "vpc-id", "Values": [world.vpc]}]
    )["RouteTables"][0]
    nodes = {"Cidr": "10.0.0.0/16"}
    made = ec2.create_managed_prefix_list(PrefixListName="nodes", MaxEntries=5, AddressFamily="IPv4", Entries=[nodes])
    world.shut(world.storage)
    world.allow("egress", world.storage, IpRanges=[{"CidrIp": "0.0.0.0/0"}])
    world.allow(
        "ingress",
        world.storage,
        PrefixListIds=[{"PrefixListId": made["PrefixList"]["PrefixListId"]}],
        IpProtocol="tcp",
        FromPort=0,
        ToPort=65535,
    )
    ec2.create_vpc_endpoint(VpcId=world.vpc, ServiceName=f"com.amazonaws.{REGION}.s3", RouteTableIds=[world.table])

    def both(values: dict[str, Any]) -> None:
        values["hyperpod_kit"]["cluster"]["vpc"]["subnet_ids"].append(plain)

    settings = load(world.write(tmp_path, both))
    facts = gather_account_facts(settings)
    assert facts.network is not None and not isinstance(facts.network.tables, NotQueried)
    found = {(one.code, one.path) for one in run_all_preflight_checks(settings, facts)}
    # The main table leads nowhere, the zone has no mount target and the Lustre is elsewhere. The list opens the ports.
    subnets = "hyperpod_kit.cluster.vpc.subnet_ids"
    assert found == {
        ("HPK-V305", f"{subnets}[1]"),
        ("HPK-V403", "hyperpod_kit.mounts[0].file_system_id"),
        ("HPK-V508", "fsx_dns_name"),
    }
    ec2.create_route(RouteTableId=main["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=world.gateway)
    again = run_all_preflight_checks(settings, gather_account_facts(settings))
    assert ("HPK-V304", f"{subnets}[1]") in {(one.code, one.path) for one in again}


def test_groups_that_name_each_other_are_one_and_a_foreign_group_is_none(world: World, tmp_path: Path) -> None:
    second = group(world, "second")
    world.shut(world.nodes)
    world.allow("ingress", world.nodes, UserIdGroupPairs=[{"GroupId": second}, {"GroupId": world.storage}])
    world.allow("egress", world.nodes, UserIdGroupPairs=[{"GroupId": second}])

    def both(values: dict[str, Any]) -> None:
        values["hyperpod_kit"]["cluster"]["vpc"]["security_group_ids"].append(second)

    # Nodes that have both groups are members of the group that the rules name.
    settings = load(world.write(tmp_path, both))
    assert run_all_preflight_checks(settings, gather_account_facts(settings)) == []
    alone = load(world.write(tmp_path))
    assert "HPK-V311" in {one.code for one in run_all_preflight_checks(alone, gather_account_facts(alone))}


@mock_aws
def test_buckets_that_are_not_plainly_there(keys: None) -> None:
    buckets = Buckets(REGION)
    s3 = client("s3", REGION)
    s3.create_bucket(Bucket="near")
    s3.put_object(Bucket="near", Key="corpus/0", Body=b"x")
    s3.create_bucket(Bucket="far", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert buckets.head("far") == BucketHead(True, True, "eu-west-1")
    assert buckets.head("nowhere-at-all") == BucketHead(False, False, None)
    assert buckets.is_empty("far", "") and not buckets.is_empty("near", "corpus/")
    headers = {"HTTPHeaders": {"x-amz-bucket-region": "eu-west-1"}}
    with Stubber(buckets._client) as stub:
        for status, looked in ((403, BucketHead(True, False, "eu-west-1")), (301, BucketHead(True, True, "eu-west-1"))):
            stub.add_client_error("head_bucket", str(status), http_status_code=status, response_meta=headers)
            assert buckets.head("theirs") == looked
        stub.add_client_error("head_bucket", "403", http_status_code=403)
        with pytest.raises(AwsError):
            buckets.head("theirs")
    assert directory_bucket_zone("fast--use1-az4--x-s3") == "use1-az4" and directory_bucket_zone("plain") is None


def test_many_access_points_come_from_one_listing(keys: None) -> None:
    points = tuple(f"fsap-{number:017x}" for number in range(6))
    listed = {"FileSystemId": "fs-1", "LifeCycleState": "available"}
    client = QueryClient(1)
    efs = client.service_client(Efs, REGION)
    with Stubber(efs._client) as stub:
        for half, token in ((points[:3], "more"), (points[3:5], None)):
            stub.add_response(
                "describe_access_points",
                {
                    "AccessPoints": [{**listed, "AccessPointId": point} for point in half],
                    **({"NextToken": token} if token else {}),
                },
            )
        stub.add_client_error("describe_access_points", "AccessPointNotFound")
        found = efs_kind._fetch_access_points(client, efs, shared.FileSystemQuery(REGION, "fs-1", "p", points))
        stub.assert_no_pending_responses()
    assert found == {**{point: AccessPointFacts(point, "fs-1", True) for point in points[:5]}, points[5]: None}


def test_s3_files_which_moto_has_not(keys: None) -> None:
    client = QueryClient(1)
    calls = client.service_client(S3Files, REGION)
    want = shared.FileSystemQuery(REGION, "fs-1", "p", ("fsap-1",))
    target = {
        "mountTargetId": "fsmt-00000000000000001",
        "availabilityZoneId": "use1-az1",
        "vpcId": "vpc-1",
        "ipv4Address": "10.0.0.9",
        "fileSystemId": "fs-1",
        "ownerId": "1",
        "subnetId": "subnet-00000000000000001",
        "status": "available",
    }
    with Stubber(calls._client) as stub:
        stub.add_response("get_file_system", {"fileSystemId": "fs-1", "status": "available"}, {"fileSystemId": "fs-1"})
        stub.add_response("list_mount_targets", {"mountTargets": [target], "nextToken": "t"})
        stub.add_response("list_mount_targets", {"mountTargets": []})
        stub.add_response(
            "get_access_point",
            {
                "accessPointId": "fsap-1",
                "fileSystemId": "fs-2",
                "status": "available",
                "accessPointArn": "a",
                "clientToken": "t",
                "ownerId": "1",
            },
        )
        stub.add_response("get_mount_target", {**target, "securityGroups": ["sg-00000000000000001"]})
        system = s3files.fetch_file_system(client, want)
        assert isinstance(system, FileSystem) and not isinstance(system.endpoints, NotQueried)
        assert (system.endpoints[0].groups, system.endpoints[0].ready) == (("sg-00000000000000001",), True)
        assert system.points == {"fsap-1": AccessPointFacts("fsap-1", "fs-2", True)}
        stub.add_client_error("get_file_system", "ResourceNotFoundException")
        assert s3files.fetch_file_system(client, want) is None
        stub.add_client_error("get_file_system", "AccessDeniedException")
        assert isinstance(s3files.fetch_file_system(client, want), NotQueried)


def test_a_call_that_is_turned_away_is_repeated_and_then_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    turned: list[int] = []

    def call(times: int) -> Callable[[], str]:
        def once() -> str:
            turned.append(1)
            if len(turned) <= times:
                raise Throttled("DescribeSubnets: RequestLimitExceeded: slower")
            return "subnets"

        return once

    monkeypatch.setattr(querying, "PATIENCE", 120.0)
    assert QueryClient(1).query_or_record_failure("ec2:DescribeSubnets", "p", "w", call(1)) == "subnets"
    monkeypatch.setattr(querying, "PATIENCE", 0.0)
    turned.clear()
    client = QueryClient(1)
    answer = client.query_or_record_failure("ec2:DescribeSubnets", "p", "w", call(9))
    assert isinstance(answer, NotQueried) and not answer.denied and client.not_queried == [answer]


@pytest.mark.parametrize(
    ("dns_name", "found"),
    [
        ("fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com", ("eu-west-1", "fs-0123456789abcdef0")),
        ("FS-0123456789abcdef0.FSX.cn-north-1.amazonaws.com.cn", ("cn-north-1", "fs-0123456789abcdef0")),
        ("fs-0123456789abcdef0.example.com", ("us-east-1", "fs-0123456789abcdef0")),
    ],
)
def test_a_dns_name_names_a_file_system(dns_name: str, found: tuple[str, str]) -> None:
    assert fsx.parse_fsx_region_and_id(dns_name, REGION) == found
