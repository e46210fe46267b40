"""What nodes, Slurm, ledgers, people's files and sockets say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
from pathlib import Path
from random import Random
from typing import Any, Callable, Dict, List, Sequence

from hyperpod_kit.checkpoint.agent.channel import Channel
from hyperpod_kit.config import document, load
from hyperpod_kit.errors import ConfigError, JobError, RunError, Untrusted, UsageError
from hyperpod_kit.job import exits, ledger, outcome, policy, shared_decision, status, status_page, sweep, timeline
from hyperpod_kit.node.peers.query import PeerQuestion
from hyperpod_kit.remote import causes, controller, installed, node_report
from hyperpod_kit.remote.diagnose import AwsWords, diagnose, sentences
from hyperpod_kit.remote.known_hosts import KnownHosts
from hyperpod_kit.remote.ssm_shell import _understood
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed
from hyperpod_kit.slurm import control, hostlist, records
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.untrusted.lines import Lines
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json, some_bytes, some_lines
from tests.hostile.fuzz.places import file_of, folder

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
}


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class Said:
    """A runner that answers the same to everything."""

    target = "n"

    def __init__(self, said: str) -> None:
        self.said = said

    def run(self, argv: Sequence[str], *, timeout: float, check: bool = True, input: Any = None, **_: Any) -> Completed:
        return Completed(tuple(argv), 0, self.said, self.said)


def read_diagnosis(data: bytes) -> None:
    [found] = diagnose([(TARGET, AwsWords())], lambda target: Said(text_of(data)))  # type: ignore[arg-type, return-value]
    list(sentences(found))
    found.to_dict()
    if any("its answers cannot be read" in odd for odd in found.odd):
        raise AssertionError(found.odd[0])  # nothing should need the last resort


def read_bundle(data: bytes) -> None:
    found = installed.understand(TARGET, text_of(data))
    found.to_dict()


def read_controller(data: bytes) -> None:
    for said in controller._said(text_of(data)).values():
        controller._response(TARGET, said)


def read_ledger(data: bytes) -> None:
    path = file_of(data, "root/.hpk/attempts.jsonl")
    found = timeline.attempts(os.path.dirname(os.path.dirname(path)), "", [])
    sums = timeline.totals(found, 2e9)
    status.table(found, sums)
    if len(data) % 8 == 0:
        status_page.page("x", found, sums, 2e9)
    rows = ledger.Ledger(os.path.dirname(path), "7", 1).rows()
    policy.spent(rows, (2, 5), 1)
    policy.poison(rows)


def read_decision(data: bytes) -> None:
    file_of(data, "state/decisions/7.0.0.0.json")
    record = shared_decision.agree(folder("state"), "7.0.0.0", lambda: {"from": None}, patience=0.0)
    for line in shared_decision.task_prolog_lines(record, "0"):
        if not line.isprintable():
            raise AssertionError(f"a line for the environment: {line!r}")


DECIDED = {
    "launch": "7.0.0.0",
    "by": "0@n",
    "t": 1.5,
    "from": "seq-000005.step-0000000050.e2-abcd",
    "step": 50,
    "order": [2, 5],
    "kind": "hyperpod-kit",
    "proof": "",
    "rejected": [{"attempt": "a", "why": "b"}],
}


def read_exits(data: bytes) -> None:
    file_of(data, "state/exits/7.0.0/0.json")
    found = exits.read(folder("state"), "7.0.0")
    for one in found:
        exits.describe(one)
    outcome.furthest(found)
    outcome.earliest(found)


NODE = (
    b"NodeName=ip-10-1-0-1 Arch=x86_64 NodeAddr=10.1.0.1 NodeHostName=ip-10-1-0-1 Port=6818 State=IDLE+DRAIN "
    b"BootTime=2026-11-20T23:58:03 Reason=hyperpod-kit:mount:fsx [root@2026-11-20T23:58:03]\n"
)
WORDS = [
    b"JobId=",
    b"JobState=",
    b"NodeList=",
    b"Port=",
    b"HetJobOffset=",
    b"Comment=",
    b"\n",
    b" ",
    b"=",
    b"(null)",
    b"7_[1-9]",
    b"State=",
    b"BootTime=",
    b"NodeName=",
    b"ip-[0-4294967295]",
]


def read_slurm(data: bytes) -> None:
    """Records of nodes and steps; and of jobs, with the mark that only squeue and we know."""
    runner: Any = Said(text_of(data))
    failed = None
    for ask in (lambda: control.all_nodes(runner), lambda: control.running_steps(runner, JobId("7"), "hpk")):
        try:
            ask()
        except (RunError, JobError) as err:
            failed = err
    found = records.split(text_of(data), "@mark@")
    if found is not None:
        with contextlib.suppress(RunError):
            sweep.orphans(found)
    if failed is not None:
        raise failed


SQUEUE = (
    b"".join(
        value + b"@mark@"
        for value in (
            b"7",
            b"7",
            b"2",
            b"",
            b"",
            b"1001",
            b"1001",
            b"RUNNING",
            b"None",
            b"1",
            b"0",
            b"1",
            b"n1",
            b"n[1-4]",
            b"hpk:elsewhere",
        )
    )
    + b"\n"
)


def read_hosts(data: bytes) -> None:
    names = hostlist.expand(text_of(data))
    if sorted(set(hostlist.expand(hostlist.compress(names)))) != sorted(set(names)):
        raise AssertionError("compress and expand disagree")


def read_lines(data: bytes) -> None:
    """As a socket gives them: in pieces, then its end."""
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        there.send(data[:100_000])
        there.close()
        found = Lines(here, 4096)
        while not found.ended or found.waiting:
            if found.arrived() is None and found.ended:
                return


def read_messages(data: bytes) -> None:
    here, there = socket.socketpair()
    with there:
        there.setblocking(False)
        there.send(data[:100_000])
        there.close()
        channel = Channel(here)
        try:
            while channel.arrived() is not None:
                pass
        except EOFError as err:
            if err.args:  # and not just the end
                raise
        finally:
            channel.close()


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
    document.read(Path(file_of(data, "config.yaml")))


def read_json_config(data: bytes) -> None:
    path = Path(file_of(data, "config.json"))
    if hash(data) % 64:
        document.read(path)
    else:
        load.check(path)  # all the rules, which are 50 times as slow


def yaml_seed() -> bytes:
    import yaml

    return yaml.safe_dump(CONFIG["hyperpod_kit"]["cluster"]).encode()


def of_json(*values: Any) -> Callable[[Random], bytes]:
    return lambda rng: a_json(rng, values)


def of_rows(*values: Any) -> Callable[[Random], bytes]:
    seed = b"\n".join(map(js, values)) + b"\n"
    return lambda rng: some_lines(rng, seed, lambda inner: a_json(inner, values))


def of_bytes(seeds: List[bytes], words: Sequence[bytes] = ()) -> Callable[[Random], bytes]:
    return lambda rng: some_bytes(rng, rng.choice(seeds), seeds, words)


ROWS: List[Dict[str, Any]] = [
    {
        "t": 1.5,
        "job": "7",
        "restart": 0,
        "event": "attempt",
        "attempt": "7.0.0",
        "nodes": ["n1"],
        "from": "seq-x",
        "step": 5,
        "order": [2, 5],
        "kind": "hyperpod-kit",
        "proof": "",
        "rejected": [{"attempt": "a", "why": "b"}],
    },
    {
        "t": 9,
        "job": "7",
        "restart": 0,
        "event": "ended",
        "attempt": "7.0.0",
        "class": "crash",
        "seconds": 7.5,
        "code": 1,
        "lost": ["n1"],
        "first": {"rank": 0, "node": "n1", "code": 1, "signal": None},
        "reached": 9,
        "begins": 6,
    },
    {"t": 10, "job": "7", "restart": 0, "event": "requeue", "why": "x", "life": "ab"},
    {"t": 11, "job": "7", "restart": 1, "event": "gave_up", "why": "y"},
]
EXIT = {
    "rank": 0,
    "node": "n1",
    "boot_id": "b",
    "code": 1,
    "signal": None,
    "started": 1.5,
    "ended": 2.5,
    "step": 5,
    "begins": 1,
}
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

PARSERS = [
    Parser(
        "job: decision record",
        read_decision,
        (JobError,),
        of_json(DECIDED, {**DECIDED, "from": None}),
        (js(DECIDED),),
    ),
    Parser(
        "node: mount report",
        lambda data: node_report.read_report(text_of(data)),
        (node_report.NoReport,),
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
        lambda data: PeerQuestion.read(io.StringIO(text_of(data))),
        (UsageError,),
        of_json(QUESTION),
        (js(QUESTION),),
    ),
    Parser(
        "node: causes in a log",
        lambda data: list(causes.recognise(text_of(data) * 2)),
        (),
        of_bytes(
            [b"mount target s3 modprobe exceeded insufficient bad interpreter\n", js(STATUS)],
            [b"mount target ", b"s3", b"403", b"modprobe"],
        ),
        (js(STATUS),),
    ),
    Parser(
        "ssm: shell frame",
        lambda data: _understood(data, MARK),
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
    Parser("job: ledger", read_ledger, (OSError,), of_rows(*ROWS), (b"\n".join(map(js, ROWS)),)),
    Parser("job: exit records", read_exits, (), of_json(EXIT), (js(EXIT),)),
    Parser(
        "slurm: records",
        read_slurm,
        (RunError, JobError),
        of_bytes([SQUEUE * 2, NODE, b"7.0 hpk-rank\n7.batch batch\n"], [b"@mark@", *WORDS]),
        (NODE,),
    ),
    Parser(
        "slurm: host lists",
        read_hosts,
        (ValueError,),
        of_bytes(
            [b"ip-10-1-41-[18-20],x[01-03]", b"a[1-2]b[3-4]", b"n1"],
            [b"[", b"]", b"-", b",", b"[0-9]", b"[000-999]", b"9" * 12],
        ),
        (b"x[01-03]",),
    ),
    Parser(
        "socket: lines",
        read_lines,
        (Untrusted,),
        of_bytes([b'{"op":"hello"}\n' * 3], [b"\n", b"x" * 5000]),
        (b"x\n",),
    ),
    Parser(
        "socket: agents' messages",
        read_messages,
        (EOFError,),
        of_rows({"op": "which", "key": [2, 5, "ab"], "tensors": None}),
        (b"{}\n",),
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
