"""Every combination of lifecycle mode, provisioning mode, strategy, recovery, network and storage.

Each request passes botocore's own validation and ours; AWS's command line takes each one that the rules let pass and
sends it as it is.
"""

from __future__ import annotations

import io
import itertools
import json
import threading
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Iterator

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from hyperpod_kit.aws.request_shape import problems
from hyperpod_kit.config.decode import decode
from hyperpod_kit.config.emit import create_cluster_request, provisioning_parameters
from hyperpod_kit.config.findings import Finding, errors
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.cluster import LIFECYCLE_MODES

EXAMPLE = json.loads((Path(__file__).parents[3] / "provisioning_parameters.example.json").read_text())
URI = "s3://sagemaker-hyperpod-kit-demo/hyperpod-kit/demo/0123456789abcdef/"
DNS = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE = {"kind": "lustre", "name": "fsx", "path": "/fsx", "dns_name": DNS, "mount_name": "abcdefgh"}
ZFS = {"kind": "openzfs", "name": "zfs", "path": "/home", "dns_name": DNS}
KEY = "1234abcd-12ab-34cd-56ef-1234567890ab"
STORAGE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "none": ([], {}),
    "lustre": ([LUSTRE], {}),
    "openzfs": ([ZFS], {}),
    "volume": ([], {"ebs_gib": 500}),
    "encrypted": ([], {"ebs_gib": 500, "ebs_kms_key": KEY, "root_kms_key": KEY}),
    "all": ([LUSTRE, {**ZFS, "groups": ["worker-group"]}], {"ebs_gib": 1, "root_kms_key": KEY}),
}
"""name -> (mounts, volumes of the compute group)"""
AXES = {
    "mode": LIFECYCLE_MODES,
    "provisioning": (None, "Continuous"),
    "strategy": (None, "Merge", "Managed", "Overwrite"),
    "recovery": ("Automatic", "None"),
    "storage": tuple(STORAGE),
    "vpc": (True, False),
    "extras": (False, True),
}
COMBINATIONS = [dict(zip(AXES, values)) for values in itertools.product(*AXES.values())]


def settings_of(chosen: dict[str, Any]) -> tuple[Settings, list[Finding]]:
    values = json.loads(json.dumps(EXAMPLE))
    del values["fsx_dns_name"], values["fsx_mountname"]
    kit = values["hyperpod_kit"]
    kit["mounts"], volumes = json.loads(json.dumps(STORAGE[chosen["storage"]]))
    cluster = kit["cluster"]
    cluster.update(
        lifecycle_mode=chosen["mode"],
        node_provisioning_mode=chosen["provisioning"],
        slurm_config_strategy=chosen["strategy"],
        node_recovery=chosen["recovery"],
    )
    controller, worker = cluster["instance_groups"]
    worker.update(volumes)
    if not chosen["vpc"]:
        del cluster["vpc"]
    if chosen["extras"]:
        values["login_group"] = "login"
        cluster["instance_groups"].append({"name": "login", "instance_type": "ml.c5.large", "count": 1})
        cluster.update(tags={"team": "größe"}, api={"TieredStorageConfig": {"Mode": "Disable"}})
        worker.update(
            min_count=1,
            threads_per_core=1,
            execution_role="arn:aws:iam::111122223333:role/Other",
            deep_health_checks=["InstanceStress", "InstanceConnectivity"],
            training_plan_arn="arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine",
            vpc={"security_group_ids": ["sg-0123456789abcdef1"], "subnet_ids": ["subnet-0123456789abcdef1"]},
            api={"AutoPatchConfig": {"PatchingStrategy": "WhenIdle"}},
        )
        if chosen["provisioning"]:
            secret = "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3"
            cluster["accounting_database"] = {"endpoint": "db.example.com", "secret_arn": secret, "port": 3306}
    settings, found = decode(values)
    return settings, [*found, *validate(settings)]


def allowed(chosen: dict[str, Any]) -> bool:
    """What AWS's pages say goes together."""
    slurm_by_hyperpod = chosen["mode"] != "on_create"
    if chosen["provisioning"] and (not slurm_by_hyperpod or chosen["strategy"]):
        return False
    if chosen["strategy"] and not slurm_by_hyperpod:
        return False
    if chosen["strategy"] in ("Managed", "Overwrite") and chosen["mode"] == "on_init_complete":
        return False  # it would undo what our script adds
    return bool(chosen["vpc"]) or not STORAGE[chosen["storage"]][0]


def test_every_combination() -> None:
    shape = get_session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape
    assert len(COMBINATIONS) == 3 * 2 * 4 * 2 * 6 * 2 * 2
    for chosen in COMBINATIONS:
        settings, found = settings_of(chosen)
        request = create_cluster_request(settings, URI)
        assert not ParamValidator().validate(request, shape).has_errors(), chosen
        assert problems("sagemaker", "CreateCluster", request) == [], chosen
        assert (not errors(found)) == allowed(chosen), (chosen, found)
        # HyperPod rolls a cluster back that has both.
        slurm = any("SlurmConfig" in group for group in request["InstanceGroups"])
        assert slurm != (provisioning_parameters(settings) is not None) and slurm == ("Orchestrator" in request)
        for group in request["InstanceGroups"]:
            lifecycle = group.get("LifeCycleConfig")
            hooks = [hook for hook in ("OnCreate", "OnInitComplete") if lifecycle and hook in lifecycle]
            assert (lifecycle is None) == (chosen["mode"] == "ami_only") and len(hooks) == (lifecycle is not None)
            assert lifecycle is None or lifecycle["SourceS3Uri"] == URI
            if slurm:
                assert bool(group["SlurmConfig"].get("PartitionNames")) == (
                    group["SlurmConfig"]["NodeType"] == "Compute"
                )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(URL, requests): answers every CreateCluster and keeps what it was sent."""
    sent: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["X-Amz-Target"] == "SageMaker.CreateCluster"
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = b'{"ClusterArn": "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()
    thread.join()
    server.server_close()


def test_awss_command_line_sends_every_allowed_request_as_it_is(
    endpoint: tuple[str, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: a process of its own for each would take minutes. One is started in tests/unit/cli."""
    clidriver = pytest.importorskip("awscli.clidriver", reason="AWS's command line is not installed")
    for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url, sent = endpoint
    driver = clidriver.create_clidriver()
    asked: list[dict[str, Any]] = []
    file = tmp_path / "request.json"
    for chosen in filter(allowed, COMBINATIONS):
        if chosen["extras"] != chosen["vpc"]:
            continue  # half of the time, and every field that there is is sent with every other
        request = create_cluster_request(settings_of(chosen)[0], URI)
        if request in asked:
            continue
        asked.append(request)
        file.write_text(json.dumps(request))
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = driver.main(
                ["sagemaker", "create-cluster", "--cli-input-json", f"file://{file}", "--endpoint-url", url,
                 "--region", "us-east-1"]
            )  # fmt: skip
        assert code == 0, (chosen, output.getvalue())
    assert sent == asked and len(sent) > 100
