"""What nodes say to who asks them, and what people write into files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Dict

from hyperpod_kit.config import load
from hyperpod_kit.config.reading import document
from hyperpod_kit.errors import ConfigError, UsageError
from hyperpod_kit.node.devices import parsers
from hyperpod_kit.node.peers.query import PeerQuery
from hyperpod_kit.remote import report_parser
from hyperpod_kit.remote.connect.ssh_access import KnownHosts
from hyperpod_kit.remote.connect.ssm_sessions import _parse_output
from hyperpod_kit.remote.diagnosis import installed_bundles, known_issues
from hyperpod_kit.remote.diagnosis.diagnose import _query_node, describe_diagnosis, with_known_causes
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports import controller
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json, some_bytes
from tests.hostile.fuzz.places import file_of
from tests.hostile.fuzz.words import Said, js, of_bytes, of_json, of_rows, text_of

TARGET = NodeTarget("i-0123456789abcdef0", "workers", "compute", "10.0.0.1", "Running")
STATUS = {
    "bundle_id": "ab12",
    "ok": False,
    "finished_at": 1.7e9,
    "steps": [
        {"step": "verify-bundle", "status": "ok", "error": "", "hint": ""},
        {
            "step": "mount:fsx",
            "status": "failed",
            "error": "mount.nfs4: Connection timed out",
            "hint": "the security group",
        },
    ],
}
MOUNTS = {
    "node": "n1",
    "instance_id": TARGET.instance_id,
    "bundle_id": "ab12",
    "checked_at": 1.7e9,
    "mounts": [
        {
            "name": "fsx",
            "kind": "lustre",
            "path": "/fsx",
            "state": "ok",
            "source": "fs-1@tcp:/x",
            "detail": "",
            "latency_ms": 1.5,
            "required": True,
            "checked_at": 1.7e9,
        },
        {
            "name": "s3",
            "kind": "s3",
            "path": "/s3",
            "state": "stale",
            "detail": "Transport endpoint is not connected",
        },
    ],
    "slurm": [
        {"code": "slurmd-down", "detail": "slurmd does not run", "remedy": "systemctl status slurmd", "fault": True}
    ],
}


def read_diagnosis(data: bytes) -> None:
    # Without the threads that ask many nodes at once, which cost ten times as much; and without their last resort.
    found = with_known_causes(_query_node(TARGET, "", lambda target: Said(text_of(data)), 60.0))  # type: ignore[arg-type, return-value]
    list(describe_diagnosis(found))
    found.to_dict()


def read_bundle(data: bytes) -> None:
    found = installed_bundles.parse_output(TARGET, text_of(data))
    found.to_dict()


def read_controller(data: bytes) -> None:
    for said in controller._parse_responses(text_of(data)).values():
        controller._node_response(TARGET, said)


KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE4mGxAg0j0bX9nqU9nW1Yv9eJ2nVdJ2o9yHqK3f0a1b"
HOSTS = (
    b"10.0.0.1,[10.0.0.2]:2222 "
    + KEY
    + b"\n|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= "
    + KEY
    + b"\n@revoked * "
    + KEY
    + b"\n@cert-authority * "
    + KEY
    + b"\n# x\n10.0.0.1 ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ==\n"
)


def read_hosts_file(data: bytes) -> None:
    known = KnownHosts(Path(file_of(data, "known_hosts")))
    known.keys("10.0.0.1")
    known.keys("[10.0.0.2]:2222")


MARK = "hpk0123456789abcdef"
FRAME = f"$ echo xx | base64 -d\r\n{MARK}-begin\r\n{'aGVsbG8='}\r\n{MARK}-end-0\r\n".encode()
SMALL: Dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "hyperpod_kit": {
        "cluster": {"name": "demo", "region": "us-east-1", "instance_groups": [{"name": "w", "count": 2}]},
        "mounts": [{"name": "s3", "kind": "s3", "path": "/s3", "bucket": "b"}],
    },
}
CONFIG = json.loads((Path(__file__).parents[3] / "provisioning_parameters.example.json").read_text())


def read_yaml(data: bytes) -> None:
    document.read_document(Path(file_of(data, "config.yaml")))


def read_json_config(data: bytes) -> None:
    path = Path(file_of(data, "config.json"))
    if hash(data) % 64:
        document.read_document(path)
    else:
        load.check(path)  # all the rules, which are 50 times as slow


def yaml_seed() -> bytes:
    import yaml

    return yaml.safe_dump(CONFIG["hyperpod_kit"]["cluster"]).encode()


SCRIPT = (
    "== current\nab12\n== status\n"
    + json.dumps(STATUS)
    + "\n== identity\n"
    + "a" * 64
    + "  SHA256SUMS\n== sums\n"
    + "b" * 64
    + "  lib/x.py\n== damaged\nlib/x.py: FAILED\n== files\n./lib/x.py\n./lib/y.py\n== end\n"
).encode()
QUESTION = {"connect_timeout": 10, "timeout": 10, "nodes": [{"id": "i-1", "address": "10.0.0.1", "slurm": "n1"}]}
HEARD = {"id": TARGET.instance_id, "way": "ssh", "returncode": 0, "stdout": json.dumps(MOUNTS), "stderr": ""}

GPUS = b"0, 00000000:10:1C.0, 0\n1, 00000000:10:1D.0, [N/A]\n"
GPUS += b"Unable to determine the device handle for GPU 0000:02:00.0: x\n"
REMAPS = b"00000000:10:1C.0, 0, 1\n00000000:10:1D.0, No, Yes\n"
LINKS = b"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-4039dfe4)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
EFAS = b"provider: efa\n    fabric: efa\n    domain: rdmap16s27-rdm\n    version: 111.20\n    type: FI_EP_RDM\n"
KERNEL = b"3,1,1,-;NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
TESTS = [{"name": "Denylist", "results": [{"gpu_ids": "0", "status": "Fail", "warnings": ["x"]}]}, None]
DCGM = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": TESTS}]}}


def words_of(*seeds: bytes) -> Any:
    return lambda rng: some_bytes(
        rng, rng.choice(seeds), list(seeds), [b"\n", b", ", b": ", b"[N/A]", b"<inactive>", b";"]
    )


def read_devices(read: Any) -> Any:
    """What nvidia-smi and its like say: a value or ValueError, never a fault that nobody has."""
    return lambda data: read(text_of(data))


PARSERS = [
    *(
        Parser(f"node: devices ({name})", read_devices(read), (ValueError,), words_of(seed), (seed,))
        for name, read, seed in (
            ("nvidia-smi", parsers.parse_gpus, GPUS),
            ("remapped rows", parsers.parse_pending_and_failed_row_remaps, REMAPS),
            ("NVLink", parsers.parse_nvlinks_up_and_down, LINKS),
            ("fi_info", parsers.parse_efas, EFAS),
        )
    ),
    Parser("node: devices (kernel)", read_devices(parsers.parse_last_gpu_bus_by_xid), (), words_of(KERNEL), (KERNEL,)),
    Parser(
        "node: devices (dcgmi)",
        read_devices(parsers.parse_failed_dcgm_tests),
        (ValueError,),
        of_json(DCGM),
        (js(DCGM),),
    ),
    Parser(
        "node: mount report",
        lambda data: report_parser.parse_mount_report(text_of(data)),
        (report_parser.NoReport,),
        of_json(MOUNTS),
        (js(MOUNTS),),
    ),
    Parser("node: diagnose", read_diagnosis, (), of_rows(STATUS, MOUNTS, STATUS["steps"]), (js(STATUS), js(MOUNTS))),
    Parser(
        "node: bundle (diff)",
        read_bundle,
        (),
        lambda rng: some_bytes(
            rng, SCRIPT.replace(js(STATUS), a_json(rng, [STATUS])), [SCRIPT], [b"\n== ", b"== end\n", b": FAILED\n"]
        ),
        (SCRIPT,),
    ),
    Parser("node: by the controller", read_controller, (), of_rows(HEARD, {"end": 1}), (js(HEARD),)),
    Parser(
        "node: question to neighbours",
        lambda data: PeerQuery.read(io.StringIO(text_of(data))),
        (UsageError,),
        of_json(QUESTION),
        (js(QUESTION),),
    ),
    Parser(
        "node: causes in a log",
        lambda data: list(known_issues.recognise(text_of(data) * 2)),
        (),
        of_bytes(
            [b"mount target s3 modprobe exceeded insufficient bad interpreter\n", js(STATUS)],
            [b"mount target ", b"s3", b"403", b"modprobe"],
        ),
        (js(STATUS),),
    ),
    Parser(
        "ssm: shell frame",
        lambda data: _parse_output(data, MARK),
        (),
        of_bytes([FRAME], [MARK.encode(), b"-begin\n", b"-end-", b"==", b"\r\n"]),
        (FRAME,),
    ),
    Parser(
        "ssh: known_hosts",
        read_hosts_file,
        (),
        of_bytes([HOSTS], [KEY, b"@revoked ", b"|1|", b"ssh-rsa ", b"ecdsa-sha2-nistp256 "]),
        (HOSTS,),
    ),
    Parser(
        "configuration: JSON",
        read_json_config,
        (ConfigError, UsageError),
        of_json(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, CONFIG),
        (js(CONFIG),),
    ),
    Parser(
        "configuration: YAML",
        read_yaml,
        (ConfigError, UsageError),
        of_bytes([yaml_seed()], [b"&a ", b"*a", b"!!python/object:x ", b"- ", b": ", b"<<: *a"]),
        (yaml_seed(),),
    ),
]
