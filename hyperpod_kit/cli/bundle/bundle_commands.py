"""render and upload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hyperpod_kit.cli.terminal.options import config_argument, json_option
from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr, progress_bar
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.bundle.render import Bundle


@click.command()
@config_argument
@click.option(
    "--out",
    "-o",
    "output",
    default="build/bundle",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to write; its contents are replaced.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 when the directory differs from the bundle.")
@json_option
def render(config: Path, output: Path, check: bool, as_json: bool) -> int:
    """Write the lifecycle bundle to a directory, byte for byte as nodes run it.

    \b
    Examples:
      hyperpod-kit render
      hyperpod-kit render --out build/bundle --check  # in CI: is the committed bundle up to date?
    """
    from hyperpod_kit.bundle import render as rendering
    from hyperpod_kit.config.load import load

    bundle = rendering.render(load(config))
    if check:
        return _compare_output_directory_and_print(bundle, config, output, as_json)
    rendering.replace_bundle_directory(bundle, output)
    if as_json:
        print_json(
            "render",
            {
                "bundle_id": bundle.bundle_id,
                "directory": str(output),
                "uri": bundle.source_s3_uri,
                "files": len(bundle.files),
                "bytes": bundle.size,
            },
        )
    else:
        print_to_stderr(
            f"bundle {bundle.bundle_id}: {counted(len(bundle.files), 'file')}, {bundle.size / 1024:.0f} KiB in {output}"
        )
        print_to_stderr(f"next: hyperpod-kit upload {config}")
    return 0


def _compare_output_directory_and_print(bundle: Bundle, config: Path, output: Path, as_json: bool) -> int:
    """Compare a directory with the bundle and print the differences; return 0 when it holds exactly this
    one, else 1."""
    from hyperpod_kit.bundle.compare import compare_with_directory

    difference = compare_with_directory(bundle, output)
    if as_json:
        print_json(
            "render",
            {
                "bundle_id": bundle.bundle_id,
                "directory": str(output),
                "same": not difference,
                **dataclass_to_json(difference),
            },
        )
    elif not difference:
        print_to_stderr(f"{output} holds bundle {bundle.bundle_id}")
    else:
        for line in difference.lines():
            print_text(line)
        print_to_stderr(f"{output} is not bundle {bundle.bundle_id}: {counted(len(difference), 'file')} would change")
        print_to_stderr(f"next: hyperpod-kit render {config} --out {output}")
    if difference:
        return 1
    return 0


@click.command()
@config_argument
@json_option
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded, and send nothing.")
def upload(config: Path, as_json: bool, dry_run: bool) -> None:
    """Upload the lifecycle bundle to S3.

    The S3 prefix is named after the bundle's contents: objects that exist are not sent again, and a bundle that a
    running cluster uses is never changed. Every object is verified after the upload.

    \b
    Examples:
      hyperpod-kit upload --dry-run
      hyperpod-kit upload
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle import render as rendering
    from hyperpod_kit.bundle import upload as uploading
    from hyperpod_kit.bundle.stored import THREADS
    from hyperpod_kit.config.load import load
    from hyperpod_kit.errors import UsageError

    # validate and the commands that send the cluster's request compare it with the service model.
    settings = load(config, with_service_model=False)
    if not settings.entry_script:
        raise UsageError(
            "in ami_only mode no lifecycle script runs, so there is nothing to upload",
            hint="hyperpod-kit create-cluster",
        )
    bundle = rendering.render(settings)
    bucket = Bucket(bundle.bucket, settings.cluster.region, connections=THREADS)
    if dry_run:
        missing = uploading.list_paths_to_upload(bundle, bucket)
        if as_json:
            print_json("upload", {"bundle_id": bundle.bundle_id, "uri": bundle.source_s3_uri, "would_send": missing})
        else:
            print_to_stderr(f"would send {len(missing)} of {len(bundle.files)} files to {bundle.source_s3_uri}")
        return
    with progress_bar(f"bundle {bundle.bundle_id}", len(bundle.files)) as advance:
        # A file is through when it was found the same, or sent and verified: both kinds move the bar once.
        done = uploading.upload_bundle(
            bundle, bucket, lambda what, count: advance(count) if what in ("same", "verified") else None
        )
    if as_json:
        print_json(
            "upload",
            {
                "bundle_id": done.bundle_id,
                "uri": done.uri,
                "sent": done.sent,
                "present": done.present,
                "sent_bytes": done.sent_bytes,
            },
        )
    elif done.sent:
        print_to_stderr(
            f"uploaded bundle {done.bundle_id} to {done.uri}: {counted(done.sent, 'file')} sent "
            f"({done.sent_bytes / 1024:.0f} KiB), {done.present} there already, all verified"
        )
        print_to_stderr(f"next: hyperpod-kit create-cluster {config}")
    else:
        print_to_stderr(f"bundle {done.bundle_id} is at {done.uri} already: all {done.present} files verified")
