"""The password that an optional step writes into the file of a daemon, out of a secret of the configuration.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import json

from hyperpod_kit.errors import NodeError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text


def read_password(node: Node, secret_arn: str, *, forbidden_characters: str) -> str:
    """Read the password from the file of a secret: the password itself, or what RDS keeps: {"username": …,
    "password": …}. Its value is in no message.

    forbidden_characters: those that the daemon's file has no way to write; a backslash is one of them
    anywhere. Raises NodeError.
    """
    secret = next(
        (secret_entry.name for secret_entry in node.config.secrets if secret_entry.arn == secret_arn), secret_arn
    )
    text = read_text(node.paths.secret(secret))
    if text is None:
        raise NodeError(
            f"the secret {secret} is not on this node", hint="on the node: systemctl start hyperpod-kit-secrets.service"
        )
    password: object = text.strip("\n")
    with contextlib.suppress(ValueError):
        document = json.loads(text)
        if isinstance(document, dict):
            password = document.get("password")
    refused = set(forbidden_characters) | {"\\"}
    if not isinstance(password, str) or not password or not password.isprintable() or set(password) & refused:
        raise NodeError(
            f"the secret {secret} has no password that can be written into a settings file",
            hint="keep it as text, or as JSON with a key `password`; "
            f"without line ends and without any of {' '.join(sorted(refused))}",
        )
    return password
