"""A mail server and a topic, each on a port of its own, that can be down."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest
from moto import mock_aws

from tests.support.aws import as_client
from tests.support.mail_server import mail_server
from tests.support.topic_server import made_topic, published, topic_server


class AlertServers:
    """`mail` and `topics` come and go on their ports; what the topic has taken stays."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        with mail_server() as server, topic_server() as port:
            self.mail, self.mail_port, self.topic_port = server, server.server_address[1], port
        self.topic = made_topic("storage")

    def up(self, mail: bool = True, topics: bool = True) -> None:
        """Start them again."""
        if mail:
            self.mail = self._open.enter_context(mail_server(self.mail_port))
        if topics:
            self._open.enter_context(topic_server(self.topic_port))

    def down(self) -> None:
        self._open.close()

    @property
    def sinks(self) -> dict[str, str]:
        return {"mail": f"127.0.0.1:{self.mail_port}", "sns": self.topic}

    @property
    def recipients(self) -> List[List[str]]:
        """Of each mail since the server is up."""
        return [mail.recipients for mail in self.mail.received]

    @property
    def published(self) -> List[Tuple[str, str]]:
        return published(self.topic)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AlertServers]:
    as_client(monkeypatch)
    with mock_aws():
        made = AlertServers()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.topic_port}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        try:
            yield made
        finally:
            made.down()
