"""One look at the GPUs and EFA devices of this node: which programs are asked, and what they came to.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Mapping, Optional, Tuple, TypeVar

from hyperpod_kit.model.accelerators import efa_count, gpu_count
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node.devices import parsers
from hyperpod_kit.node.devices.findings import (
    ANSWERED,
    NO_ANSWER,
    NO_DRIVER,
    NOT_ASKED,
    NOT_INSTALLED,
    UNREADABLE,
    DeviceObservation,
    ProgramOutcome,
)
from hyperpod_kit.node.machine import resource_config
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_json, read_text
from hyperpod_kit.node.machine.run_tool import ToolOutput, find_program, read_kernel_log, run_tool
from hyperpod_kit.untrusted.text import clean_one_line

SMI = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
FI_INFO = ("/opt/amazon/efa/bin/fi_info", "/usr/bin/fi_info")
DCGMI = ("/usr/bin/dcgmi", "/usr/local/bin/dcgmi")

EACH = 20.0
"""Seconds for one program of the timer's look. nvidia-smi takes some where no persistence daemon holds the driver."""

NO_GPU_FOUND = 6
"""nvidia-smi's exit code for a driver without a GPU."""

_NO_DRIVER = ("Failed to initialize NVML", "couldn't communicate with the NVIDIA driver", "NVIDIA-SMI has failed")

T = TypeVar("T")
NO_GPUS: Tuple[parsers.Gpu, ...] = ()
NO_NAMES: Tuple[str, ...] = ()
NO_REMAPS: Mapping[str, Tuple[bool, bool]] = {}
NO_LINKS: Mapping[int, Tuple[int, int]] = {}


class ToolRunner:
    """Asks programs of this node, none for longer than `each` seconds and all together not beyond `end` (monotonic)."""

    def __init__(self, node: Node, each: float, end: Optional[float]) -> None:
        self.node, self.each, self.end = node, each, end

    def run_first_installed_or_none_without_time(self, paths: Tuple[str, ...], *arguments: str) -> Optional[ToolOutput]:
        """Run the first of these programs that is installed, and return its output; None when no time is left for
        it."""
        if self.end is None:
            remaining = self.each
        else:
            remaining = min(self.each, self.end - self.node.clock.monotonic())
        if remaining < 0.5:
            return None
        program = find_program([self.node.paths.under_root(path) for path in paths])
        if not program:
            return ToolOutput(installed=False)
        return run_tool(
            [program, *arguments], remaining, self.node.paths.stuck_device_tool_record(os.path.basename(program))
        )


def observe_devices(
    node: Node,
    checks: DeviceChecks,
    *,
    seconds_per_program: float = EACH,
    monotonic_deadline: Optional[float] = None,
    dcgm: bool = False,
) -> DeviceObservation:
    """Query GPUs and EFA devices that this machine should have; runs no program at all on one without them."""
    node_type = instance_type(node)
    observation = DeviceObservation(
        instance_type=node_type,
        gpus_expected=gpu_count(node_type),
        gpus_on_bus=gpus_on_bus(node),
        efas_expected=efa_count(node_type) if checks.efa else None,
    )
    tools = ToolRunner(node, seconds_per_program, monotonic_deadline)
    if observation.expected_gpu_count_or_zero:
        observation = _with_xids_from_kernel_log(_with_gpus(observation, tools), read_kernel_log(node.paths.kernel_log))
    if observation.efas_expected:
        outcome, efas = _outcome_and_parsed(
            tools.run_first_installed_or_none_without_time(FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"),
            parsers.parse_efas,
            NO_NAMES,
        )
        observation = replace(observation, fi_info=outcome, efas=efas)
    if dcgm and observation.expected_gpu_count_or_zero:
        outcome, failed = _outcome_and_parsed(
            tools.run_first_installed_or_none_without_time(DCGMI, "diag", "-r", "1", "-j"),
            parsers.parse_failed_dcgm_tests,
            NO_NAMES,
        )
        observation = replace(observation, dcgm=outcome, dcgm_failed=failed)
    return observation


def _with_xids_from_kernel_log(observation: DeviceObservation, records: Optional[str]) -> DeviceObservation:
    if records is None:
        return replace(
            observation,
            unread=(*observation.unread, "the kernel log cannot be read: unknown whether it has Xids"),
        )
    return replace(observation, xids=parsers.parse_last_gpu_bus_by_xid(records))


def _with_gpus(observation: DeviceObservation, tools: ToolRunner) -> DeviceObservation:
    output = tools.run_first_installed_or_none_without_time(
        SMI, f"--query-gpu={parsers.GPU_QUERY}", "--format=csv,noheader,nounits"
    )
    outcome, gpus = _outcome_and_parsed(output, parsers.parse_gpus, NO_GPUS)
    text = ""
    if output:
        text = output.text
    if outcome.outcome in (ANSWERED, UNREADABLE) and any(phrase in text for phrase in _NO_DRIVER):
        outcome = ProgramOutcome(NO_DRIVER, clean_one_line(text, 160))
    elif outcome.outcome == ANSWERED and output and _failed_without_naming_unreachable_gpu(output, gpus):
        outcome = ProgramOutcome(UNREADABLE, f"it ended with code {output.code}: {clean_one_line(text, 120)}")
    if outcome.outcome != ANSWERED:
        gpus = NO_GPUS
    observation = replace(observation, smi=outcome, gpus=gpus)
    if outcome.outcome != ANSWERED or not gpus:
        return observation
    remap_output = tools.run_first_installed_or_none_without_time(
        SMI, f"--query-remapped-rows={parsers.REMAP_QUERY}", "--format=csv,noheader"
    )
    remap_outcome, remaps = _outcome_and_parsed(
        remap_output, parsers.parse_pending_and_failed_row_remaps, NO_REMAPS, may_be_silent=True
    )
    link_outcome, links = _outcome_and_parsed(
        tools.run_first_installed_or_none_without_time(SMI, "nvlink", "--status"),
        parsers.parse_nvlinks_up_and_down,
        NO_LINKS,
        may_be_silent=True,
    )
    unread = [
        f"nvidia-smi's output about {what} cannot be read: {tool_outcome.detail}"
        for what, tool_outcome in (("remapped rows", remap_outcome), ("NVLink", link_outcome))
        if tool_outcome.outcome == UNREADABLE
    ]
    if NO_ANSWER in (remap_outcome.outcome, link_outcome.outcome):
        observation = replace(observation, smi=ProgramOutcome(NO_ANSWER, "nvidia-smi no longer answers"))
    return replace(observation, remaps=remaps, links=links, unread=tuple(unread))


def _failed_without_naming_unreachable_gpu(output: ToolOutput, gpus: Tuple[parsers.Gpu, ...]) -> bool:
    """Return whether nvidia-smi failed without saying which GPU it cannot query: that is no list of all of
    them."""
    return output.code not in (0, NO_GPU_FOUND) and not any(gpu.trouble for gpu in gpus)


def _outcome_and_parsed(
    output: Optional[ToolOutput], read: Callable[[str], T], nothing: T, *, may_be_silent: bool = False
) -> Tuple[ProgramOutcome, T]:
    """Return the outcome of a program, and its output as `read` reads it, or `nothing` where it gave nothing
    readable."""
    if output is None:
        return ProgramOutcome(NOT_ASKED), nothing
    if not output.installed:
        return ProgramOutcome(NOT_INSTALLED), nothing
    if not output.in_time:
        return ProgramOutcome(NO_ANSWER), nothing
    if not output.complete:
        return ProgramOutcome(UNREADABLE, "it is too large"), nothing
    if not output.text.strip():
        if may_be_silent:
            silent = ProgramOutcome(ANSWERED)
        else:
            silent = ProgramOutcome(UNREADABLE, f"no output, and exit code {output.code}")
        return silent, nothing
    try:
        return ProgramOutcome(ANSWERED), read(output.text)
    except ValueError as err:
        return ProgramOutcome(UNREADABLE, clean_one_line(err, 160)), nothing


def instance_type(node: Node) -> str:
    """Return the instance type of this node's group, by HyperPod's own file; "" when it names none."""
    raw = read_json(node.paths.resource_config)
    if isinstance(raw, dict):
        return resource_config.instance_type(raw, node.facts.group)
    return ""


def gpus_on_bus(node: Node) -> Optional[int]:
    """Count NVIDIA's GPUs that the PCI bus lists: display controllers of its vendor; None where it cannot be
    read. Asks no driver."""
    directory = node.paths.pci_devices
    count = 0
    try:
        devices = os.listdir(directory)
    except OSError:
        return None
    for device in devices:
        try:
            vendor = (read_text(f"{directory}/{device}/vendor") or "").strip()
            kind = (read_text(f"{directory}/{device}/class") or "").strip()
        except OSError:
            continue
        count += vendor == "0x10de" and kind[:6] in ("0x0300", "0x0302")
    return count
