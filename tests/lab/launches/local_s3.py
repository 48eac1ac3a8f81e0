"""A local S3 server with one bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def bucket_on() -> Iterator[str]:
    """Start moto's server, let fsspec find it, and return the address of its bucket; everything ends with the block."""
    pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server")
    import boto3
    import fsspec

    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    ours = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ.update(ours)
    try:
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"
    finally:
        for name in ours:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()
