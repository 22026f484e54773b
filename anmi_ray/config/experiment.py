"""The whole configuration of an experiment: one frozen group of settings per stage, and how to carry it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.evaluate import EvaluateConfig, RerankConfig
from anmi_ray.config.execution import ExecutionConfig, PlanConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.paths import RUN_NAME
from anmi_ray.config.queries import QueriesConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.config.rules import fill
from anmi_ray.config.train import TrainConfig, offload_needs


class Experiment(Settings):
    """All settings of a run.

    `name`, `queries`, `execution` and `plan` change no result. The other groups belong to stages. The model of the run
    in `trained_by` is an input of stages.
    """

    name: str = Field(default="experiment", pattern=RUN_NAME)
    """Name of the run."""
    seed: int = Field(default=0, ge=0)
    """Root of every derived seed."""
    recipe: str | None = None
    """infonce-mined, zelo, anmi2 or anmi2-extended: fills its settings of mine and train if not given."""
    trained_by: str | None = Field(default=None, min_length=1)
    """Another run under the same root, whose model is measured over this collection: nothing is judged or trained."""
    corpus: CorpusConfig = CorpusConfig()
    queries: QueriesConfig = QueriesConfig()
    retrieve: RetrieveConfig = RetrieveConfig()
    compare: CompareConfig = CompareConfig()
    judge: JudgeConfig = JudgeConfig()
    distill: DistillConfig = DistillConfig()
    rate: RateConfig = RateConfig()
    mine: MineConfig = MineConfig()
    train: TrainConfig = TrainConfig()
    rerank: RerankConfig = RerankConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    execution: ExecutionConfig = Field(default_factory=ExecutionConfig)  # its root depends on the working directory
    plan: PlanConfig = PlanConfig()

    @model_validator(mode="before")
    @classmethod
    def _of_recipe(cls, data: Any) -> Any:
        return fill(data) if isinstance(data, dict) and data.get("recipe") is not None else data

    def _problems(self) -> Iterator[str]:
        judge, evaluate, design = self.judge, self.evaluate, self.compare.design
        compared, depth = self.retrieve.candidates, self.retrieve.depth
        if design != "imported" and self.compare.degree >= compared:
            yield (
                f"compare.degree: expected less than retrieve.candidates = {compared}, got {self.compare.degree}: "
                "lower compare.degree below it, or raise retrieve.candidates"
            )
        if self.rerank.depth > depth:
            yield (
                f"rerank.depth: expected at most retrieve.depth = {depth}, got {self.rerank.depth}: lower rerank.depth "
                "or raise retrieve.depth"
            )
        for config in (self.train, *([self.distill] if judge.distilled else [])):
            if wrong := offload_needs(self.execution.train.offload, config):
                yield f"execution.train.offload: {wrong}"
        if judge.orders == "one" and self.rate.judge_offsets is not True:
            yield (
                "judge.orders: one leaves each judge's preference for a place in its answers: set rate.judge_offsets: "
                "true, which fits it from all answers"
            )
        if self.mine.anchors == "retrieved" and self.mine.validation is not None:
            yield "mine.anchors: retrieved asks no judge: remove validate from mine.allow"
        direct = "kind api, vllm, encoder (form: pointwise) or simulated"
        if self.mine.anchors == "confirmed" and not judge.direct.judges:
            yield (
                "mine.anchors: confirmed asks judges about single documents, and those of judge.judges only compare "
                f"two: add one of {direct}, set mine.anchors: rated, or give labels and set mine.anchors: known"
            )
        if self.assessors is not None and not self.assessors.direct.judges:
            yield (
                f"evaluate.judged: {evaluate.judged} asks judges about single documents, and those of the panel only "
                f"compare two: give evaluate.judge one of {direct}, or set evaluate.judged: none"
            )
        if evaluate.judge is not None and evaluate.judge.judges == judge.judges:
            yield (
                "evaluate.judge: expected another panel than judge, got the same judges: name others, or remove "
                "evaluate.judge"
            )
        if evaluate.judged == "unlabelled" and self.corpus.unlabelled_dev == self.corpus.unlabelled_test == 0:
            yield (
                "evaluate.judged: unlabelled measures dev and test queries without labels, and corpus.unlabelled_dev "
                "and corpus.unlabelled_test are 0: leave them out, which holds out a fifth of the queries each, or set "
                "evaluate.judged: all"
            )
        yield from self._problems_of_runs()

    def _problems_of_runs(self) -> Iterator[str]:
        judge, evaluate, design = self.judge, self.evaluate, self.compare.design
        judges = [one.name for one in judge.judges]
        if strangers := sorted(set(self.rate.judge_weights) - set(judges)):
            yield (
                f"rate.judge_weights names {', '.join(strangers)}, but the panel (judge.judges) is {', '.join(judges)}"
            )
        if self.trained_by is not None and self.assessors is not None:
            yield "trained_by measures by labels alone: set evaluate.judged: none, or judge in another run"
        files = [one.name for one in judge.imported]
        if design == "adaptive" and self.rate.prior is None:
            yield (
                "compare.design: adaptive chooses pairs by the errors of all ratings, which need a prior: set "
                "rate.prior: empirical-bayes, or compare.design: k-regular"
            )
        if design == "adaptive" and files:
            yield (
                f"compare.design: adaptive chooses pairs as answers come in, and judge {files[0]} is a file that "
                "answers its own pairs alone: set compare.design: imported"
            )
        partners = evaluate.over(self.retrieve.retrievers).partners
        first = ("hybrid", *self.retrieve.retrievers)
        peers = [peer.name for peer in self.rerank.peers if peer.can_be_partner]
        if strangers := [name for name in partners if name not in (*first, *peers)]:
            yield (
                f"evaluate.partners names {', '.join(strangers)}, but scores of dev queries are there of "
                f"{', '.join(first)}, and of the peers that are a model or another run's "
                f"({', '.join(peers) or 'rerank.peers has none'}): name those"
            )
        if not set(partners) & set(first):
            yield f"evaluate.partners names no system of the first stage: add one of {', '.join(first)}"

    @property
    def partners(self) -> tuple[str, ...]:
        """Systems whose scores are fused with the reranked ones; empty without fusion."""
        fused = self.evaluate.over(self.retrieve.retrievers)
        return fused.partners if fused.fusion else ()

    @property
    def ensemble(self) -> JudgeConfig | None:
        """The panel that labels a sample of pairs if the panel contains a judge distilled from it."""
        return self.distill.judge if self.judge.distilled else None

    @property
    def rates_dev(self) -> bool:
        """True if judges compare documents of unlabelled dev queries, to choose on them."""
        size = self.corpus.unlabelled_dev
        held_out = self.evaluate.judged == "unlabelled" if size is None else bool(size)
        return held_out and self.mine.anchors in ("confirmed", "rated")

    @property
    def assessors(self) -> JudgeConfig | None:
        """The panel that judges the top documents of held-out queries; None if evaluate.judged is none."""
        return None if self.evaluate.judged == "none" else self.evaluate.judge or self.judge

    @property
    def simulated(self) -> tuple[str, JudgeConfig] | None:
        """The stage that asks simulated judges, with its panel; None if no judge behind the ratings is simulated."""
        panels = (("judge", self.judge), ("label", self.ensemble)) if self.mine.anchors != "retrieved" else ()
        return next(((stage, panel) for stage, panel in panels if panel is not None and panel.simulated), None)
