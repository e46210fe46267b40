"""Every rule: one change to the example that breaks it, and exactly the finding that follows."""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import botocore
import pytest

from hyperpod_kit.aws import shapes
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.validate import RULES, validate
from tests.unit.config.rule_cases import (
    CASES,
    CONTINUOUS,
    DATABASE,
    FUSE,
    HOMES,
    INIT,
    LUSTRE,
    NO_FSX,
    NVME,
    S3FILES,
    SECRET,
    STEPS,
    VPC,
    WRITES,
    ZFS,
    C,
    Change,
    H,
    M,
    P,
    add_mount,
    both,
    cluster,
    environment,
    group,
    homes,
    kit,
    mount,
    package,
    patch,
    top,
    types,
)

ROOT = Path(__file__).parents[3]


def findings(change: Change) -> list[tuple[str, str]]:
    values = json.loads((ROOT / "provisioning_parameters.example.json").read_text())
    change(values)
    config, found = decode_settings(values)
    assert found == []
    return [(finding.code, finding.path) for finding in validate(config)]


@pytest.mark.parametrize(
    ("code", "path", "change"), CASES, ids=[f"{code}-{index}" for index, (code, _, _) in enumerate(CASES)]
)
def test_a_change_that_breaks_one_rule(code: str, path: str, change: Change) -> None:
    assert findings(change) == [(code, path)]


def test_findings_that_come_together() -> None:
    # The group that is meant has no partition, which is no finding of its own; of two such groups one lacks it.
    assert findings(top(controller_group="nobody")) == [("HPK-G001", "controller_group")]
    assert findings(top(controller_group="nobody", worker_groups=[])) == [
        ("HPK-G001", "controller_group"),
        ("HPK-G015", f"{C}.instance_groups[0].name"),
        ("HPK-G015", f"{C}.instance_groups[1].name"),
    ]
    assert findings(both(cluster(instance_groups=[]), top(worker_groups=[]))) == [
        ("HPK-G001", "controller_group"),
        ("HPK-G006", f"{C}.instance_groups"),
    ]
    nobody = both(cluster(lifecycle_mode="ami_only"), kit(slurm={"state": "own-disk"}))
    assert findings(nobody) == [("HPK-L003", f"{M}[0]"), ("HPK-L003", f"{M}[1]")]
    assert findings(both(nobody, kit(mounts=[LUSTRE, ZFS]))) == [("HPK-L003", f"{M}[0]")]
    assert findings(homes(path="/etc")) == [("HPK-M013", f"{H}.path")] * 2
    assert findings(both(homes(), mount(0, path="/home/.homes"))) == [("HPK-M015", f"{H}.path")] * 2
    spot = both(CONTINUOUS, cluster(node_recovery="None"), group(1, capacity="Spot"))
    assert findings(spot) == [("HPK-K005", f"{C}.node_recovery"), ("HPK-G032", f"{C}.instance_groups[1].capacity")]
    login = both(top(login_group="worker-group", worker_groups=[]), CONTINUOUS, group(1, capacity="Spot"))
    assert ("HPK-G035", f"{C}.instance_groups[1].capacity") in findings(login)
    memory = cluster(tiered_storage={"mode": "Enable", "memory_percent": 26})
    assert findings(memory) == [
        ("HPK-K010", f"{C}.tiered_storage.mode"),
        ("HPK-K011", f"{C}.tiered_storage.memory_percent"),
    ]
    assert findings(mount(0, access_point_id=None, tls=False, iam=True)) == [("HPK-E004", f"{M}[0].iam")]
    # A dependency whose client's own package is not listed, and wrong besides.
    assert findings(package(name="a_b; id", client="lustre")) == [("HPK-P001", f"{P}.name"), ("HPK-P009", P)]
    kernel = package(name="linux-image-6.8.0-1063-aws", client="lustre")
    assert findings(kernel) == [("HPK-P009", P), ("HPK-P011", f"{P}.name")]
    assert findings(package(name="libfuse2", client=None)) == [("HPK-P008", f"{P}.client")]
    assert findings(both(environment(), group(1, instance_type="ml.c7g.4xlarge"))) == [
        ("HPK-P013", f"{C}.instance_groups[1].instance_type"),
        ("HPK-O048", f"{STEPS}.training_environment.requirements"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        both(mount(0, path="/shared", roles=["controller"]), mount(1, path="/shared", roles=["login"])),
        mount(1, bucket="a.b-c", prefix="a/b=1/"),
        mount(0, access_point_id=None, tls=False, iam=False),
        mount(1, **WRITES, allow_overwrite=True, allow_delete=True),
        # Somebody writes: a user, a group, everybody; or nobody works where it is mounted.
        mount(1, read_only=False, gid=2001, dir_mode="0775"),
        mount(1, read_only=False, roles=["controller"]),
        # Scratch that is for the cache of another mount is root's.
        both(add_mount(**{**NVME, "uid": 0}), mount(1, cache_dir="/scratch/s3", cache_mib=1000)),
        cluster(lifecycle_mode="on_init_complete"),
        group(1, count=0),
        kit(mounts=[], users=[]),
        CONTINUOUS,
        both(CONTINUOUS, cluster(accounting_database=DATABASE)),
        both(INIT, cluster(slurm_config_strategy="Merge")),
        both(
            cluster(lifecycle_mode="ami_only", slurm_config_strategy="Managed"),
            kit(mounts=[], slurm={"state": "own-disk"}),
        ),
        kit(slurm={"state": "fsx"}),
        both(NO_FSX, add_mount(**ZFS)),
        both(NO_FSX, mount(0, access_point_id=None)),
        both(NO_FSX, kit(slurm={"state": "own-disk"})),
        both(cluster(vpc=None), group(0, vpc=VPC), group(1, vpc=VPC)),
        both(group(1, deep_health_checks=["InstanceStress", "InstanceConnectivity"], min_count=2, ebs_gib=500)),
        group(1, ebs_gib=500, ebs_kms_key="alias/mine", root_kms_key="1234abcd-12ab-34cd-56ef-1234567890ab"),
        group(1, api={"ImageId": "ami-0123456789abcdef0"}),
        both(
            CONTINUOUS,
            group(1, capacity="Spot", network_interface="efa-only"),
            types("ml.p5.48xlarge", "ml.p5e.48xlarge"),
        ),
        patch(next_patch_date="2026-12-01T03:00:00+01:00", rollout={"batch": "100%", "alarms": ["nodes"]}),
        # The controller's state is on a mount: it comes back with its jobs.
        group(0, auto_patch={"strategy": "WhenIdle"}),
        cluster(tiered_storage={"mode": "Disable"}),
        both(INIT, group(1, api={"ImageId": "default"})),
        add_mount(**S3FILES, access_point_id="fsap-0123456789abcdef0", region="eu-central-1"),
        top(fsx_openzfs_dns_name="fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"),
        add_mount(**ZFS, export="/fsx/homes"),
        both(group(1, instance_type="ml.p5.48xlarge"), add_mount(**{**NVME, "required": True}, roles=["compute"])),
        both(
            add_mount(**{**NVME, "uid": 0}, mode="1777", world_writable=True),
            mount(1, cache_dir="/scratch/s3", cache_mib=1000),
        ),
        mount(1, cache_dir="/opt/dlami/nvme/s3", metadata_ttl="indefinite"),
        mount(1, **WRITES, largest_file_gib=790, write_part_size_mib=81, sse="aws:kms", sse_kms_key_id="alias/mine"),
        mount(1, **WRITES, dir_mode="0777", file_mode="0666", world_writable=True),
        mount(1, **WRITES, bucket="shards--use1-az4--x-s3", incremental_upload=True),
        # A second Lustre is ours to mount; in ami_only mode it would be nobody's.
        both(cluster(lifecycle_mode="on_init_complete"), add_mount(**LUSTRE)),
        # The same path, on nodes of different groups.
        both(mount(0, path="/one", groups=["controller-machine"]), mount(1, path="/one", groups=["worker-group"])),
        kit(secrets=[SECRET, {"name": "p", "arn": "arn:aws-us-gov:ssm:us-gov-west-1:111122223333:parameter/a/b"}]),
        top(worker_groups=[{"instance_group_name": "worker-group", "partition_name": "ml.p5.48xlarge"}]),
        homes(),
        homes(path="/", directory="/"),
        both(homes(), mount(0, file_system_id=HOMES, iam=True)),
        package(),
        package(name="nfs-common", version="1:2.6.1-1ubuntu1.2", arch="arm64"),
        both(package(), mount(1, roles=["controller"]), group(1, instance_type="ml.p6e-gb200.36xlarge")),
        both(package(), group(1, instance_type="ml.g5.xlarge")),
        kit(clients=[{**FUSE, "name": "mount-s3", "arch": "all"}, {**FUSE, "client": "mount-s3"}]),
    ],
)
def test_what_is_allowed(change: Change) -> None:
    assert findings(change) == []


def test_every_code_has_a_case_and_is_used_once() -> None:
    config = ROOT / "hyperpod_kit/config"
    files = [*config.glob("rules/*.py"), *config.glob("mounts/*.py"), *config.glob("fields/*.py")]
    files.append(config / "request_rules.py")
    sources = "".join(path.read_text() for path in files)
    written = re.findall(r"HPK-[A-Z]\d{3}", sources)
    assert len(written) == len(set(written))
    together = {"HPK-R005", "HPK-G001", "HPK-G006", "HPK-L003", "HPK-E004", "HPK-P001"}
    together |= {"HPK-G032", "HPK-G035", "HPK-K011", "HPK-R007"}
    assert {code for code, _, _ in CASES} | together == set(written)


def test_a_field_of_a_newer_botocore_passes_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(botocore.__file__).parent / "data/sagemaker/2017-07-24/service-2.json.gz"
    model = json.loads(gzip.decompress(source.read_bytes()))
    model["shapes"]["ClusterInstanceGroupSpecification"]["members"]["OfTomorrow"] = {"shape": "String"}
    place = tmp_path / "sagemaker/2017-07-24/service-2.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(model))
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    change = group(1, api={"OfTomorrow": "x"})
    assert findings(change) == [("HPK-R007", f"{C}.instance_groups[1].api.OfTomorrow")]


def test_every_rule_is_in_the_list() -> None:
    """A rule that nobody calls is no rule: every public function of the rules that takes Settings is called."""
    found = set()
    config = ROOT / "hyperpod_kit/config"
    for file in [*config.glob("rules/*.py"), *config.glob("mounts/*.py")]:
        module = importlib.import_module(f"hyperpod_kit.config.{file.parent.name}.{file.stem}")
        for name, rule in inspect.getmembers(module, inspect.isfunction):
            takes = list(inspect.signature(rule).parameters)
            if rule.__module__ == module.__name__ and not name.startswith("_") and takes == ["settings"]:
                found.add(rule)
    assert found == set(RULES) and len(RULES) == len(set(RULES))


def test_without_botocore_it_says_that_nobody_looked_at_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = both(group(1, threads_per_core=3), cluster(name="a_b"))
    assert [code for code, _ in findings(wrong)] == ["HPK-K001", "HPK-R004"]
    shapes._load_service_model.cache_clear()
    shapes.service_model_loader.cache_clear()
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.loaders", None)
    assert findings(wrong) == [("HPK-K001", f"{C}.name"), ("HPK-R005", C)]
