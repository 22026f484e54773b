"""Settings of `anmi queries`, which makes train queries of documents; no stage of a run reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pydantic import Field

from anmi_ray.config.base import Kind, Settings
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.judge import BudgetConfig
from anmi_ray.config.paths import FileOrName, PathOrUri

QueryKind = Literal["title", "sentence", "heading", "phrase", "identifier", "keyword", "question", "example"]
WRITTEN = ("keyword", "question", "example")  # by a language model; the others are found in documents


class WriterEndpointConfig(EndpointConfig):
    """The chat model that writes, and how its server is reached."""

    role = "writer"

    max_tokens: int | None = Field(default=512, ge=1)
    """Longest answer; null: not sent, the server's default."""


class ApiWriterConfig(Kind[Literal["api"]]):
    """A language model behind an OpenAI-compatible endpoint that writes queries (OpenAI, Gemini, a vLLM server)."""

    endpoint: WriterEndpointConfig
    """The model, and how its server is reached."""
    template: FileOrName = Field(default="queries", min_length=1)
    """queries, or the path of a template of your own with form: queries: instruction and examples."""


class QueriesConfig(Settings):
    """How `anmi queries` makes train queries of documents. No stage of a run reads this group."""

    kinds: tuple[QueryKind, ...] | None = Field(default=None, min_length=1)
    """Kinds of queries, of which there are about as many each; null: keyword and question (and example, where examples
    are given) with a writer, else the five that are found in documents."""
    writer: ApiWriterConfig | None = None
    """The language model that writes queries of kinds keyword, question and example."""
    each: int = Field(default=1, ge=1, le=10)
    """Queries of a kind that the writer is asked for by document."""
    documents: int | None = Field(default=None, ge=1)
    """Documents that the writer is asked about, at most, one call each; null: as many as queries are wanted
    (--number)."""
    examples: PathOrUri | None = Field(default=None, min_length=1)
    """File of your users' queries, a line each or JSON lines with `text` or `query`; kind example imitates up to 20."""
    check: bool = False
    """Ask the judges of judge.judges that read texts whether a query's document answers it, within judge.budget, and
    leave out queries that they do not confirm."""
    budget: BudgetConfig = BudgetConfig()
    """Limits of what the writer may cost, over all resumptions."""

    @property
    def written(self) -> tuple[str, ...]:
        """Kinds that the writer is asked for."""
        if self.writer is None:
            return ()
        kinds = self.kinds or (WRITTEN if self.examples is not None else WRITTEN[:2])
        return tuple(kind for kind in WRITTEN if kind in kinds)

    @property
    def found(self) -> tuple[str, ...]:
        """Kinds that are looked for in documents."""
        kinds = self.kinds or (get_args(QueryKind) if self.writer is None else ())
        return tuple(kind for kind in get_args(QueryKind) if kind in kinds and kind not in WRITTEN)

    def _problems(self) -> Iterator[str]:
        written = [kind for kind in self.kinds or () if kind in WRITTEN]
        if written and self.writer is None:
            yield f"kinds: {', '.join(written)} are written by a language model: give queries.writer"
        if self.writer is not None and not self.written:
            yield f"kinds: none of them is written, so writer has nothing to do: add {', '.join(WRITTEN)}"
        if "example" in written and self.examples is None:
            yield "kinds: example imitates your own queries: give their file as queries.examples"
        if self.budget.dollars is not None and (self.writer is None or self.writer.endpoint.input_price is None):
            yield (
                "budget: dollars needs the writer's prices: give writer.endpoint.input_price and output_price, dollars "
                "per million tokens (0 for a server of your own)"
            )
