"""Line and column of everything, and files that are no configuration: each is one clear error, soon, whatever it is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hyperpod_kit.config.load import check, load
from hyperpod_kit.config.reading import yaml_text
from hyperpod_kit.config.reading.document import LARGEST, read_document
from hyperpod_kit.config.reading.source_map import map_json_positions
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.errors import ConfigError, HyperpodKitError, UsageError
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from tests.support.examples import examples

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


def written(tmp_path: Path, text: str, name: str = "c.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def found(path: Path) -> dict[str, Finding]:
    return {finding.path: finding for finding in check(path).findings}


def inner(value: Any, path: str = "") -> Any:
    """(path, value) of everything below a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        place = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
        yield place, item
        yield from inner(item, place)


@examples(80)
@given(value=st.dictionaries(TEXT, JSON, max_size=4), indent=st.sampled_from([None, 1, "\t"]))
def test_at_every_place_stands_the_value(value: Any, indent: Any) -> None:
    """The scanner against the parser: what begins at the position decodes to the value of the path."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    lines = text.split("\n")
    places = map_json_positions(text)
    values = dict(inner(value))
    assert set(places.of) == set(values) and len(values) <= len(list(inner(value)))
    if len(values) < len(list(inner(value))):
        return  # keys with dots and brackets in them: two values share a path
    for path, item in values.items():
        line, column = places.of[path].value
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        assert json.JSONDecoder().raw_decode(rest)[0] == item
        line, column = places.of[path].key
        assert lines[line - 1][column - 1 :].startswith('"') or path.endswith("]")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("name", ["c.json", "c.yaml"])
def test_line_and_column_whatever_the_editor_writes(tmp_path: Path, newline: str, bom: str, name: str) -> None:
    text = EXAMPLE.read_text().replace('"read_only": true', '"read_onyl": true').replace('"corpus/"', '"größe" ')
    path = written(tmp_path, bom + text.replace("\n", newline), name)
    wrong = found(path)
    lines = text.split("\n")
    key, value = wrong["hyperpod_kit.mounts[1].read_onyl"], wrong["hyperpod_kit.mounts[1].prefix"]
    assert lines[key.line - 1][key.column - 1 :].startswith('"read_onyl"')
    assert lines[value.line - 1][value.column - 1 :].startswith('"größe"')


def test_what_is_missing_is_pointed_at_by_what_lacks_it(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace('"region": "us-east-1",', "").replace('"kind": "efs",', "")
    wrong = found(written(tmp_path, text))
    lines = text.split("\n")
    for path, begins in (("hyperpod_kit.cluster.region", '"cluster"'), ("hyperpod_kit.mounts[0].kind", "{")):
        assert wrong[path].code == "HPK-C002"
        assert lines[wrong[path].line - 1][wrong[path].column - 1 :].startswith(begins)


def test_a_key_that_is_written_twice_points_at_the_second(tmp_path: Path) -> None:
    for name in ("c.json", "c.yaml"):
        twice = found(written(tmp_path, EXAMPLE.read_text().replace('"tls": true', '"tls": true, "tls": false'), name))
        finding = twice["hyperpod_kit.mounts[0].tls"]
        assert (finding.code, finding.column) == ("HPK-C004", 22)


NESTED = "[" * 100_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi")
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", '{"a": ' + NESTED, "nested deeper than 64 levels"),
        ("c.json", '{"a": ' + "[" * 70 + "]" * 70 + "}", "nested deeper than 64 levels"),
        ("c.json", '{"a": NaN}', "NaN is not a number"),
        ("c.json", '{"a": -Infinity}', "-Infinity is not a number"),
        ("c.json", '{"a": ' + "9" * 5000 + "}", "is not JSON that can be read: .*digits"),
        ("c.json", "null", "holds nothing"),
        ("c.json", '"text"', "holds a string"),
        ("c.json", "5", "holds a number"),
        ("c.yaml", "true", "holds true or false"),
        ("c.json", "# yaml\na: 1\n", "line 1, column 1: # yaml"),
        ("c.yaml", "a: " + NESTED, "nested deeper than 64 levels at line 1"),
        ("c.yaml", "- " * 100_000, "nested deeper than 64 levels at line 1"),
        ("c.yaml", BOMB, "unfold to more than 50000 values at line"),
        ("c.yaml", "a: &a [*a]\n", "inside of what it stands for at line 1, column"),
        ("c.yaml", "a: &a {<<: *a}\n", "inside of what it stands for"),
        ("c.yaml", "a: *nothing\n", "undefined alias.*at line 1, column 4"),
        ("c.yaml", "a: b: c\n", "mapping values are not allowed.*at line 1, column 5: a: b: c"),
        ("c.yaml", "a: 1\n---\na: 2\n", "expected a single document.*at line 2"),
        ("c.yaml", "a: 1\n\tb: 2\n", "at line 2, column 1"),
        ("c.yaml", "a: !!python/object/apply:os.system [id]\n", "only what JSON has too.*line 1, column 4"),
        ("c.yaml", "a: !!binary aGVsbG8=\n", "only what JSON has too"),
        ("c.yaml", "a: !!set {x}\n", "only what JSON has too"),
        ("c.yaml", "a: !!int many\n", "not of the type that its tag says"),
        ("c.yaml", "? [a, b]\n: c\n", "a key that is not a text at line 1"),
        ("c.yaml", "<<: 5\n", "`<<` stands before something that is no mapping"),
        ("c.yaml", "a: \x07\n", "characters are not allowed"),
        ("c.yaml", "a: " + "9" * 5000, "not of the type"),
        ("c.yaml", "- a\n- b\n", "holds a list"),
        ("c.yaml", "# nothing but words\n", "holds nothing"),
        ("c.yaml", "", "is empty"),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check(written(tmp_path, text, name))
    assert caught.value.message.isprintable() and len(caught.value.message) < 600


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(EXAMPLE.read_text().encode("utf-16"))
    with pytest.raises(UsageError, match="byte 0 is not UTF-8") as caught:
        read_document(path)
    assert "PowerShell" in str(caught.value.hint)
    path.write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(UsageError, match="has more than 4 MiB"):
        read_document(path)
    for place in (Path("/dev/zero"), tmp_path, tmp_path / "a\0b", tmp_path / ("n" * 300)):
        with pytest.raises(UsageError):
            read_document(place)
    if os.geteuid():
        path.chmod(0)
        with pytest.raises(UsageError, match="cannot read"):
            read_document(path)


def test_a_large_file_is_read_in_seconds_with_its_places(tmp_path: Path) -> None:
    """Two thousand users: the work grows with the file, not with its square."""
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["users"] = [
        {"name": f"u{number}", "uid": 10_000 + number, "gid": 10_000 + number} for number in range(2_000)
    ]
    values["hyperpod_kit"]["users"][-1]["uid"] = "last"
    for name, text in (("c.json", json.dumps(values, indent=1)), ("c.yaml", json.dumps(values))):
        began = time.process_time()
        (finding,) = check(written(tmp_path, text, name)).findings
        assert (finding.code, finding.path) == ("HPK-C003", "hyperpod_kit.users[1999].uid")
        assert time.process_time() - began < 10


def test_yaml_with_anchors_merges_and_comments_is_the_same_configuration(tmp_path: Path) -> None:
    text = """
    # Two mounts that have the most in common.
    controller_group: controller-machine
    worker_groups: [{instance_group_name: worker-group, partition_name: train}]
    hyperpod_kit:
      cluster: &cluster
        name: demo
        region: us-east-1
        execution_role: arn:aws:iam::111122223333:role/HyperPodKitDemo
        instance_groups:
        - &machine {name: controller-machine, instance_type: ml.c5.xlarge, count: 1}
        - {<<: *machine, name: worker-group, count: 3}
      bundle: {bucket: sagemaker-hyperpod-kit-demo}
      mounts:
      - &data {kind: mountpoint-s3, name: data, path: /mnt/data, bucket: my-data, dir_mode: 0750,
               expected_bucket_owner: 012345670123}
      - <<: [{name: more, prefix: a/}, *data]
        path: /mnt/more
    """
    config = load(written(tmp_path, text, "c.yaml"))
    assert [(group.name, group.count) for group in config.cluster.groups] == [
        ("controller-machine", 1),
        ("worker-group", 3),
    ]
    data, more = config.mounts
    assert isinstance(more, S3Mount)
    assert (more.name, more.path, more.bucket, more.prefix) == ("more", "/mnt/more", "my-data", "a/")
    # Neither the number 488 nor the number 1402433619.
    assert isinstance(data, S3Mount)
    assert (data.dir_mode, data.expected_bucket_owner) == ("0750", "012345670123")


class YamlOfOurs(yaml.SafeDumper):
    """Quotes what our reading would take for a number; PyYAML's own leaves `0E0` plain, which YAML 1.1 calls text."""

    yaml_implicit_resolvers = yaml_text._make_loader_class(yaml).yaml_implicit_resolvers


@examples(80)
@given(value=JSON)
@example(value="0E0")
def test_yaml_reads_back_what_was_written(value: Any) -> None:
    assert yaml_text.parse_yaml(yaml.dump(value, Dumper=YamlOfOurs, allow_unicode=True))[0] == value
    assert yaml_text.parse_yaml(json.dumps(value, ensure_ascii=False))[0] == value


@examples(120)
@given(text=st.text(alphabet="ab:-[]{}&*<!?|>'\"%@`#,. \n\t0~", max_size=60))
def test_any_text_is_values_or_one_error(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("c.yaml", "c.json"):
        path = tmp_path_factory.getbasetemp() / f"{os.getpid()}-{name}"
        path.write_text(text)
        try:
            check(path)
        except HyperpodKitError as err:
            assert err.message.isprintable()
