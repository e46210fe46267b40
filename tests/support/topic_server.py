"""SNS on loopback: moto's topics behind a real HTTP server, so that it can be down."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, List, Tuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from moto.backends import get_backend
from moto.sns.responses import SNSResponse
from werkzeug.wrappers import Request, Response

REGION = "us-east-1"
ACCOUNT = "123456789012"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _answer(environ: Any, start: Any) -> Iterable[bytes]:
    request = Request(environ)
    # As moto's own server, which this machine has not all of, makes of it.
    vars(request).update(from_wsgi_server=True, raw_path=request.full_path)
    status, headers, body = SNSResponse.dispatch(request, f"https://sns.{REGION}.amazonaws.com/", request.headers)
    return Response(body, status, headers)(environ, start)


@contextmanager
def topic_server(port: int = 0) -> Iterator[int]:
    """Its port, until the block ends; the topics stay for a server that comes after it."""
    with WSGIServer(("127.0.0.1", port), _Quiet) as server:
        server.set_app(_answer)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def made_topic(name: str) -> str:
    """The ARN of a topic."""
    topic = get_backend("sns")[ACCOUNT][REGION].create_topic(name)
    return str(topic.arn)


def published(arn: str) -> List[Tuple[str, str]]:
    """(subject, message) of what the topic has taken."""
    topic = get_backend("sns")[ACCOUNT][REGION].topics[arn]
    return [(str(row[2]), str(row[1])) for row in topic.sent_notifications]
