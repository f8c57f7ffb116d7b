"""Beam's filesystems, which read URLs such as s3://bucket/file. Importing Beam takes seconds."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any


def beam_filesystems() -> Any:
    """Beam's class `FileSystems`. It has options, if only empty ones, without which that of S3 opens nothing.

    Raises:
        ImportError: without apache-beam.
    """
    filesystems = importlib.import_module("apache_beam.io.filesystems").FileSystems
    if filesystems._pipeline_options is None:  # neither a command nor a worker process has set them
        filesystems.set_options(importlib.import_module("apache_beam.options.pipeline_options").PipelineOptions([]))
    return filesystems


def require_credentials(url: str) -> None:
    """Raises ValueError for a URL of S3 where there are none: Beam would look for them again and again, for minutes."""
    if not url.lower().startswith("s3://"):
        return
    options = importlib.import_module("apache_beam.options.pipeline_options").S3Options
    if beam_filesystems()._pipeline_options.view_as(options).s3_access_key_id is None and not _has_own():
        raise ValueError(
            "no credentials for S3 are found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
            "~/.aws/credentials"
        )


@functools.cache
def _has_own() -> bool:
    """Whether boto3 finds credentials in the environment, in its files, or on a machine of Amazon's; without boto3
    Beam says that it is missing."""
    if importlib.util.find_spec("boto3") is None:
        return True
    return importlib.import_module("boto3").Session().get_credentials() is not None
