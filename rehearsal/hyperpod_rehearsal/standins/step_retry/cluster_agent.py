"""HyperPod's cluster agent on the controller: it looks at a job's nodes, and exchanges those that are not healthy.

What is known of the real one is what it says in public logs. Here a node is unhealthy when its slurmd does not answer,
or when Slurm has it DOWN or as FAIL with one of HyperPod's reasons; replacing it is the platform's, by that reason.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

from hyperpod_rehearsal.standins.step_retry.agent_call import PORT, AgentError, decode_munge_credential_with_uid

SCONTROL = "/opt/slurm/bin/scontrol"
REPLACE = "Action:Replace"
REASONS = (REPLACE, "Action:Reboot")
SLURMD = 6818
TRES = ("TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket", "ReqTRES", "AllocTRES", "TRES")
"""Fields of a job that name what it has of each node, GPUs as gres."""

TRIES, CONNECT_TIMEOUT = 2, 1.5
"""How often a slurmd is asked for a connection, and for how many seconds."""


RESIZE_WITHIN = 30.0
"""Seconds that slurmctld gets to take a resize."""


def run_scontrol(*argv: str) -> str:
    """Run scontrol and return its output. Raises AgentError with Slurm's message."""
    with tempfile.TemporaryDirectory() as directory:  # a resize leaves scripts where it was called
        done = subprocess.run(
            [SCONTROL, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=60,
            cwd=directory,
        )
    if done.returncode:
        raise AgentError(f"scontrol {' '.join(argv)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def parse_scontrol_record(line: str) -> Dict[str, str]:
    """The fields of one record of `scontrol -o show`."""
    by_name: Dict[str, str] = {}
    for name, value in re.findall(r"(\S+?)=(\S*)", line):
        by_name.setdefault(name, value)
    return by_name


def expand_hostlist(names: str) -> List[str]:
    return run_scontrol("show", "hostnames", names).split()


def is_node_up_and_slurmd_reachable(node: str) -> bool:
    record = run_scontrol("-o", "show", "node", node)
    node_fields = parse_scontrol_record(record)
    state = node_fields.get("State", "")
    if "DOWN" in state or ("FAIL" in state and any(f"Reason={reason} " in record for reason in REASONS)):
        return False
    for number in range(TRIES):
        try:
            socket.create_connection((node_fields.get("NodeAddr", node), SLURMD), timeout=CONNECT_TIMEOUT).close()
            return True
        except OSError:
            time.sleep(0.5 if number + 1 < TRIES else 0)
    return False


class ClusterAgent:
    """Answers one question after the other."""

    def execute_request(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Execute diagnose, shrink or expand for the job's owner or root. Raises AgentError."""
        job = parse_scontrol_record(run_scontrol("-o", "show", "job", str(int(request["job"]))))
        owner = int(job["UserId"].rpartition("(")[2].rstrip(")"))
        if request["uid"] not in (0, owner):
            raise AgentError(f"job {job['JobId']} is not uid {request['uid']}'s")
        if request["action"] == "expand":
            return self._expand_job(job, str(int(request["donor"])))
        return {"diagnose": self._diagnose_fail_nodes_maybe_requeue, "shrink": self._shrink_job}[request["action"]](job)

    def _diagnose_fail_nodes_maybe_requeue(self, job: Dict[str, str]) -> Dict[str, Any]:
        if job["JobState"] != "RUNNING":
            return {"action": "NONE"}
        bad = [node for node in expand_hostlist(job["NodeList"]) if not is_node_up_and_slurmd_reachable(node)]
        if not bad:
            return {"action": "NONE"}
        for node in bad:
            run_scontrol("update", f"nodename={node}", "state=fail", f"reason={REPLACE}")
        if any("gres" in job.get(name, "") for name in TRES) or job.get("BatchHost") in bad:
            # Slurm resizes no job with GRES; and one without its batch host has nobody to retry the step.
            run_scontrol("requeue", job["JobId"])
            return {"action": "REQUEUEJOB"}
        return {"action": "RETRYSTEP"}

    def _shrink_job(self, job: Dict[str, str]) -> Dict[str, Any]:
        before = expand_hostlist(job["NodeList"])
        remaining = [node for node in before if is_node_up_and_slurmd_reachable(node)]
        if len(remaining) < len(before):
            run_scontrol("update", f"jobid={job['JobId']}", f"nodelist={','.join(remaining)}")
        return {"nodes": ",".join(remaining), "missing": len(before) - len(remaining)}

    def _expand_job(self, job: Dict[str, str], donor: str) -> Dict[str, Any]:
        run_scontrol("update", f"jobid={donor}", "numnodes=0")
        end = time.monotonic() + RESIZE_WITHIN
        while True:
            try:
                run_scontrol("update", f"jobid={job['JobId']}", "numnodes=ALL")
                break
            except AgentError:  # Slurm writes the first resize down for a moment, and refuses another until then
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        return {
            "nodes": ",".join(
                expand_hostlist(parse_scontrol_record(run_scontrol("-o", "show", "job", job["JobId"]))["NodeList"])
            )
        }


class _AgentRequestHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(30)
        try:
            request = decode_munge_credential_with_uid(json.loads(self.rfile.readline(65536))["credential"])
            response = ClusterAgent().execute_request(request)
        except (AgentError, OSError, ValueError, KeyError, subprocess.SubprocessError) as err:
            request, response = {}, {"error": str(err) or repr(err)}
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {request} -> {response}", flush=True)
        self.wfile.write(json.dumps(response).encode() + b"\n")


class _AgentServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def main(argv: List[str]) -> int:
    with _AgentServer(("0.0.0.0", PORT), _AgentRequestHandler) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
