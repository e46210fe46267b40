"""Homes of the users: from the file and the ids beside it to mounts, and what stops before anything is rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import check, load
from hyperpod_kit.config.settings import access_points
from hyperpod_kit.config.settings.access_points import AccessPoint
from hyperpod_kit.errors import BundleError, ConfigError
from hyperpod_kit.model.homes import home_path_of_mount, private_parent_of
from hyperpod_kit.model.mounts.efs import EfsMount

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
FILE_SYSTEM = "fs-0fffffffffffffff0"
ALICE = AccessPoint("alice", FILE_SYSTEM, 2001, 2001, "/home/alice", "fsap-0000000000000a11c")
A_B = AccessPoint("a_b", FILE_SYSTEM, 2002, 2002, "/home/a_b", "fsap-00000000000000ab0")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["homes"] = {"file_system_id": FILE_SYSTEM}
    values["hyperpod_kit"]["users"] = [
        {"name": "alice", "uid": 2001, "gid": 2001},
        {"name": "a_b", "uid": 2002, "gid": 2002},
    ]
    return save(tmp_path / "parameters.json", values)


def save(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values))
    return path


def change(config: Path, **fields: Any) -> None:
    values = json.loads(config.read_text())
    values["hyperpod_kit"].update(fields)
    save(config, values)


def homes(config: Path) -> list[EfsMount]:
    return [mount for mount in load(config).mounts if isinstance(mount, EfsMount) and mount.owner]


def said(config: Path) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in check(config).findings]


def test_every_user_gets_a_mount_behind_a_private_parent(config: Path) -> None:
    access_points.write_access_points(config, [ALICE, A_B])
    assert said(config) == []
    alice, other = homes(config)
    assert (alice.name, alice.access_point_id, alice.tls, alice.iam) == ("home-alice", ALICE.id, True, True)
    assert alice.path == "/home/.homes/alice/home"
    assert (home_path_of_mount(alice.path), private_parent_of(alice.path)) == ("/home/alice", "/home/.homes/alice")
    assert other.name == "home-2002" and other.owner == "a_b"


def test_the_node_learns_whose_the_mounts_are(config: Path) -> None:
    access_points.write_access_points(config, [ALICE, A_B])
    node = json.loads(render(load(config)).files["node_config.json"])
    assert [mount["owner"] for mount in node["mounts"] if mount["kind"] == "efs"] == [None, "alice", "a_b"]
    assert "owner" not in {key for mount in json.loads(config.read_text())["hyperpod_kit"]["mounts"] for key in mount}


def test_nothing_is_rendered_before_the_access_points_are_there(config: Path) -> None:
    assert said(config) == [("HPK-U020", "warning")]
    with pytest.raises(BundleError, match="home of alice, a_b") as caught:
        render(load(config))
    assert caught.value.hint == "hyperpod-kit users apply"
    access_points.write_access_points(config, [ALICE])
    with pytest.raises(BundleError, match="home of a_b"):
        render(load(config))


def test_the_owner_is_not_for_the_file(config: Path) -> None:
    values = json.loads(config.read_text())
    values["hyperpod_kit"]["mounts"][0]["owner"] = "alice"
    save(config, values)
    with pytest.raises(ConfigError) as caught:
        load(config)
    assert "owner" in caught.value.findings[0] and "unknown key" in caught.value.findings[0]


def test_another_uid_is_found_offline(config: Path) -> None:
    access_points.write_access_points(config, [ALICE, A_B])
    change(config, users=[{"name": "alice", "uid": 2005, "gid": 2001}, {"name": "a_b", "uid": 2002, "gid": 2002}])
    with pytest.raises(ConfigError) as caught:
        load(config)
    (finding,) = caught.value.findings
    assert "HPK-U022 hyperpod_kit.users[0]" in finding
    assert f"`alice` is 2005:2001 in /home/alice here, but access point {ALICE.id} acts as 2001:2001" in finding


def test_another_file_system_needs_access_points_of_its_own(config: Path) -> None:
    access_points.write_access_points(config, [ALICE, A_B])
    change(config, homes={"file_system_id": "fs-0eeeeeeeeeeeeeee0"})
    assert said(config) == [("HPK-U021", "warning")] * 2
    assert load(config).owners_without_access_point == ("alice", "a_b")


def test_what_is_wrong_with_all_homes_is_said_once(config: Path) -> None:
    change(config, homes={"file_system_id": "nonsense"})
    assert said(config) == [("HPK-U020", "warning"), ("HPK-E001", "error")]


def test_the_file_of_ids_is_written_once_and_only_when_it_changes(config: Path) -> None:
    assert access_points.write_access_points(config, [A_B, ALICE]) and not access_points.write_access_points(
        config, [ALICE, A_B]
    )
    assert access_points.read_access_points_or_empty(config) == {"alice": ALICE, "a_b": A_B}
    assert sorted(path.name for path in config.parent.iterdir()) == [
        "parameters.access-points.json",
        "parameters.json",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "x/1", "access_points": []}',
        '{"format": 1}',
        '{"format": "hpk-access-points/1", "access_points": [{"user": "alice"}]}',
    ],
)
def test_a_file_that_is_not_ours_is_refused(config: Path, text: str) -> None:
    access_points.access_points_path(config).write_text(text)
    with pytest.raises(ConfigError, match="not a list of access points"):
        load(config)
