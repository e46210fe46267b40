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

    assert run_command_line(["infra", "template", str(config), "--out", str(tmp_path / "infra.yaml")]) == 0
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
    assert "HPK-V311" in shown and "has no S3 endpoint" in shown


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


def efa_lustre(tmp_path: Path) -> tuple[Path, Dict[str, Any]]:
    """The example with a Lustre that is mounted over EFA, on nodes with an EFA."""
    values = json.loads(EXAMPLE.read_text())
    dns_name, mount_name = values.pop("fsx_dns_name"), values.pop("fsx_mountname")
    kit = values["hyperpod_kit"]
    kit["cluster"]["execution_role"] = ROLE
    kit["cluster"]["instance_groups"][1]["instance_type"] = "ml.p4d.24xlarge"
    kit["mounts"].append(
        {
            "kind": "lustre",
            "name": "fsx",
            "path": "/fsx",
            "dns_name": dns_name,
            "mount_name": mount_name,
            "efa": True,
        }
    )
    config = tmp_path / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    return config, values


def test_a_lustre_with_efa_has_the_sizes_and_the_rules_that_fsx_asks_for(tmp_path: Path) -> None:
    settings = load(efa_lustre(tmp_path)[0])
    found = build_template_parts(settings)
    made = cloudformation_template(settings, found)
    capacity, throughput = made["Parameters"]["Fsx1Capacity"], made["Parameters"]["Fsx1Throughput"]
    assert (capacity["Default"], throughput["Default"]) == (4800, 1000)
    for speed, step in ((125, 38400), (250, 19200), (500, 9600), (1000, 4800)):
        rule = made["Rules"][f"Fsx1CapacityAt{speed}"]
        assert rule["RuleCondition"] == {"Fn::Equals": [{"Ref": "Fsx1Throughput"}, str(speed)]}
        multiples, of = rule["Assertions"][0]["Assert"]["Fn::Contains"]
        assert of == {"Ref": "Fsx1Capacity"} and multiples[:2] == [str(step), str(2 * step)]
    rules = {
        name: about["Properties"]
        for name, about in made["Resources"].items()
        if about["Type"].startswith("AWS::EC2::SecurityGroup") and about["Properties"].get("IpProtocol") == "-1"
    }
    assert set(rules) == {
        *("NodesFromNodes", "NodesToNodes", "StorageFromStorage", "StorageToStorage"),
        *("StorageFromNodes", "StorageToNodes", "NodesFromStorage", "NodesToStorage"),
    }
    lustre = terraform_configuration(REGION, found)["resource"]["aws_fsx_lustre_file_system"]["fsx1"]
    (precondition,) = lustre["lifecycle"]["precondition"]
    assert lustre["lifecycle"]["prevent_destroy"] and precondition["condition"] == (
        "${var.fsx1_capacity % lookup({125 = 38400, 250 = 19200, 500 = 9600, 1000 = 4800}, "
        "var.fsx1_throughput, 1) == 0}"
    )
    policies = [about for about in made["Resources"].values() if about["Type"] == "AWS::IAM::RolePolicy"]
    assert any("fsx:DescribeFileSystems" in json.dumps(policy) for policy in policies)
    assert linted(made) == []


@pytest.mark.full
def test_an_account_with_a_lustre_with_efa_is_right_until_a_rule_goes_or_the_size(
    empty: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, values = efa_lustre(tmp_path)
    template = cloudformation_template(load(config))
    for place, value in make(empty, template, {"Zone1": "us-east-1a"}).items():
        put(values, place, value)
    config.write_text(json.dumps(values))

    def codes() -> set[str]:
        capsys.readouterr()
        run_command_line(["validate", str(config), "--aws", "--json", "--fail-on", "error"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return {one["code"] for one in found if one["code"].startswith(("HPK-V2", "HPK-V3", "HPK-V5"))}

    assert codes() == set()
    ec2 = empty.client("ec2")
    groups = {group["Description"]: group for group in ec2.describe_security_groups()["SecurityGroups"]}
    storage = groups["file systems of demo"]
    everything = [rule for rule in storage["IpPermissions"] if rule["IpProtocol"] == "-1"]
    ec2.revoke_security_group_ingress(GroupId=storage["GroupId"], IpPermissions=everything)
    assert "HPK-V515" in codes()


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
