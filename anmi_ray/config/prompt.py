"""Settings of what a language model is asked: the prompt template, how much of each text it sees, how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.paths import FileOrName, FolderOrName

PromptReadout = Literal["sign", "soft", "logprob"]


class PromptConfig(Settings):
    """The prompt of a language model that judges, and how its answer becomes a preference."""

    # what the template says is part of the identity under which the answers about one document are kept
    by_content = frozenset({"relevance"})

    template: FileOrName = Field(default="scale", min_length=1)
    """scale (a number from -1 to 1), letters (A, B or T), or the path of a template of your own."""
    relevance: FileOrName = Field(default="relevance", min_length=1)
    """What it is asked of one document (mine.anchors: confirmed): relevance (yes or no), or the path of a template of
    your own with form: yes-no."""
    query_tokens: int = Field(default=256, ge=16, le=131_072)
    """Tokens of a query that are shown; the rest is cut off, with a mark."""
    document_tokens: int = Field(default=1024, ge=16, le=131_072)
    """Tokens of each document that are shown; the rest is cut off, with a mark."""
    tokenizer: FolderOrName | None = Field(default=None, min_length=1)
    """The judge's tokenizer, which counts and cuts exactly and names the special tokens: a folder, or a hub id
    (org/model@revision); null estimates from bytes, on the long side."""
    readout: PromptReadout = "sign"
    """sign: 0, 1/2 or 1; soft: (1 + number) / 2; logprob: from the probabilities of the letters."""

    @property
    def direct(self) -> Self:
        """The prompt that asks about one document; its template is `relevance`."""
        return self.model_copy(update={"template": self.relevance})

    @property
    def is_direct(self) -> bool:
        """Whether it asks about one document."""
        return self.template == self.relevance

    @property
    def documents(self) -> int:
        """Documents that it shows."""
        return 1 if self.is_direct else 2

    def _problems(self) -> Iterator[str]:
        if self.template in (self.relevance, "relevance"):
            yield (
                f"template {self.template} asks about one document, and pairs are compared: set template: scale or "
                "letters; relevance has the question about one document"
            )
        if self.readout == "logprob" and self.template == "scale":
            yield (
                "readout logprob reads the probabilities of letters, and template scale asks for a number: "
                "set template: letters, or readout: soft"
            )
