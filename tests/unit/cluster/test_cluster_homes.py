"""Access points and policy against moto; what moto does not do (pages, tokens, states) against botocore's Stubber."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from hyperpod_kit.aws import request_shape
from hyperpod_kit.aws.efs import Efs
from hyperpod_kit.aws.policies import allow_sid, public_statement_names
from hyperpod_kit.cluster import homes
from hyperpod_kit.cluster.homes import USER_TAG
from hyperpod_kit.config.load import load
from hyperpod_kit.config.settings.homes import Homes
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import AwsError, ConfigError, UsageError, WaitTimeout
from hyperpod_kit.model.node_config import User
from hyperpod_kit.model.shares import Group
from tests.support.clock import FakeClock

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
ALICE, BOB = User("alice", 2001, 2001), User("bob", 2002, 2002)
VISION = Group("vision", 3001, ("alice", "bob"))
REGION = "us-east-1"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


@pytest.fixture
def aws() -> Iterator[Any]:
    """moto's EFS, as a plain boto3 client."""
    with mock_aws():
        yield boto3.client("efs", REGION)


@pytest.fixture
def settings(aws: Any) -> Settings:
    made = aws.create_file_system(CreationToken="homes")["FileSystemId"]
    return replace(load(EXAMPLE), homes=Homes(made), users=(ALICE, BOB))


def observe(settings: Settings) -> homes.ObservedHomes:
    return homes.observe_homes_and_plan_changes(Efs(REGION), settings)


def apply(settings: Settings) -> homes.ObservedHomes:
    return homes.create_access_points_and_put_policy(Efs(REGION), observe(settings), sleep=lambda seconds: None)


def fs(settings: Settings) -> str:
    assert settings.homes is not None
    return settings.homes.file_system_id


def actions(observed: homes.ObservedHomes) -> dict[str, str]:
    return {item.desired.user: item.action for item in observed.items}


def points(aws: Any, settings: Settings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = aws.describe_access_points(FileSystemId=fs(settings))["AccessPoints"]
    return found


def test_every_user_gets_a_directory_and_an_identity_of_their_own(aws: Any, settings: Settings) -> None:
    done = apply(settings)
    assert {
        tag["Value"]: point for point in points(aws, settings) for tag in point["Tags"] if tag["Key"] == USER_TAG
    }.keys() == {"alice", "bob"}
    for point, user in zip(points(aws, settings), (ALICE, BOB)):
        assert point["PosixUser"] == {"Uid": user.uid, "Gid": user.gid}
        assert point["RootDirectory"] == {
            "Path": f"/home/{user.name}",
            "CreationInfo": {"OwnerUid": user.uid, "OwnerGid": user.gid, "Permissions": "0700"},
        }
    ids = {point.user: point.id for point in homes.access_points_to_record(done)}
    assert sorted(ids.values()) == sorted(point["AccessPointId"] for point in points(aws, settings))


def test_the_policy_names_exactly_these_access_points(aws: Any, settings: Settings) -> None:
    apply(settings)
    policy = Efs(REGION).policy(fs(settings))
    assert policy is not None
    (allow,) = [item for item in policy["Statement"] if item["Sid"] == allow_sid(settings.cluster.name)]
    assert allow["Principal"] == {"AWS": settings.cluster.execution_role}
    assert allow["Condition"]["StringEquals"]["elasticfilesystem:AccessPointArn"] == sorted(
        point["AccessPointArn"] for point in points(aws, settings)
    )
    # Whoever leaves the configuration may not be mounted any more; access point and files stay.
    fewer = replace(settings, users=(ALICE,))
    done = apply(fewer)
    assert len(done.existing_access_point_arns) == 1 and len(points(aws, settings)) == 2
    assert [found.user for found in observe(fewer).orphans] == ["bob"]
    assert done.existing_access_point_arns[0] in str(Efs(REGION).policy(fs(settings)))


def test_fifty_users_twice_are_fifty_access_points(aws: Any, settings: Settings) -> None:
    many = replace(settings, users=tuple(User(f"user{number}", 3000 + number, 3000 + number) for number in range(50)))
    first = apply(many)
    again = observe(many)
    assert set(actions(again).values()) == {"keep"} and again.is_complete_with_policy_in_force
    assert homes.access_points_to_record(
        homes.create_access_points_and_put_policy(Efs(REGION), again)
    ) == homes.access_points_to_record(first)
    assert len(points(aws, many)) == 50


def test_looking_changes_nothing(aws: Any, settings: Settings) -> None:
    observed = observe(settings)
    assert actions(observed) == {"alice": "create", "bob": "create"} and not observed.is_complete_with_policy_in_force
    assert points(aws, settings) == [] and Efs(REGION).policy(fs(settings)) is None


def test_an_access_point_that_somebody_else_made_is_taken(aws: Any, settings: Settings) -> None:
    made = aws.create_access_point(
        FileSystemId=fs(settings),
        ClientToken="terraform",
        PosixUser={"Uid": 2001, "Gid": 2001},
        RootDirectory={"Path": "/home/alice"},
    )
    done = apply(settings)
    assert homes.access_points_to_record(done)[0].id == made["AccessPointId"] and len(points(aws, settings)) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"users": (replace(ALICE, uid=2005), BOB)},
            "acts as 2001:2001 in /home/alice, but the configuration has 2005:2001",
        ),
        (
            {"users": (replace(ALICE, gid=2005), BOB)},
            "acts as 2001:2001 in /home/alice, but the configuration has 2001:2005",
        ),
        ({"users": (replace(ALICE, name="carol"),)}, "uid 2001 is alice's"),
        (
            {"directory": "/people"},
            "acts as 2001:2001 in /home/alice, but the configuration has 2001:2001 in /people/alice",
        ),
    ],
)
def test_what_would_give_files_to_another_number_is_refused(
    aws: Any, settings: Settings, change: dict[str, Any], why: str
) -> None:
    apply(settings)
    if "directory" in change:
        assert settings.homes is not None
        change = {"homes": replace(settings.homes, **change)}
    observed = observe(replace(settings, **change))
    assert why in observed.conflicts[0].detail
    with pytest.raises(ConfigError) as caught:
        homes.require_no_conflicts_or_public_policy(observed, will_remove_public_statements=False)
    assert why in caught.value.findings[0]
    assert len(points(aws, settings)) == 2


def test_a_policy_that_lets_everyone_in_is_not_left_standing(aws: Any, settings: Settings) -> None:
    statement = {
        "Sid": "console",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": "elasticfilesystem:ClientMount",
    }
    other = {**statement, "Sid": "backup", "Principal": {"AWS": "arn:aws:iam::111122223333:role/Backup"}}
    Efs(REGION).put_policy(fs(settings), f'{{"Statement": {[statement, other]}}}'.replace("'", '"'))
    with pytest.raises(ConfigError) as caught:
        homes.require_no_conflicts_or_public_policy(observe(settings), will_remove_public_statements=False)
    assert caught.value.findings == ("statement console",)
    homes.require_no_conflicts_or_public_policy(observe(settings), will_remove_public_statements=True)
    apply(settings)
    policy = Efs(REGION).policy(fs(settings))
    assert policy is not None and public_statement_names(policy) == []
    assert policy["Statement"][0]["Sid"] == "backup"


def test_without_homes_there_is_nothing_to_do(settings: Settings) -> None:
    for change in ({"homes": None}, {"users": ()}):
        with pytest.raises(UsageError, match="no access points to create"):
            observe(replace(settings, **change))


def test_a_file_system_that_is_not_there(aws: Any, settings: Settings) -> None:
    with pytest.raises(AwsError, match="FileSystemNotFound"):
        observe(replace(settings, homes=Homes("fs-0123456789abcdef0")))


def test_requests_are_what_the_api_takes(settings: Settings) -> None:
    longest = User("a" * 32, 60000, 60000)
    for point in Homes("fs-0123456789abcdef0", directory="/" + "d" * 60).desired_access_points(
        [ALICE, longest], [VISION]
    ):
        assert (
            request_shape.find_request_problems("efs", "CreateAccessPoint", homes.create_access_point_request(point))
            == []
        )


def test_a_group_has_an_access_point_that_leaves_everyone_who_he_is(aws: Any, settings: Settings) -> None:
    settings = replace(settings, groups=(VISION, Group("speech", 3002, mounts=("fsx",))))
    done = apply(settings)
    assert len(done.existing_access_point_arns) == 3
    (made,) = [one for one in aws.describe_access_points()["AccessPoints"] if one["Tags"][1]["Value"] == "group:vision"]
    assert "PosixUser" not in made
    assert made["RootDirectory"] == {
        "Path": "/home/vision",
        "CreationInfo": {"OwnerUid": 0, "OwnerGid": 3001, "Permissions": "2770"},
    }
    again = observe(settings)
    assert [item.action for item in again.items] == ["keep"] * 3 and again.is_complete_with_policy_in_force
    # Archived, it is mounted by nobody; its access point and every file stay, and it can be taken back.
    archived = apply(replace(settings, groups=(replace(VISION, archived=True),)))
    assert [found.point.owner_description for found in archived.orphans] == ["the group vision"] and len(
        archived.existing_access_point_arns
    ) == 2
    assert made["AccessPointArn"] not in str(archived.policy)
    assert len(apply(settings).existing_access_point_arns) == 3


def test_the_number_of_a_group_is_given_to_no_other(aws: Any, settings: Settings) -> None:
    apply(replace(settings, groups=(VISION,)))
    other = observe(replace(settings, groups=(Group("speech", 3001),)))
    assert [item.detail for item in other.conflicts] == [
        f"gid 3001 is the group vision's: {other.orphans[0].id} (the group vision) "
        "acts as the calling user in /home/vision"
    ]
    moved = observe(replace(settings, groups=(Group("vision", 3009),)))
    assert "the configuration has the calling user, in group 3009, in /home/vision" in moved.conflicts[0].detail


# What moto does not do.

POINT = {
    "FileSystemId": "fs-0123456789abcdef0",
    "OwnerId": "111122223333",
    "LifeCycleState": "available",
    "PosixUser": {"Uid": 2001, "Gid": 2001},
    "RootDirectory": {"Path": "/home/alice"},
}
WANTED = Homes("fs-0123456789abcdef0").desired_access_points([ALICE], [])[0]


def described(number: int, **fields: Any) -> dict[str, Any]:
    name = f"fsap-{number:017x}"
    return {**POINT, "AccessPointId": name, "AccessPointArn": f"arn:aws:elasticfilesystem:us-east-1:1:{name}", **fields}


def test_access_points_of_all_pages_are_seen() -> None:
    efs = Efs(REGION)
    with Stubber(efs._client) as stub:
        stub.add_response(
            "describe_access_points",
            {"AccessPoints": [described(1)], "NextToken": "more"},
            {"FileSystemId": POINT["FileSystemId"]},
        )
        stub.add_response(
            "describe_access_points",
            {"AccessPoints": [described(2)]},
            {"FileSystemId": POINT["FileSystemId"], "NextToken": "more"},
        )
        assert [point["AccessPointId"][-1] for point in efs.access_points("fs-0123456789abcdef0")] == ["1", "2"]
        stub.assert_no_pending_responses()


def test_of_two_admins_at_once_both_get_the_same_access_point() -> None:
    efs, request = Efs(REGION), homes.create_access_point_request(WANTED)
    theirs = described(7, ClientToken=request["ClientToken"])
    with Stubber(efs._client) as stub:
        stub.add_client_error("create_access_point", "AccessPointAlreadyExists", http_status_code=409)
        stub.add_response("describe_access_points", {"AccessPoints": [described(1, ClientToken="other"), theirs]})
        assert efs.create_or_find_access_point(request)["AccessPointId"] == theirs["AccessPointId"]
        stub.add_client_error("create_access_point", "AccessPointLimitExceeded", http_status_code=403)
        with pytest.raises(AwsError, match="AccessPointLimitExceeded"):
            efs.create_or_find_access_point(request)


def test_a_new_access_point_is_waited_for_with_a_bound() -> None:
    efs, clock = Efs(REGION), FakeClock()
    observed = homes.ObservedHomes(
        "demo", "arn:aws:iam::1:role/R", "arn:aws:efs:fs-1", homes.plan_user_changes([WANTED], []), (), None
    )
    creating = described(1, LifeCycleState="creating")

    def run() -> homes.ObservedHomes:
        return homes.create_access_points_and_put_policy(efs, observed, clock=clock, sleep=clock.sleep)

    with Stubber(efs._client) as stub:
        stub.add_response("create_access_point", creating)
        for point in (creating, creating, described(1)):
            stub.add_response("describe_access_points", {"AccessPoints": [point]})
        stub.add_response("put_file_system_policy", {})
        assert run().existing_access_point_arns and 1 < clock.now < 10
        stub.assert_no_pending_responses()
        stub.add_response("create_access_point", creating)
        for _ in range(100):
            stub.add_response("describe_access_points", {"AccessPoints": [creating]})
        # A policy that names what cannot be mounted would be a call that the stub does not expect.
        with pytest.raises(WaitTimeout, match="not available after 120 s: fsap-00000000000000001"):
            run()


def test_which_of_several_is_taken_is_always_the_same() -> None:
    there = [homes.parse_access_point(described(number)) for number in (9, 3)]
    ours = homes.parse_access_point(described(12, Tags=[{"Key": USER_TAG, "Value": "alice"}]))
    dying = homes.parse_access_point(described(1, LifeCycleState="deleting"))
    assert homes.plan_user_changes([WANTED], [*there, dying])[0].existing == there[1]
    assert homes.plan_user_changes([WANTED], [*there, ours])[0].existing == ours
