"""From what a node and AWS say to a cause and a remedy."""

from __future__ import annotations

import json
from typing import Any, Callable

import pytest

from hyperpod_kit.errors import AwsError
from hyperpod_kit.remote.connect.ssh import SshRunner
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.diagnosis.diagnose import AwsNodeStatus, Diagnosis, describe_diagnosis, diagnose
from hyperpod_kit.remote.diagnosis.known_issues import CAUSES, recognise
from hyperpod_kit.remote.target import NodeTarget
from tests.unit.remote.conftest import Network

SAID = {
    "apt-lock": "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (unattended-upgr)",
    "dns": "curl: (6) Could not resolve host: github.com",
    "crlf": "/bin/bash^M: bad interpreter: No such file or directory: ./on_create.sh: bad interpreter: /bin/bash^M",
    "mode-conflict": "The LifeCycleConfig cannot include both a SLURM Orchestrator Config and a "
    "provisioning_parameters.json file simultaneously.",
    "damaged-bundle": "/tmp/b/p: extra.txt is not listed in SHA256SUMS",
    "s3-denied": "Error: Failed to create mount process: mount-s3: Client error: Forbidden: Access Denied",
    "efs-denied": "mount.nfs4: access denied by server while mounting 127.0.0.1:/",
    "efs-unreachable": "mount.nfs4: Connection timed out",
    "fuse-stale": "ls: cannot access '/mnt/data': Transport endpoint is not connected",
    "lustre-module": "mount: /fsx: unknown filesystem type 'lustre'.",
    "cluster-id": "slurmctld: fatal: CLUSTER ID MISMATCH.",
    "capacity": "We currently do not have sufficient capacity to launch new ml.p5.48xlarge instances",
    "quota": "ResourceLimitExceeded: The account-level service limit 'ml.p5.48xlarge for cluster usage' is 0",
    "no-space": "cp: error writing '/x': No space left on device",
    "credentials": "Error: no EC2 IMDS role found",
    "not-registered": "ip-10-1-0-9 has not registered with the controller 10.1.0.10 after 120 s",
    "unknown-node": "This instance not found in resource config",
    "scripts-missing": "Lifecycle scripts did not run successfully. Ensure the scripts exist in provided S3 path",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.code)
def test_each_cause_is_recognised_by_its_own_words_alone(cause: Any) -> None:
    text = f"first line\n{SAID[cause.code]}\nlast line"
    [known] = list(recognise(text))
    assert known.cause is cause and known.evidence == " ".join(SAID[cause.code].split())
    assert cause.remedy and list(recognise("a node that is well\nok")) == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("mount.lustre: mount 10.1.0.1@tcp:/abcdefgh at /fsx failed: No such device", "lustre-module"),
        ("Are the lustre modules loaded?", "lustre-module"),
        ("Remove /var/spool/slurmctld/clustername to override this safety check if this is intentional.", "cluster-id"),
    ],
)
def test_other_words_of_the_same_cause(line: str, code: str) -> None:
    assert [known.cause.code for known in recognise(line)] == [code]


def node(log: list[dict[str, Any]], status: Any = None, mounts: Any = ()) -> Callable[[str], tuple[int, str, str]]:
    def answer(command: str) -> tuple[int, str, str]:
        if "provisioning.log" in command:
            return 0, "".join(json.dumps(line) + "\n" for line in log), ""
        if command.startswith("cat"):
            return (0, json.dumps(status), "") if status else (1, "", "No such file")
        return 0, "Welcome!\n" + json.dumps({"mounts": list(mounts)}), ""

    return answer


def step(name: str, status: str = "ok", error: str = "", hint: str = "") -> dict[str, Any]:
    return {"step": name, "status": status, "error": error, "hint": hint}


def test_a_node_says_which_step_failed_and_what_is_known_of_it(network: Network) -> None:
    old = [step("verify-bundle"), step("mount:fsx", "failed", "mount.nfs4: Connection timed out")]
    why = "s3.us-east-1.amazonaws.com does not resolve after 60 s"
    now = [step("verify-bundle"), step("names", "failed", why, "VPC")]
    nodes = [
        network.node(node(old + now)),
        network.node(node(old, status={"ok": True, "steps": [step("mount:fsx")]})),
        network.node(
            node(
                [],
                status={"ok": True, "steps": []},
                mounts=[
                    {"name": "data", "state": "stale", "detail": "Transport endpoint is not connected"},
                    {"name": "extra", "state": "absent", "required": False},
                ],
            )
        ),
        network.node(node([step("verify-bundle")])),
    ]
    targets = [
        (NodeTarget(f"i-{number}", "workers", "compute", one.address), AwsNodeStatus())
        for number, one in enumerate(nodes)
    ]
    targets.append((NodeTarget("i-9", "workers", "compute", network.silent()), AwsNodeStatus("Insufficient capacity")))
    targets.append((NodeTarget("i-10", "workers", "compute", "", "Pending"), AwsNodeStatus()))
    failed, well, stale, unfinished, silent, pending = diagnose(
        targets, lambda target: SshRunner(target.address, SshAccess(network.settings)), timeout=10
    )
    assert [one.step for one in failed.failures] == ["names"], "the run before it is over"
    assert [one.cause.code for one in failed.known] == ["dns"]
    assert well.healthy and well.known == () and list(describe_diagnosis(well)) == []
    assert stale.sick == ("data is stale: Transport endpoint is not connected",)
    assert [one.cause.code for one in stale.known] == ["fuse-stale"]
    assert not unfinished.healthy and "has not ended yet" in "\n".join(describe_diagnosis(unfinished))
    assert "does not respond" in silent.unreachable and [one.cause.code for one in silent.known] == ["capacity"]
    assert not pending.healthy and "AWS reports no address" in pending.unreachable
    words = "\n".join(describe_diagnosis(failed))
    assert "workers i-0" in words and "step names failed: s3.us-east-1" in words and "do: VPC" in words


def test_a_node_that_is_gone_has_left_its_log_with_aws() -> None:
    """Where nodes come continuously, one that failed is away before anybody can look."""
    gone = [
        (NodeTarget(f"i-{number}", "w", "", "", "gone"), AwsNodeStatus("creation failed", "Failed"))
        for number in range(3)
    ]
    why = "mount.nfs4: access denied by server while mounting 127.0.0.1:/"
    lines = [step("verify-bundle"), step("mount-home", "failed", why, "the role"), step("mounts", "failed", "old news")]
    left = {"i-0": [json.dumps(line) for line in lines], "i-1": ["+ ./on_create.sh", "Could not resolve host: x"]}

    def shipped(target: NodeTarget) -> list[str]:
        if target.instance_id == "i-2":
            raise AwsError("GetLogEvents", "AccessDeniedException", "no")
        return left[target.instance_id]

    ours, theirs, secret = diagnose(gone, lambda target: pytest.fail("nobody to ask"), shipped=shipped)
    assert [(one.step, one.hint) for one in ours.failures] == [("mount-home", "the role")]
    assert [one.cause.code for one in ours.known] == ["efs-denied"]
    assert [one.cause.code for one in theirs.known] == ["dns"] and theirs.log[0] == "+ ./on_create.sh"
    assert "its log is not available either: GetLogEvents: AccessDenied" in secret.unreachable
    assert "  lifecycle script: Failed" in list(describe_diagnosis(ours))


def test_json_has_what_the_words_have() -> None:
    found = Diagnosis(NodeTarget("i-1", "g", "compute", "10.0.0.1"), "", known=tuple(recognise(SAID["dns"])))
    made = found.to_dict()
    assert made["healthy"] is False and made["known"][0]["code"] == "dns" and made["known"][0]["words"]
    json.dumps(made)
