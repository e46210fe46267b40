"""Mail and SNS: each accepts an alert or does not, and says which of its recipients have it."""

from __future__ import annotations

import smtplib
from email.message import EmailMessage
from typing import Any, Callable, Dict, List, NamedTuple, Protocol, Sequence

from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.alerts.alert import Alert, AlertChannel
from hyperpod_kit.storage.alerts.config import AlertSinks
from hyperpod_kit.untrusted.text import clean_one_line

REPLY_TIMEOUT = 20.0
"""For one answer of a mail server."""
MAIL_PORT = 25
MAX_SUBJECT = 100
"""Characters of a subject that SNS takes, of ASCII."""
MAX_SENTENCE = 20000
"""Characters of a sentence: more than any alert has."""


_MESSAGE_ERRORS = (smtplib.SMTPDataError, smtplib.SMTPNotSupportedError, ValueError)
"""Errors that say nothing of other messages."""


class DeliveryResult(NamedTuple):
    """Who has an alert.

    `channels`: those that have it now; `failed`: the others, one line each; `down`: whether the sink would fail for
    every other alert too.
    """

    channels: Sequence[AlertChannel]
    failed: Sequence[str]
    down: bool = False


class AlertSender(Protocol):
    """A sink, open for as long as one check lasts."""

    def send(self, alert: Alert, to: Sequence[AlertChannel], message_id: str) -> DeliveryResult:
        """Send the alert to these channels of its own."""

    def close(self) -> None: ...


def channels_for_alert(sinks: AlertSinks, alert: Alert) -> List[AlertChannel]:
    """List the channels that have to accept an alert."""
    accepting: List[AlertChannel] = []
    if sinks.mail:
        accepting += [AlertChannel("mail", address) for address in dict.fromkeys(alert.to)]
    if sinks.sns:
        accepting.append(AlertChannel("sns", sinks.sns))
    return accepting


class MailSender:
    """Mail, by one connection for all alerts of a check."""

    def __init__(self, sinks: AlertSinks) -> None:
        self._sinks = sinks
        self._server: smtplib.SMTP | None = None

    def send(self, alert: Alert, to: Sequence[AlertChannel], message_id: str) -> DeliveryResult:
        addresses = [channel.address for channel in to]
        try:
            refused = self._connect_once().send_message(self._build_message(alert, message_id), to_addrs=addresses)
        except smtplib.SMTPRecipientsRefused as err:
            refused = err.recipients
        except (OSError, smtplib.SMTPException, ValueError) as err:
            # `quit` may wait for the server that has just not answered.
            self._disconnect()
            return DeliveryResult((), [f"mail: {err}"], down=not isinstance(err, _MESSAGE_ERRORS))
        failed = [f"mail: {address}: {_format_smtp_reply(reply)}" for address, reply in refused.items()]
        return DeliveryResult([channel for channel in to if channel.address not in refused], failed)

    def _connect_once(self) -> smtplib.SMTP:
        if self._server is None:
            host, _, port = self._sinks.mail.partition(":")
            self._server = smtplib.SMTP(host, int(port or MAIL_PORT), timeout=REPLY_TIMEOUT)
        return self._server

    def _build_message(self, alert: Alert, message_id: str) -> EmailMessage:
        message = EmailMessage()
        message["From"], message["To"] = self._sinks.mail_from, ", ".join(alert.to)
        message["Subject"] = clean_one_line(alert.subject, 200)
        # The same for each try, so that a mail program shows an alert that came twice once.
        message["Message-ID"] = f"<{message_id}@hyperpod-kit>"
        message.set_content(clean_one_line(alert.sentence, MAX_SENTENCE))
        return message

    def _disconnect(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        if self._server is not None:
            try:
                self._server.quit()
            except (OSError, smtplib.SMTPException):
                self._disconnect()


class TopicSender:
    """SNS, by one client for all alerts of a check."""

    def __init__(self, sinks: AlertSinks) -> None:
        self._client: Any = None

    def send(self, alert: Alert, to: Sequence[AlertChannel], message_id: str) -> DeliveryResult:
        (channel,) = to
        topic = channel.address
        subject = clean_one_line(alert.subject, MAX_SUBJECT).encode("ascii", "replace").decode()[:MAX_SUBJECT]
        try:
            with translate_aws_errors("Publish", topic):
                self._cached_sns_client(topic).publish(
                    TopicArn=topic, Subject=subject, Message=clean_one_line(alert.sentence, MAX_SENTENCE)
                )
        except (HyperpodKitError, OSError, ValueError) as err:
            return DeliveryResult((), [f"sns: {err}"], down=not isinstance(err, _MESSAGE_ERRORS))
        return DeliveryResult([channel], [])

    def _cached_sns_client(self, topic: str) -> Any:
        if self._client is None:
            fields = topic.split(":")
            region = fields[3] if len(fields) >= 6 else None
            self._client = client("sns", region)
        return self._client

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


SENDERS: Dict[str, Callable[[AlertSinks], AlertSender]] = {"mail": MailSender, "sns": TopicSender}
"""Sink -> what sends there."""


def _format_smtp_reply(reply: Any) -> str:
    code, text = reply
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return f"{code} {text}"
