"""The suite's fixtures."""

from tests.archive.buckets import bucket, s3, url

__all__ = ["bucket", "s3", "url"]
