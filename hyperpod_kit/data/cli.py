"""`hyperpod-kit data`: the commands and their words. What they need is imported when they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from hyperpod_kit import ending
from hyperpod_kit.errors import MissingExtra
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import require_sibling_distribution_installed, requirements_install_command

_OPTIONAL_PACKAGES = ("numpy", "torch", "pyarrow", "zstandard", "tokenizers")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hyperpod-kit data", description="Training data: indexed, checked, brought where it is needed."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, handler: str, summary: str, *examples: str) -> argparse.ArgumentParser:
        lines = (f"hyperpod-kit data {name} {line}" for line in examples)
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog="\n  ".join(["Examples:", *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="data on standard output")
        sub.set_defaults(run=handler)
        return sub

    _add_index_commands(command)
    _add_bulk_commands(command)
    return parser


def _add_index_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add_command(
        "index",
        "index:index",
        "find every sample of files, directories, patterns or s3:// prefixes; goes on where it was cut",
        "/fsx/corpus",
        "'/mnt/corpus/**/*.jsonl.zst' --out /fsx/alice/index",
        "s3://my-bucket/corpus --out /fsx/alice/index --json",
    )
    sub.add_argument("sources", nargs="+", metavar="SRC", help="file, directory, pattern, or s3://BUCKET/PREFIX")
    sub.add_argument(
        "--out", metavar="DIR", help="where the index goes; default: .hpk-index in the source, or the user's cache"
    )
    sub.add_argument("--format", metavar="NAME", help="of all files: lines, gzip, zstd, parquet, tar or whole")
    sub.add_argument("--threads", type=int, metavar="N", help="files at a time; default: one for each core, 4 to 8")
    sub.add_argument("--check", action="store_true", help="decode each JSON line too: some ten times as slow")
    sub.add_argument(
        "--on-bad", choices=("raise", "skip"), default="raise", help="with --check: what becomes of bad lines (raise)"
    )
    _add_reply_timeout_option(sub)
    sub = add_command(
        "show", "index:show", "what an index holds; reads no data", "/fsx/corpus/.hpk-index", "/fsx/alice/index --json"
    )
    sub.add_argument("index", metavar="INDEX", help="directory of an index")
    sub.add_argument("--files", type=int, default=20, metavar="N", help="list the first N files (default 20)")
    sub = add_command(
        "verify",
        "index:verify",
        "whether the files are those that were indexed: 0 all are, 1 some are not",
        "/fsx/corpus/.hpk-index",
        "/fsx/alice/index --bytes",
    )
    sub.add_argument("index", metavar="INDEX", help="directory of an index")
    sub.add_argument("--bytes", action="store_true", help="read every byte, not only sizes and times")
    _add_reply_timeout_option(sub)
    sub = add_command(
        "verify-ledger",
        "ledgers:verify_ledger",
        "whether every sample was received exactly once an epoch: 0 it was, 1 it was not",
        "/fsx/alice/run1/ledger",
        "/fsx/alice/run1/ledger --json",
    )
    sub.add_argument("ledger", metavar="LEDGER", help="the directory that ElasticLoader(ledger=…) wrote to")


def _add_reply_timeout_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--answer",
        dest="reply_timeout",
        type=float,
        default=30,
        metavar="S",
        help="a mount without an answer for so long has failed (30)",
    )


def _add_bulk_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add_command(
        "tokenize",
        "tokenize:tokenize",
        "documents into PREFIX.bin and PREFIX.idx, which Megatron and NeMo read, by every core",
        "/fsx/corpus --tokenizer tokenizer.json --end '</s>' --out /fsx/alice/corpus_text_document",
        "'/fsx/corpus/*.jsonl' --tokenizer tokenizer.json --field content --out /fsx/alice/code",
    )
    sub.add_argument("sources", nargs="+", metavar="SRC", help="as of `data index`")
    sub.add_argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    sub.add_argument("--out", required=True, metavar="PREFIX", help="of the two files")
    sub.add_argument("--end", metavar="TOKEN", help="put behind each document")
    sub.add_argument("--field", default="text", metavar="NAME", help="of JSON and Parquet: where the text is (text)")
    sub.add_argument("--index", metavar="DIR", help="where the index of SRC is, or goes; default as of `data index`")
    sub.add_argument("--processes", type=int, metavar="N", help="default: one for each core")
    sub = add_command(
        "stage",
        "bulk:stage",
        "bring s3://BUCKET/PREFIX or a directory into a directory; proves what comes, goes on where it was cut",
        "s3://my-bucket/corpus /scratch/corpus",
        "s3://my-bucket/corpus /fsx/corpus --rate 500 --dry-run",
        "/mnt/corpus /scratch/corpus --json",
    )
    sub.add_argument("source", metavar="SRC", help="s3://BUCKET/PREFIX (by s5cmd), or a directory")
    sub.add_argument("out", metavar="DST", help="a directory, which is made")
    sub.add_argument("--rate", type=float, metavar="MIB", help="MiB a second at most")
    sub.add_argument(
        "--workers", type=int, metavar="N", help="files at a time; default: 256 of s3://, 16 of a directory"
    )
    _add_reply_timeout_option(sub)
    sub.add_argument("--wait", type=float, default=3600, metavar="S", help="for another that fills DST (3600)")
    sub.add_argument("--dry-run", action="store_true", help="say what would come, and change nothing")
    sub = add_command(
        "merge",
        "bulk:merge",
        "many small files into tars of about 100 MiB, which are read by ranges",
        "/fsx/images /fsx/images-merged",
    )
    sub.add_argument("source", metavar="SRC", help="a directory")
    sub.add_argument("out", metavar="DST", help="a directory for the tars")
    sub.add_argument("--mib", type=int, default=100, metavar="N", help="MiB of a tar (100)")
    sub = add_command(
        "split",
        "bulk:split",
        "merged files as they were, byte for byte, each compared with its digest",
        "/fsx/images-merged /fsx/images-again",
    )
    sub.add_argument("source", metavar="SRC", help="a directory that `data merge` wrote")
    sub.add_argument("out", metavar="DST", help="a directory for the files")
    sub = add_command(
        "bench",
        "hyperpod_lab.data_bench.command:bench",
        "index, loaders with several numbers of workers, and resume, beside a plain read of the same files",
        "/fsx/corpus --workers 0,4,8",
        "s3://my-bucket/corpus --samples 20000 --json",
        "/fsx/corpus --passes 5 --rivals lab/programs/rivals/loaders.py",
    )
    sub.add_argument("sources", nargs="+", metavar="SRC", help="as of `data index`")
    sub.add_argument(
        "--passes", type=int, default=1, metavar="N", help="everything so often, and the median of each (1)"
    )
    sub.add_argument(
        "--rivals",
        metavar="FILE",
        help="other loaders beside it: lab/programs/rivals/loaders.py of the sources has four",
    )
    sub.add_argument("--samples", type=int, default=100_000, metavar="N", help="for each loader (100000)")
    sub.add_argument("--batch", type=int, default=64, metavar="N", help="samples of a batch (64)")
    sub.add_argument("--workers", default="0,2", metavar="N,…", help="numbers of workers to try (0,2)")
    sub = add_command(
        "make-corpus",
        "bulk:make_corpus",
        "jsonl files of one size, for tests and benchmarks",
        "/fsx/corpus-small --files 1000 --kib 570",
        "/fsx/corpus-large --files 10 --kib 102400 --cap 2048",
    )
    sub.add_argument("out", metavar="DIR", help="a directory")
    sub.add_argument("--files", type=int, default=100, metavar="N", help="how many (100)")
    sub.add_argument("--kib", type=int, default=570, metavar="N", help="KiB of each (570)")
    sub.add_argument("--cap", type=int, default=1024, metavar="MIB", help="never more than this (1024)")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the text (0)")


def main(argv: list[str]) -> int:
    """Run a command and return its exit code, with errors on standard error."""
    return ending.run(lambda: perform(argv))


def perform(argv: list[str]) -> int:
    """Run a command as `main` does, with errors raised. Raises HyperpodKitError."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)

    def work() -> int:
        module, _, name = args.run.partition(":")
        if "." not in module:
            module = f"hyperpod_kit.data.commands.{module}"
        require_sibling_distribution_installed(module, f"hyperpod-kit data {args.command}")
        try:
            run = getattr(import_module(module), name)
            return int(run(args))
        except ModuleNotFoundError as err:
            if err.name is None or err.name.split(".")[0] not in _OPTIONAL_PACKAGES:
                raise
            raise MissingExtra(
                f"hyperpod-kit data {args.command} needs {err.name}, which is not installed",
                hint=requirements_install_command("data"),
            ) from None
        except BrokenPipeError:
            return ending.discard_stdout_and_return_code(0)

    return ending.run_converting_os_to_kit_errors(work, lambda err: ending.Ending(str(err), None, ExitCode.ABSENT))


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
