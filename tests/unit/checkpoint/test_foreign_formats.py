"""A format of another program is one file: it is known by the file's name, in both directions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.convert import export_checkpoint, formats, import_checkpoint
from hyperpod_kit.checkpoint.convert.files.foreign_format import ExportSource, WrittenExport
from hyperpod_kit.checkpoint.convert.known_formats import load_formats
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore

TOY = """
from hyperpod_kit.checkpoint.convert.files.foreign_format import ForeignFormat, WrittenExport


class ToyFormat(ForeignFormat):
    can_export = True

    def write(self, source, path):
        path.write_text("toy")
        return WrittenExport("a", 1, 0, 0)


FORMAT = ToyFormat()
"""


def test_a_file_is_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    toy = load_formats()["toy"]
    monkeypatch.delitem(sys.modules, f"{formats.__name__}.toy")
    assert toy.can_export and not toy.can_import
    written = toy.write(ExportSource(MemoryStore("toy"), None), tmp_path / "out")
    assert written == WrittenExport("a", 1, 0, 0) and (tmp_path / "out").read_text() == "toy"


def test_a_file_without_a_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forgotten.py").write_text("")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    with pytest.raises(TypeError, match=r"forgotten\.FORMAT is a NoneType, expected a ForeignFormat"):
        load_formats()
    monkeypatch.delitem(sys.modules, f"{formats.__name__}.forgotten")


def test_what_can_be_read_and_written() -> None:
    assert import_checkpoint.SOURCES == ("dcp", "deepspeed", "huggingface", "megatron", "safetensors", "torch")
    assert export_checkpoint.FORMATS == (
        "dcp",
        "deepspeed",
        "huggingface",
        "lightning",
        "megatron",
        "safetensors",
        "torch",
    )
