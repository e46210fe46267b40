"""From what the programs said to what is wrong with this node's GPUs and EFA devices. Pure.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Iterator, Mapping, Optional, Tuple

from hyperpod_kit.node.devices.parsers import FALLEN_XID, Gpu


class Cure(IntEnum):
    """What helps against a fault. NOTICE: it is no fault, a job can run; PERSON: nobody knows but a person."""

    NOTICE = 0
    PERSON = 1
    REBOOT = 2
    REPLACE = 3


@dataclass(frozen=True)
class DeviceFinding:
    """subject: `gpu`, `nvlink`, `efa` or `dcgm`; state: one word; looks: how many in a row have found it."""

    subject: str
    state: str
    detail: str
    cure: Cure
    looks: int = 1

    @property
    def is_fault(self) -> bool:
        """Whether a job would fail here."""
        return self.cure > Cure.NOTICE

    @property
    def name(self) -> str:
        return f"{self.subject}:{self.state}"


@dataclass(frozen=True)
class ProgramOutcome:
    """What one program came to. outcome: ANSWERED, NOT_INSTALLED, NO_ANSWER (it hangs), UNREADABLE, NO_DRIVER or
    NOT_ASKED; detail: its words."""

    outcome: str
    detail: str = ""


ANSWERED, NOT_INSTALLED, NO_ANSWER = "answered", "not_installed", "no_answer"
UNREADABLE, NO_DRIVER, NOT_ASKED = "unreadable", "no_driver", "not_asked"


@dataclass(frozen=True)
class DeviceObservation:
    """One look. gpus_expected, efas_expected: by the instance type, None where it is not known; gpus_on_bus: NVIDIA's
    GPUs that the PCI bus lists, None where it cannot be read. Each program with what it said, and what that means;
    None: it was not asked."""

    instance_type: str = ""
    gpus_expected: Optional[int] = None
    gpus_on_bus: Optional[int] = None
    smi: ProgramOutcome = ProgramOutcome(NOT_ASKED)
    gpus: Tuple[Gpu, ...] = ()
    remaps: Mapping[str, Tuple[bool, bool]] = field(default_factory=dict)
    links: Mapping[int, Tuple[int, int]] = field(default_factory=dict)
    unread: Tuple[str, ...] = ()
    xids: Mapping[int, str] = field(default_factory=dict)
    efas_expected: Optional[int] = None
    fi_info: ProgramOutcome = ProgramOutcome(NOT_ASKED)
    efas: Tuple[str, ...] = ()
    dcgm: ProgramOutcome = ProgramOutcome(NOT_ASKED)
    dcgm_failed: Tuple[str, ...] = ()

    @property
    def expected_or_bus_gpu_count(self) -> Optional[int]:
        """GPUs that there should be: of a type that is not known, as many as the bus lists. None: nobody knows."""
        if self.gpus_expected is None:
            return self.gpus_on_bus
        return self.gpus_expected

    @property
    def expected_gpu_count_or_zero(self) -> int:
        """The expected number of GPUs, 0 where it is not known."""
        return self.expected_or_bus_gpu_count or 0


REPLACE_XIDS: Mapping[int, str] = {
    64: "rows of its memory could not be remapped",
    FALLEN_XID: "it has fallen off the bus",
}
REBOOT_XIDS: Mapping[int, str] = {
    48: "a double-bit error of its memory",
    62: "its micro-controller has halted",
    74: "an error of NVLink",
    95: "an error of its memory that was not contained",
    119: "its GSP does not answer",
    120: "an error of its GSP",
    140: "an error of its memory that was not recovered",
    143: "it was not initialised",
}
"""Of NVIDIA's catalogue, "Xid Errors": after these a GPU is of no use until it is reset. All others are a program's
own, or cured by its restart."""


def judge(observation: DeviceObservation) -> Tuple[DeviceFinding, ...]:
    """Everything that is wrong, in the order in which it was asked."""
    return (
        *_gpu_findings(observation),
        *_xid_findings(observation),
        *_nvlink_findings(observation),
        *_efa_findings(observation),
        *_dcgm_findings(observation),
    )


def _gpu_findings(observation: DeviceObservation) -> Iterator[DeviceFinding]:
    expected, smi = observation.expected_gpu_count_or_zero, observation.smi
    if expected == 0 or smi.outcome == NOT_ASKED:
        return
    if smi.outcome == NOT_INSTALLED:
        yield DeviceFinding(
            "gpu", NOT_INSTALLED, f"{_expected_gpus_text(observation)}, but nvidia-smi is missing", Cure.PERSON
        )
    elif smi.outcome == NO_ANSWER:
        yield DeviceFinding("gpu", NO_ANSWER, smi.detail or "nvidia-smi does not answer", Cure.REBOOT)
    elif smi.outcome == NO_DRIVER:
        yield DeviceFinding("gpu", NO_DRIVER, smi.detail, Cure.PERSON)
    elif smi.outcome == UNREADABLE:
        yield DeviceFinding("gpu", UNREADABLE, f"nvidia-smi's output cannot be read: {smi.detail}", Cure.NOTICE)
    if smi.outcome != ANSWERED:
        return
    if len(observation.gpus) < expected:
        yield DeviceFinding(
            "gpu",
            "too_few",
            f"nvidia-smi lists {len(observation.gpus)}, and {_expected_gpus_text(observation)}",
            Cure.REPLACE,
        )
    yield from _individual_gpu_findings(observation.gpus)
    failed = [bus for bus, (_, failure) in observation.remaps.items() if failure]
    pending = [bus for bus, (waits, failure) in observation.remaps.items() if waits and not failure]
    if failed:
        yield DeviceFinding(
            "gpu", "remap_failed", f"memory of {_format_gpus_at_buses(failed)} cannot be remapped", Cure.REPLACE
        )
    if pending:
        yield DeviceFinding(
            "gpu", "remap_pending", f"{_format_gpus_at_buses(pending)} needs a reset to remap its memory", Cure.NOTICE
        )
    for unread in observation.unread:
        yield DeviceFinding("gpu", UNREADABLE, unread, Cure.NOTICE)


def _individual_gpu_findings(gpus: Tuple[Gpu, ...]) -> Iterator[DeviceFinding]:
    troubled = [gpu for gpu in gpus if gpu.trouble]
    resets = [gpu.bus for gpu in troubled if "reset" in gpu.trouble.lower()]
    unreachable = [gpu for gpu in troubled if gpu.bus not in resets]
    if unreachable:
        yield DeviceFinding(
            "gpu",
            "lost",
            f"{_format_gpus_at_buses([gpu.bus for gpu in unreachable])}: {unreachable[0].trouble}",
            Cure.REPLACE,
        )
    if resets:
        yield DeviceFinding("gpu", "needs_reset", f"{_format_gpus_at_buses(resets)} wants a reset", Cure.REBOOT)
    errors = [gpu.bus for gpu in gpus if gpu.ecc]
    if errors:
        yield DeviceFinding(
            "gpu", "ecc", f"uncorrected errors in the memory of {_format_gpus_at_buses(errors)}", Cure.REBOOT
        )


def _xid_findings(observation: DeviceObservation) -> Iterator[DeviceFinding]:
    for cure, table in ((Cure.REPLACE, REPLACE_XIDS), (Cure.REBOOT, REBOOT_XIDS)):
        for number in sorted(set(table) & set(observation.xids)):
            yield DeviceFinding(
                "gpu", f"xid_{number}", f"Xid {number} of {observation.xids[number]}: {table[number]}", cure
            )


def _nvlink_findings(observation: DeviceObservation) -> Iterator[DeviceFinding]:
    """Some of a GPU's links: all of them down is how a GPU without NVLink, or one that is divided (MIG), looks."""
    partly = [str(gpu) for gpu, (up, down) in observation.links.items() if up and down]
    if partly:
        yield DeviceFinding("nvlink", "down", f"some links of GPU {', '.join(partly)} are down", Cure.REBOOT)


def _efa_findings(observation: DeviceObservation) -> Iterator[DeviceFinding]:
    expected, fi_info = observation.efas_expected, observation.fi_info
    if not expected or fi_info.outcome == NOT_ASKED:
        return
    if fi_info.outcome != ANSWERED:
        details = {NOT_INSTALLED: "fi_info is missing", NO_ANSWER: fi_info.detail or "fi_info does not answer"}
        detail = details.get(fi_info.outcome, f"fi_info's output cannot be read: {fi_info.detail}")
        yield DeviceFinding(
            "efa", fi_info.outcome, f"{observation.instance_type} has {expected} EFA devices: {detail}", Cure.NOTICE
        )
    elif len(observation.efas) < expected:
        yield DeviceFinding(
            "efa",
            "too_few",
            f"fi_info lists {len(observation.efas)}, and {observation.instance_type} has {expected}",
            Cure.PERSON,
        )


def _dcgm_findings(observation: DeviceObservation) -> Iterator[DeviceFinding]:
    dcgm = observation.dcgm
    if observation.dcgm_failed:
        yield DeviceFinding("dcgm", "failed", "; ".join(observation.dcgm_failed[:3]), Cure.PERSON)
    elif dcgm.outcome not in (ANSWERED, NOT_ASKED):
        yield DeviceFinding("dcgm", dcgm.outcome, dcgm.detail or "dcgmi printed nothing", Cure.NOTICE)


def _expected_gpus_text(observation: DeviceObservation) -> str:
    if observation.gpus_expected is not None:
        who = observation.instance_type
    else:
        who = "the bus"
    return f"{who} has {observation.expected_gpu_count_or_zero} {_gpu_noun(observation.expected_gpu_count_or_zero)}"


def _gpu_noun(count: int) -> str:
    if count > 1:
        return "GPUs"
    return "GPU"


def _format_gpus_at_buses(buses: list[str]) -> str:
    more = ""
    if len(buses) > 4:
        more = f" and {len(buses) - 4} more"
    return f"the {_gpu_noun(len(buses))} at {', '.join(sorted(buses)[:4])}{more}"
