"""Settings of the judge stage: who judges, and what a simulated panel knows and gets wrong.

A preset expands to an explicit truth, shared noise and list of judges; settings given next to it override it field by
field (`judges` as a whole). All latent quantities are in probits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from anmi_ray.config.base import ExecutionSettings, OneJudge, Settings
from anmi_ray.config.encoder_judge import EncoderJudgeConfig, Forward
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.paths import PathOrUri
from anmi_ray.config.prompt import PromptConfig
from anmi_ray.config.vllm import VllmJudgeConfig

Preset = Literal[
    "realistic", "thurstone", "correlated", "heavy-tailed", "misspecified", "similarity", "panel", "one-judge"
]
Readout = Literal["sign", "soft"]
POSITIVE_BONUS = 2.0  # latent relevance of known positives in a simulation, probits


class TruthConfig(Settings):
    """Latent relevance of a (query, document) in a simulation, in probits.

    It is 2 for known positives, else 0, plus slope·z(similarity) and hidden noise.
    """

    similarity_slope: float = Field(default=0.7, ge=-10, le=10)
    """Probits per sd of the bi-encoder's similarity within the query."""
    relevance_sd: float = Field(default=0.5, ge=0, le=10)
    """Sd of relevance that neither label nor similarity shows, probits."""


class SharedNoiseConfig(Settings):
    """Errors that simulated judges share: the source of correlated judges."""

    document_sd: float = Field(default=0.15, ge=0, le=10)
    """Sd of the panel's common misreading of a document, probits."""
    pair_sd: float = Field(default=0.4, ge=0, le=10)
    """Sd of the panel's common error on a pair, probits."""


class SimulatedJudgeConfig(OneJudge[Literal["simulated"]]):
    """One judge of the simulated panel: it sees the latent difference, with noise, and answers in both orders."""

    noise_sd: float = Field(default=1.0, gt=0, le=20)
    """Sd of the judge's own noise per answer, probits."""
    order_correlation: float = Field(default=0.0, ge=0, le=1)
    """Share of the noise's variance that both orders of a pair have alike."""
    tail: Literal["normal", "student-t"] = "normal"
    """Distribution of the judge's own noise."""
    tail_df: float = Field(default=4.0, gt=2, le=200)
    """Degrees of freedom of student-t noise."""
    taste_sd: float = Field(default=0.0, ge=0, le=10)
    """Sd of the judge's own lasting opinion of a document."""
    position_bias: float = Field(default=0.0, ge=-5, le=5)
    """Probits in favour of the document shown first."""
    tie_width: float = Field(default=0.0, ge=0, le=5)
    """Perceived differences below this (probits) are ties."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of requests that fail."""
    readout: Readout = "sign"
    """sign: 0, 1/2 or 1; soft: Φ of the perceived difference."""


class SimilarityJudgeConfig(OneJudge[Literal["similarity"]]):
    """A judge without labels: the bi-encoder's similarity decides, the same in both orders, without noise.

    p_a = Φ(10 (similarity_a − similarity_b)). Asked about one document, it takes a similarity of .5 for the other's.
    """


class NullJudgeConfig(OneJudge[Literal["null"]]):
    """A judge that answers at random, by hash, without reading: for measuring what everything but judging costs."""


class ApiJudgeConfig(OneJudge[Literal["api"]]):
    """A language model behind an OpenAI-compatible endpoint (OpenAI, Gemini, Anthropic, a vLLM server)."""

    endpoint: EndpointConfig
    """The model, and how its server is reached."""
    prompt: PromptConfig = PromptConfig()
    """The prompt, and how answers are read."""
    identity: str | None = None
    """Name under which answers are kept, with model and prompt; null: the server's address, so that a model of the same
    name elsewhere is asked anew."""

    @property
    def unpriced(self) -> bool:
        """See OneJudge."""
        return self.endpoint.input_price is None

    @property
    def direct(self) -> ApiJudgeConfig:
        """See OneJudge."""
        return self.model_copy(update={"prompt": self.prompt.direct})

    def _problems(self) -> Iterator[str]:
        if self.prompt.readout == "logprob" and not self.endpoint.logprobs:
            yield "readout logprob needs the first token's log probabilities: set endpoint.logprobs to 20"


class ImportedJudgeConfig(OneJudge[Literal["imported"]]):
    """Existing preferences in a file. A pair that the file lacks counts as a failure."""

    by_content = frozenset({"path"})

    path: PathOrUri = Field(min_length=1)
    """.csv, .tsv, .jsonl (each also .gz or .zst) or .parquet with the columns query_id, doc_a, doc_b, preference and
    perhaps judge, order, error, round, as anmi audit reads them; ids are the collection's."""
    judge: str | None = None
    """Whose rows these are, by the file's column judge; null: all, of a single judge."""

    @property
    def direct(self) -> None:
        """See OneJudge."""


class DistilledJudgeConfig(Forward, OneJudge[Literal["distilled"]]):
    """The model that distillation makes (distill), asked as a judge: an encoder judge whose model the run makes."""

    @property
    def direct(self) -> None:
        """See OneJudge."""


# judges that read texts; their answers are bought and kept
TextJudgeConfig = NullJudgeConfig | ApiJudgeConfig | EncoderJudgeConfig | VllmJudgeConfig
JudgeSettings = Annotated[
    SimulatedJudgeConfig
    | SimilarityJudgeConfig
    | NullJudgeConfig
    | ApiJudgeConfig
    | EncoderJudgeConfig
    | VllmJudgeConfig
    | ImportedJudgeConfig
    | DistilledJudgeConfig,
    Field(discriminator="kind"),
]


def _panel(*judges: dict[str, Any], **shared: Any) -> list[dict[str, Any]]:
    return [{"kind": "simulated", **shared, **judge} for judge in judges]


def _three(**shared: Any) -> list[dict[str, Any]]:
    return _panel({"name": "sim-1"}, {"name": "sim-2"}, {"name": "sim-3"}, **shared)


_NO_SHARED = {"document_sd": 0.0, "pair_sd": 0.0}
_PRESETS: dict[str, dict[str, Any]] = {
    # Three judges of different sharpness and opposite habits, some common errors, ties and failures.
    "realistic": {
        "shared_noise": {},
        "judges": _panel(
            {"name": "sim-large", "noise_sd": 0.8, "position_bias": 0.1, "tie_width": 0.1, "failure_rate": 0.01},
            {"name": "sim-medium", "noise_sd": 1.0, "position_bias": 0.3, "tie_width": 0.15, "failure_rate": 0.015},
            {"name": "sim-small", "noise_sd": 1.3, "position_bias": -0.2, "tie_width": 0.2, "failure_rate": 0.02}
            | {"tail": "student-t", "tail_df": 5.0},
            order_correlation=0.5,
        ),
    },
    # Exactly the model that is fitted: independent answers with P(a wins) = Φ(latent_a − latent_b).
    "thurstone": {"shared_noise": _NO_SHARED, "judges": _three()},
    # The errors of two judges on a pair correlate at one half; each alone is still Thurstone with sd 1.
    "correlated": {"shared_noise": {"document_sd": 0.0, "pair_sd": 0.5**0.5}, "judges": _three(noise_sd=0.5**0.5)},
    "heavy-tailed": {"shared_noise": _NO_SHARED, "judges": _three(tail="student-t", tail_df=2.5)},
    # Lasting wrong opinions, strong position biases and wide ties: nothing that Thurstone's model has.
    "misspecified": {
        "shared_noise": {"document_sd": 0.3, "pair_sd": 0.5},
        "judges": _panel(
            {"name": "sim-1", "position_bias": 0.5, "tie_width": 0.1},
            {"name": "sim-2", "position_bias": -0.4, "tie_width": 0.4},
            {"name": "sim-3", "position_bias": 0.8, "tie_width": 0.2, "tail": "student-t", "tail_df": 3.0},
            taste_sd=0.5,
            order_correlation=0.5,
            failure_rate=0.02,
        ),
    },
    "similarity": {"shared_noise": _NO_SHARED, "judges": [{"kind": "similarity"}]},
}


# Presets whose judges are as good as judge.accuracy says, and how many judges they have.
_BY_ACCURACY = {"panel": 3, "one-judge": 1}
_ACCURACY = 0.8


def _of_accuracy(judges: int, accuracy: float) -> dict[str, Any]:
    """Judges who know no more of the truth than labels and noise, each of whom puts `accuracy` of pairs right.

    For a relevant and another document: Φ(bonus / √(2 relevance_sd² + v)) = accuracy gives v, the variance of a judge's
    errors. Half of it is the judge's own lasting misreading of documents, which no further question averages away, a
    quarter lasts with the pair, a quarter is new in every answer.
    """
    truth = {"similarity_slope": 0.0, "relevance_sd": 0.5}
    bonus = POSITIVE_BONUS / NormalDist().inv_cdf(accuracy)
    variance = bonus**2 - 2 * truth["relevance_sd"] ** 2
    errors = {"taste_sd": (variance / 4) ** 0.5, "noise_sd": (variance / 2) ** 0.5, "order_correlation": 0.5}
    names = ({"name": f"sim-{number}"} for number in range(1, judges + 1))
    return {"truth": truth, "shared_noise": _NO_SHARED, "judges": _panel(*names, **errors)}


def _preset(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The expansion of the settings' preset; None if the preset is unknown or the accuracy out of range."""
    name: object = settings.get("preset", "realistic")
    accuracy: object = settings.get("accuracy")
    if not isinstance(name, str):
        return None
    if name not in _BY_ACCURACY:
        return _PRESETS.get(name)
    if accuracy is None:
        accuracy = _ACCURACY
    fits = isinstance(accuracy, float) and 0.5 < accuracy < 1.0
    return _of_accuracy(_BY_ACCURACY[name], cast(float, accuracy)) if fits else None


class BudgetConfig(Settings):
    """Limits on the cost of judges that read texts, over all resumptions and rounds of a run; queries are judged whole.

    Later rounds, such as the validation of borderline documents (mine.allow), spend what earlier ones left; if nothing
    is left, the other rules decide about those documents. Earlier costs of the same comparisons and panel count under a
    new budget.
    """

    dollars: float | None = Field(default=None, gt=0)
    """dollars, by the judges' prices; null: no limit."""
    calls: int | None = Field(default=None, gt=0)
    """Calls to judges, retries included; null: no limit."""
    hours: float | None = Field(default=None, gt=0)
    """Hours of asking; null: no limit."""


class PilotConfig(ExecutionSettings):
    """A pilot asks a sample of the run's own questions, so it changes no judgment. A limit of null is not checked."""

    pairs: int = Field(default=300, ge=1)
    """Pairs of documents that every judge is asked about, both orders."""
    min_agreement: float | None = Field(default=0.6, ge=0, le=1)
    """Least share of decided pairs with one known positive in which it is preferred."""
    max_position_bias: float | None = Field(default=0.15, ge=0, le=0.5)
    """Largest distance of the preference for the document shown first from one half."""
    max_inconsistent: float | None = Field(default=0.4, ge=0, le=1)
    """Largest share of pairs whose two orders get different verdicts."""
    max_failures: float | None = Field(default=0.05, ge=0, le=1)
    """Largest share of questions without an answer."""
    max_dollars: float | None = Field(default=None, ge=0)
    """Largest cost of a judge for the whole run, projected from its pilot, in dollars."""


class JudgeConfig(Settings):
    """The panel. `preset` sets the fields that are not given."""

    how_only = frozenset({"max_failures", "max_left_out", "target_hours"})

    preset: Preset = "realistic"
    """Sets the fields of this group that are not given."""
    accuracy: float | None = Field(default=None, ge=0.55, le=0.95)
    """Presets panel and one-judge: accuracy of each judge on pairs of a relevant and another candidate; null: .8."""
    truth: TruthConfig = TruthConfig()
    """Latent relevance that simulated judges perceive."""
    shared_noise: SharedNoiseConfig = SharedNoiseConfig()
    """Errors that simulated ones share."""
    judges: tuple[JudgeSettings, ...] = Field(
        default_factory=lambda: tuple(SimulatedJudgeConfig(**judge) for judge in _PRESETS["realistic"]["judges"]),
        min_length=1,
    )
    """The judges; each answers every comparison, as orders says."""
    orders: Literal["both", "one"] = "both"
    """Orders in which judges see a pair: both, so that position bias cancels, or one, drawn by hash of the pair, at
    half the calls; one needs rate.judge_offsets: true, which fits the bias."""
    retry_passes: int = Field(default=1, ge=0, le=10)
    """How often transient failures are asked again after all other questions."""
    max_failures: float = Field(default=0.05, ge=0, le=1)
    """Largest share of a judge's questions without an answer for a transient reason (time-outs, overload); above it the
    run stops, and asks them again when it is restarted."""
    budget: BudgetConfig = BudgetConfig()
    """Limits of what judges that read texts may cost, in all rounds."""
    max_left_out: float = Field(default=0.0, ge=0, le=1)
    """Largest share of queries that a spent budget may leave out, else the run stops; above 0 later rounds
    (compare.rounds) may leave out any number, as these queries keep their earlier answers."""
    target_hours: float | None = Field(default=None, gt=0)
    """Hours within which the panel should answer, from the start of a run and of each round (compare.rounds):
    pools are as large as that needs, up to their limits (execution.askers, a vllm judge's execution.engines); null:
    as large as their limits."""
    pilot: PilotConfig = PilotConfig()
    """How judges are tried, and what they must reach."""

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, given: object) -> object:
        """Lay what is given over the preset; an unknown preset is left for the field's own error."""
        if not isinstance(given, Mapping):
            return given
        settings = cast(Mapping[str, Any], given)
        if (preset := _preset(settings)) is None:
            return cast(object, given)
        groups = {name: settings.get(name, {}) for name in ("truth", "shared_noise")}
        laid = {
            name: {**preset.get(name, {}), **cast(Mapping[str, Any], group)} if isinstance(group, Mapping) else group
            for name, group in groups.items()
        }
        return {"judges": preset["judges"]} | dict(settings) | laid

    def _problems(self) -> Iterator[str]:
        if self.accuracy is not None and self.preset not in _BY_ACCURACY:
            yield (
                f"accuracy says how good the judges of the presets {' and '.join(_BY_ACCURACY)} are, and preset is "
                f"{self.preset}: name one of these, or leave accuracy out"
            )
        names = [judge.name for judge in self.judges]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            yield f"judges share a name ({', '.join(doubled)}): give every judge its own name"
        if self.orders == "one" and self.imported:
            yield (
                f"orders: one chooses what judges are asked, and the answers of {self.imported[0].name} are in a "
                "file: leave orders out"
            )
        unpriced = [judge.name for judge in self.judges if judge.unpriced]
        if self.budget.dollars is not None and unpriced:
            yield (
                f"budget.dollars needs the prices of {', '.join(unpriced)}: give endpoint.input_price and "
                "endpoint.output_price, dollars per million tokens (0 for a server of your own)"
            )

    @property
    def reading(self) -> tuple[TextJudgeConfig, ...]:
        """The judges of the panel that read texts."""
        return tuple(judge for judge in self.judges if isinstance(judge, TextJudgeConfig))

    @property
    def direct(self) -> JudgeConfig:
        """The panel for questions about one document: its judges that can answer them."""
        judges = (judge.direct for judge in self.judges)
        return self.model_copy(update={"judges": tuple(judge for judge in judges if judge is not None)})

    @property
    def imported(self) -> tuple[ImportedJudgeConfig, ...]:
        """Judges whose preferences are in files."""
        return tuple(judge for judge in self.judges if judge.kind == "imported")

    @property
    def distilled(self) -> tuple[DistilledJudgeConfig, ...]:
        """The judges of the panel that the run's own distillation makes."""
        return tuple(judge for judge in self.judges if judge.kind == "distilled")

    @property
    def simulated(self) -> tuple[SimulatedJudgeConfig, ...]:
        """The simulated judges of the panel."""
        return tuple(judge for judge in self.judges if judge.kind == "simulated")
