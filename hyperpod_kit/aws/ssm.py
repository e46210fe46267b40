"""SSM sessions to HyperPod nodes.

SendCommand does not reach them. StartSession does, three times a second for a whole account.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from hyperpod_kit.aws.back_off import with_retries
from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client


def target(cluster_arn: str, group: str, instance_id: str) -> str:
    """SSM's name of a node. The id in it is the end of the cluster's ARN, not the cluster's name."""
    return f"sagemaker-cluster:{cluster_arn.rsplit('/', 1)[-1]}_{group}-{instance_id}"


class Ssm:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None) -> None:
        self._client = client("ssm", region)

    @property
    def region(self) -> str:
        """The region that is asked."""
        return str(self._client.meta.region_name)

    @property
    def endpoint(self) -> str:
        """URL of the service, which the session's plugin asks too."""
        return str(self._client.meta.endpoint_url)

    def start_session(self, request: Mapping[str, Any]) -> dict[str, str]:
        """SessionId, TokenValue and StreamUrl of a new session. `request`: as `session_request` makes it."""

        def once() -> Any:
            with translated("StartSession", request["Target"]):
                return self._client.start_session(**request)

        response = with_retries(once)
        return {key: str(response[key]) for key in ("SessionId", "TokenValue", "StreamUrl")}

    def terminate_session(self, session_id: str) -> None:
        """End a session that nobody took up."""
        with translated("TerminateSession", session_id):
            self._client.terminate_session(SessionId=session_id)


def session_request(
    node: str, document: Optional[str] = None, parameters: Optional[Mapping[str, Sequence[str]]] = None
) -> dict[str, Any]:
    """StartSession's request. `node`: as `target` makes it; `document`: None for a login shell."""
    request: dict[str, Any] = {"Target": node}
    if document is not None:
        request["DocumentName"] = document
    if parameters:
        request["Parameters"] = {key: list(values) for key, values in parameters.items()}
    return request
