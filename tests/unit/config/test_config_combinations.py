"""The request of every combination of settings.

Each one passes botocore's own validation and ours; AWS's command line takes each one that the rules let pass and
sends it as it is.
"""

from __future__ import annotations

import io
import json
import threading
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Iterator

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from hyperpod_kit.aws.request_shape import find_request_problems
from hyperpod_kit.config.emit import build_create_cluster_request, provisioning_parameters_json_if_on_create
from hyperpod_kit.config.settings.findings import select_errors
from tests.unit.config.combinations import COMBINATIONS, URI, allowed, settings_of

SAME_SHAPES = ("lustre", "openzfs", "volume")
"""Storage whose every field is in `all` or `encrypted` too."""


STORED = {
    "none": [],
    "lustre": ["FsxLustreConfig"],
    "openzfs": ["FsxOpenZfsConfig"],
    "volume": ["EbsVolumeConfig"],
    "encrypted": ["EbsVolumeConfig"] * 2,
    "all": ["EbsVolumeConfig", "EbsVolumeConfig", "FsxLustreConfig", "FsxOpenZfsConfig"],
}
"""What the workers get; in on_create mode HyperPod mounts no FSx."""


def test_every_combination() -> None:
    shape = get_session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape
    assert len(COMBINATIONS) == 3 * 2 * 4 * 2 * 6 * 2 * 2
    for chosen in COMBINATIONS:
        settings, found = settings_of(chosen)
        request = build_create_cluster_request(settings, URI)
        assert not ParamValidator().validate(request, shape).has_errors(), chosen
        assert find_request_problems("sagemaker", "CreateCluster", request) == [], chosen
        assert (not select_errors(found)) == allowed(chosen), (chosen, found)
        # HyperPod rolls a cluster back that has both.
        slurm = any("SlurmConfig" in group for group in request["InstanceGroups"])
        assert slurm != (provisioning_parameters_json_if_on_create(settings) is not None) and slurm == (
            "Orchestrator" in request
        )
        assert (
            request.get("NodeProvisioningMode") == chosen["provisioning"] and ("VpcConfig" in request) == chosen["vpc"]
        )
        assert request["NodeRecovery"] == chosen["recovery"]
        if slurm:
            # A continuous cluster refuses any word about the strategy; on others AWS's pages disagree on the default.
            strategy = chosen["strategy"] or (None if chosen["provisioning"] else "Merge")
            assert request["Orchestrator"]["Slurm"].get("SlurmConfigStrategy") == strategy
        stored = [next(iter(one)) for one in request["InstanceGroups"][1].get("InstanceStorageConfigs", [])]
        assert stored == [kind for kind in STORED[str(chosen["storage"])] if slurm or kind == "EbsVolumeConfig"], chosen
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


@pytest.mark.full
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
        if chosen["extras"] != chosen["vpc"] or (chosen["recovery"] == "None" and chosen["storage"] in SAME_SHAPES):
            continue  # a third of the time, and every field that there is is sent with every other
        request = build_create_cluster_request(settings_of(chosen)[0], URI)
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
    assert sent == asked and len(sent) > 80
