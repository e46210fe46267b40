"""update-software: what would go, what must not go unseen, and when it has really happened."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from hyperpod_kit.cluster import software
from hyperpod_kit.errors import UsageError
from tests.unit.cli.conftest import put_bundle, put_cluster

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

BUCKET = "sagemaker-hyperpod-kit-demo"
WORKERS = ("update-software", "--group", "worker-group", "--yes")


@pytest.fixture
def running(cloud: Cloud, project: Path, hk: Hk) -> Cloud:
    """A cluster in service."""
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    cloud.control.script = [("InService", {"controller-machine": 1, "worker-group": 3}, "")]
    return cloud


def test_it_shows_asks_and_sends(running: Cloud, hk: Hk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    shown = hk(*WORKERS[:3], "--dry-run", "--batch", "50%", "--pause", "60", "--json")
    found = json.loads(shown.out)
    assert shown.code == 0 and running.control.software == [] and len(found["nodes"]) == 3
    assert found["request"] == {
        "ClusterName": "demo",
        "InstanceGroups": [{"InstanceGroupName": "worker-group"}],
        "DeploymentConfig": {
            "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 50}},
            "WaitIntervalInSeconds": 60,
        },
    }
    unasked = hk(*WORKERS[:3])
    assert unasked.code == 2 and "cannot ask for confirmation" in unasked.err and running.control.software == []
    sent = hk(*WORKERS)
    assert sent.code == 0 and "worker-group" in sent.out
    assert running.control.software == [
        {"ClusterName": "demo", "InstanceGroups": [{"InstanceGroupName": "worker-group"}]}
    ]


def test_waiting_does_not_end_before_the_nodes_say_so(running: Cloud, hk: Hk) -> None:
    """AWS may still call the cluster ready when the update has only just been asked for."""
    late = hk(*WORKERS, "--wait", "--interval", "0.2", "--timeout", "1")
    assert late.code == 3 and "3 of 3 nodes not updated yet, first i-" in late.err

    def looked(name: str) -> dict[str, Any]:
        if len(running.control.software) == 2:
            running.control.updated["worker-group"] = 1767229200.0
        return real(name)

    real, running.control.describe_cluster = running.control.describe_cluster, looked  # type: ignore[method-assign]
    done = hk(*WORKERS, "--wait", "--interval", "0.2")
    assert done.code == 0 and done.err.splitlines()[-1] == "cluster demo is ready; next: hyperpod-kit validate-mounts"
    assert "2026-01-01 01:00:00Z" in hk("update-software", "--dry-run").out


def test_an_update_that_is_given_up_says_why(running: Cloud, hk: Hk) -> None:
    both = {"controller-machine": 1, "worker-group": 3}
    running.control.script = [
        ("InService", both, ""),
        ("SystemUpdating", both, ""),
        ("InService", {"controller-machine": 1, "worker-group": 2}, "the lifecycle script exited 1"),
    ]
    failed = hk(*WORKERS, "--wait", "--interval", "0.2", "--timeout", "20")
    assert failed.code == 1 and "the lifecycle script exited 1" in failed.err


def test_slurms_state_and_the_script_are_looked_for_first(running: Cloud, project: Path, hk: Hk) -> None:
    config = project / "provisioning_parameters.json"
    values = json.loads(config.read_text())
    values["hyperpod_kit"]["slurm"] = {**values["hyperpod_kit"].get("slurm", {}), "state": "own-disk"}
    config.write_text(json.dumps(values))
    refused = hk("update-software", "--yes")
    assert refused.code == 1 and "every job and queue is lost" in refused.err and "--forget-jobs" in refused.err
    unknown = hk("update-software", "--yes", "--cluster", "other")
    assert unknown.code == 3 and "other" in unknown.err
    assert hk("update-software", "--yes", "--forget-jobs").code == 0 and len(running.control.software) == 1
    bucket = running.store.bucket(BUCKET)
    for key in bucket.sorted_keys():
        bucket.delete(key)
    gone = hk(*WORKERS)
    assert gone.code == 1 and "on_create.sh does not exist" in gone.err and "worker-group" in gone.err
    assert len(running.control.software) == 1


def test_a_cluster_that_is_not_in_service_is_left_alone(running: Cloud, hk: Hk) -> None:
    running.control.script = [("Updating", {"controller-machine": 1, "worker-group": 3}, "")]
    refused = hk(*WORKERS)
    assert refused.code == 1 and "is Updating" in refused.err and running.control.software == []
    other = hk("update-software", "--group", "gpu")
    assert other.code == 3 and "expected one of controller-machine, worker-group" in other.err


@pytest.mark.parametrize("words", ["0", "-1", "1.5", "10 %", "101%", "%", "", "³", "9" * 7])
def test_a_batch_without_a_size_is_a_usage_error(words: str) -> None:
    with pytest.raises(UsageError):
        software.parse_rollout(words, 0)


def test_a_pause_needs_batches() -> None:
    with pytest.raises(UsageError, match="--pause needs --batch"):
        software.parse_rollout(None, 60)
    assert software.parse_rollout(None, 0).to_request() == {}
    assert software.parse_rollout("3", 5).to_request()["RollingUpdatePolicy"]["MaximumBatchSize"]["Value"] == 3
