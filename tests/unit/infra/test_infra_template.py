"""`infra template`: cfn-lint says nothing of it, and `validate --aws` finds the account right that it makes."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
import yaml
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import UsageError
from hyperpod_kit.infra.resources.network import allocate_subnet_blocks
from hyperpod_kit.infra.template import (
    build_template_parts,
    cloudformation_template,
    describe_omissions,
    to_yaml_without_aliases,
)
from hyperpod_kit.infra.terraform import TYPES, terraform_configuration
from tests.unit.infra.cloud import make
from tests.unit.preflight.conftest import account
from tests.unit.preflight.world import EXAMPLE, REGION, ROLE, World

EVERY = EXAMPLE.parent / "examples/every-mount.json"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[World]:
    """An account in which nothing of the configuration is there."""
    with account(tmp_path, made=False) as world:
        yield world


def put(values: Any, place: str, value: str) -> None:
    """Write a value at `hyperpod_kit.mounts[0].file_system_id`."""
    *above, last = [int(word) if word.isdigit() else word for word in re.findall(r"\w+", place)]
    for word in above:
        values = values[word]
    values[last] = value


def every_mount() -> Dict[str, Any]:
    """All kinds of mounts, an OpenZFS volume below another, and homes, over two subnets."""
    values: Dict[str, Any] = json.loads(EVERY.read_text())
    kit = values["hyperpod_kit"]
    kit["mounts"][2]["export"] = "/fsx/team/one"
    kit["homes"] = {"file_system_id": "fs-0aaaaaaaaaaaaaaaa"}
    kit["cluster"]["vpc"]["subnet_ids"].append("subnet-0aaaaaaaaaaaaaaaa")
    return values


def linted(template: Any) -> list[str]:
    return [match.rule.id for match in lint(to_yaml_without_aliases(template), config=ManualArgs(regions=[REGION]))]


@pytest.mark.full
def test_cfn_lint_says_nothing_and_would(tmp_path: Path) -> None:
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(every_mount()))
    made = cloudformation_template(load(path))
    assert linted(made) == []
    broken = copy.deepcopy(made)
    broken["Resources"]["Efs1"]["Properties"]["PerformanceMode"] = "fast"
    del broken["Resources"]["Nat"]
    assert {"E3030", "E1020"} <= set(linted(broken))  # a value that EFS lacks, and a reference into nothing
    assert [word.split()[0] for word in describe_omissions(load(path))] == ["fs-0aaaabbbbccccdddd"]


@pytest.mark.full
def test_what_it_makes_is_what_validate_asks_for(
    empty: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty account; the template as printed, made; the outputs into the configuration: nothing is wrong then."""
    values = json.loads(EXAMPLE.read_text())
    kit = values["hyperpod_kit"]
    kit["cluster"]["execution_role"] = ROLE
    kit["mounts"][0]["iam"] = True
    kit["cluster"]["instance_groups"][1]["instance_type"] = "ml.p4d.24xlarge"  # with an EFA
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    assert run_command_line(["infra", "template", str(config), "--check", "--json"]) == 1
    before = json.loads(capsys.readouterr().out)
    assert {row["part"].split()[0]: row["state"] for row in before["parts"]} == {
        "network": "missing",
        "security": "missing",
        "EFS": "missing",
        "FSx": "missing",
        "bucket": "missing",
        "role": "missing",
    }

    assert run_command_line(["infra", "template", str(config), "--output", str(tmp_path / "infra.yaml")]) == 0
    said = capsys.readouterr().err
    assert "--parameter-overrides Zone1=ZONE" in said
    outputs = make(empty, yaml.safe_load((tmp_path / "infra.yaml").read_text()), {"Zone1": "us-east-1a"})
    for place, value in outputs.items():
        put(values, place, value)
    empty.client("s3").put_object(Bucket="sagemaker-hyperpod-kit-data", Key="corpus/0", Body=b"x")
    config.write_text(json.dumps(values))
    assert run_command_line(["infra", "template", str(config), "--check", "--json"]) == 0, capsys.readouterr().out
    after = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in after["parts"]} == {"ok"}
    assert run_command_line(["validate", str(config), "--aws", "--json", "--suppress", "HPK-V602"]) == 0
    report = json.loads(capsys.readouterr().out)
    # Quotas are no part of a template.
    assert [one for one in report["findings"] if not one["code"].startswith("HPK-V6")] == []

    group = kit["cluster"]["vpc"]["security_group_ids"][0]
    empty.shut(group)
    endpoint = empty.client("ec2").describe_vpc_endpoints()["VpcEndpoints"][0]["VpcEndpointId"]
    empty.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[endpoint])
    assert run_command_line(["infra", "template", str(config), "--check"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "HPK-V311" in shown and "has no endpoint of S3" in shown


def test_terraform_has_the_same_resources_with_no_reference_into_nothing(tmp_path: Path) -> None:
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(every_mount()))
    settings = load(path)
    found = build_template_parts(settings)
    made = terraform_configuration(REGION, found)
    resources = made["resource"]
    assert {one["Type"] for part in found for one in part.resources.values()} <= set(TYPES)
    assert len({(kind, label) for kind, of in resources.items() for label in of}) >= sum(
        len(part.resources) for part in found
    )
    text = json.dumps(made)
    referred = set(re.findall(r"\$\{(aws_\w+)\.(\w+)\.", text))
    assert referred and all(label in resources[kind] for kind, label in referred)
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) == set(made["variable"])
    assert "Fn::" not in text and '"Ref"' not in text and "AWS::" not in text
    policy = json.loads(resources["aws_iam_role_policy"]["role1_policy"]["policy"])
    assert any("${aws_efs_file_system.efs1.id}" in str(one["Resource"]) for one in policy["Statement"])
    assert resources["aws_fsx_openzfs_volume"]["fsx2_fsx_team_one"]["parent_volume_id"] == (
        "${aws_fsx_openzfs_volume.fsx2_fsx_team.id}"
    )


def test_subnets_do_not_overlap_and_too_many_are_refused() -> None:
    for count in range(1, 16):
        private, public = allocate_subnet_blocks(count)
        networks = [*private, public]
        assert len(networks) == count + 1
        assert not any(one.overlaps(other) for one in networks for other in networks if one != other)
    with pytest.raises(UsageError, match="names 16 subnets"):
        allocate_subnet_blocks(16)


def test_homes_keep_everybody_out_until_users_apply(tmp_path: Path) -> None:
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(every_mount()))
    made = cloudformation_template(load(path))
    homes = [
        one["Properties"]
        for one in made["Resources"].values()
        if one["Type"] == "AWS::EFS::FileSystem" and "FileSystemPolicy" in one["Properties"]
    ]
    assert [[word["Effect"] for word in one["FileSystemPolicy"]["Statement"]] for one in homes] == [["Deny", "Deny"]]
