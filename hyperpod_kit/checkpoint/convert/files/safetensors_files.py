"""Files of safetensors as others wrote them, alone or as a directory that `from_pretrained` reads: which tensors they
hold, held against their sizes. They have no check sums."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.convert.files.byte_sources import FileBytes, ImportedFiles, ImportedPiece, read_small_file
from hyperpod_kit.checkpoint.convert.files.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.convert.files.new_root import RankPart
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES, TensorSpec, parse_range, parse_spec
from hyperpod_kit.errors import Absent, CheckpointError, UsageError
from hyperpod_kit.untrusted.parse import LARGEST, parse_json_object

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
COMPANION_FILES = ("config.json", "generation_config.json")
"""What `from_pretrained` reads beside the tensors, and an export writes again."""
PRETRAINED = "pretrained"
"""Key of `extra` under which those files are kept: {name: text}."""
_HEADER_LIMIT = 16 << 20
"""Bytes of a header or an index, which take ten times the room when they are read: 150,000 tensors."""
_LONGEST_NAME = 255
_DTYPE_ALIASES = {"F8_E8M0": "F8_E8M0FNU"}
_COPY_HINT = "copy it again"


class WeightFiles(NamedTuple):
    """`pieces`: whole tensors, by name. `texts`: the files of COMPANION_FILES that are there.
    `unchecked`: of how many files."""

    path: Path
    pieces: dict[str, ImportedPiece]
    texts: dict[str, str]
    bytes: int
    unchecked: int


def inspect_file(files: ImportedFiles, path: Path) -> WeightFiles:
    """Return the tensors of a safetensors file, checked against its size. Raise UsageError for what is no file,
    or holds what cannot be taken over, CheckpointError for what is damaged, OSError."""
    if not path.is_file():
        raise Absent(f"{path} is not a file", hint="give a .safetensors file; for a directory: --from huggingface")
    return WeightFiles(path, _locate_pieces(files, path), {}, path.stat().st_size, 1)


def inspect_folder(files: ImportedFiles, folder: Path) -> WeightFiles:
    """What `save_pretrained` wrote: one file, or those of its index. Raises as `inspect_file`."""
    index = folder / INDEX
    if index.is_file():
        pieces, names = _locate_indexed_pieces_and_files(files, folder, index)
    elif (folder / WEIGHTS).is_file():
        pieces, names = _locate_pieces(files, folder / WEIGHTS), {WEIGHTS}
    else:
        raise _no_weights_error(folder)
    texts = {name: _read_text(folder / name) for name in COMPANION_FILES if (folder / name).is_file()}
    size = sum((folder / name).stat().st_size for name in names)
    return WeightFiles(folder, pieces, texts, size, len(names))


def _read_text(path: Path) -> str:
    try:
        return read_small_file(path, LARGEST).decode()
    except UnicodeDecodeError as err:
        raise CheckpointError(f"{path} is damaged: {err}", hint=_COPY_HINT) from None


def _locate_indexed_pieces_and_files(
    files: ImportedFiles, folder: Path, index: Path
) -> tuple[dict[str, ImportedPiece], set[str]]:
    try:
        weight_map = parse_json_object(
            read_small_file(index, _HEADER_LIMIT), _HEADER_LIMIT, refuse_repeated_names=True
        )["weight_map"]
        file_of = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, AttributeError) as err:
        raise CheckpointError(f"{index} is damaged: {err}", hint=_COPY_HINT) from None
    pieces: dict[str, ImportedPiece] = {}
    names = set(file_of.values())
    for file in sorted(names):
        if not _is_file_in(folder, file):
            raise CheckpointError(f"{folder} is incomplete: it lacks {file!r}, which {INDEX} names", hint=_COPY_HINT)
        file_pieces = _locate_pieces(files, folder / file)
        mismatched = sorted(set(file_pieces) ^ {name for name in file_of if file_of[name] == file})
        if mismatched:
            raise CheckpointError(
                f"{folder / file} does not match {INDEX}: they differ in {', '.join(mismatched[:4])}", hint=_COPY_HINT
            )
        pieces.update(file_pieces)
    return pieces, names


def _is_file_in(folder: Path, name: str) -> bool:
    """Whether that name, which an index gives, is one of a file right in the directory."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:  # half a character, as JSON can write it
        return False
    return os.path.basename(name) == name and length <= _LONGEST_NAME and (folder / name).is_file()


def _no_weights_error(folder: Path) -> UsageError:
    if (folder / "adapter_config.json").is_file():
        return UsageError(
            f"{folder} is a PEFT adapter without its base model: adapters are not imported",
            hint="PeftModel.from_pretrained, then Manager with State(model, frozen=False)",
        )
    if any(folder.glob("pytorch_model*.bin")):
        return UsageError(
            f"{folder} has pickles, no safetensors",
            hint="for one file: --from torch; otherwise save it as safetensors",
        )
    return UsageError(
        f"{folder} has neither {WEIGHTS} nor {INDEX}", hint="give the directory that was passed to save_pretrained"
    )


def _locate_pieces(files: ImportedFiles, path: Path) -> dict[str, ImportedPiece]:
    """Return the tensors of a file, whose bytes are not read yet. Raise UsageError, CheckpointError."""
    size = path.stat().st_size
    try:
        if size < 8:
            raise ValueError("it has no header")
        base = 8 + int.from_bytes(files.read_bytes(path, 0, 8), "little")
        if base > min(size, _HEADER_LIMIT):
            raise ValueError(f"a header of {base - 8} bytes")
        header = parse_json_object(
            bytes(files.read_bytes(path, 8, base - 8)), _HEADER_LIMIT, refuse_repeated_names=True
        )
        header.pop("__metadata__", None)
        ranges = sorted((_parse_entry(name, entry) for name, entry in header.items()), key=lambda row: row[1:])
        at = 0
        for spec, begin, end in ranges:
            if begin != at or end - begin != spec.nbytes:
                raise ValueError(f"{spec.name} lies at {begin}..{end}, and what is before it ends at {at}")
            at = end
        if base + at != size:
            raise ValueError(f"its tensors end at {base + at}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as err:
        raise CheckpointError(f"{path} is damaged, or no safetensors: {err}; {size} bytes", hint=_COPY_HINT) from None
    return {
        spec.name: ImportedPiece(spec, FileBytes(files, path, base + begin, end - begin)) for spec, begin, end in ranges
    }


def _parse_entry(name: str, entry: Any) -> tuple[TensorSpec, int, int]:
    dtype = _DTYPE_ALIASES.get(entry["dtype"], entry["dtype"])
    if isinstance(dtype, str) and dtype not in ITEM_BYTES:
        raise UsageError(f"{name} is a tensor of {dtype[:20]}, which a checkpoint cannot hold", hint="convert it")
    begin, end = entry["data_offsets"]
    return parse_spec(name, dtype, entry["shape"], (), ()), *parse_range(begin, end)


# Such files become a checkpoint of a model's weights: what load_weights reads, and an export writes again.


_STATE = "trainer_state.json"
_MOST = 1 << 30
_FOLDER = re.compile(r"checkpoint-([0-9]{1,18})")


def single_rank_part(weights: WeightFiles) -> Iterator[RankPart]:
    """Yield the one shard. Raise StateNotSerializable."""
    imported = ImportedTree()
    model = {name: imported.placeholder(f"model.{name}") for name in weights.pieces}
    tree = imported.encode({"model": model, "extra": {PRETRAINED: weights.texts} if weights.texts else {}})
    yield RankPart(
        [piece._replace(spec=piece.spec._replace(name=f"model.{name}")) for name, piece in weights.pieces.items()], tree
    )


def trainer_step_or_zero(folder: Path) -> int:
    """Return the step of the Trainer whose checkpoint it is, else 0. Raise CheckpointError."""
    path = folder / _STATE
    if path.is_file():
        try:
            step = parse_json_object(read_small_file(path, _MOST), _MOST)["global_step"]
        except (ValueError, KeyError) as err:
            raise CheckpointError(f"{path} is damaged: {err!r}", hint="give the step with --step") from None
        if type(step) is int and step >= 0:
            return step
    match = _FOLDER.fullmatch(folder.resolve().name)
    if match:
        return int(match.group(1))
    return 0
