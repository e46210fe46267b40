"""init, validate and render as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
ACCOUNT = [
    "--region",
    "eu-west-1",
    "--execution-role",
    "arn:aws:iam::111122223333:role/R",
    "--security-group",
    "sg-0123456789abcdef0",
    "--subnet",
    "subnet-0123456789abcdef0",
]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return tmp_path / "provisioning_parameters.json"


def test_init_from_the_example_is_the_example(empty: Path, hk: Hk) -> None:
    assert hk("init", "--from-example").code == 0
    assert json.loads(empty.read_text()) == json.loads(EXAMPLE.read_text())


def test_init_asks_for_what_it_needs(empty: Path, hk: Hk) -> None:
    asked = hk("init")
    assert asked.code == 2 and not empty.exists()
    assert "init requires --name, --region, --execution-role, --security-group, --subnet" in asked.err


def test_init_writes_ones_own_values_and_no_placeholder(empty: Path, hk: Hk) -> None:
    done = hk(
        "init",
        "--name",
        "big",
        *ACCOUNT,
        "--workers",
        "8",
        "--efs",
        "fs-00000000000000001",
        "--data-bucket",
        "my-data",
        "--data-prefix",
        "a/",
        "--user",
        "anna:2002",
        "--fsx-dns-name",
        "fs-00000000000000002.fsx.eu-west-1.amazonaws.com",
        "--fsx-mountname",
        "xyz",
    )
    assert (done.code, done.err) == (
        0,
        "wrote provisioning_parameters.json\n"
        "next: hyperpod-kit validate --aws provisioning_parameters.json, then upload\n",
    )
    values = json.loads(empty.read_text())
    kit = values["hyperpod_kit"]
    assert kit["bundle"]["bucket"] == "sagemaker-eu-west-1-111122223333"
    assert kit["cluster"]["lifecycle_mode"] == "on_init_complete"
    assert kit["cluster"]["instance_groups"][1] == {
        "name": "worker-group",
        "instance_type": "ml.p5.48xlarge",
        "count": 8,
    }
    assert [(mount["kind"], mount["path"]) for mount in kit["mounts"]] == [
        ("efs", "/efs"),
        ("mountpoint-s3", "/mnt/data"),
    ]
    assert kit["users"] == [{"name": "anna", "uid": 2002, "gid": 2002}]
    for placeholder in ('0123456789abcdef0", "access', "fsap-", "trainer", "hyperpod-kit-data"):
        assert placeholder not in empty.read_text()
    assert hk("validate").code == 0
    assert hk("create-cluster", "--dry-run").code == 0


def test_init_without_storage_has_no_mounts(empty: Path, hk: Hk) -> None:
    assert hk("init", "--name", "big", *ACCOUNT).code == 0
    values = json.loads(empty.read_text())
    assert values["hyperpod_kit"]["mounts"] == [] and "fsx_dns_name" not in values
    assert hk("validate").code == 0


def test_init_with_homes_says_what_comes_before_the_upload(empty: Path, hk: Hk) -> None:
    done = hk("init", "--name", "big", *ACCOUNT, "--homes", "fs-00000000000000001", "--user", "anna:2002")
    assert done.code == 0 and done.err.endswith(", then users apply and upload\n")
    assert json.loads(empty.read_text())["hyperpod_kit"]["homes"] == {"file_system_id": "fs-00000000000000001"}
    assert hk("validate").code == 0


def test_init_says_at_once_what_is_wrong_with_the_answers(empty: Path, hk: Hk) -> None:
    done = hk("init", "--name", "a_b", *ACCOUNT)
    assert "HPK-K001 hyperpod_kit.cluster.name" in done.err and "next: hyperpod-kit validate" in done.err
    assert hk("init", "--name", "x", *ACCOUNT, "--user", "anna").code == 2


def test_a_file_is_never_written_over_unasked(empty: Path, hk: Hk) -> None:
    empty.write_text("mine")
    refused = hk("init", "--from-example")
    assert (refused.code, empty.read_text()) == (2, "mine")
    assert hk("init", "--from-example", "--force").code == 0 and empty.read_text() != "mine"


def test_validate_shows_all_findings_with_places_and_remedies(project: Path, hk: Hk) -> None:
    file = project / "provisioning_parameters.json"
    file.write_text(
        file.read_text()
        .replace('"prefix": "corpus/"', '"prefix": "corpus"')
        .replace("sagemaker-hyperpod-kit-demo", "demo")
    )
    shown = hk("validate")
    assert shown.code == 1
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if '"corpus"' in text)
    assert f"error HPK-S002  provisioning_parameters.json:{line}:19  hyperpod_kit.mounts[1].prefix\n" in shown.out
    assert "    `corpus` does not end with /\n    Write `corpus/`\n" in shown.out
    assert shown.out.endswith("provisioning_parameters.json: 2 errors, 0 warnings\n")
    answer = json.loads(hk("validate", "--json").out)
    assert (answer["ok"], [finding["code"] for finding in answer["findings"]]) == (False, ["HPK-B002", "HPK-S002"])
    for command in ("upload", "render", "create-cluster", "wait", "validate-mounts"):
        refused = hk(command)
        assert refused.code == 1 and "has 2 errors\n  error HPK-B002" in refused.err, command


def test_a_warning_does_not_fail(project: Path, hk: Hk) -> None:
    file = project / "provisioning_parameters.json"
    file.write_text(file.read_text().replace('"Automatic"', '"None"'))
    shown = hk("validate")
    assert shown.code == 0 and "warning HPK-K005" in shown.out and shown.out.endswith("; 1 warning\n")


def test_render_writes_what_upload_would_send(project: Path, hk: Hk) -> None:
    done = hk("render", "--out", "out", "--json")
    assert done.code == 0
    answer = json.loads(done.out)
    assert json.loads((project / "out/bundle.json").read_text())["bundle_id"] == answer["bundle_id"]
    assert answer["files"] == sum(1 for path in (project / "out").rglob("*") if path.is_file())
    again = hk("render", "--out", "out")
    assert again.code == 0 and answer["bundle_id"] in again.err


def test_render_check_says_what_would_change_and_writes_nothing(project: Path, hk: Hk) -> None:
    absent = hk("render", "--check")
    assert absent.code == 1 and "added    on_create.sh\n" in absent.out and not (project / "build").exists()
    assert hk("render").code == 0
    same = hk("render", "--check")
    assert (same.code, same.out) == (0, "") and "build/bundle holds bundle " in same.err
    (project / "build/bundle/node_config.json").write_text("{}\n")
    (project / "build/bundle/notes.txt").write_text("mine\n")
    changed = hk("render", "--check")
    assert (changed.code, changed.out) == (1, "changed  node_config.json\nremoved  notes.txt\n")
    assert "next: hyperpod-kit render provisioning_parameters.json --out build/bundle" in changed.err
    found = json.loads(hk("render", "--check", "--json").out)
    assert (found["same"], found["changed"], found["removed"]) == (False, ["node_config.json"], ["notes.txt"])
    assert (project / "build/bundle/notes.txt").exists()


def test_upload_has_nothing_to_do_in_ami_only_mode(project: Path, hk: Hk) -> None:
    file = project / "provisioning_parameters.json"
    values = json.loads(file.read_text())
    values["hyperpod_kit"]["cluster"]["lifecycle_mode"] = "ami_only"
    values["hyperpod_kit"]["mounts"] = []
    file.write_text(json.dumps(values))
    refused = hk("upload")
    assert refused.code == 2 and "nothing to upload" in refused.err
