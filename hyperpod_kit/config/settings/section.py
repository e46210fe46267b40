"""One object of the configuration, read key by key; whatever is wrong becomes a finding, never an exception.

A key that nobody asked for is an unknown key. A wrong or missing value is replaced by a placeholder of the right type,
so that reading goes on and all findings come at once. Every key that is asked for is noted too: what the decoder asks
is what there is to know about the format, and what it got is the configuration with all defaults (schema_recorder.py).
"""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import Any, Iterator, Mapping, Optional

from hyperpod_kit.config.settings.findings import ERROR, Finding
from hyperpod_kit.config.settings.schema_recorder import KeyPath, KeyRead, Kind
from hyperpod_kit.untrusted.text import counted

_KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


MOST_UNKNOWN = 20
"""Unknown keys of one object that are named; of more it is another kind of file."""


class Section:
    """Reads `raw` (anything; wrong if not an object), which lies at `path`, and appends to `findings` and `reads`."""

    def __init__(
        self,
        raw: Any,
        path: str,
        findings: list[Finding],
        reads: Optional[list[KeyRead]] = None,
        key_path: KeyPath = (),
    ) -> None:
        self.path = path
        self._findings = findings
        self._reads = [] if reads is None else reads
        self._key_path = key_path
        self._requested_keys: list[str] = []
        if not isinstance(raw, Mapping):
            self.record_finding("HPK-C003", "", f"expected an object, found {_shorten_repr(raw)}", "Write it as {…}")
            raw = {}
            self._broken = True
        else:
            self._broken = False
        self.raw: Mapping[str, Any] = raw

    def path_of(self, key: str) -> str:
        """Path of a key of this section."""
        return ".".join(part for part in (self.path, key) if part)

    def record_finding(self, code: str, key: str, message: str, hint: str, severity: str = ERROR) -> None:
        """Record a finding about `key`, or about the whole section when `key` is empty."""
        self._findings.append(Finding(code, self.path_of(key), message, hint, severity))

    def is_written_and_not_null(self, key: str) -> bool:
        """Whether the key is written and not null. Does not make the key known."""
        return self.raw.get(key) is not None

    def read_text_or_report(self, key: str, default: Optional[str] = None) -> str:
        """A string; required when there is no default."""
        value = self._read_typed_value(key, str, default)
        self._record_read(key, "text", default, value)
        if value is not None:
            return str(value)
        return ""

    def read_optional_text(self, key: str) -> Optional[str]:
        """A string, or None when the key is not written."""
        value = None
        if self._mark_requested_and_is_written(key):
            value = self._read_typed_value(key, str, "")
        self._record_read(key, "text", None, value, optional=True)
        if value is None:
            return None
        return str(value)

    def read_integer_or_report(self, key: str, default: Optional[int] = None) -> int:
        """A whole number; required when there is no default."""
        value = self._read_typed_value(key, int, default)
        self._record_read(key, "integer", default, value)
        if value is not None:
            return int(value)
        return 0

    def read_optional_integer(self, key: str) -> Optional[int]:
        """A whole number, or None when the key is not written."""
        value = None
        if self._mark_requested_and_is_written(key):
            value = self._read_typed_value(key, int, 0)
        self._record_read(key, "integer", None, value, optional=True)
        if value is None:
            return None
        return int(value)

    def read_number_or_report(self, key: str, default: float) -> float:
        """Read a number."""
        value = self._read_typed_value(key, float, default)
        self._record_read(key, "number", default, value)
        if value is not None:
            return float(value)
        return default

    def read_boolean_or_report(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self._read_typed_value(key, bool, default)
        self._record_read(key, "boolean", default, value)
        if value is not None:
            return bool(value)
        return default

    def read_texts_or_report(self, key: str, default: Optional[tuple[str, ...]] = None) -> tuple[str, ...]:
        """A list of strings; required when there is no default."""
        value = self._read_typed_value(key, list, None if default is None else list(default))
        strings = []
        for index, item in enumerate(value or ()):
            if isinstance(item, str):
                strings.append(item)
            else:
                self.record_finding(
                    "HPK-C003",
                    f"{key}[{index}]",
                    f"expected a string, found {_shorten_repr(item)}",
                    "Write it in quotes",
                )
        self._record_read(key, "texts", None if default is None else list(default), strings)
        return tuple(strings)

    def read_texts_by_key(self, key: str) -> tuple[tuple[str, str], ...]:
        """An object whose keys are anybody's choice and whose values are strings; empty when it is not written."""
        inner = self.child_or_empty_stand_in(key, required=False)
        pairs = tuple((name, Section.read_text_or_report(inner, name)) for name in inner.raw)
        self._record_read(key, "texts_by_key", {}, None)
        return pairs

    def read_untyped_object(self, key: str) -> dict[str, Any]:
        """An object that is passed on as it is, but for what is null; empty when it is not written."""
        inner = self.child_or_empty_stand_in(key, required=False)
        things = {str(name): value for name, value in inner.raw.items() if value is not None}
        self._record_read(key, "things_by_key", {}, things)
        return things

    def child_or_empty_stand_in(self, key: str, *, required: bool = True) -> Section:
        """An object; an empty one stands in when it is missing."""
        if not self.is_written_and_not_null(key):
            self._read_typed_value(key, dict, None if required else {})
            self._record_read(key, "object", None, None, optional=not required)
            stand_in = Section({}, self.path_of(key), [], self._reads, (*self._key_path, key))
            stand_in._broken = True
            return stand_in
        self._requested_keys.append(key)
        self._record_read(key, "object", None, {}, optional=not required)
        return Section(self.raw[key], self.path_of(key), self._findings, self._reads, (*self._key_path, key))

    def read_list_of_sections(self, key: str, *, required: bool = False) -> Iterator[Section]:
        """The objects of a list."""
        items = self._read_typed_value(key, list, None if required else []) or ()
        self._record_read(key, "list", None if required else [], [])
        for index, item in enumerate(items):
            yield Section(
                item, f"{self.path_of(key)}[{index}]", self._findings, self._reads, (*self._key_path, key, index)
            )

    def read_untyped_value(self, key: str) -> Any:
        """A value that is passed on as it is; None when it is not written."""
        self._requested_keys.append(key)
        value = self.raw.get(key)
        self._record_read(key, "anything", None, value, optional=True)
        return value

    def report_unknown_keys(self) -> None:
        """Record a finding for each key that was never read, with the nearest known name as hint."""
        requested_keys = set(self._requested_keys)
        unknown_keys = [key for key in self.raw if key not in requested_keys]
        for key in unknown_keys[:MOST_UNKNOWN]:
            near = get_close_matches(str(key), self._requested_keys, 1, 0.6)
            if near:
                hint = f"Did you mean `{near[0]}`?"
            else:
                hint = f"Known here: {', '.join(sorted(requested_keys))}"
            self.record_finding("HPK-C001", str(key), "unknown key", hint)
        if len(unknown_keys) > MOST_UNKNOWN:
            more = f"{counted(len(unknown_keys) - MOST_UNKNOWN, 'more unknown key')} beside those that are named"
            self.record_finding("HPK-C001", str(unknown_keys[MOST_UNKNOWN]), more, "Is this the configuration?")

    def _mark_requested_and_is_written(self, key: str) -> bool:
        self._requested_keys.append(key)
        return self.is_written_and_not_null(key)

    def _record_read(self, key: str, kind: Kind, default: Any, value: Any, *, optional: bool = False) -> None:
        self._reads.append(
            KeyRead(
                (*self._key_path, key),
                kind,
                optional or default is not None,
                default,
                value,
                self.is_written_and_not_null(key),
            )
        )

    def _read_typed_value(self, key: str, kind: type, default: Any) -> Any:
        self._requested_keys.append(key)
        if not self.is_written_and_not_null(key):
            if default is None and not self._broken:
                self.record_finding("HPK-C002", key, f"missing: expected {_KINDS[kind]}", f'Add "{key}"')
            return default
        value = self.raw[key]
        # bool is an int in Python, but not in a configuration.
        fits = isinstance(value, (int, float) if kind is float else kind) and (
            kind is bool or not isinstance(value, bool)
        )
        if fits and kind is float and not _is_finite(value):
            fits = False
        if not fits:
            self.record_finding(
                "HPK-C003", key, f"expected {_KINDS[kind]}, found {_shorten_repr(value)}", f"Write it as {_KINDS[kind]}"
            )
            return default
        return value


def _is_finite(value: float) -> bool:
    """Whether it is a number that a double holds: JSON's 1e999 is not, nor is a whole number of 400 digits."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shorten_repr(value: Any) -> str:
    shown = repr(value)
    if len(shown) <= 40:
        return shown
    return shown[:37] + "…"
