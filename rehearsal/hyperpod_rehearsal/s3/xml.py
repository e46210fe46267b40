"""XML as S3 writes and reads it."""

from __future__ import annotations

import time
from typing import Iterable
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from hyperpod_rehearsal.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def text_element(name: str, content: object) -> str:
    """An element with text; booleans as S3 spells them."""
    if isinstance(content, bool):
        text = str(content).lower()
    else:
        text = str(content)
    return f"<{name}>{escape(text)}</{name}>"


def nested_element(name: str, *children: str) -> str:
    """An element with elements inside."""
    return f"<{name}>{''.join(children)}</{name}>"


def xml_document(name: str, *children: str) -> bytes:
    """Return a complete document with the S3 namespace on its root element."""
    return (f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{NAMESPACE}">{"".join(children)}</{name}>').encode(
        "utf-8", "surrogatepass"
    )


def error_document(error: S3Error, resource: str, request_id: str) -> bytes:
    """The answer that carries an error; it has no namespace."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        + nested_element(
            "Error",
            text_element("Code", error.code),
            text_element("Message", error.message),
            text_element("Resource", resource),
            text_element("RequestId", request_id),
        )
    ).encode("utf-8", "surrogatepass")


def format_timestamp(seconds: float) -> str:
    """Unix seconds as S3 writes them in XML."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def parse_document(data: bytes) -> ElementTree.Element:
    """The root of a request's document. Raises S3Error MalformedXML."""
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as err:
        raise S3Error(400, "MalformedXML", f"The XML you provided was not well-formed: {err}") from None


def find_children(element: ElementTree.Element, name: str) -> Iterable[ElementTree.Element]:
    """The direct children of that name, whatever namespace the client used."""
    return (child for child in element if child.tag.rsplit("}", 1)[-1] == name)


def child_text(element: ElementTree.Element, name: str) -> str | None:
    """Text of the first direct child of that name."""
    return next((child.text or "" for child in find_children(element, name)), None)
