"""The whole configuration of an experiment: one frozen group of settings per stage, and how to carry it out."""

from __future__ import annotations

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
from anmi_ray.config.recipes import fill
from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.config.train import TrainConfig, offload_needs


class Experiment(Settings):
    """Everything one run needs to know.

    `name`, `queries`, `execution` and `plan` change no result of a run; other groups are a stage's. What the runs that
    `refines` and `trained_by` name have made is an input of stages.
    """

    name: str = Field(default="experiment", pattern=RUN_NAME)
    """Name of the run."""
    seed: int = Field(default=0, ge=0)
    """Root of every derived seed."""
    recipe: str | None = None
    """infonce-mined, zelo, anmi2 or anmi2-extended: fills the settings of mine and train that it is about where these
    are not given."""
    refines: str | None = Field(default=None, min_length=1)
    """Another run under the same root, which is gone on with: its pairs are judged again with those where its model and
    its ratings disagree, and training starts from its model."""
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

    @model_validator(mode="after")
    def _stages_fit_together(self) -> Experiment:
        if self.compare.design != "imported" and self.compare.degree >= self.retrieve.candidates:
            raise ValueError(
                f"compare.degree is {self.compare.degree}, but a query has retrieve.candidates = "
                f"{self.retrieve.candidates} documents to compare: lower compare.degree below it, or raise "
                "retrieve.candidates"
            )
        if self.rerank.depth > self.retrieve.depth:
            raise ValueError(
                f"rerank.depth is {self.rerank.depth}, but a ranking holds retrieve.depth = {self.retrieve.depth} "
                "documents: lower rerank.depth or raise retrieve.depth"
            )
        for config in (self.train, *([self.distill] if self.judge.distilled else [])):
            if wrong := offload_needs(self.execution.train.offload, config):
                raise ValueError(f"execution.train.offload: {wrong}")
        if self.judge.target_dollars is not None and self.execution.gpu_dollars_hour is None:
            raise ValueError("judge.target_dollars needs execution.gpu_dollars_hour, the price of a GPU for an hour")
        if self.judge.orders == "one" and self.rate.judge_offsets is not True:
            raise ValueError(
                "judge.orders: one leaves in every answer what its judge prefers for its place: set "
                "rate.judge_offsets: true, which fits it from all answers"
            )
        if self.mine.anchors == "confirmed" and not self.judge.direct.judges:
            raise ValueError(
                "mine.anchors: confirmed asks judges whether one document answers a query, and those of judge.judges "
                "only compare two: add one of kind api, vllm, encoder (form: pointwise) or simulated, set "
                "mine.anchors: rated, which asks nobody, or give labels and set mine.anchors: known"
            )
        if self.assessors is not None and not self.assessors.direct.judges:
            raise ValueError(
                f"evaluate.judged: {self.evaluate.judged} asks judges whether one document answers a query, and those "
                "of the panel only compare two: give evaluate.judge one of kind api, vllm, encoder (form: pointwise) "
                "or simulated, or set evaluate.judged: none"
            )
        if self.evaluate.judge is not None and self.evaluate.judge.judges == self.judge.judges:
            raise ValueError(
                "evaluate.judge: its judges are those of judge, which is no panel of its own: name others, or remove "
                "evaluate.judge, so that the report says that the training panel measured"
            )
        if self.evaluate.judged == "unlabelled" and self.corpus.unlabelled_dev == self.corpus.unlabelled_test == 0:
            raise ValueError(
                "evaluate.judged: unlabelled measures dev and test queries without labels, and corpus.unlabelled_dev "
                "and corpus.unlabelled_test are 0: leave them out, which holds out a fifth of the queries each, or set "
                "evaluate.judged: all to have queries with labels judged"
            )
        judges = [judge.name for judge in self.judge.judges]
        if strangers := sorted(set(self.rate.judge_weights) - set(judges)):
            raise ValueError(
                f"rate.judge_weights names {', '.join(strangers)}, but the panel (judge.judges) is {', '.join(judges)}"
            )
        return self

    @model_validator(mode="after")
    def _measured_elsewhere(self) -> Experiment:
        if self.trained_by is None:
            return self
        if self.refines is not None:
            raise ValueError("trained_by trains nothing, and refines trains on: leave one of them out")
        if self.assessors is not None:
            raise ValueError(
                "trained_by measures by labels alone: set evaluate.judged: none, or judge the collection in a run of "
                "its own"
            )
        return self

    @model_validator(mode="after")
    def _answers_come_in_rounds(self) -> Experiment:
        files = [judge.name for judge in self.judge.judges if judge.kind == "imported"]
        if self.refines is not None and (files or self.compare.design == "imported"):
            raise ValueError(
                "refines asks about pairs that no run has asked about, and preferences from a file answer their own "
                "pairs alone: name judges that can be asked (judge.judges, compare.design: k-regular), or leave it out"
            )
        if self.compare.design != "adaptive":
            return self
        if self.rate.prior is None:
            raise ValueError(
                "compare.design: adaptive chooses pairs by what is known of every rating, and without a prior nothing "
                "is: set rate.prior: empirical-bayes, or compare.design: k-regular"
            )
        if files:
            raise ValueError(
                f"compare.design: adaptive chooses pairs as answers come in, and judge {files[0]} is a file that "
                "answers its own pairs alone: set compare.design: imported"
            )
        return self

    @model_validator(mode="after")
    def _partners_have_scores(self) -> Experiment:
        partners = self.evaluate.over(self.retrieve.retrievers).partners
        first = ("hybrid", *self.retrieve.retrievers)
        peers = [peer.name for peer in self.rerank.peers if peer.can_be_partner]
        if strangers := [name for name in partners if name not in (*first, *peers)]:
            raise ValueError(
                f"evaluate.partners names {', '.join(strangers)}, but scores of dev queries are there of "
                f"{', '.join(first)}, and of the peers that are a model or another run's "
                f"({', '.join(peers) or 'rerank.peers has none'}): name those"
            )
        if not set(partners) & set(first):
            raise ValueError(
                "evaluate.partners names no system of the first stage, whose fusion is the control: add one of "
                f"{', '.join(first)}"
            )
        return self

    @property
    def partners(self) -> tuple[str, ...]:
        """The systems whose scores are fused with the reranked ones; none where nothing is fused."""
        fused = self.evaluate.over(self.retrieve.retrievers)
        return fused.partners if fused.fusion else ()

    @property
    def in_rounds(self) -> bool:
        """Whether pairs are chosen, asked and rated in rounds: an adaptive design that goes on from no other run."""
        return self.compare.design == "adaptive" and self.refines is None

    @property
    def ensemble(self) -> JudgeConfig | None:
        """The judges that are asked about a sample of pairs where the panel holds a judge distilled from them."""
        return self.distill.judge if self.judge.distilled else None

    @property
    def rates_dev(self) -> bool:
        """Whether judges compare documents of dev queries without a label, to choose on them."""
        size = self.corpus.unlabelled_dev
        held_out = self.evaluate.judged == "unlabelled" if size is None else bool(size)
        return held_out and self.mine.anchors != "known"

    @property
    def assessors(self) -> JudgeConfig | None:
        """The judges who are asked about the top documents of held-out queries; None where nobody is."""
        return None if self.evaluate.judged == "none" else self.evaluate.judge or self.judge

    @property
    def simulated(self) -> tuple[str, JudgeConfig] | None:
        """The stage that asks simulated judges, and its panel; None where no judge behind the ratings is simulated."""
        panels = (("judge", self.judge), ("label", self.ensemble))
        return next(((stage, panel) for stage, panel in panels if panel is not None and panel.simulated), None)
