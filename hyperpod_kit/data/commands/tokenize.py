"""`data tokenize`: documents in, Megatron's files out, by any tokenizer.json, in parallel."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from hyperpod_kit.command_line.documents import document
from hyperpod_kit.data.commands.progress import ByteLine
from hyperpod_kit.data.commands.rights import reading_as_owner
from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.tokens import megatron
from hyperpod_kit.errors import DataError, NoData, Untrusted, UsageError
from hyperpod_kit.untrusted import by_descriptor, files, source_owner, terminal
from hyperpod_kit.untrusted.text import clean_one_line, counted

_DOCUMENTS_PER_TASK = 512
"""Documents of one task."""
_MAX_TOKENIZER_BYTES = 1 << 28
"""Bytes of a tokenizer.json; those of large vocabularies have some 20 MB."""


def read_tokenizer_json(tokenizer_json_path: str) -> str:
    """Read a tokenizer.json, with the rights of its owner where this process is root.

    Raises NoData, UsageError for what is none, OSError.
    """
    try:
        with reading_as_owner([tokenizer_json_path]):
            return files.read_file_or_pipe(
                tokenizer_json_path, _MAX_TOKENIZER_BYTES, opener=source_owner.open_nonblocking_as_source_owner
            ).decode()
    except FileNotFoundError:
        raise NoData(f"no such file: {tokenizer_json_path}", hint="the tokenizer.json of a model") from None
    except (UnicodeDecodeError, Untrusted) as err:
        raise UsageError(
            f"{tokenizer_json_path} is not a tokenizer: {clean_one_line(err)}", hint="the tokenizer.json of a model"
        ) from None


class TextTokenizer:
    """A sample's text as tokens, with the end of a document behind them. Made in the process that uses it.

    `text`: of the tokenizer.json at `path`.
    """

    def __init__(self, path: str, text: str, end: str | None, field: str) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
        except Exception as err:  # of the library, whose errors have no class of their own
            raise UsageError(f"{path} is not a tokenizer: {err}", hint="the tokenizer.json of a model") from None
        self._field = field
        self.vocabulary = int(self._tokenizer.get_vocab_size())
        self._end: list[int] = []
        if end is not None:
            token_id = self._tokenizer.token_to_id(end)
            if token_id is None:
                raise UsageError(f"{path} has no token {end!r}", hint="give with --end the token that ends a document")
            self._end = [int(token_id)]

    def __call__(self, samples: Sequence[Any]) -> list[list[int]]:
        """Tokenize several samples."""
        texts = [self._text_of_sample(sample) for sample in samples]
        return [encoding.ids + self._end for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _text_of_sample(self, sample: Any) -> str:
        if isinstance(sample, str):
            return sample
        text = None
        if isinstance(sample, dict):
            text = sample.get(self._field)
        if not isinstance(text, str):
            raise DataError(f"a document has no text in {self._field!r}: {sample!r:.80}", hint="--field NAME")
        return text


def tokenize(args: argparse.Namespace) -> int:
    """Write PREFIX.bin and PREFIX.idx."""
    text = read_tokenizer_json(args.tokenizer)
    tokenizer = TextTokenizer(args.tokenizer, text, args.end, args.field)
    with reading_as_owner(args.sources):
        _write_megatron_files_and_print_report(args, text, tokenizer.vocabulary)
    return 0


def _write_megatron_files_and_print_report(args: argparse.Namespace, tokenizer_json: str, vocabulary_size: int) -> None:
    """Index the sources, write Megatron's .bin and .idx files, and print how much they hold."""
    started_at = time.monotonic()
    dataset = IndexedDataset(build_index(args.sources, args.index).index)
    by_descriptor.make_parents(os.path.abspath(args.out))
    line = ByteLine("tokenizing documents")
    try:
        documents, tokens = megatron.write_documents(
            args.out, _encode_documents(dataset, args, tokenizer_json, line), vocabulary_size
        )
    finally:
        line.clear_line()
    seconds = time.monotonic() - started_at
    if args.json:
        terminal.print_json(
            document(
                "data tokenize",
                {"prefix": args.out, "documents": documents, "tokens": tokens, "seconds": round(seconds, 3)},
            )
        )
    else:
        terminal.print_stdout(
            f"{args.out}.bin and .idx: {counted(documents, 'document')}, {counted(tokens, 'token')}, in {seconds:.1f} s"
        )


def _encode_documents(
    dataset: IndexedDataset, args: argparse.Namespace, tokenizer_json: str, line: ByteLine
) -> Iterator[list[int]]:
    """Yield every document's tokens in the order of the data, whatever process made them."""
    runs = [
        range(begin, min(begin + _DOCUMENTS_PER_TASK, len(dataset)))
        for begin in range(0, len(dataset), _DOCUMENTS_PER_TASK)
    ]
    context = multiprocessing.get_context("spawn")
    initializer_arguments = (
        dataset,
        args.tokenizer,
        tokenizer_json,
        args.end,
        args.field,
        source_owner.process_source_uid_or_none(),
    )
    with ProcessPoolExecutor(
        min(args.processes or os.cpu_count() or 1, len(runs)),
        context,
        _initialize_tokenizing_process,
        initializer_arguments,
    ) as pool:
        for run, documents in zip(runs, pool.map(_encode_range, runs), strict=True):
            line.show_progress(run.stop, len(dataset))
            yield from documents


_work: list[Any] = []


def _initialize_tokenizing_process(
    dataset: IndexedDataset,
    tokenizer_path: str,
    tokenizer_json: str,
    end: str | None,
    field: str,
    source_uid: int | None,
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already
    source_owner.set_process_source_uid(source_uid)
    _work[:] = [dataset, TextTokenizer(tokenizer_path, tokenizer_json, end, field)]


def _encode_range(run: range) -> list[list[int]]:
    dataset, tokenizer = _work
    documents: list[list[int]] = tokenizer(dataset.__getitems__(run))
    return documents
