"""`hyperpod-kit data`: the commands and their words. What they need is imported when they run."""

from __future__ import annotations

import sys

from hyperpod_kit import ending
from hyperpod_kit.command_line.program import parse_group
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.errors import MissingExtra
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import require_sibling_distribution_installed, requirements_install_command

_OPTIONAL_PACKAGES = ("numpy", "torch", "pyarrow", "zstandard", "tokenizers")

_JSON = OptionSpec("--json", "Data on standard output.")
_REPLY_TIMEOUT = OptionSpec(
    "--answer", "A mount without an answer for so long has failed (30)", "S", float, default=30, dest="reply_timeout"
)

DATA = GroupSpec(
    "data",
    "Training data: indexed, checked, brought where it is needed.",
    (
        CommandSpec(
            "index",
            "Find every sample of files, directories, patterns or s3:// prefixes; goes on where it was cut.",
            "hyperpod_kit.data.commands.index:index",
            arguments=(ArgumentSpec("sources", "SRC", "File, directory, pattern, or s3://BUCKET/PREFIX.", "+"),),
            options=(
                _JSON,
                OptionSpec(
                    "--out", "Where the index goes; default: .hpk-index in the source, or the user's cache.", "DIR"
                ),
                OptionSpec("--format", "Of all files: lines, gzip, zstd, parquet, tar or whole.", "NAME"),
                OptionSpec("--threads", "Files at a time; default: one for each core, 4 to 8.", "N", int),
                OptionSpec("--check", "Decode each JSON line too: some ten times as slow."),
                OptionSpec(
                    "--on-bad",
                    "With --check: what becomes of bad lines (raise)",
                    default="raise",
                    choices=("raise", "skip"),
                ),
                _REPLY_TIMEOUT,
            ),
            examples=(
                "/fsx/corpus",
                "'/mnt/corpus/**/*.jsonl.zst' --out /fsx/alice/index",
                "s3://my-bucket/corpus --out /fsx/alice/index --json",
            ),
        ),
        CommandSpec(
            "show",
            "What an index holds; reads no data.",
            "hyperpod_kit.data.commands.index:show",
            arguments=(ArgumentSpec("index", "INDEX", "Directory of an index."),),
            options=(_JSON, OptionSpec("--files", "List the first N files (default 20)", "N", int, default=20)),
            examples=("/fsx/corpus/.hpk-index", "/fsx/alice/index --json"),
        ),
        CommandSpec(
            "verify",
            "Whether the files are those that were indexed: 0 all are, 1 some are not.",
            "hyperpod_kit.data.commands.index:verify",
            arguments=(ArgumentSpec("index", "INDEX", "Directory of an index."),),
            options=(_JSON, OptionSpec("--bytes", "Read every byte, not only sizes and times."), _REPLY_TIMEOUT),
            examples=("/fsx/corpus/.hpk-index", "/fsx/alice/index --bytes"),
        ),
        CommandSpec(
            "verify-ledger",
            "Whether every sample was received exactly once an epoch: 0 it was, 1 it was not.",
            "hyperpod_kit.data.commands.ledgers:verify_ledger",
            arguments=(ArgumentSpec("ledger", "LEDGER", "The directory that ElasticLoader(ledger=…) wrote to."),),
            options=(_JSON,),
            examples=("/fsx/alice/run1/ledger", "/fsx/alice/run1/ledger --json"),
        ),
        CommandSpec(
            "tokenize",
            "Documents into PREFIX.bin and PREFIX.idx, which Megatron and NeMo read, by every core.",
            "hyperpod_kit.data.commands.tokenize:tokenize",
            arguments=(ArgumentSpec("sources", "SRC", "As of `data index`.", "+"),),
            options=(
                _JSON,
                OptionSpec("--tokenizer", "A tokenizer.json.", "FILE", is_required=True),
                OptionSpec("--out", "Of the two files.", "PREFIX", is_required=True),
                OptionSpec("--end", "Put behind each document.", "TOKEN"),
                OptionSpec("--field", "Of JSON and Parquet: where the text is (text)", "NAME", default="text"),
                OptionSpec("--index", "Where the index of SRC is, or goes; default as of `data index`.", "DIR"),
                OptionSpec("--processes", "Default: one for each core.", "N", int),
            ),
            examples=(
                "/fsx/corpus --tokenizer tokenizer.json --end '</s>' --out /fsx/alice/corpus_text_document",
                "'/fsx/corpus/*.jsonl' --tokenizer tokenizer.json --field content --out /fsx/alice/code",
            ),
        ),
        CommandSpec(
            "stage",
            "Bring s3://BUCKET/PREFIX or a directory into a directory; proves what comes, goes on where it was cut.",
            "hyperpod_kit.data.commands.bulk:stage",
            arguments=(
                ArgumentSpec("source", "SRC", "s3://BUCKET/PREFIX (by s5cmd), or a directory."),
                ArgumentSpec("out", "DST", "A directory, which is made."),
            ),
            options=(
                _JSON,
                OptionSpec("--rate", "MiB a second at most.", "MIB", float),
                OptionSpec("--workers", "Files at a time; default: 256 of s3://, 16 of a directory.", "N", int),
                _REPLY_TIMEOUT,
                OptionSpec("--wait", "For another that fills DST (3600)", "S", float, default=3600),
                OptionSpec("--dry-run", "Say what would come, and change nothing."),
            ),
            examples=(
                "s3://my-bucket/corpus /scratch/corpus",
                "s3://my-bucket/corpus /fsx/corpus --rate 500 --dry-run",
                "/mnt/corpus /scratch/corpus --json",
            ),
        ),
        CommandSpec(
            "merge",
            "Many small files into tars of about 100 MiB, which are read by ranges.",
            "hyperpod_kit.data.commands.bulk:merge",
            arguments=(
                ArgumentSpec("source", "SRC", "A directory."),
                ArgumentSpec("out", "DST", "A directory for the tars."),
            ),
            options=(_JSON, OptionSpec("--mib", "MiB of a tar (100)", "N", int, default=100)),
            examples=("/fsx/images /fsx/images-merged",),
        ),
        CommandSpec(
            "split",
            "Merged files as they were, byte for byte, each compared with its digest.",
            "hyperpod_kit.data.commands.bulk:split",
            arguments=(
                ArgumentSpec("source", "SRC", "A directory that `data merge` wrote."),
                ArgumentSpec("out", "DST", "A directory for the files."),
            ),
            options=(_JSON,),
            examples=("/fsx/images-merged /fsx/images-again",),
        ),
        CommandSpec(
            "bench",
            "Index, loaders with several numbers of workers, and resume, beside a plain read of the same files.",
            "hyperpod_lab.data_bench.command:bench",
            arguments=(ArgumentSpec("sources", "SRC", "As of `data index`.", "+"),),
            options=(
                _JSON,
                OptionSpec("--passes", "Everything so often, and the median of each (1)", "N", int, default=1),
                OptionSpec(
                    "--rivals",
                    "Other loaders beside it: lab/programs/rivals/loaders.py of the sources has four.",
                    "FILE",
                ),
                OptionSpec("--samples", "For each loader (100000)", "N", int, default=100_000),
                OptionSpec("--batch", "Samples of a batch (64)", "N", int, default=64),
                OptionSpec("--workers", "Numbers of workers to try (0,2)", "N,…", default="0,2"),
            ),
            examples=(
                "/fsx/corpus --workers 0,4,8",
                "s3://my-bucket/corpus --samples 20000 --json",
                "/fsx/corpus --passes 5 --rivals lab/programs/rivals/loaders.py",
            ),
        ),
        CommandSpec(
            "make-corpus",
            "Jsonl files of one size, for tests and benchmarks.",
            "hyperpod_kit.data.commands.bulk:make_corpus",
            arguments=(ArgumentSpec("out", "DIR", "A directory."),),
            options=(
                _JSON,
                OptionSpec("--files", "How many (100)", "N", int, default=100),
                OptionSpec("--kib", "KiB of each (570)", "N", int, default=570),
                OptionSpec("--cap", "Never more than this (1024)", "MIB", int, default=1024),
                OptionSpec("--seed", "Of the text (0)", "N", int, default=0),
            ),
            examples=(
                "/fsx/corpus-small --files 1000 --kib 570",
                "/fsx/corpus-large --files 10 --kib 102400 --cap 2048",
            ),
        ),
    ),
)


def main(argv: list[str]) -> int:
    """Run a command and return its exit code, with errors on standard error."""
    return ending.run(lambda: perform(argv))


def perform(argv: list[str]) -> int:
    """Run a command as `main` does, with errors raised. Raises HyperpodKitError."""
    try:
        command, args = parse_group(DATA, argv, "hyperpod-kit data")
    except SystemExit as end:
        return int(end.code or 0)

    def work() -> int:
        require_sibling_distribution_installed(command.run, f"hyperpod-kit data {command.name}")
        try:
            return command.call(args)
        except ModuleNotFoundError as err:
            if err.name is None or err.name.split(".")[0] not in _OPTIONAL_PACKAGES:
                raise
            raise MissingExtra(
                f"hyperpod-kit data {command.name} needs {err.name}, which is not installed",
                hint=requirements_install_command("data"),
            ) from None
        except BrokenPipeError:
            return ending.discard_stdout_and_return_code(0)

    return ending.run_converting_os_to_kit_errors(work, lambda err: ending.Ending(str(err), None, ExitCode.ABSENT))


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
