"""GPUs and EFA devices: recorded answers through real programs that print them, hangs, and what Slurm is told."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from hyperpod_kit.model import accelerators
from hyperpod_kit.model.optional_steps import DeviceChecks, OptionalSteps
from hyperpod_kit.node.cli import run as node_cli
from hyperpod_kit.node.devices import commands
from hyperpod_kit.node.devices import record as device_record
from hyperpod_kit.node.devices.collect import DCGMI, FI_INFO, SMI, observe_devices
from hyperpod_kit.node.devices.cycle import METRICS, check_devices_record_and_update_slurm
from hyperpod_kit.node.devices.findings import Cure, DeviceFinding, judge
from hyperpod_kit.node.devices.gate import WITHIN, refusal_for_device_faults_recording_it
from hyperpod_kit.node.devices.slurm_state import (
    ACTION_REBOOT,
    ACTION_REPLACE,
    CLEAR,
    LOOKS,
    REBOOT_AGAIN,
    SlurmNote,
    decide_update,
    desired_reason_or_none_to_leave,
)
from hyperpod_kit.node.health import warnings
from hyperpod_kit.node.machine.locks import hold_lock
from hyperpod_kit.node.machine.run_tool import LARGEST, run_tool
from tests.support.wait import Deadline

CASES: List[Dict[str, Any]] = json.loads(Path(__file__).with_name("device_cases.json").read_text())
P4D = [
    f"{number}, 00000000:{bus}.0, 0"
    for number, bus in enumerate(["10:1C", "10:1D", "20:1C", "20:1D", "90:1C", "90:1D", "A0:1C", "A0:1D"])
]
EFAS = [
    line
    for device in ("rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27")
    for line in (
        "provider: efa",
        "    fabric: efa",
        f"    domain: {device}-rdm",
        "    version: 111.20",
        "    type: FI_EP_RDM",
    )
]
LOST = DeviceFinding("gpu", "lost", "x", Cure.REPLACE, LOOKS)
HANGS = DeviceFinding("gpu", "no_answer", "x", Cure.REBOOT, LOOKS)
NO_EFA = DeviceFinding("efa", "too_few", "x", Cure.PERSON, LOOKS)
ODD = DeviceFinding("gpu", "unreadable", "x", Cure.NOTICE, LOOKS)


def program(root: Path, places: Any, script: str) -> None:
    path = root / places[0].lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def prints(lines: Optional[List[str]], code: int = 0) -> str:
    return f"printf '%s\\n' {shlex.join(lines)}; exit {code}" if lines else f"exit {code}"


def machine(fake: Any, case: Dict[str, Any], **steps: Any) -> Any:
    """The node of a case: its file of HyperPod's, its bus, its programs."""
    root = fake.root
    groups = {"InstanceGroups": [{"Name": "g", "InstanceType": case["type"], "Instances": []}]}
    for path, text in (
        ("opt/ml/config/resource_config.json", json.dumps(groups)),
        ("dev/kmsg", "\n".join(case.get("kernel", []))),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for number in range(case.get("on_bus", 0)):
        device = root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    gpus = case.get("smi", P4D[case.get("drop", 0) :])
    if gpus is not None:
        sub = {"--query-remapped": case.get("remaps", ["00000000:10:1C.0, 0, 0"]), "nvlink": case.get("links", [])}
        branches = "".join(f"{key}*) {prints(lines)};;\n" for key, lines in sub.items())
        program(root, SMI, f'case "$1" in\n{branches}*) {prints(gpus, case.get("code", 0))};;\nesac')
    if case.get("fi_info", EFAS) is not None:
        program(root, FI_INFO, prints(case.get("fi_info", EFAS)))
    if "dcgm" in case:
        program(root, DCGMI, prints(case["dcgm"]))
    asked = DeviceChecks(efa=case.get("efa", True), **steps)
    fake.node = replace(fake.node, config=replace(fake.node.config, steps=OptionalSteps(device_checks=asked)))
    return fake.node


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_recorded_answers(make_node: Any, case: Dict[str, Any]) -> None:
    node = machine(make_node([]), case)
    found = judge(observe_devices(node, node.config.steps.device_checks, dcgm="dcgm" in case))
    assert {one.name: one.cure.name for one in found} == case["found"]
    assert all(one.detail and one.detail.isprintable() for one in found)


def test_types_that_hyperpod_has() -> None:
    assert [
        accelerators.gpu_count(f"ml.{one}") for one in ("p5.48xlarge", "g6e.16xlarge", "g5.24xlarge", "c5.xlarge")
    ] == [
        8,
        1,
        4,
        None,
    ]
    assert [accelerators.efa_count(f"ml.{one}") for one in ("p5.48xlarge", "p5en.48xlarge", "g5.48xlarge")] == [
        32,
        16,
        None,
    ]


def test_a_program_that_hangs_or_never_stops_talking(tmp_path: Path) -> None:
    note = str(tmp_path / "notes/stuck.json")
    deadline = Deadline(60)
    hung = run_tool(["sh", "-c", "trap '' TERM; sleep 300 & wait; sleep 300"], 0.5, note)
    assert not hung.in_time and not deadline.has_passed() and not os.path.exists(note), "it was killed, and has ended"
    closed = run_tool(["sh", "-c", "exec >&- 2>&-; sleep 300"], 0.5, note)
    assert not closed.in_time
    endless = run_tool(["sh", "-c", "exec cat /dev/zero"], 60, note)
    assert endless.in_time and not endless.complete and endless.text == "" and LARGEST < 1 << 24
    assert not run_tool([str(tmp_path / "none")], 5, note).installed


def test_no_second_one_is_started_beside_one_that_the_kernel_holds(tmp_path: Path) -> None:
    from hyperpod_kit.system.process import this_process

    (tmp_path / "stuck.json").write_text(json.dumps(list(this_process())))
    answer = run_tool(["touch", str(tmp_path / "started")], 5, str(tmp_path / "stuck.json"))
    assert not answer.in_time and not (tmp_path / "started").exists()


def test_a_hung_nvidia_smi_is_a_fault_and_a_hung_fi_info_a_notice(make_node: Any) -> None:
    fake = make_node([])
    node = machine(fake, {"type": "ml.p4d.24xlarge"})
    for places in (SMI, FI_INFO):
        program(fake.root, places, "exec sleep 300")
    found = judge(observe_devices(node, DeviceChecks(), seconds_per_program=0.5))
    assert {one.name: one.cure for one in found} == {"gpu:no_answer": Cure.REBOOT, "efa:no_answer": Cure.NOTICE}


def test_the_timer_counts_says_what_changed_and_leaves_metrics(make_node: Any) -> None:
    fake = make_node([])
    node = machine(fake, {"type": "ml.p4d.24xlarge"})
    (fake.root / "var/lib/node_exporter/textfile_collector").mkdir(parents=True)
    asked = node.config.steps.device_checks
    first = check_devices_record_and_update_slurm(node, asked)
    assert first is not None and first.messages == ("8 of 8 GPUs, 4 of 4 EFA devices",)
    machine(fake, {"type": "ml.p4d.24xlarge", "drop": 1})
    second, third = (
        check_devices_record_and_update_slurm(node, asked),
        check_devices_record_and_update_slurm(node, asked),
    )
    assert second is not None and second.messages == (
        "gpu:too_few: nvidia-smi lists 7, and ml.p4d.24xlarge has 8 GPUs",
    )
    assert third is not None and third.messages == () and third.record.findings[0].looks == 2
    assert device_record.load_device_record(node) == third.record
    assert "gpu:too_few: nvidia-smi lists 7, and ml.p4d.24xlarge has 8 GPUs" in warnings.warning_lines_about_node(node)
    text = (fake.root / "var/lib/node_exporter/textfile_collector" / METRICS).read_text()
    assert "hyperpod_kit_gpus 7\n" in text and "hyperpod_kit_efa_devices 4\n" in text
    assert 'hyperpod_kit_device_finding{subject="gpu",state="too_few",fault="true"} 1\n' in text
    assert not fake.runner.calls, "Slurm is told nothing by default"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"findings": 3}', '{"findings": [{}]}', '{"findings": [], "odd": 1}'])
def test_a_record_of_another_release_is_none(make_node: Any, text: str) -> None:
    node = machine(make_node([]), {"type": "ml.c5.xlarge"})
    path = Path(node.paths.device_record)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert (
        device_record.load_device_record(node) is None
        and check_devices_record_and_update_slurm(node, DeviceChecks()) is not None
    )


def test_the_gate_refuses_for_a_fault_and_for_no_notice(make_node: Any) -> None:
    fake = make_node([])
    node = machine(fake, {"type": "ml.p4d.24xlarge", "remaps": ["what?"]}, action="drain")
    asked = node.config.steps.device_checks
    assert refusal_for_device_faults_recording_it(node, asked, fake.clock.monotonic()) == ""
    machine(fake, {"type": "ml.p4d.24xlarge", "drop": 1})
    assert refusal_for_device_faults_recording_it(node, asked, fake.clock.monotonic()).startswith(
        "hyperpod-kit: gpu:too_few: nvidia-smi lists 7"
    )
    assert os.path.exists(node.paths.devices_gate_refusal_record)


def test_the_diagnostic_runs_in_the_gate_alone_and_its_refusal_is_not_taken_back(make_node: Any) -> None:
    fake = make_node([])
    node = machine(fake, {**next(one for one in CASES if "fails" in one["case"])}, action="drain", dcgm=True)
    asked = node.config.steps.device_checks
    assert "dcgm:failed: Page Retirement/Row Remap of GPU 0" in refusal_for_device_faults_recording_it(
        node, asked, fake.clock.monotonic()
    )
    assert not os.path.exists(node.paths.devices_gate_refusal_record)
    assert refusal_for_device_faults_recording_it(node, replace(asked, dcgm=False), fake.clock.monotonic()) == ""


def test_a_gate_without_time_goes_by_the_last_look(make_node: Any) -> None:
    fake = make_node([])
    node = machine(fake, {"type": "ml.p4d.24xlarge", "drop": 1})
    late = fake.clock.monotonic() - WITHIN
    assert refusal_for_device_faults_recording_it(node, DeviceChecks(), late) == ""
    assert check_devices_record_and_update_slurm(node, DeviceChecks()) is not None
    assert refusal_for_device_faults_recording_it(node, DeviceChecks(), late).startswith("hyperpod-kit: gpu:too_few")


@pytest.mark.parametrize(
    ("action", "faults", "wished"),
    [
        ("report", [LOST], None),
        ("drain", [], CLEAR),
        ("drain", [ODD], CLEAR),
        ("drain", [replace(LOST, looks=LOOKS - 1)], None),
        ("drain", [LOST], "hyperpod-kit:device:gpu:lost"),
        ("reboot", [LOST], ACTION_REBOOT),
        ("reboot", [NO_EFA], "hyperpod-kit:device:efa:too_few"),
        ("replace", [NO_EFA, HANGS], ACTION_REBOOT),
        ("replace", [HANGS, LOST, NO_EFA], ACTION_REPLACE),
        ("replace", [HANGS, replace(LOST, looks=1)], ACTION_REBOOT),
    ],
)
def test_what_is_wished(action: str, faults: List[DeviceFinding], wished: Optional[str]) -> None:
    assert desired_reason_or_none_to_leave(faults, action, SlurmNote(), "b", 1e9) == wished


def test_a_node_is_rebooted_once_a_day_and_then_drained() -> None:
    asked = SlurmNote(reason=ACTION_REBOOT, rebooted_at=1e9, boot="first")
    assert desired_reason_or_none_to_leave([HANGS], "reboot", asked, "first", 1e9 + 600) == ACTION_REBOOT, (
        "it has not happened yet"
    )
    assert (
        desired_reason_or_none_to_leave([HANGS], "reboot", asked, "second", 1e9 + 600)
        == "hyperpod-kit:device:gpu:no_answer"
    )
    assert desired_reason_or_none_to_leave([HANGS], "reboot", asked, "second", 1e9 + REBOOT_AGAIN + 1) == ACTION_REBOOT
    assert desired_reason_or_none_to_leave([HANGS], "reboot", asked, "second", 1e9 - 3600) != ACTION_REBOOT, (
        "its clock was set back"
    )
    assert desired_reason_or_none_to_leave([LOST], "replace", asked, "second", 1e9 + 600) == ACTION_REPLACE
    assert (
        SlurmNote.parse_or_empty(["odd"])
        == SlurmNote.parse_or_empty({"other": 1})
        == SlurmNote.parse_or_empty({"at": "noon"})
        == SlurmNote()
    )


OURS = "hyperpod-kit:device:gpu:lost"


@pytest.mark.parametrize(
    ("wished", "given", "reason", "holds", "update"),
    [
        (OURS, "", "", False, ("state=drain", f"reason={OURS}")),
        (ACTION_REPLACE, "", "", False, ("state=fail", "reason=Action:Replace")),
        (ACTION_REPLACE, OURS, OURS, True, ("state=fail", "reason=Action:Replace")),
        (ACTION_REPLACE, "", "hyperpod-kit:mount:data:stale", True, ("state=fail", "reason=Action:Replace")),
        (OURS, "", "hyperpod-kit:mount:data:stale", True, ()),
        (OURS, "", "bad DIMM", True, ()),
        (ACTION_REPLACE, "", "bad DIMM", True, ()),
        (ACTION_REPLACE, "", "Action:Reboot", True, ()),
        (OURS, OURS, "", False, ()),
        (OURS, OURS, OURS, True, ()),
        (OURS, "", "bad DIMM", False, ("state=drain", f"reason={OURS}")),
        (CLEAR, OURS, OURS, True, ("state=undrain",)),
        (CLEAR, OURS, "bad DIMM", True, ()),
        (CLEAR, ACTION_REPLACE, ACTION_REPLACE, True, ()),
        (CLEAR, "", "", False, ()),
    ],
)
def test_what_slurm_is_told(wished: str, given: str, reason: str, holds: bool, update: Any) -> None:
    assert decide_update(wished, given, reason, holds=holds, draining=holds, by_our_gate=False).update == update


def test_a_refusal_of_ours_is_taken_for_ours() -> None:
    assert decide_update(CLEAR, "", "Prolog error", holds=True, draining=True, by_our_gate=True).update == (
        "state=undrain",
    )
    assert decide_update(OURS, "", "Prolog error", holds=True, draining=True, by_our_gate=True).reason == OURS


def test_what_nobody_can_read_is_unknown(
    make_node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither HyperPod's file nor the bus says what should be here: that is not "none"."""
    nobody = make_node([]).node
    monkeypatch.setattr(commands, "open_node", lambda: nobody)
    assert node_cli(["devices"]) == 3
    assert "unknown whether this node should have GPUs" in capsys.readouterr().out
    (Path(nobody.paths.pci_devices)).mkdir(parents=True)
    assert node_cli(["devices"]) == 0
    assert "this node should have no GPU and no EFA device" in capsys.readouterr().out


def test_a_kernel_log_that_cannot_be_read_is_told(make_node: Any) -> None:
    node = machine(make_node([]), {"type": "ml.p4d.24xlarge"})
    os.remove(node.paths.kernel_log)
    (finding,) = judge(observe_devices(node, node.config.steps.device_checks))
    assert (finding.name, finding.cure) == ("gpu:unreadable", Cure.NOTICE) and "Xids" in finding.detail


def test_the_command(make_node: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = make_node([])
    node = machine(fake, {"type": "ml.p4d.24xlarge", "drop": 1})
    monkeypatch.setattr(commands, "open_node", lambda: node)
    assert node_cli(["devices"]) == 1
    assert capsys.readouterr().out == (
        "ml.p4d.24xlarge: 7 of 8 GPUs, 4 of 4 EFA devices\n"
        "fault   gpu:too_few  nvidia-smi lists 7, and ml.p4d.24xlarge has 8 GPUs\n"
    )
    assert not os.path.exists(node.paths.device_record), "a look by hand counts nothing"
    assert node_cli(["devices", "--count", "--json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["cure"] == "replace" and os.path.exists(node.paths.device_record)
    with hold_lock(node, "devices", seconds=0):
        assert node_cli(["devices", "--count"]) == 3
    machine(fake, {"type": "ml.p4d.24xlarge"})
    assert node_cli(["devices"]) == 0
