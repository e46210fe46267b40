"""`validate --aws` as a user types it, against an account on moto."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.cli.main import run_command_line
from tests.unit.preflight.world import World, group

Validate = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Validate:
    """validate(path, *words) -> (exit code, what --json prints)."""

    def call(path: Path, *words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run_command_line(["validate", str(path), "--aws", "--json", *words])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, found

    return call


def test_four_faults_that_awss_own_validator_lets_pass(world: World, tmp_path: Path, validate: Validate) -> None:
    """A1: a public subnet, a group that names only another one, an FSx and a controller group that do not exist."""
    world.route(GatewayId=world.gateway)
    other = group(world, "other")
    world.shut(world.nodes)
    for direction in ("ingress", "egress"):
        world.allow(direction, world.nodes, UserIdGroupPairs=[{"GroupId": other}])
    world.allow("egress", world.nodes, IpRanges=[{"CidrIp": "0.0.0.0/0"}])

    def faults(values: dict[str, Any]) -> None:
        values["fsx_dns_name"] = "fs-0aaaaaaaaaaaaaaaa.fsx.us-east-1.amazonaws.com"
        values["controller_group"] = "nowhere"

    code, report = validate(world.write(tmp_path, faults))
    found = {(finding["code"], finding["severity"], finding["path"]) for finding in report["findings"]}
    assert code == 1 and found == {
        ("HPK-G001", "error", "controller_group"),
        ("HPK-V304", "error", "hyperpod_kit.cluster.vpc.subnet_ids[0]"),
        ("HPK-V311", "error", "hyperpod_kit.cluster.vpc.security_group_ids"),
        ("HPK-V501", "error", "fsx_dns_name"),
    }
    assert all(finding["line"] and finding["hint"] for finding in report["findings"])


def test_nothing_is_wrong_with_a_right_account_and_nothing_was_changed(
    world: World, tmp_path: Path, validate: Validate
) -> None:
    before = world.rules(world.nodes)
    code, report = validate(world.write(tmp_path), "--fail-on", "info")
    assert (code, report["findings"], report["aws"]["not_checked"]) == (0, [], [])
    assert world.rules(world.nodes) == before


def test_the_documented_permissions_are_all_that_is_asked_for() -> None:
    """Plus DescribeCluster, which comes with ListClusters."""
    root = Path(__file__).parents[3]
    asked = set()
    preflight = root / "hyperpod_kit/preflight"
    for path in [*preflight.glob("aws_facts/*.py"), *preflight.glob("mounts/*.py")]:
        asked |= set(
            re.findall(
                r"(?:\.query_or_record_failure\(|\baction =|with_fetched_security_groups\(\s*client,)"
                r'\s*"([a-z0-9]+:[A-Z][A-Za-z]+)"',
                path.read_text(),
            )
        )
    page = (root / "docs/preflight.md").read_text()
    policy = json.loads(page.split("```json\n")[1].split("```")[0])
    assert set(policy["Statement"][0]["Action"]) == asked | {"sagemaker:DescribeCluster"}


def test_words_for_people(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.client("fsx").delete_file_system(FileSystemId=world.lustre)
    path = world.write(tmp_path)
    assert run_command_line(["validate", str(path), "--aws"]) == 1
    printed = capsys.readouterr().out
    assert f"error HPK-V501  {path}:" in printed and "aws fsx describe-file-systems --region us-east-1" in printed
    assert printed.endswith("1 error, 0 warnings (checked as arn:aws:sts::123456789012:user/moto)\n")
    assert run_command_line(["validate", str(path), "--suppress", "V501"]) == 2
