"""What the guard leaves, how long it counts, and what Slurm's reasons for a node mean."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hyperpod_kit.slurm import findings, node_reasons
from hyperpod_kit.slurm.findings import GuardRecord, SlurmFinding
from hyperpod_kit.slurm.node_reasons import finding_for_node_state_or_none

NOW = 1_800_000_000.0
SICK = SlurmFinding("slurmd-down", "slurmd does not run", "systemctl status slurmd")


def test_a_record_comes_back_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "slurm.json"
    record = GuardRecord(NOW, (SICK, SlurmFinding("put-back", "our lines", fault=False)), {"restores": 2})
    path.write_text(json.dumps(record.to_dict()))
    assert findings.read_guard_record(str(path)) == record


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": "hpk-slurm-guard/9"}', '{"format": "hpk-slurm-guard/1"}']
)
def test_what_is_no_record_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.json").write_text(text)
    assert findings.read_guard_record(str(tmp_path / "slurm.json")) is None


def test_a_fifo_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slurm.json")
    assert findings.read_guard_record(str(tmp_path / "slurm.json")) is None


@pytest.mark.parametrize(
    ("age", "codes"),
    [
        (0.0, ["slurmd-down"]),
        (findings.SILENT_AFTER, ["slurmd-down"]),
        (findings.SILENT_AFTER + 1, [findings.SILENT]),
        (-findings.AHEAD, ["slurmd-down"]),
        (-findings.AHEAD - 1, [findings.SILENT]),
    ],
)
def test_a_record_counts_while_it_is_young(age: float, codes: list[str]) -> None:
    assert [one.code for one in findings.findings_or_guard_silent(GuardRecord(NOW - age, (SICK,)), NOW)] == codes


def test_no_record_is_neither_health_nor_a_fault() -> None:
    [finding] = findings.findings_or_guard_silent(None, NOW)
    assert finding.code == findings.SILENT and not finding.fault and finding.remedy
    assert finding.detail.startswith("unknown whether Slurm is healthy on this node")


REASONS = {
    "hyperpod-kit:spool:unusable": "spool-unusable",
    "SlurmdSpoolDir is full": "slurmd-spool-full",
    "hyperpod-kit:mount:fsx:hung": "drained-by-kit",
    "Action:Replace": "drained-by-hyperpod",
    "Duplicate jobid": "duplicate-job",
    "Low RealMemory (reported:7000 < 100.00% of configured:8000)": "low-memory",
    "Low socket*core*thread count, Low CPUs": "low-processors",
    "gres/gpu count reported lower than configured (7 < 8)": "gres-count",
    "Prolog error": "prolog-error",
    "Epilog error": "epilog-error",
    "Kill task failed": "kill-failed",
    "Not responding": "not-responding",
    "Node unexpectedly rebooted": "rebooted",
    "batch job complete failure": "launch-failed",
}


@pytest.mark.parametrize("known", node_reasons.REASONS, ids=lambda known: known.code)
def test_each_reason_of_a_node_has_a_remedy(known: node_reasons.NodeReason) -> None:
    [words] = [words for words, code in REASONS.items() if code == known.code]
    finding = finding_for_node_state_or_none("ip-10-1-0-7", "IDLE+DRAIN", words)
    assert finding is not None and (finding.code, finding.fault) == (known.code, known.fault)
    assert words in finding.detail and finding.remedy and "{" not in finding.remedy


@pytest.mark.parametrize(
    ("state", "reason", "starts"),
    [
        ("MIXED", "", True),
        ("MIXED", "hyperpod-kit:mount:fsx:hung", True),  # 24.11 leaves the reason standing
        ("MIXED+DRAIN", "HyperPod:AutoPatch", True),
        ("MIXED+DRAIN", "HyperPod:AutoPatch [root@2026-11-30T01:00:00]", True),
        ("ALLOCATED+DRAIN", "kernel update on Tuesday [carol@2026-11-30T01:00:00]", True),
        ("ALLOCATED+DRAIN", "a fan is loud", True),
        ("ALLOCATED+DRAIN", "", True),
        ("MIXED+DRAIN", "hyperpod-kit:leaving:update-software [root@2026-11-30T01:00:00]", True),
        ("MIXED+CLOUD+DRAIN+MAINTENANCE", "maintenance", True),
        ("MIXED+DRAIN", "hyperpod-kit:device:gpu", False),
        ("MIXED+DRAIN", "Duplicate jobid [slurm@2026-11-30T01:00:00]", False),
        ("MIXED+DRAIN", "NHC: check_hw_physmem: too small", False),
        ("MIXED+DRAIN", "GPU 3 has Xid 79 [carol@2026-11-30T01:00:00]", False),
        ("MIXED+DRAIN", "Broken fan", False),
        ("MIXED*+DRAIN", "HyperPod:AutoPatch", False),
        ("MIXED+DRAIN+NOT_RESPONDING", "HyperPod:AutoPatch", False),
        ("DOWN+DRAIN", "HyperPod:AutoPatch", False),
        ("MIXED+FAIL", "HyperPod:AutoPatch", False),
        ("MIXED+DRAIN+REBOOT_REQUESTED", "HyperPod:AutoPatch", False),
    ],
)
def test_whether_a_job_starts_a_step_on_a_node_that_it_holds(state: str, reason: str, starts: bool) -> None:
    assert node_reasons.can_start_steps(state, reason) == starts


@pytest.mark.parametrize("words", REASONS)
def test_no_step_is_started_on_a_node_that_is_drained_for_a_known_reason(words: str) -> None:
    assert not node_reasons.can_start_steps("MIXED+DRAIN", words)


def test_a_node_that_takes_jobs_has_no_finding_whatever_its_reason_says() -> None:
    assert finding_for_node_state_or_none("n1", "IDLE", "Duplicate jobid") is None  # 24.11 leaves the reason standing
    assert finding_for_node_state_or_none("n1", "ALLOCATED", "") is None


def test_a_node_that_an_admin_has_drained_is_no_fault() -> None:
    finding = finding_for_node_state_or_none("n1", "IDLE+DRAIN", "a fan is loud")
    assert finding is not None and (finding.code, finding.fault) == ("drained-by-others", False)
    # What begins as one of Slurm's reasons and goes on in somebody's words is somebody's.
    for words in ("Duplicate jobid, as I said", "see Low RealMemory"):
        theirs = finding_for_node_state_or_none("n1", "IDLE+DRAIN", words)
        assert theirs is not None and theirs.code == "drained-by-others"


@pytest.mark.parametrize("state", ["DOWN*", "DOWN", "FAIL", "DOWN+INVALID_REG", "DOWN+NOT_RESPONDING", "DOWN*+DRAIN"])
def test_a_node_that_slurm_has_lost_is_a_fault(state: str) -> None:
    finding = finding_for_node_state_or_none("n1", state, "")
    assert finding is not None and (finding.code, finding.fault) == ("node-down", True)


@pytest.mark.parametrize("state", ["IDLE*", "ALLOCATED*", "IDLE+NOT_RESPONDING"])
def test_a_node_that_slurm_has_not_heard_for_a_moment_is_no_fault_yet(state: str) -> None:
    finding = finding_for_node_state_or_none("n1", state, "")
    assert finding is not None and (finding.code, finding.fault) == ("node-unheard", False)
