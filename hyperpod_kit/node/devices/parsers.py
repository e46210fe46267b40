"""What nvidia-smi, fi_info, dcgmi and the kernel say, as data. Pure; what cannot be read is ValueError, never
"healthy".

The formats, from public examples: nvidia-smi's manual (--query-gpu, --query-remapped-rows), Azure/azhpc-diagnostics#73
(nvlink --status), ofiwg/libfabric#5689 (fi_info), NVIDIA/DCGM#139 and DCGM's own JsonResult test (dcgmi diag -j),
NVIDIA/NVSentinel#155 (the kernel's lines).

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

GPU_QUERY = "index,pci.bus_id,ecc.errors.uncorrected.volatile.total"
REMAP_QUERY = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"

MOST = 1024
"""Devices, links and lines that one node may have; an answer with more is none."""

_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_NO_HANDLE = re.compile(r"Unable to determine the device handle for GPU ?([0-9A-Fa-f:.]{4,24}): ?(.*)")
_NO_VALUE = ("[N/A]", "N/A", "[Not Supported]", "")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{4,24})\): ([0-9]{1,4}),")
_FALLEN = re.compile(r"NVRM: The NVIDIA GPU ([0-9A-Fa-f:.]{4,24}).{0,200}fallen off the bus")
FALLEN_XID = 79
"""The driver's number for a GPU that does not answer on the bus any more; newer drivers only say so in words."""


@dataclass(frozen=True)
class Gpu:
    """One GPU by nvidia-smi. bus: where it is; ecc: uncorrected memory errors since the driver was loaded, None where
    they are not counted; trouble: nvidia-smi's words for a GPU that it cannot ask, "" for none."""

    bus: str
    ecc: Optional[int] = None
    trouble: str = ""


def parse_gpus(text: str) -> Tuple[Gpu, ...]:
    """Of `nvidia-smi --query-gpu=GPU_QUERY --format=csv,noheader,nounits`. Raises ValueError."""
    gpus: List[Gpu] = []
    for line in _bounded_nonempty_lines(text):
        unreachable = _NO_HANDLE.match(line)
        if unreachable:
            gpus.append(Gpu(unreachable.group(1), trouble=clean_one_line(unreachable.group(2), 80) or "no handle"))
            continue
        if line == "No devices were found":
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
            raise ValueError(f"expected index, bus and errors, found {clean_one_line(line, 120)}")
        bus, errors = cells[1], cells[2]
        if not _BUS.fullmatch(bus):
            raise ValueError(f"expected the place of a GPU on the bus, found {clean_one_line(bus, 60)}")
        if errors in _NO_VALUE:
            gpus.append(Gpu(bus))
        elif re.fullmatch(r"[0-9]{1,18}", errors):
            gpus.append(Gpu(bus, int(errors)))
        elif errors == "ERR!" or re.fullmatch(r"\[[A-Za-z ]{3,60}\]", errors):
            gpus.append(Gpu(bus, trouble=errors.strip("[]")))
        else:
            raise ValueError(f"expected a number of errors, found {clean_one_line(errors, 60)}")
    if len({gpu.bus.lower() for gpu in gpus}) != len(gpus):
        raise ValueError("one GPU is listed twice")
    return tuple(gpus)


def parse_pending_and_failed_row_remaps(text: str) -> Mapping[str, Tuple[bool, bool]]:
    """Bus -> (a remapping waits for a reset, one has failed), of the GPUs that remap rows: `nvidia-smi
    --query-remapped-rows=REMAP_QUERY --format=csv,noheader`. Raises ValueError."""
    remaps: Dict[str, Tuple[bool, bool]] = {}
    for line in _bounded_nonempty_lines(text):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not _BUS.fullmatch(cells[0]):
            raise ValueError(f"expected bus, pending and failure, found {clean_one_line(line, 120)}")
        if cells[1] in _NO_VALUE and cells[2] in _NO_VALUE:
            continue
        remaps[cells[0]] = (_parse_flag(cells[1]), _parse_flag(cells[2]))
    return remaps


def _parse_flag(word: str) -> bool:
    """Parse a flag, which drivers print as a number of rows, or as Yes or No."""
    if re.fullmatch(r"[0-9]{1,9}", word):
        return int(word) > 0
    if word.lower() in ("yes", "no"):
        return word.lower() == "yes"
    raise ValueError(f"expected a number, Yes or No, found {clean_one_line(word, 60)}")


def parse_nvlinks_up_and_down(text: str) -> Mapping[int, Tuple[int, int]]:
    """GPU -> (NVLinks that are up, that are down): `nvidia-smi nvlink --status`. Raises ValueError."""
    links: Dict[int, Tuple[int, int]] = {}
    gpu = -1
    for line in _bounded_nonempty_lines(text):
        head = re.match(r"GPU ([0-9]{1,4}): ", line)
        link = re.fullmatch(r"Link [0-9]{1,3}: (<inactive>|[0-9.]{1,12} GB/s)", line)
        if head:
            gpu = int(head.group(1))
            links[gpu] = (0, 0)
        elif link and gpu >= 0:
            up, down = links[gpu]
            if link.group(1) == "<inactive>":
                links[gpu] = (up, down + 1)
            else:
                links[gpu] = (up + 1, down)
        elif "all links are inactive" not in line.lower() and "NVLink" not in line:
            raise ValueError(f"expected a GPU or its link, found {clean_one_line(line, 120)}")
    return links


def parse_efas(text: str) -> Tuple[str, ...]:
    """Names of the EFA devices, sorted: `fi_info -p efa -t FI_EP_RDM`, one of them in several domains. Raises
    ValueError."""
    lines = list(_bounded_nonempty_lines(text))
    if any(re.match(r"fi_getinfo: ?-61\b", line) for line in lines):
        return ()  # no data available: no device
    if not any(line.startswith("provider:") for line in lines):
        first = "nothing"
        if lines:
            first = clean_one_line(lines[0], 120)
        raise ValueError(f"expected a provider, found {first}")
    names = set()
    for line in lines:
        key, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[a-z_]{1,32}", key):
            raise ValueError(f"expected a key and its value, found {clean_one_line(line, 120)}")
        if key == "domain":
            device = re.fullmatch(r"([A-Za-z0-9_.-]{1,60}?)(-rdm|-dgrm)?", value.strip())
            if device is None:
                raise ValueError(f"expected a domain, found {clean_one_line(value, 60)}")
            names.add(device.group(1))
    return tuple(sorted(names))


def parse_last_gpu_bus_by_xid(kernel: str) -> Mapping[int, str]:
    """Number of an Xid -> the bus of the GPU that had it last, of the records of /dev/kmsg.

    Only what the driver itself printed counts: a record begins with its words, and no name of a process, which the
    kernel repeats in its own lines, is long enough to look like one.
    """
    buses: Dict[int, str] = {}
    for record in kernel.split("\n"):
        _, semicolon, message = record.partition(";")
        if not semicolon or not message.startswith("NVRM: "):
            continue
        xid = _XID.match(message)
        fallen = _FALLEN.match(message)
        if xid:
            buses[int(xid.group(2))] = xid.group(1)
        elif fallen:
            buses[FALLEN_XID] = fallen.group(1)
    return buses


def parse_failed_dcgm_tests(text: str) -> Tuple[str, ...]:
    """The tests that failed, in words: `dcgmi diag -r 1 -j`, which may say something before its JSON. Raises
    ValueError, also when no test ran."""
    if "{" in text:
        text = text[text.find("{") :]
    document = parse_json_object(text)
    failed: List[str] = []
    ran = 0
    for test in _iterate_tests(document):
        name = clean_one_line(test.get("name", "a test"), 60)
        results = test.get("results")
        for result in results if isinstance(results, list) else []:
            if not isinstance(result, dict) or not isinstance(result.get("status"), str):
                continue
            ran += 1
            if result["status"].strip().lower() in ("fail", "failed"):
                failed.append(f"{name}{_of_gpu_id_suffix(result)}: {_first_warning(result)}")
    if not ran:
        raise ValueError("no test of the diagnostic has a result")
    return tuple(failed[:MOST])


def _iterate_tests(document: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the tests of the document: releases differ in how deep they lie, below categories or beside them."""
    for part in [document, *(value for value in document.values() if isinstance(value, dict))]:
        categories = part.get("test_categories")
        for container in [part, *(categories if isinstance(categories, list) else [])]:
            tests = None
            if isinstance(container, dict):
                tests = container.get("tests")
            yield from (test for test in (tests if isinstance(tests, list) else []) if isinstance(test, dict))


def _of_gpu_id_suffix(result: Dict[str, Any]) -> str:
    gpu_ids = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id", "")))
    if gpu_ids != "":
        return f" of GPU {clean_one_line(gpu_ids, 40)}"
    return ""


def _first_warning(result: Dict[str, Any]) -> str:
    warnings = result.get("warnings", result.get("warning", ""))
    if isinstance(warnings, list) and warnings:
        first = warnings[0]
    else:
        first = warnings
    return clean_one_line(first.get("warning", "") if isinstance(first, dict) else first or "failed", 200)


def _bounded_nonempty_lines(text: str) -> Iterator[str]:
    """Return the lines that are not empty, stripped. Raises ValueError for more than a node can have."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 40 * MOST:
        raise ValueError(f"{len(lines)} lines")
    return iter(lines)
