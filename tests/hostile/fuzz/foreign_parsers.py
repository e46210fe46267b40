"""What other frameworks wrote into a checkpoint root."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from io import BytesIO
from random import Random
from typing import Any, Callable, List

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.job.foreign import dcp, proving
from hyperpod_kit.job.foreign.frameworks import deepspeed, huggingface, lightning, megatron
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.mutate import a_json, some_bytes, value_changed
from tests.hostile.fuzz.places import file_of, folder


def foreign(
    name: str,
    call: Callable[[bytes], object],
    seeds: List[bytes],
    words: List[bytes],
    make: Callable[[Random], bytes] = lambda rng: b"",
) -> Parser:
    def usual(rng: Random) -> bytes:
        return some_bytes(rng, rng.choice(seeds), seeds, words)

    return Parser(name, call, (CheckpointError,), make if make(Random(0)) else usual, tuple(seeds))


def a_zip() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        made.writestr("archive/data/0", bytes(64))
        made.writestr(zipfile.ZipInfo("archive/version"), b"3\n")
    return out.getvalue()


def a_safetensors(rng: Random) -> bytes:
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
    text = a_json(rng, [header])
    data = struct.pack("<Q", len(text)) + text + bytes(8)
    return some_bytes(rng, data, [data], []) if rng.random() < 0.2 else data


def read_foreign(data: bytes) -> None:
    """Each detector on a root in which every file that it looks into is this one."""
    root = folder("foreign")
    first = file_of(data, "foreign/checkpoint-20/trainer_state.json")
    for name in (
        "10/.metadata",
        "10/__0_0.distcp",
        "checkpoint-20/model.safetensors.index.json",
        "checkpoint-20/model.safetensors",
        "latest_checkpointed_iteration.txt",
        "iter_0000100/mp_rank_00/model_optim_rng.pt",
        "global_step5/mp_rank_00_model_states.pt",
        "epoch=1-step=10.ckpt",
    ):
        path = os.path.join(root, name)
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.link(first, path)
    failed = None
    for detector in (dcp, huggingface, megatron, deepspeed, lightning):
        for candidate in detector.detect(root):
            try:
                proving.read_unproven_files_and_weakest_proof(root, candidate)
            except (CheckpointError, FileNotFoundError) as err:
                failed = err
    if failed is not None:
        raise failed


def json_seeds(rng: Random) -> bytes:
    state: Any = [{"global_step": 20, "log_history": []}, {"weight_map": {"a": "model.safetensors"}}, 100]
    return (
        a_json(rng, state) if rng.random() < 0.7 else json.dumps(value_changed(rng, state)).encode("utf-8", "replace")
    )


PICKLE = pickle.dumps({"w": ("__0_0.distcp", [1, 2, 3]), "v": ("__1_0.distcp", "abc")}, protocol=2)

PARSERS = [
    foreign(
        "foreign: .metadata (pickle)",
        lambda data: dcp.named_files(file_of(data, "m")),
        [PICKLE],
        [b"X\xff\xff\xff\xff", b"."],
    ),
    foreign(
        "foreign: torch archive (zip)",
        lambda data: proving.proof_level_of_torch_file(file_of(data, "a.pt")),
        [a_zip()],
        [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"],
    ),
    foreign(
        "foreign: safetensors",
        lambda data: proving.proof_level_of_safetensors_file(file_of(data, "a.safetensors")),
        [struct.pack("<Q", 2) + b"{}"],
        [],
        a_safetensors,
    ),
    Parser("foreign: all detectors", read_foreign, (CheckpointError, FileNotFoundError), json_seeds),
]
