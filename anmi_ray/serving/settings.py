"""Settings of a service: the flags of `anmi serve`, and the args of a Serve config file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from anmi_ray.config.base import Gpus, Settings
from anmi_ray.config.evaluate import Precision
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError


class ServiceSettings(Settings):
    """A model, how many processes score with it, and the limits of requests."""

    model: str = Field(min_length=1, description="folder of a trained model, a run's name, or org/model of the hub")
    root: str = Field(default="results", description="folder or URI that holds the run")
    name: str = Field(default="", description="name of the model in answers; empty: the folder's or the run's name")
    replicas: int = Field(default=1, ge=1, le=1024, description="processes that score, each with the model in memory")
    most_replicas: int = Field(default=0, ge=0, le=1024, description="maximum while requests wait; 0: replicas")
    threads: int = Field(
        default=0,
        ge=0,
        description="threads of each; 0: this machine's cores, divided; default in a Serve config file: 1",
    )
    gpus: Gpus = Field(default=0.0, description="share of a GPU for each; 0: CPU")
    precision: Precision = Field(
        default="float32", description="arithmetic of the model; auto: bfloat16 where it is computed natively"
    )
    max_documents: int = Field(default=1000, ge=1, description="documents of a request")
    max_characters: int = Field(default=100_000, ge=1, description="characters of a query or of a document")
    max_body_mb: float = Field(default=8.0, gt=0, description="MB of a request's body")
    timeout_s: float = Field(default=60.0, gt=0, description="seconds from a request's first byte to its answer")
    max_waiting: int = Field(default=10_000, ge=1, description="texts that may wait; more are refused (429)")
    batch_texts: int = Field(default=128, ge=1, description="texts of a batch, of one request or of several")
    key_env: str = Field(default="", description="environment variable with the key that clients send; empty: none")
    cors_origins: str = Field(
        default="",
        pattern=r"^(\*|https?://[^\s,/]+(,https?://[^\s,/]+)*)?$",
        description="origins of pages that may send requests, by commas; *: any; empty: none",
    )

    @property
    def called(self) -> str:
        """Name of the model in answers; for a folder its last part, not its path."""
        is_path = self.model.startswith(("/", ".", "~")) or Path(self.model).is_dir()
        return self.name or (Path(self.model).resolve().name if is_path else self.model)

    @property
    def threads_each(self) -> int:
        """Threads of a process that scores."""
        return self.threads or max(1, environment.cores() // self.most)

    @property
    def most(self) -> int:
        """Processes that may score at once."""
        return max(self.replicas, self.most_replicas)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Device of the scoring processes."""
        return "cuda" if self.gpus else "cpu"

    @property
    def max_body(self) -> int:
        """Bytes of a request's body."""
        return int(self.max_body_mb * 1e6)

    def key(self) -> bytes | None:
        """The key that clients must send, or None. Raises ConfigError if its variable is not set."""
        if not self.key_env:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            what = "the environment variable is not set, or empty"
            raise ConfigError(what, f"key {self.key_env}", f"export {self.key_env}=... where the service is started")
        return key.encode(errors="surrogateescape")


def validated(given: dict[str, object]) -> ServiceSettings:
    """The settings of a service. Raises ConfigError with the first mistake."""
    try:
        return ServiceSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "args"
        allowed = ", ".join(ServiceSettings.model_fields)
        raise ConfigError(first["msg"], f"service, {place}", f"there are {allowed}") from None
