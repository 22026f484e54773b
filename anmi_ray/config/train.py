"""Settings of training: the loss and how its terms are balanced, the order of negatives, the optimiser, resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from anmi_ray.config.base import Distinct, GpuType, Placed, Settings
from anmi_ray.config.learning import LearnConfig, Offload
from anmi_ray.config.paths import PathOrUri
from anmi_ray.core.errors import ConfigError

Pooling = Literal["cls", "mean", "last", "yes-no"]
Learn = TypeVar("Learn", bound=LearnConfig)
Student = Literal["cross-encoder", "bi-encoder", "late-interaction"]
_TEMPERATURE = {"bi-encoder": 0.07, "late-interaction": 0.05}
_BY_RATING = ("ranknet", "listnet")
_SCHEDULED = ("table3", "algorithm3")


class LossConfig(Settings):
    """The ranking term and the regression term. Scores are logits; `bound` squashes them for the ranking term alone."""

    ranking: Literal["infonce", "debiased", "ranknet", "listnet"] = "infonce"
    """infonce: weighted InfoNCE (38); debiased: less the expected false negatives (needs bound); ranknet: every rated
    pair against the preference that its ratings imply; listnet: the whole list against the softmax of its ratings."""
    temperature: float | None = Field(default=None, gt=0, le=100)
    """Temperature of the ranking term; null: 1 for logits, .07 for bounded scores and cosines."""
    learn_temperature: bool = False
    """Learn the temperature (needs bound or a bi-encoder: a logit's last layer absorbs any)."""
    bound: float | None = Field(default=None, gt=0, le=100)
    """C of tanh(score / c) in the ranking term; null: logits as they are."""
    positive_share: float | None = Field(default=None, ge=0, lt=1)
    """debiased: share of negatives that are false; null: the run's own estimate from its ratings."""
    hardness: float = Field(default=0.0, ge=0, le=10)
    """debiased: beta of the importance exp(beta s / temperature) of negatives."""
    regression: Literal["ratings", "margins"] = "ratings"
    """ratings: squared error of the mapped score; margins: of its distance to the anchor's (MarginMSE)."""
    target: Literal["normalised", "centred"] = "normalised"
    """Regression target: ratings less the query's mean by its spread (40), or less its mean alone, in logits (31)."""
    in_batch: bool = False
    """bi-encoder: the documents of the other lists of a group are negatives too, but for those in any list of the same
    query."""
    in_batch_lists: int | None = Field(default=None, ge=2)
    """Lists of a group, which share their documents; null: all of a step. A group is one worker's."""

    def _problems(self) -> Iterator[str]:
        if self.hardness and self.ranking != "debiased":
            yield f"hardness belongs to ranking: debiased, not to {self.ranking}"
        if self.in_batch and self.ranking not in ("infonce", "debiased"):
            yield f"in_batch adds negatives, and {self.ranking} reads ratings alone: choose infonce"
        if not self.in_batch and self.in_batch_lists is not None:
            yield "in_batch_lists belongs to in_batch: set in_batch: true"


class BalanceConfig(Settings):
    """Weights of the two terms. alpha is the ranking term's share, 1 - alpha the regression's."""

    rule: Literal["fixed", "estimated", "uncertainty", "learned", "gradnorm"] = "fixed"
    """fixed: alpha, or the curriculum's; estimated: from the share of false negatives among those mined (.75 below a
    tenth, .4 above three); uncertainty: Kendall et al.; learned: alpha with a prior; gradnorm: Chen et al., equal
    training rates by gradient norms."""
    alpha: float = Field(default=0.7, ge=0, le=1)
    """fixed: the share; learned: the prior's mode and the start."""


class CurriculumConfig(Settings):
    """Which rated negatives enter the ranking term when. Random negatives always do."""

    rule: Literal["fixed", "table3", "algorithm3", "window", "progress"] = "fixed"
    """fixed: all from minimum_gap_elo on; table3, algorithm3: the report's schedules of gap and alpha, in eighths of
    the run; window: gaps of 250 to 500, which in four moves, one whenever dev stops rising, become 150 to 350;
    progress: bands of gaps chosen by learning progress (Graves et al.)."""
    minimum_gap_elo: float = Field(default=0.0, ge=0.0)
    """fixed: rated negatives closer to the anchor than this stay out."""
    bands: int = Field(default=4, ge=2, le=64)
    """progress: bands, of equally many negatives each."""
    exploration: float = Field(default=0.05, gt=0, le=1)
    """progress: share of steps given to any band."""

    def _problems(self) -> Iterator[str]:
        if self.rule != "fixed" and self.minimum_gap_elo:
            yield f"{self.rule} sets the gaps itself: leave minimum_gap_elo at 0"


class TrainConfig(LearnConfig):
    """How the reranker is trained. One step sees `lists_per_step` lists, however many workers share them."""

    group = "train"
    items = "lists"

    student: Student = "cross-encoder"
    """cross-encoder: reads query and document together, one logit; bi-encoder: a unit vector each, pooled as the start
    model's, and their cosine (exported for dense retrieval too); late-interaction: a unit vector each token, the mean
    over the query's of the best cosine with one of the document's, trained with the cosine of the pooled vectors."""
    pooling: Pooling = "cls"
    """What the score is read from: cls, the architecture's own classification head (exported as a plain
    AutoModelForSequenceClassification); mean, the mean token through a dense layer (as sentence-transformers modules);
    of decoders last, a linear layer at the last token (exported likewise), or yes-no, the language model's logit of yes
    less that of no as the next token (a plain AutoModelForCausalLM)."""
    prompt: str | None = None
    """What a decoder reads, with {query} and after it {document}; null: as the model brings it, else Qwen3-Reranker's
    form."""
    lists_per_step: int = Field(default=8, ge=1)
    """lists (an anchor and its negatives) per optimiser step."""
    negatives: int | None = Field(default=None, ge=1)
    """Negatives of a list per step, drawn by weight in every epoch, rated ones first; null: all."""

    loss: LossConfig = Field(default_factory=LossConfig)
    """The ranking and the regression term."""
    balance: BalanceConfig = Field(default_factory=BalanceConfig)
    """Their weights."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Which negatives enter the ranking term when."""
    dev_depth: int = Field(default=20, ge=1)
    """Documents per dev query, from the top of the hybrid run, to rerank."""

    @property
    def per_step(self) -> int:
        """Lists of an optimiser step."""
        return self.lists_per_step

    @property
    def lists_per_group(self) -> int:
        """Lists that share their documents, and so a worker and a micro-batch."""
        return (self.loss.in_batch_lists or self.lists_per_step) if self.loss.in_batch else 1

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError if this number of workers cannot share a step evenly: its lists, or groups of lists."""
        if not self.loss.in_batch:
            super().check_workers(workers)
            return
        groups = self.lists_per_step // self.lists_per_group
        if groups % workers == 0:
            return
        largest, left = divmod(self.lists_per_step, workers)
        remedy = f"set it to {largest}"
        if left or largest < 2:
            remedy = f"set train.lists_per_step to a multiple of {2 * workers}, and it to lists_per_step / {workers}"
        raise ConfigError(
            f"lists_per_step {self.lists_per_step} makes {groups} {'group' if groups == 1 else 'groups'} that share "
            f"negatives, which {workers} workers cannot divide evenly",
            "train.loss.in_batch_lists",
            f"{remedy}; or set execution.train.num_workers to 1",
        )

    @property
    def regresses(self) -> bool:
        """Whether the regression term may have weight in any step."""
        return self.balance.rule != "fixed" or self.curriculum.rule in _SCHEDULED or self.balance.alpha < 1.0

    @property
    def bounded(self) -> bool:
        """Whether the ranking term's scores lie in [-1, 1]."""
        return self.student != "cross-encoder" or self.loss.bound is not None

    @property
    def start_temperature(self) -> float:
        """The ranking term's temperature, or the one that learning begins with."""
        if self.loss.temperature is not None:
            return self.loss.temperature
        return _TEMPERATURE.get(self.student, 0.07 if self.bounded else 1.0)

    @model_validator(mode="wrap")
    @classmethod
    def _usual_of_the_student(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Begin where the student learns best; what is filled in counts as not given."""
        if not isinstance(given, Mapping) or given.get("student") != "late-interaction":
            return handler(given)
        filled = usual_of_late_interaction(given)
        config = handler({**given, **filled})
        config.model_fields_set.difference_update(set(filled) - set(given))
        if "loss" in filled:
            config.loss.model_fields_set.difference_update({"in_batch"})
        return config

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        loss = self.loss
        wants = "ranking: debiased" if loss.ranking == "debiased" else "learn_temperature" * loss.learn_temperature
        if wants and not self.bounded:
            yield (
                f"{wants} needs bounded scores: set bound, for example 3, or student: bi-encoder or late-interaction"
            )
        if loss.learn_temperature and self.start_temperature > 1.0:
            yield "a learned temperature lies between .01 and 1: start there"
        if loss.in_batch and self.student == "cross-encoder":
            yield "in_batch needs student: bi-encoder or late-interaction: a cross-encoder would read every pair anew"
        if self.negatives is not None and loss.ranking in _BY_RATING:
            yield f"negatives are drawn by weight, and {loss.ranking} reads all ratings: leave it out"
        if self.lists_per_step % self.lists_per_group:
            yield (
                f"lists_per_step is {self.lists_per_step}: choose a multiple of in_batch_lists, {loss.in_batch_lists}"
            )
        if loss.in_batch and self.lists_per_step == 1:
            yield "in_batch needs other lists: set lists_per_step to at least 2"
        if self.prompt is not None:
            if self.pooling not in ("last", "yes-no"):
                yield f"prompt is for decoders (pooling last or yes-no), not for {self.pooling}: leave it out"
            query, document = self.prompt.find("{query}"), self.prompt.find("{document}")
            once = self.prompt.count("{query}") == self.prompt.count("{document}") == 1
            if not once or document < query:
                yield "prompt needs {query} once and after it {document} once"
        scheduled = self.curriculum.rule in _SCHEDULED
        if scheduled and self.balance.rule == "fixed" and self.balance.alpha != BalanceConfig().alpha:
            yield f"curriculum {self.curriculum.rule} sets alpha itself: leave balance.alpha out"
        if self.loss.ranking in _BY_RATING and self.curriculum != CurriculumConfig():
            yield f"a curriculum chooses negatives, and {self.loss.ranking} has none: leave it out"
        if self.student == "cross-encoder":
            return
        if self.loss.bound is not None:
            yield f"a {self.student} score is a cosine, bounded as it is: leave bound out"
        for name in self._changed(["pooling", "head_learning_rate"]):
            yield f"{name} is of a cross-encoder's scoring head, a {self.student} has none: leave it out"


def usual_of_late_interaction(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of training that late interaction learns best with, where `given` says nothing.

    Drawn and lent negatives have weights, which ranking by ratings does not read; a schedule sets alpha itself. Ratings
    choose and weigh negatives; to regress them as well reads every rated document, at more than twice the time.
    """
    usual: dict[str, Any] = {"lists_per_step": 32, "learning_rate": 1e-4, "freeze_embeddings": False}
    of_loss: dict[str, Any] = {}
    loss = given.get("loss", {})
    if isinstance(loss, Mapping) and loss.get("ranking") not in _BY_RATING:
        usual["negatives"] = 1
        of_loss = {"in_batch": True, **loss} if "in_batch" not in loss else {}
    curriculum = given.get("curriculum", {})
    if not isinstance(curriculum, Mapping) or curriculum.get("rule") not in _SCHEDULED:
        usual["balance"] = {"alpha": 1.0}
    return {name: value for name, value in usual.items() if name not in given} | ({"loss": of_loss} if of_loss else {})


FORWARD_TOKENS = 4096  # of one forward pass on a CPU


class TrainExecution(GpuType, Placed):
    """Resources of training. Several workers share each step's lists, so their number changes no result beyond rounding
    (and dropout masks).
    """

    num_workers: int = Field(default=1, ge=1)
    """Training processes, which share a step's lists (or groups of lists) evenly."""
    threads: int = Field(default=1, ge=1)
    """Torch threads of a worker on a CPU."""
    use_gpu: bool = False
    """One GPU per worker."""
    resources: dict[str, float] = Field(default_factory=lambda: {"CPU": 1.0})
    """Ray resources of a worker, besides its GPU."""
    storage_path: PathOrUri | None = None
    """Folder or URI that all workers can reach, for checkpoints; null: next to the output."""
    micro_batch_tokens: int = Field(default=16_384, ge=128)
    """Tokens between two backward passes: bounds memory, changes no result."""
    forward_tokens: int | None = Field(default=None, ge=128)
    """Tokens of one forward pass; null: 4,096 on a CPU, which its cache holds, micro_batch_tokens on a GPU."""
    gradient_checkpointing: bool = False
    """Keep the inputs of layers alone and compute each twice: far less memory, about a third more time."""
    compile: bool = False
    """Compile the transformer (torch.compile): minutes at the start, then faster steps."""
    offload: Offload = "none"
    """DeepSpeed: what is kept in main memory rather than a GPU's: the optimizer's state (ZeRO stage 1 to 3; the
    processor then computes the update), or that and the parameters (ZeRO stage 3)."""
    checkpoint_minutes: float = Field(default=5.0, ge=0.0)
    """Minutes between checkpoints: what a failure can cost."""
    max_failures: int = Field(default=3, ge=-1)
    """Worker failures after which the run gives up; -1: never."""
    trackers: Annotated[tuple[Literal["tensorboard", "mlflow", "wandb"], ...], Distinct] = ()
    """Tools that get the rows of the training log as they are made, see training/tracking.py."""

    @property
    def at_once(self) -> int:
        """Tokens of one forward pass."""
        return self.forward_tokens or (self.micro_batch_tokens if self.use_gpu else FORWARD_TOKENS)

    def _problems(self) -> Iterator[str]:
        if self.accelerator_type and not self.use_gpu:
            yield "accelerator_type names a GPU: set use_gpu: true, or leave it out"


def offload_needs(offload: Offload, config: LearnConfig) -> str | None:
    """Explain what `offload` needs of `config`; None if they fit."""
    least = {"none": 0, "optimizer": 1, "parameters": 3}[offload]
    if offload == "none" or (config.engine != "ddp" and config.zero_stage >= least):
        return None
    stages = "1 to 3" if least == 1 else "3"
    return (
        f"{offload} needs {config.group}.engine: deepspeed and {config.group}.zero_stage: {stages}; they are "
        f"{config.engine} and {config.zero_stage}"
    )


def with_engine(config: Learn, execution: TrainExecution) -> Learn:
    """`config` with `engine: auto` decided: DeepSpeed where `offload` asks for it, or where it is installed and has
    several workers to partition over; else DDP."""
    if config.engine != "auto":
        return config
    partitions = execution.num_workers > 1 and config.zero_stage > 0 and find_spec("deepspeed") is not None
    engine = "deepspeed" if execution.offload != "none" or partitions else "ddp"
    return config.model_copy(update={"engine": engine})
