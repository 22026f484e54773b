"""Settings of the last two stages: reranking the held-out queries, and measuring what came of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from anmi_ray.config.base import LoadedModel, Settings
from anmi_ray.config.endpoint import RerankEndpointConfig
from anmi_ray.config.paths import FolderOrName
from anmi_ray.config.retrieve import RETRIEVERS, USUAL, Retriever
from anmi_ray.config.train import Pooling, Student, TrainConfig

Partner = Literal[Retriever, "hybrid"]
MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


Precision = Literal["auto", "float32", "bfloat16", "float16"]
_SYSTEMS = (*RETRIEVERS, "hybrid", "reranked")
_OF_MODELS = ("max_tokens", "precision", "trust_remote_code")


@dataclass(frozen=True)
class TrainingStart:
    """How training starts from a model: what the untrained peer has in common with it."""

    student: Student
    pooling: Pooling
    prompt: str | None
    seed: int


class Scoring(Settings):
    """How a model scores pairs of a query and a document."""

    max_tokens: int | None = Field(
        default=None,
        ge=16,
        le=32_768,
        description="tokens of a query and document, longer documents are cut; null: as the model was trained",
    )
    precision: Precision = Field(
        default="auto",
        description="arithmetic of the forward pass; auto: bfloat16 where the processor computes it natively",
    )


class PeerConfig(LoadedModel, Scoring):
    """Another reranker that scores the same documents, a system of its own: a model, an endpoint, another run's, or the
    untrained."""

    # the model that a run trained is an input of the stage
    how_only: ClassVar[frozenset[str]] = frozenset({"run"})

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$", description="name of the system in tables, tests and run files"
    )
    model: FolderOrName | None = Field(
        default=None,
        min_length=1,
        description="a cross-encoder or bi-encoder: an installed package, a folder, or a hub id (org/model@revision)",
    )
    endpoint: RerankEndpointConfig | None = Field(default=None, description="a reranker behind HTTP")
    untrained: bool = Field(
        default=False, description="the model that training starts from, its head drawn by train.seed and not trained"
    )
    run: str | None = Field(
        default=None, min_length=1, description="the reranker that another run under the same root has trained"
    )
    start: TrainingStart | None = Field(default=None, description="untrained: filled in from the settings of training")

    @field_validator("name")
    @classmethod
    def _free(cls, name: str) -> str:
        if name in _SYSTEMS:
            raise ValueError(f"{name} is a system already: give the peer another name")
        return name

    @model_validator(mode="after")
    def _one_kind(self) -> PeerConfig:
        if self.start is not None:
            return self
        given = [self.model is not None, self.endpoint is not None, self.run is not None, self.untrained]
        if sum(given) != 1:
            raise ValueError("a peer is one of model, endpoint, run and untrained: give exactly one")
        own = _OF_MODELS if self.run is None else ("trust_remote_code",)
        if self.model is None and (strangers := [name for name in own if self._is_given(name)]):
            kind = "an endpoint's server" if self.endpoint is not None else "training"
            raise ValueError(f"{', '.join(strangers)}: {kind} decides that; remove it")
        return self

    def _is_given(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default

    def started(self, train: TrainConfig) -> PeerConfig:
        """With the settings of training filled in, where it is the untrained model."""
        if not self.untrained:
            return self
        start = TrainingStart(**{field.name: getattr(train, field.name) for field in fields(TrainingStart)})
        same = {name: getattr(train, name) for name in ("model", "max_tokens", "trust_remote_code")}
        return self.model_copy(update={**same, "start": start})


class RerankConfig(Scoring):
    """How the trained model scores the first stage's documents of the dev and test queries."""

    depth: int = Field(default=100, ge=1, le=10_000, description="documents per query, from the top of the hybrid run")
    peers: tuple[PeerConfig, ...] = Field(
        default=(),
        max_length=50,
        description="other rerankers that score the same documents of the test queries, measured beside ours",
    )

    @field_validator("peers")
    @classmethod
    def _named_once(cls, peers: tuple[PeerConfig, ...]) -> tuple[PeerConfig, ...]:
        names = [peer.name for peer in peers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two peers are called {', '.join(twice)}: give each a name of its own")
        return peers

    def started(self, train: TrainConfig) -> RerankConfig:
        """With the settings of training filled in, where a peer is the untrained model."""
        return self.model_copy(update={"peers": tuple(peer.started(train) for peer in self.peers)})


class EvaluateConfig(Settings):
    """What is measured on the test queries, against what, and how the reranked scores are fused with the hybrid's."""

    measures: tuple[str, ...] = Field(
        default=MEASURES,
        min_length=1,
        max_length=8,
        description="names that ir_measures reads; the first is the headline",
    )
    baseline: str | None = Field(
        default=None,
        min_length=1,
        description="system that the others are compared with; null: the best on dev queries of those that nothing was "
        "trained for, which are the retrievers, hybrid, and the fusion without the reranker",
    )
    rounds: int = Field(
        default=10_000,
        ge=100,
        le=10_000_000,
        description="sign flips of the randomisation test, resamples of the bootstrap",
    )
    fusion: bool = Field(
        default=True,
        description="also evaluate the reranked scores fused with the first stage's, by weights that dev chose",
    )
    partners: tuple[Partner, ...] = Field(
        default=USUAL,
        min_length=1,
        max_length=3,
        description="systems whose scores are fused with the reranked ones; hybrid: the fused ranks as one score; by "
        "default the retrievers, or hybrid where they are four",
    )

    def over(self, retrievers: tuple[Retriever, ...]) -> EvaluateConfig:
        """With the retrievers as partners, where none are given."""
        if "partners" in self.model_fields_set or retrievers == self.partners:
            return self
        return self.model_copy(update={"partners": retrievers if len(retrievers) < 4 else ("hybrid",)})

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, measures: tuple[str, ...]) -> tuple[str, ...]:
        if measures == MEASURES:
            return measures
        if len(set(measures)) != len(measures):
            raise ValueError("a measure is named twice")
        import ir_measures

        for name in measures:
            try:
                ir_measures.parse_measure(name)
            except (NameError, ValueError) as error:
                raise ValueError(
                    f"{name!r} is no measure of ir_measures ({error}); for example nDCG@10, MRR@10, Recall@100, AP"
                ) from error
        return measures

    @field_validator("partners")
    @classmethod
    def _once(cls, partners: tuple[Partner, ...]) -> tuple[Partner, ...]:
        if len(set(partners)) != len(partners):
            raise ValueError("a system is named twice")
        return partners
