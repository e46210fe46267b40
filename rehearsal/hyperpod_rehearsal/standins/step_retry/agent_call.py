"""The way from srun to the cluster agent: a question in one line of JSON, with munge's word for who asks it."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import Any, Dict, Optional

PORT = 6830
PATIENCE = 120.0
"""Seconds for an answer: a diagnosis takes 10 to 30 s on HyperPod."""


class AgentError(Exception):
    """The agent did not answer, or refused."""


def encode_request_as_munge_credential(request: Dict[str, Any]) -> str:
    """Return a munge credential that carries a request. Raises AgentError."""
    return _run_munge("munge", json.dumps(request))


def decode_munge_credential_with_uid(credential: str) -> Dict[str, Any]:
    """Return the request of a munge credential with `uid` of its sender.

    Raises AgentError when the credential is none, or was decoded before.
    """
    head, _, payload = _run_munge("unmunge", credential, "--keys=UID", "--numeric").partition("\n\n")
    return {**json.loads(payload), "uid": int(head.split()[-1])}


def _run_munge(program: str, text: str, *arguments: str) -> str:
    done = subprocess.run(
        [program, *arguments],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=20,
    )
    if done.returncode:
        raise AgentError(f"{program}: {done.stderr.strip()}")
    return done.stdout


def call_agent(host: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """The agent's answer. Raises AgentError."""
    try:
        with socket.create_connection((host, PORT), timeout=PATIENCE) as sock, sock.makefile("rw") as lines:
            lines.write(json.dumps({"credential": encode_request_as_munge_credential(request)}) + "\n")
            lines.flush()
            response: Optional[Dict[str, Any]] = json.loads(lines.readline() or "null")
    except (OSError, ValueError) as err:
        raise AgentError(f"the cluster agent at {host}: {err}") from err
    if response is None or "error" in response:
        raise AgentError(f"the cluster agent at {host}: {response['error'] if response else 'no answer'}")
    return response
