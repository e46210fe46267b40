"""Mounts as data: every kind survives node_config.json, and each node gets those of its role and group."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, Dict

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.kinds import KINDS, mount_from_dict
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.platform import mark_platform_mounts
from hyperpod_kit.model.states import ROLES

OTHER_VALUES: Dict[Any, Any] = {
    "str": "x",
    "Optional[str]": "y",
    "Optional[int]": 7,
    "int": 3,
    "Tuple[str, ...]": ("compute",),
}


def full(cls: Any) -> Any:
    """A mount of this kind in which no field has its default."""
    values = {
        field.name: not field.default if field.type == "bool" else OTHER_VALUES[field.type] for field in fields(cls)
    }
    return cls(**values)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_every_kind_survives_the_trip_to_the_node(kind: str) -> None:
    required = [field.name for field in fields(KINDS[kind]) if field.default is MISSING]
    plain = KINDS[kind](**dict.fromkeys(required, "a"))
    assert (plain.required, plain.roles, plain.groups) == (True, ROLES, ())
    config = NodeConfig("demo", "on_create", {"g": "compute"}, (full(KINDS[kind]), plain))
    assert NodeConfig.from_json(config.to_json()) == config
    assert json.loads(config.to_json())["mounts"][0]["kind"] == kind


def test_a_field_of_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="NvmeMount has no speed"):
        mount_from_dict({"kind": "nvme", "name": "a", "path": "/a", "speed": 1})
    with pytest.raises(KeyError, match="tape"):
        mount_from_dict({"kind": "tape"})


def test_a_node_carries_the_mounts_of_its_role_and_its_group() -> None:
    everywhere = EfsMount("a", "/a", "fs-1")
    compute = EfsMount("b", "/b", "fs-1", roles=("compute",))
    big = EfsMount("c", "/c", "fs-1", groups=("big",))
    config = NodeConfig("demo", "on_create", {}, (everywhere, compute, big))
    carried = {
        place: "".join(mount.name for mount in config.mounts_for(*place))
        for place in (("compute", "big"), ("compute", "small"), ("login", "small"), ("login", "big"))
    }
    assert carried == {
        ("compute", "big"): "abc",
        ("compute", "small"): "ab",
        ("login", "small"): "a",
        ("login", "big"): "ac",
    }


def test_the_platform_makes_the_first_fsx_of_a_kind_outside_on_create() -> None:
    first, second = LustreMount("l1", "/l1", "fs-1", "a"), LustreMount("l2", "/l2", "fs-2", "b")
    volume = OpenZfsMount("vol", "/vol", "fs-3", export="/fsx/vol1")
    root = OpenZfsMount("root", "/home", "fs-3", groups=("big",))
    mounts = (S3Mount("s", "/s", "bucket"), first, second, volume, root)
    groups = [("big", "compute"), ("door", "login")]

    def theirs(mode: str) -> list[str]:
        return [mount.name for mount in mark_platform_mounts(mounts, mode, groups) if getattr(mount, "platform", False)]

    assert theirs("on_create") == []
    assert theirs("on_init_complete") == theirs("ami_only") == ["l1", "root"]
    assert [mount.name for mount in mark_platform_mounts(mounts, "on_init_complete", ())] == [
        "s",
        "l1",
        "l2",
        "vol",
        "root",
    ]
