"""An S3 endpoint on this machine (moto's server) that records what it is asked and refuses when a test wants it to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs
import pytest

BUCKET = "collection"
STATUS = {"SlowDown": "503 Slow Down", "AccessDenied": "403 Forbidden"}  # pyarrow retries the first


@dataclass
class S3Endpoint:
    """A running endpoint, what it was asked (method, key, query), and how often it is to refuse."""

    url: str
    client: Any
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    refuse: Callable[[str, str, str], str | None] | None = None  # the code of the error to answer, or None

    def uri(self, root: str, credentials: str = "") -> str:
        """A root of this endpoint as users write it."""
        return f"s3://{credentials}{BUCKET}/{root}?endpoint_override={self.url}&scheme=http&region=us-east-1"

    def filesystem(self) -> pafs.S3FileSystem:
        """A filesystem that gives up at the first failure, so that tests of failures are quick."""
        return pafs.S3FileSystem(
            endpoint_override=self.url,
            scheme="http",
            region="us-east-1",
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
        )

    def writes(self) -> list[tuple[str, str]]:
        """What was written: method and first word of the query (uploads, partNumber, uploadId)."""
        return [(method, query.split("=")[0]) for method, _, query in self.requests if method in ("PUT", "POST")]

    def objects(self) -> list[str]:
        """The keys of all objects."""
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


@contextmanager
def running() -> Iterator[S3Endpoint]:
    """The endpoint, with its credentials in the environment."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            host, port = server.get_host_and_port()
            url = f"http://{host}:{port}"
            client = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
            client.create_bucket(Bucket=BUCKET)
            endpoint = S3Endpoint(url, client)
            _watch(server, endpoint)
            yield endpoint
        finally:
            server.stop()


def _watch(server: Any, endpoint: S3Endpoint) -> None:
    """Put a recorder, which can also refuse, before the server's application."""
    application = server._server.app

    def recorded(environ: dict[str, Any], start_response: Any) -> Any:
        request = (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        if "Boto3" not in environ.get("HTTP_USER_AGENT", ""):  # the tests' own requests pass
            endpoint.requests.append(request)
            code = endpoint.refuse(*request) if endpoint.refuse else None
            if code:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                body = f"<Error><Code>{code}</Code><Message>as the test wants</Message></Error>".encode()
                headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
                start_response(STATUS[code], headers)
                return [] if request[0] == "HEAD" else [body]
        return application(environ, start_response)

    server._server.app = recorded
