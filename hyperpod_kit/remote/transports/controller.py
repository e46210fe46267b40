"""Reports by way of one node of the cluster: one login, and that node asks the others (node/peers/query.py).

It reaches what this machine does not: nodes in a private subnet, and those that only Slurm lets in.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.errors import RunTimeout, Unreachable
from hyperpod_kit.remote.connect.ssh import SshRunner
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.transport import COMMAND, LONGEST_REPORT, NodeResponse, Progress
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import clean_one_line

AT_ONCE = 256
"""As node/peers/query.py has it: how many nodes it waits for at once."""


class ControllerTransport:
    """`addresses`: of the nodes that can ask the others, as this machine reaches them: one after the other is tried."""

    description = "through the controller"

    def __init__(self, access: SshAccess, addresses: Sequence[str]) -> None:
        self._access, self._addresses = access, addresses

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """Query all nodes through the first controller that answers (see Transport).

        Raises Unreachable when no controller can be asked, with what the last one said; UsageError.
        """
        for address in self._addresses[:-1]:
            with contextlib.suppress(Unreachable):
                return self._query_through(address, targets, progress)
        return self._query_through(self._addresses[-1], targets, progress)

    def _query_through(self, address: str, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        settings = self._access.settings
        request = {
            "connect_timeout": settings.connect_timeout,
            "timeout": settings.command_timeout,
            "nodes": [
                {"id": target.instance_id, "address": target.address, "slurm": slurm_node_name(target.address)}
                for target in targets
                if target.address
            ],
        }
        # Each round of nodes may try ssh in vain and then Slurm.
        rounds = math.ceil(len(targets) / AT_ONCE)
        seconds = 30 + rounds * 2 * (settings.connect_timeout + settings.command_timeout)
        runner = SshRunner(address, self._access, limit=max(1 << 20, len(targets) * LONGEST_REPORT // 8))
        try:
            done = runner.run([COMMAND[0], "node", "ask"], timeout=seconds, check=False, input=json.dumps(request))
        except RunTimeout as err:
            raise Unreachable(f"the controller {address} did not end within {seconds:g} s") from err
        if done.returncode != 0:
            raise Unreachable(
                f"the controller {address} cannot query the other nodes: exit code {done.returncode}: "
                f"{last_line_or_nothing_word(done.stderr, done.stdout)}",
                hint="exit code 2: its bundle is older than this command, 127: it has no bundle; use --via ssh "
                "or --via pull",
            )
        responses = _parse_responses(done.stdout)
        progress(len(targets))
        return [_node_response(target, responses.get(target.instance_id)) for target in targets]


def _parse_responses(text: str) -> dict[str, Mapping[str, Any]]:
    """Parse the controller's output: instance id -> response of that node. Other lines are ignored."""
    responses: dict[str, Mapping[str, Any]] = {}
    for line in text.splitlines():
        try:
            value = parse_json_object(line)
        except ValueError:
            continue
        if isinstance(value.get("id"), str):
            responses[value["id"]] = value
    return responses


def _node_response(target: NodeTarget, response: Optional[Mapping[str, Any]]) -> NodeResponse:
    if not target.address:
        return NodeResponse(error="AWS reports no address for the node", reached=False)
    if response is None:
        return NodeResponse(error="the controller returned nothing about it", hint="--via ssh", reached=False)
    if response.get("error"):
        return NodeResponse(error=clean_one_line(response["error"]), reached=False)
    returncode = response.get("returncode")
    if not isinstance(returncode, int):
        return NodeResponse(error="the controller's response about it cannot be read")
    return NodeResponse(
        str(response.get("stdout", "")),
        returncode,
        str(response.get("stderr", "")),
        doubt=_untrusted_owner_warning(response.get("owner")),
    )


def _untrusted_owner_warning(owner: object) -> str:
    if not isinstance(owner, int) or owner == 0:
        return ""
    return (
        f"ssh refused the controller's login: the report was made inside a job of uid {owner}, who could have "
        "changed it"
    )
