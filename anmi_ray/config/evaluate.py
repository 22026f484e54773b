"""Settings of the last two stages: reranking the held-out queries, and measuring what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator

from anmi_ray.config.base import Distinct, LoadedModel, Settings
from anmi_ray.config.endpoint import RerankEndpointConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.paths import FolderOrName
from anmi_ray.config.retrieve import RETRIEVERS, USUAL, Retriever
from anmi_ray.config.train import Pooling, Student, TrainConfig

if TYPE_CHECKING:
    from ir_measures.measures import Measure

FIRST_STAGE = (*RETRIEVERS, "hybrid")
START = "start"
MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


Precision = Literal["auto", "float32", "bfloat16", "float16"]
_SYSTEMS = (*FIRST_STAGE, START, "reranked")
_OF_MODELS = ("max_tokens", "precision", "trust_remote_code")


@dataclass(frozen=True)
class TrainingStart:
    """Settings that the untrained model shares with training."""

    student: Student
    pooling: Pooling
    prompt: str | None
    seed: int


class Scoring(Settings):
    """How a model scores pairs of a query and a document."""

    max_tokens: int | None = Field(default=None, ge=16, le=32_768)
    """Tokens of a query and document, longer documents are cut; null: as the model was trained."""
    precision: Precision = "auto"
    """Arithmetic of the forward pass; auto: bfloat16 where the processor computes it natively."""


class PeerConfig(LoadedModel, Scoring):
    """Another reranker to compare with: a model, an endpoint, another run's model, or the untrained start model."""

    by_content = frozenset({"run"})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")
    """Name of the system in tables, tests and run files."""
    model: FolderOrName | None = Field(default=None, min_length=1)
    """A cross-encoder or bi-encoder: an installed package, a folder, or a hub id (org/model@revision)."""
    endpoint: RerankEndpointConfig | None = None
    """A reranker behind HTTP."""
    untrained: bool = False
    """The model that training starts from, its head drawn by train.seed and not trained."""
    run: str | None = Field(default=None, min_length=1)
    """The reranker that another run under the same root has trained."""
    start: TrainingStart | None = None
    """untrained: filled in from the settings of training."""
    dev: bool = False
    """Dev queries are scored too: filled in where evaluate.partners asks."""

    def _problems(self) -> Iterator[str]:
        if self.start is not None:
            return
        kinds = [self.model is not None, self.endpoint is not None, self.run is not None, self.untrained]
        if sum(kinds) != 1:
            yield "a peer is one of model, endpoint, run and untrained: give exactly one"
        if self.dev and not self.can_be_partner:
            yield "dev queries are scored by a peer that is a model or another run's: leave dev out"
        own = _OF_MODELS if self.run is None else ("trust_remote_code",)
        if self.model is None and (strangers := self._changed(own)):
            kind = "an endpoint's server" if self.endpoint is not None else "training"
            yield f"{', '.join(strangers)}: {kind} decides that; remove it"

    @property
    def can_be_partner(self) -> bool:
        """Whether evaluate.partners may name it: a server's scores of dev queries would have to be paid."""
        return not self.untrained and self.endpoint is None

    def started(self, train: TrainConfig, scoring: Scoring | None = None) -> PeerConfig:
        """With the settings of training filled in, and how the trained model scores, where it is the untrained one."""
        if not self.untrained:
            return self
        start = TrainingStart(**{field.name: getattr(train, field.name) for field in fields(TrainingStart)})
        same = {name: getattr(train, name) for name in ("model", "max_tokens", "trust_remote_code")}
        if scoring is not None:
            same |= {"max_tokens": scoring.max_tokens or train.max_tokens, "precision": scoring.precision}
        return self.model_copy(update={**same, "start": start})


class RerankConfig(Scoring):
    """How the trained model scores the first stage's documents of the dev and test queries."""

    depth: int = Field(default=100, ge=1, le=10_000)
    """Documents per query, from the top of the hybrid run."""
    start: bool = True
    """Also measure the model that training starts from, before training; a head drawn at random is not measured."""
    peers: tuple[PeerConfig, ...] = Field(default=(), max_length=50)
    """Other rerankers to compare with, over the same documents of the test queries."""

    @field_validator("peers")
    @classmethod
    def _named_once(cls, peers: tuple[PeerConfig, ...]) -> tuple[PeerConfig, ...]:
        names = [peer.name for peer in peers]
        if taken := [name for name in names if name in _SYSTEMS]:
            more = ", which rerank.start measures" if START in taken else ""
            raise ValueError(f"{taken[0]} is a system already{more}: give the peer another name")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two peers are called {', '.join(twice)}: give each its own name")
        return peers


class HeldOutConfig(RerankConfig):
    """Reranking with what other groups of settings say about it filled in.

    untrained: the model that training starts from, as a peer; it follows from train, an input of the stage.
    """

    how_only = frozenset({"untrained"})

    untrained: PeerConfig | None = None

    @classmethod
    def of(cls, rerank: RerankConfig, train: TrainConfig, partners: Iterable[str]) -> Self:
        """Fill in the settings of peers.

        partners: systems of evaluate.partners; peers among them score dev queries too.
        """
        names = set(partners)
        peers = (peer.started(train, rerank) for peer in rerank.peers)
        filled = tuple(peer.model_copy(update={"dev": peer.name in names}) for peer in peers)
        settings = {name: getattr(rerank, name) for name in type(rerank).model_fields}
        start = PeerConfig(name=START, untrained=True).started(train, rerank).model_copy(update={"dev": True})
        return cls.model_construct(**{**settings, "peers": filled, "untrained": start if rerank.start else None})


class EvaluateConfig(Settings):
    """Measures on the test queries, the baseline, and the fusion of reranked scores with the first stage's."""

    measures: Annotated[tuple[str, ...], Distinct] = Field(default=MEASURES, min_length=1, max_length=8)
    """Names that ir_measures reads; the first is the headline."""
    baseline: str | None = Field(default=None, min_length=1)
    """System that the others are compared with; null: the best on dev queries of those that nothing was trained for,
    which are the retrievers, hybrid, the fusion without the reranker, start and start+hybrid."""
    fusion: bool = True
    """Also evaluate the reranked scores fused with the first stage's, by weights that dev chose."""
    partners: Annotated[tuple[str, ...], Distinct] = Field(default=USUAL, min_length=1, max_length=4)
    """Systems whose scores are fused with the reranked ones: retrievers; hybrid, the fused ranks as one score; peers
    that are a model or another run's; by default the retrievers, or hybrid where they are four."""
    judged: Literal["none", "unlabelled", "all"] = "none"
    """Dev and test queries of whose top documents judges are asked whether they answer, but for dev queries that they
    rated (corpus.unlabelled_dev): none; unlabelled, those without a relevant document among the labels
    (corpus.unlabelled_test holds such queries out); all, so that labels and judges can be compared."""
    judge: JudgeConfig | None = None
    """The panel that measures, with its own budget; null: the training panel (judge), whose errors the model may have
    learned, within the rest of its budget."""

    @property
    def first_stage(self) -> tuple[str, ...]:
        """The partners of the first stage, which are fused without any reranker too."""
        return tuple(name for name in self.partners if name in FIRST_STAGE)

    @property
    def other_rerankers(self) -> tuple[str, ...]:
        """The partners that are peers."""
        return tuple(name for name in self.partners if name not in FIRST_STAGE)

    def over(self, retrievers: tuple[Retriever, ...]) -> EvaluateConfig:
        """With the retrievers as partners, where none are given."""
        if "partners" in self.model_fields_set or retrievers == self.partners:
            return self
        return self.model_copy(update={"partners": retrievers if len(retrievers) < 4 else ("hybrid",)})

    def _problems(self) -> Iterator[str]:
        if self.judge is not None and self.judged == "none":
            yield "the panel of `judge` is asked nothing: set judged to unlabelled or all, or remove `judge`"

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, measures: tuple[str, ...]) -> tuple[str, ...]:
        if measures == MEASURES:
            return measures
        for name in measures:
            measure_of(name)
        return measures


def measure_of(name: str) -> Measure:
    """The ir_measures measure of this name or trec_eval's; MRR@10 is RR@10. Raises ValueError for an unknown one."""
    import ir_measures

    with suppress(ValueError):
        name = str(ir_measures.parse_trec_measure(name)[0])  # ndcg_cut_10 and the like
    try:
        measure = ir_measures.parse_measure(name)
        if ir_measures.DefaultPipeline.supports(measure) and measure.params.get("cutoff", 1) >= 1:
            return measure
        problem = "nothing installed computes it"
    except (NameError, ValueError, AssertionError) as error:  # it asserts that parameters are right, and there
        problem = re.sub(r"<object object at \w+>", "nothing", str(error))
    raise ValueError(f"{name!r} is not a measure of ir_measures ({problem}); use for example nDCG@10, MRR@10 or AP")
