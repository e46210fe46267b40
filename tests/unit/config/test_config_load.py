"""Reading a configuration: what becomes a value, what becomes a finding, and where the finding points."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.load import check, load
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import Absent, ConfigError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from tests.support.examples import examples

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"


def findings(tmp_path: Path, text: str, name: str = "c.json") -> dict[str, Finding]:
    path = tmp_path / name
    path.write_text(text)
    return {finding.path: finding for finding in check(path).findings}


def test_the_example_is_complete_and_valid() -> None:
    assert check(EXAMPLE).findings == ()
    config = load(EXAMPLE)
    assert [(group.name, group.role, group.count, group.partition) for group in config.cluster.groups] == [
        ("controller-machine", "controller", 1, None),
        ("worker-group", "compute", 3, "train"),
    ]
    assert config.mounts == (
        LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh"),
        EfsMount("home", "/efs/trainer", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", iam=True),
        S3Mount("data", "/mnt/data", "sagemaker-hyperpod-kit-data", "corpus/"),
    )
    assert config.node_config().roles == {"controller-machine": "controller", "worker-group": "compute"}


def test_yaml_and_json_are_the_same_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(json.loads(EXAMPLE.read_text())))
    assert load(path) == load(EXAMPLE)


def test_bucketname_is_one_mountpoint_mount() -> None:
    values = json.loads(EXAMPLE.read_text())
    values["bucketname"] = "my-bucket"
    config, found = decode_settings(values)
    assert found == [] and S3Mount("mount-s3", "/mount-s3", "my-bucket") in config.mounts


def test_unknown_keys_have_a_place_a_line_and_the_nearest_name(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace('"read_only"', '"read_onyl"').replace('"login', '"').replace('"tls"', '"zzz"')
    found = findings(tmp_path, text)
    wrong = found["hyperpod_kit.mounts[1].read_onyl"]
    assert (wrong.code, wrong.hint) == ("HPK-C001", "Did you mean `read_only`?")
    assert "read_onyl" in text.splitlines()[wrong.line - 1]
    assert found["hyperpod_kit.mounts[0].zzz"].hint.startswith("Known here: access_point_id, file_system_id,")


def test_lines_are_right_with_tabs_and_for_list_items(tmp_path: Path) -> None:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["mounts"][1]["bucket"] = 7
    values["hyperpod_kit"]["cluster"]["vpc"]["subnet_ids"] = ["subnet-0123456789abcdef0", 5]
    text = json.dumps(values, indent="\t")
    found = findings(tmp_path, text)
    assert "7" in text.splitlines()[found["hyperpod_kit.mounts[1].bucket"].line - 1]
    assert text.splitlines()[found["hyperpod_kit.cluster.vpc.subnet_ids[1]"].line - 1].strip() == "5"


def test_a_key_that_is_written_twice(tmp_path: Path) -> None:
    found = findings(tmp_path, EXAMPLE.read_text().replace('"tls": true', '"tls": true, "tls": false'))
    assert found["hyperpod_kit.mounts[0].tls"].code == "HPK-C004"


def test_what_is_missing_is_reported_once_not_again_by_the_rules(tmp_path: Path) -> None:
    values = json.loads(EXAMPLE.read_text())
    del values["hyperpod_kit"]["cluster"]["region"]
    values["hyperpod_kit"]["bundle"]["bucket"] = None
    found = findings(tmp_path, json.dumps(values, indent=2))
    assert {path: finding.code for path, finding in found.items()} == {
        "hyperpod_kit.cluster.region": "HPK-C002",
        "hyperpod_kit.bundle.bucket": "HPK-C002",
    }


def test_an_empty_object_names_what_it_lacks(tmp_path: Path) -> None:
    assert list(findings(tmp_path, "{}")) == ["controller_group", "hyperpod_kit", "worker_groups"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,}', "is not JSON: .* at line 1, column"),
        ("[]", "holds a list, expected an object"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_parsed(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        check(path)


def test_yaml_that_cannot_be_parsed(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match=r"c\.yml is not YAML"):
        check(path)


def test_a_missing_file_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(Absent) as caught:
        check(tmp_path / "nothing.json")
    assert caught.value.hint == "hyperpod-kit init"


def test_load_raises_with_every_finding(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(EXAMPLE.read_text().replace('"demo"', '"-"').replace('"trainer"', '"root"'))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert len(caught.value.findings) == 2
    assert "HPK-K001" in caught.value.findings[0] and "HPK-U002" in caught.value.findings[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, key_path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key_path, *[place for key, item in inner for place in places(item, (*key_path, key))]]


@examples(300)
@given(data=st.data())
def test_whatever_stands_anywhere_reading_and_rules_never_raise(data: st.DataObject) -> None:
    values = copy.deepcopy(json.loads(EXAMPLE.read_text()))
    key_path = data.draw(st.sampled_from([place for place in places(values) if place]))
    inner = values
    for key in key_path[:-1]:
        inner = inner[key]
    inner[key_path[-1]] = data.draw(JSON)
    config, found = decode_settings(values)
    for finding in [*found, *validate(config)]:
        assert finding.code and finding.message and finding.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n", "line 2, column 1: the end of the file"),
        ('{"a": [1,\n\n', "line 3, column 1: the end of the file"),
        (" \n", "is empty"),
    ],
)
def test_a_file_that_stops_too_early(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path)
