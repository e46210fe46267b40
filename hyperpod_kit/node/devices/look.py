"""One look at the GPUs and EFA devices of this node: which programs are asked, and what they came to.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Mapping, Optional, Tuple, TypeVar

from hyperpod_kit.model.accelerators import efas_of, gpus_of
from hyperpod_kit.model.optional_steps import DeviceChecks
from hyperpod_kit.node import resource_config
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.devices import answers
from hyperpod_kit.node.devices.ask import ProgramAnswer, ask, find, kernel_log
from hyperpod_kit.node.devices.findings import (
    ANSWERED,
    NO_ANSWER,
    NO_DRIVER,
    NOT_ASKED,
    NOT_INSTALLED,
    UNREADABLE,
    ProgramOutcome,
    Seen,
)
from hyperpod_kit.node.files import read_json, read_text
from hyperpod_kit.untrusted.text import clean

SMI = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
FI_INFO = ("/opt/amazon/efa/bin/fi_info", "/usr/bin/fi_info")
DCGMI = ("/usr/bin/dcgmi", "/usr/local/bin/dcgmi")

EACH = 20.0
"""Seconds for one program of the timer's look. nvidia-smi takes some where no persistence daemon holds the driver."""

NO_GPU_FOUND = 6
"""nvidia-smi's exit code for a driver without a GPU."""

_NO_DRIVER = ("Failed to initialize NVML", "couldn't communicate with the NVIDIA driver", "NVIDIA-SMI has failed")

T = TypeVar("T")
NO_GPUS: Tuple[answers.Gpu, ...] = ()
NO_NAMES: Tuple[str, ...] = ()
NO_REMAPS: Mapping[str, Tuple[bool, bool]] = {}
NO_LINKS: Mapping[int, Tuple[int, int]] = {}


class Asker:
    """Asks programs of this node, none for longer than `each` seconds and all together not beyond `end` (monotonic)."""

    def __init__(self, node: Node, each: float, end: Optional[float]) -> None:
        self.node, self.each, self.end = node, each, end

    def ask(self, places: Tuple[str, ...], *words: str) -> Optional[ProgramAnswer]:
        """None when no time is left for it."""
        left = self.each if self.end is None else min(self.each, self.end - self.node.clock.monotonic())
        if left < 0.5:
            return None
        program = find([self.node.paths.real(path) for path in places])
        if not program:
            return ProgramAnswer(installed=False)
        return ask([program, *words], left, self.node.paths.stuck_program(os.path.basename(program)))


def look(
    node: Node, asked: DeviceChecks, *, each: float = EACH, end: Optional[float] = None, dcgm: bool = False
) -> Seen:
    """Ask whatever this machine should have; no program at all on one without GPUs and EFA devices."""
    kind = instance_type(node)
    seen = Seen(
        instance_type=kind,
        gpus_expected=gpus_of(kind),
        gpus_on_bus=gpus_on_bus(node),
        efas_expected=efas_of(kind) if asked.efa else None,
    )
    asker = Asker(node, each, end)
    if seen.wants_gpus:
        seen = _with_kernel_log(_gpus(seen, asker), kernel_log(node.paths.kernel_log))
    if seen.efas_expected:
        said, efas = _told(asker.ask(FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"), answers.read_efas, NO_NAMES)
        seen = replace(seen, fi_info=said, efas=efas)
    if dcgm and seen.wants_gpus:
        said, failed = _told(asker.ask(DCGMI, "diag", "-r", "1", "-j"), answers.read_dcgm, NO_NAMES)
        seen = replace(seen, dcgm=said, dcgm_failed=failed)
    return seen


def _with_kernel_log(seen: Seen, records: Optional[str]) -> Seen:
    if records is None:
        return replace(seen, unread=(*seen.unread, "the kernel's log cannot be read: whether it has Xids is not known"))
    return replace(seen, xids=answers.read_xids(records))


def _gpus(seen: Seen, asker: Asker) -> Seen:
    answer = asker.ask(SMI, f"--query-gpu={answers.GPU_QUERY}", "--format=csv,noheader,nounits")
    said, gpus = _told(answer, answers.read_gpus, NO_GPUS)
    words = answer.text if answer else ""
    if said.outcome in (ANSWERED, UNREADABLE) and any(mark in words for mark in _NO_DRIVER):
        said = ProgramOutcome(NO_DRIVER, clean(words, 160))
    elif said.outcome == ANSWERED and answer and _is_cut_off(answer, gpus):
        said = ProgramOutcome(UNREADABLE, f"it ended with code {answer.code}: {clean(words, 120)}")
    seen = replace(seen, smi=said, gpus=gpus if said.outcome == ANSWERED else NO_GPUS)
    if said.outcome != ANSWERED or not gpus:
        return seen
    remap_answer = asker.ask(SMI, f"--query-remapped-rows={answers.REMAP_QUERY}", "--format=csv,noheader")
    remap_said, remaps = _told(remap_answer, answers.read_remaps, NO_REMAPS, may_be_silent=True)
    link_said, links = _told(asker.ask(SMI, "nvlink", "--status"), answers.read_links, NO_LINKS, may_be_silent=True)
    unread = [
        f"what nvidia-smi says of {what} cannot be read: {said.detail}"
        for what, said in (("remapped rows", remap_said), ("NVLink", link_said))
        if said.outcome == UNREADABLE
    ]
    if NO_ANSWER in (remap_said.outcome, link_said.outcome):
        seen = replace(seen, smi=ProgramOutcome(NO_ANSWER, "nvidia-smi does not answer any more"))
    return replace(seen, remaps=remaps, links=links, unread=tuple(unread))


def _is_cut_off(answer: ProgramAnswer, gpus: Tuple[answers.Gpu, ...]) -> bool:
    """Whether nvidia-smi failed without saying which GPU it cannot ask: that is no list of all of them."""
    return answer.code not in (0, NO_GPU_FOUND) and not any(gpu.trouble for gpu in gpus)


def _told(
    answer: Optional[ProgramAnswer], read: Callable[[str], T], nothing: T, *, may_be_silent: bool = False
) -> Tuple[ProgramOutcome, T]:
    """What a program came to, and what its words mean where they mean something."""
    if answer is None:
        return ProgramOutcome(NOT_ASKED), nothing
    if not answer.installed:
        return ProgramOutcome(NOT_INSTALLED), nothing
    if not answer.in_time:
        return ProgramOutcome(NO_ANSWER), nothing
    if not answer.whole:
        return ProgramOutcome(UNREADABLE, "it says more than any answer has"), nothing
    if not answer.text.strip():
        silent = (
            ProgramOutcome(ANSWERED)
            if may_be_silent
            else ProgramOutcome(UNREADABLE, f"nothing, and ends with code {answer.code}")
        )
        return silent, nothing
    try:
        return ProgramOutcome(ANSWERED), read(answer.text)
    except ValueError as err:
        return ProgramOutcome(UNREADABLE, clean(err, 160)), nothing


def instance_type(node: Node) -> str:
    """Of this node's group, by HyperPod's own file; "" when it does not say."""
    raw = read_json(node.paths.resource_config)
    return resource_config.instance_type(raw, node.facts.group) if isinstance(raw, dict) else ""


def gpus_on_bus(node: Node) -> Optional[int]:
    """NVIDIA's GPUs that the PCI bus lists: display controllers of its vendor; None where it cannot be read. Asks no
    driver."""
    place = node.paths.pci_devices
    count = 0
    try:
        devices = os.listdir(place)
    except OSError:
        return None
    for device in devices:
        try:
            vendor = (read_text(f"{place}/{device}/vendor") or "").strip()
            kind = (read_text(f"{place}/{device}/class") or "").strip()
        except OSError:
            continue
        count += vendor == "0x10de" and kind[:6] in ("0x0300", "0x0302")
    return count
