"""Settings of what a language model is asked: the prompt template, how much of each text it sees, how it is read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings
from anmi_ray.config.paths import FileOrName, FolderOrName

PromptReadout = Literal["sign", "soft", "logprob"]


class PromptConfig(Settings):
    """The prompt of a language model that judges, and how its answer becomes a preference."""

    template: FileOrName = Field(
        default="scale",
        min_length=1,
        description="scale (a number from -1 to 1), letters (A, B or T), or the path of a template of your own",
    )
    query_tokens: int = Field(
        default=256, ge=16, le=131_072, description="tokens of a query that are shown; the rest is cut off, with a mark"
    )
    document_tokens: int = Field(
        default=1024,
        ge=16,
        le=131_072,
        description="tokens of each document that are shown; the rest is cut off, with a mark",
    )
    tokenizer: FolderOrName | None = Field(
        default=None,
        min_length=1,
        description="the judge's tokenizer, which counts and cuts exactly and names the special tokens: a folder, or a "
        "hub id (org/model@revision); null estimates from bytes, on the long side",
    )
    readout: PromptReadout = Field(
        default="sign",
        description="sign: 0, 1/2 or 1; soft: (1 + number) / 2; logprob: from the probabilities of the letters",
    )

    @model_validator(mode="after")
    def _readout_fits_template(self) -> PromptConfig:
        if self.readout == "logprob" and self.template == "scale":
            raise ValueError(
                "readout logprob reads the probabilities of letters, and template scale asks for a number: "
                "set template: letters, or readout: soft"
            )
        return self
