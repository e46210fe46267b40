"""What validate-mounts costs on a large cluster: the whole command against real ssh servers, some of them hostile.

    python lab/programs/fleet.py [--nodes 1000] [--timeout 8] [--connect-timeout 5]

Prints one JSON object: seconds and processor seconds of the command from its start to its exit code, its peak memory,
and every node whose verdict is not the one that it deserves. The nodes (fleet_nodes.py, one process) and the
SageMaker endpoint run on the same machine, so their work is in the seconds too; `servers_cpu_s` says how much.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

from fleet_nodes import KINDS

ROOT = Path(__file__).resolve().parents[2]
ACCESS_KEY, SECRET_KEY = "AKIABENCH", secrets.token_hex(20)
EXAMPLE = ROOT / "provisioning_parameters.example.json"
# A small process between: Linux counts as a child's peak also what its parent had when it forked.
WATCHER = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:])\n"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(done.returncode)"
)


class Control:
    """The one cluster that SageMaker's endpoint knows."""

    def __init__(self, nodes: List[Dict[str, str]]) -> None:
        self._nodes = [
            {
                "InstanceGroupName": "worker-group",
                "InstanceId": node["instance_id"],
                "InstanceType": "ml.c5.xlarge",
                "LaunchTime": 1767225600.0,
                "InstanceStatus": {"Status": "Running"},
                "PrivateDnsHostname": f"ip-{node['address'].replace('.', '-')}.ec2.internal",
            }
            for node in nodes
        ]
        if self._nodes:
            self._nodes[0]["InstanceGroupName"] = "controller-machine"
        self._by_id = {node["InstanceId"]: node for node in self._nodes}

    def list_cluster_nodes(self, name: str) -> List[Dict[str, Any]]:
        return self._nodes

    def describe_cluster_node(self, name: str, node_id: str) -> Dict[str, Any]:
        node = self._by_id[node_id]
        return {**node, "PrivatePrimaryIp": str(node["PrivateDnsHostname"]).split(".")[0][3:].replace("-", ".")}


@contextmanager
def run_fleet(directory: Path, count: int, only_kind: str) -> Iterator[Dict[str, Any]]:
    """The nodes, in a process of their own, and the endpoint, in another; yields where they are."""
    command = [sys.executable, str(Path(__file__).with_name("fleet_nodes.py")), str(directory), str(count)]
    if only_kind:
        command.append(only_kind)
    nodes = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert nodes.stdout is not None and nodes.stdin is not None
    where = json.loads(nodes.stdout.readline())
    reader, writer = os.pipe()
    endpoint = os.fork()
    if endpoint == 0:
        serve_endpoint(directory, where["nodes"], reader, writer)
    os.close(reader)
    try:
        url = ""
        if wait_until_exists(directory / "url"):
            url = (directory / "url").read_text()
        yield {**where, "url": url, "pids": [nodes.pid, endpoint]}
    finally:
        os.close(writer)
        os.waitpid(endpoint, 0)
        nodes.stdin.close()
        nodes.wait()


def serve_endpoint(directory: Path, nodes: List[Dict[str, str]], reader: int, writer: int) -> None:
    """Answer for SageMaker until the other end of the pipe is closed; does not return."""
    from hyperpod_rehearsal.credentials.keys import Key
    from hyperpod_rehearsal.s3.store import StoredBuckets
    from hyperpod_rehearsal.server import serve

    os.close(writer)
    server = serve(
        [("127.0.0.1", 0)],
        StoredBuckets(directory / "s3"),
        Control(nodes),  # type: ignore[arg-type]
        keys={ACCESS_KEY: Key(ACCESS_KEY, SECRET_KEY)},
    )
    (directory / "url.new").write_text(server.url)
    (directory / "url.new").rename(directory / "url")
    os.read(reader, 1)
    os._exit(0)


def wait_until_exists(path: Path) -> bool:
    end = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{path} did not appear")
        time.sleep(0.01)
    return True


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_validate_mounts(directory: Path, args: argparse.Namespace) -> Dict[str, Any]:
    with run_fleet(directory, args.nodes, args.all) as where:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AWS_ENDPOINT_URL": where["url"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        command = [
            "validate-mounts",
            str(EXAMPLE),
            "--ssh-key",
            str(directory / "id_ecdsa"),
            "--known-hosts",
            str(directory / "known_hosts"),
            "--ssh-port",
            str(where["port"]),
            "--connect-timeout",
            str(args.connect_timeout),
            "--timeout",
            str(args.timeout),
            *args.words,
        ]
        before = [cpu_seconds(pid) for pid in where["pids"]]
        earlier = resource.getrusage(resource.RUSAGE_CHILDREN)
        started_at = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", WATCHER, sys.executable, "-m", "hyperpod_kit.cli.main", *command],
            env=environment,
            cwd=directory,
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - started_at
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        errors, _, peak = done.stderr.rstrip().rpartition("\n")
        servers = [cpu_seconds(pid) - start for pid, start in zip(where["pids"], before)]
        kinds = {node["instance_id"]: node["kind"] for node in where["nodes"]}
    if "--json" not in args.words or not done.stdout:
        print(done.stdout, errors, file=sys.stderr)
    figures = {
        "nodes": args.nodes,
        "seconds": round(seconds, 2),
        "exit_code": done.returncode,
        "cpu_s": round(usage.ru_utime + usage.ru_stime - earlier.ru_utime - earlier.ru_stime, 2),
        "servers_cpu_s": [round(spent, 2) for spent in servers],
        "peak_memory_mib": round(int(peak) / 1024, 1),
    }
    if "--json" in args.words:
        figures.update(compare_verdicts(done.stdout, kinds))
    return figures


def compare_verdicts(text: str, kinds: Dict[str, str]) -> Dict[str, Any]:
    """How many nodes of each kind there were, and the wrong verdicts."""
    wrong = []
    report: Dict[str, Any] = {}
    if text:
        report = json.loads(text)
    reported: Dict[str, Any] = {}
    if report:
        reported = {node["instance_id"]: node for node in report["nodes"]}
    for instance, kind in kinds.items():
        right = True
        if kind in KINDS:
            right = KINDS[kind].healthy
        if instance not in reported or reported[instance]["healthy"] is not right:
            wrong.append({"node": instance, "kind": kind, "said": reported.get(instance, {}).get("error", "nothing")})
    counts: Dict[str, int] = {}
    for kind in kinds.values():
        counts[kind] = counts.get(kind, 0) + 1
    return {"kinds": counts, "wrong": len(wrong), "wrong_verdicts": wrong[:10]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=8.0)
    parser.add_argument("--connect-timeout", type=float, default=5.0)
    parser.add_argument("--all", default="", choices=["ok", *KINDS], metavar="KIND", help="every node is of this kind")
    parser.add_argument("words", nargs="*", default=["--json"], help="after --: more options, in place of --json")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hyperpod-kit-fleet-"))
    try:
        print(json.dumps(measure_validate_mounts(directory, args), indent=1))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
