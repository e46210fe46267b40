"""The bundle's sources, read once for all the bundles that a process of the tests renders.

To render a bundle is to read five hundred files, to compile the templates and to sum all of it up: most of what a
command computes that asks which bundle its configuration has. No test changes a file of the checkout. Not for the tests
of the bundle itself.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path, PosixPath
from typing import Iterator, List, Mapping, Tuple

import pytest

from hyperpod_kit.bundle import contents, render
from hyperpod_kit.bundle.sources import Sources

_CHECKOUT = Path(__file__).resolve().parents[2]
_MOST_BUNDLES = 8

_Words = Tuple[str, str, str]
_bundles: List[Tuple[Mapping[str, bytes], _Words, render.Bundle]] = []
"""What was shipped, with what names, and the bundle that it makes; the newest last."""

_copied, _assemble = contents.list_copied_sources, render.assemble_bundle
_environment = functools.lru_cache(maxsize=None)(render.make_jinja_environment)


class _KeptFile(PosixPath):
    """A file that is read once, by this method."""

    def read_bytes(self) -> bytes:
        return _content(str(self))


@functools.lru_cache(maxsize=None)
def _content(path: str) -> bytes:
    return Path(path).read_bytes()


@functools.lru_cache(maxsize=None)
def _files_of(sources: Sources) -> Tuple[Tuple[str, Path], ...]:
    return tuple((place, _KeptFile(path)) for place, path in _copied(sources))


def _kept_copied(sources: Sources) -> Iterator[Tuple[str, Path]]:
    of_the_checkout = sources == Sources(_CHECKOUT, _CHECKOUT / "hyperpod_kit")
    return iter(_files_of(sources)) if of_the_checkout else _copied(sources)


def _kept_assemble(shipped: Mapping[str, bytes], kit_version: str, bucket: str, parent: str) -> render.Bundle:
    names = (kit_version, bucket, parent)
    bundle = next((made for files, words, made in _bundles if words == names and files == shipped), None)
    if bundle is None:
        bundle = _assemble(shipped, *names)
        _bundles.append((dict(shipped), names, bundle))
        del _bundles[:-_MOST_BUNDLES]
    return dataclasses.replace(bundle, files=dict(bundle.files), library=dict(bundle.library))


def keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "list_copied_sources", _kept_copied)
    monkeypatch.setattr(render, "assemble_bundle", _kept_assemble)
    monkeypatch.setattr(render, "make_jinja_environment", _environment)
