"""The program inside a node, against the real S3 endpoint and below a temporary root."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from typing import Any

import pytest

from hyperpod_rehearsal.agent import main as agent
from hyperpod_rehearsal.agent import managed_storage
from hyperpod_rehearsal.agent.s3_client import S3ClientError, download_prefix, list_keys, split_uri
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.machines import layer
from hyperpod_rehearsal.s3.objects import Attributes, Checksums
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.standins.mountpoint_s3.sigv4 import AccessKey
from rehearsal_tests.s3.raw import signed
from tests.support.aws import serving

ROLE = AccessKey("role", "secret", "token")


@pytest.fixture
def store(tmp_path):
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket("sagemaker-test")
    return made


@pytest.fixture
def endpoint(store):
    with serving(store, keys={"role": Key("role", "secret", "token", node=True)}) as server:
        yield server.url


def put(endpoint, key, text):
    url = f"{endpoint}/sagemaker-test/{urllib.parse.quote(key)}"
    headers = signed(url, "PUT", body=text.encode(), who=ROLE)
    urllib.request.urlopen(urllib.request.Request(url, text.encode(), headers, method="PUT"), timeout=60).read()


@pytest.fixture
def node(tmp_path, monkeypatch, endpoint):
    """Runs the agent of a node whose directories lie below tmp_path; returns exit code and report."""
    for name in ("STATUS", "LOG", "PROVISION_LOG", "ML_CONFIG", "STAGING"):
        monkeypatch.setattr(agent, name, str(tmp_path / "node") + getattr(agent, name))
    for name, value in zip(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), ROLE, strict=True):
        monkeypatch.setenv(f"AWS_{name}", value)

    def run(timeout=20.0):
        config = tmp_path / "node.json"
        config.write_text(
            json.dumps(
                {
                    "endpoint": endpoint,
                    "slurm_role": "",
                    "controller_ip": "",
                    "timeout": timeout,
                    "lifecycle": {"SourceS3Uri": "s3://sagemaker-test/b/", "OnCreate": "on_create.sh"},
                }
            )
        )
        code = agent.main([str(config)])
        return code, json.loads((tmp_path / "node/var/lib/hyperpod-rehearsal/agent.json").read_text())

    return run


def test_a_bundle_that_logs_through_tee_too_is_quoted_once(node, endpoint, tmp_path):
    log = tmp_path / "node/var/log/provision/provisioning.log"
    put(
        endpoint,
        "b/on_create.sh",
        f"""
        echo an older line >> {log}
        for number in $(seq 30); do echo line $number | tee -a {log}; done
        echo only noted >> {log}
        exit 100""",
    )
    code, report = node()
    lines = report["message"].splitlines()
    assert code == 1 and lines[0] == "on_create.sh exited 100; the end of its log:"
    assert lines[1:] == [*(f"line {number}" for number in range(11, 31)), "only noted"]


def test_the_script_runs_where_it_was_downloaded(node, endpoint, tmp_path):
    put(endpoint, "b/on_create.sh", 'pwd; cat data; echo "$SAGEMAKER_RESOURCE_CONFIG_PATH"; echo $HOME')
    put(endpoint, "b/data", "payload\n")
    put(endpoint, "b/provisioning_parameters.json", "{}")
    code, report = node()
    assert (code, report["state"], report["message"]) == (0, "Running", "")
    inside = tmp_path / "node"
    assert (inside / "var/log/hyperpod-rehearsal/lifecycle.log").read_text().splitlines() == [
        f"{inside}/tmp/sagemaker-test/b",
        "payload",
        f"{inside}/opt/ml/config/resource_config.json",
        "/root",
    ]
    assert (inside / "opt/ml/config/provisioning_parameters.json").read_text() == "{}"


def test_a_failing_script_is_reported_with_its_last_lines(node, endpoint):
    put(endpoint, "b/on_create.sh", "for i in $(seq 100); do echo line $i; done; exit 7")
    code, report = node()
    assert code == 1 and report["state"] == "Failed"
    assert report["message"].startswith("on_create.sh exited 7") and report["message"].endswith("line 100")
    assert "line 50\n" not in report["message"]


def test_a_script_that_hangs_is_ended(node, endpoint):
    put(endpoint, "b/on_create.sh", "sleep 60")
    code, report = node(timeout=0.5)
    assert code == 1 and "did not end within" in report["message"]


def test_a_missing_script_says_where_it_looked(node, endpoint):
    put(endpoint, "b/other", "x")
    assert "on_create.sh was not found under s3://sagemaker-test/b/ (1 objects there)" in node()[1]["message"]


def test_a_reboot_runs_no_script(node, endpoint, tmp_path):
    put(endpoint, "b/on_create.sh", "echo once")
    node()
    node()
    assert (tmp_path / "node/var/log/hyperpod-rehearsal/lifecycle.log").read_text() == "once\n"


@pytest.mark.parametrize(
    "uri, expected", [("s3://b/p/q/", ("b", "p/q/")), ("s3://b/p", ("b", "p/")), ("s3://b", ("b", ""))]
)
def test_uris(uri, expected):
    assert split_uri(uri) == expected


def test_what_is_no_s3_uri_is_refused():
    with pytest.raises(S3ClientError):
        split_uri("https://b/p")


def test_a_prefix_is_fetched_as_it_is_and_nothing_else(endpoint, tmp_path):
    for key in ("b/on_create.sh", "b/lib/a b.py", "b2/other", "b/empty/"):
        put(endpoint, key, f"text of {key}")
    assert download_prefix(ROLE, endpoint, "s3://sagemaker-test/b/", str(tmp_path / "out")) == 2
    assert (tmp_path / "out/lib/a b.py").read_text() == "text of b/lib/a b.py"
    assert not (tmp_path / "out/other").exists()


def test_listing_goes_over_all_pages(endpoint, store):
    keys = [f"b/{number:04d}" for number in range(1005)]
    for key in keys:
        store.bucket("sagemaker-test").commit(key, (), "etag", Attributes(), Checksums())
    assert list(list_keys(ROLE, endpoint, "sagemaker-test", "b/", time.monotonic() + 20)) == keys


def test_a_missing_bucket_says_so(endpoint, tmp_path):
    with pytest.raises(S3ClientError, match="NoSuchBucket"):
        download_prefix(ROLE, endpoint, "s3://sagemaker-none/b", str(tmp_path / "out"))


def test_an_endpoint_that_is_not_there_ends_the_patience(tmp_path):
    with pytest.raises(S3ClientError):
        download_prefix(ROLE, "http://127.0.0.1:9", "s3://sagemaker-test/b", str(tmp_path / "out"), timeout=0.5)


def test_fsx_is_mounted_by_the_platform_once_and_for_later_boots(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda argv, **options: calls.append(argv))
    fstab, target = tmp_path / "fstab", tmp_path / "fsx"
    fstab.write_text("LABEL=root / ext4 defaults 0 1\n")
    storage: list[dict[str, Any]] = [
        {"EbsVolumeConfig": {"VolumeSizeInGB": 1}},
        {"FsxLustreConfig": {"DnsName": "fs-1.fsx", "MountName": "abcdefgh", "MountPath": str(target)}},
        {"FsxOpenZfsConfig": {"DnsName": "fs-2.fsx", "MountPath": str(target / "zfs")}},
    ]
    for _ in range(2):
        managed_storage.mount_fsx_and_record_in_fstab(storage, str(fstab))
    lines = fstab.read_text().splitlines()
    assert lines[1:] == [
        f"fs-1.fsx@tcp:/abcdefgh {target} lustre noatime,flock,_netdev 0 0",
        f"fs-2.fsx:/fsx {target}/zfs nfs nfsvers=4.2,nconnect=16,_netdev 0 0",
    ]
    assert calls == [["mount", str(target)], ["mount", f"{target}/zfs"]] * 2 and target.is_dir()


def test_the_agent_in_a_node_finds_all_that_it_imports(tmp_path):
    """It is copied there without the rest of the package."""
    layer.write_agent_and_standins_into_layer(tmp_path / "layer")
    directory = str(tmp_path / "layer") + layer.AGENT_DIRECTORY
    program = "import sys; sys.path.insert(0, sys.argv[1]); from hyperpod_rehearsal.agent import main; print(main)"
    command = [sys.executable, "-I", "-S", "-c", program, directory]
    assert directory in subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
