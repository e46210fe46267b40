"""SSM sessions to HyperPod nodes.

SendCommand does not reach them. StartSession does, three times a second for a whole account.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.aws.back_off import retry_while_throttled
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client


def node_session_target(cluster_arn: str, group: str, instance_id: str) -> str:
    """Return SSM's name of a node. The id in it is the end of the cluster's ARN, not the cluster's name."""
    return f"sagemaker-cluster:{cluster_arn.rsplit('/', 1)[-1]}_{group}-{instance_id}"


class Ssm:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None) -> None:
        self._client = client("ssm", region)

    @property
    def region(self) -> str:
        """Return the region that calls go to."""
        return str(self._client.meta.region_name)

    @property
    def endpoint(self) -> str:
        """Return the URL of the service, which the session's plugin calls too."""
        return str(self._client.meta.endpoint_url)

    def start_session(self, request: Mapping[str, Any]) -> dict[str, str]:
        """Start a session and return its SessionId, TokenValue and StreamUrl.

        `request`: as `session_request` makes it.
        """

        def once() -> Any:
            with translate_aws_errors("StartSession", request["Target"]):
                return self._client.start_session(**request)

        response = retry_while_throttled(once)
        return {key: str(response[key]) for key in ("SessionId", "TokenValue", "StreamUrl")}

    def terminate_session(self, session_id: str) -> None:
        """End a session that nothing uses."""
        with translate_aws_errors("TerminateSession", session_id):
            self._client.terminate_session(SessionId=session_id)


def session_request(
    target: str, document: Optional[str] = None, parameters: Optional[Mapping[str, Sequence[str]]] = None
) -> dict[str, Any]:
    """Return the arguments of StartSession.

    `target`: as `node_session_target` makes it; `document`: None for a login shell.
    """
    request: dict[str, Any] = {"Target": target}
    if document is not None:
        request["DocumentName"] = document
    if parameters:
        request["Parameters"] = {key: list(values) for key, values in parameters.items()}
    return request
