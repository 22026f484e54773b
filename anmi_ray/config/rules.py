"""The rules of mining and their settings: who may be a negative (allow), what it weighs, and which are drawn (sample).

Every rule is one small frozen object named by its `rule`; `config/mine.py` composes them, `anmi_ray/mining` carries
them out. Gaps are in Elo points (anchor minus document), P means a probability under the gap's error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Annotated, Any, Generic, Literal

from pydantic import BeforeValidator, Field, model_validator

from anmi_ray.config.base import Settings, Word
from anmi_ray.config.paths import FolderOrName


class RuleSettings(Settings, Generic[Word]):
    """Base of the rules."""

    rule: Word
    """Which rule this is."""


class GateRule(RuleSettings[Literal["gate"]]):
    """Refuse what may be a false negative: P(gap < false_negative_gap) above `largest`."""

    largest: float = Field(default=0.02, gt=0, le=1)
    """Largest allowed P(false negative); .05 where few are near-relevant."""


class Denoise(RuleSettings[Literal["denoise"]]):
    """Keep what the anchor surely beats: max(0, (p - .5)/.5) above .1, p = P(gap > 0)."""


class RocketQA(RuleSettings[Literal["rocketqa"]]):
    """RocketQA's denoising: a negative has P(relevant) below `negative_below`."""

    negative_below: float = Field(default=0.1, gt=0, le=0.9)
    """P(relevant) below which a document is negative."""
    model: FolderOrName | None = None
    """cross-encoder (folder or hub id) whose sigmoid is P(relevant); null: P(the anchor is not better), P(gap <= 0)."""


class RankWindow(RuleSettings[Literal["rank-window"]]):
    """The retriever's ranks `first` to `last`, as most libraries mine: knows nothing of judgments."""

    first: int = Field(default=11, ge=1)
    """First fused rank that may be a negative; ranks start at 1."""
    last: int | None = Field(default=None, ge=1)
    """Last such rank; null: no end."""

    def _problems(self) -> Iterator[str]:
        if self.last is not None and self.last < self.first:
            yield f"the window ends ({self.last}) before it begins ({self.first}): raise last"


class ScoreMargin(RuleSettings[Literal["score-margin"]]):
    """NV-Retriever's and most libraries' rule on the dense retriever's scores: s <= s_pos - margin |s_pos|.

    s is of a document, s_pos of the anchor.
    """

    margin: float = Field(default=0.05, ge=0, le=10)
    """How far a negative stays below the anchor."""


class RelativeRule(RuleSettings[Word], Generic[Word]):
    """Base of the rules whose unit of the gap depends on the query."""

    form: Literal["spread", "anchored"] = "spread"
    """Unit of the gap: spread is the query's robust sd of ratings; anchored (the report's literal form) is the anchor's
    rating on a scale where the mean document has 1500."""


class PositiveRelative(RelativeRule[Literal["positive-relative"]]):
    """Refuse gaps below `least` units, so that the required gap depends on the query.

    NV-Retriever's threshold on ratings; the report's is `form: anchored`, "gap > .05 x positive".
    """

    least: float = Field(default=0.5, gt=0, le=100)
    """Least gap, units (anchored: .05)."""

    @model_validator(mode="before")
    @classmethod
    def _anchored_default(cls, data: Any) -> Any:
        return {"least": 0.05, **data} if isinstance(data, dict) and data.get("form") == "anchored" else data


class Validate(RuleSettings[Literal["validate"]]):
    """Stage 4: judge borderline documents directly against the anchor, and weigh them by the answer.

    A preference for the anchor below .65 refuses the document, up to .75 its weight is .3, above 1.

    Verdicts are final; later rules decide the other documents, and those without an answer.
    """

    low: float = Field(default=80.0, ge=-10_000, le=10_000)
    """Least borderline gap, points."""
    high: float = Field(default=150.0, ge=-10_000, le=10_000)
    """Largest borderline gap, points."""

    def _problems(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"expected low < high, got {self.low} and {self.high}"


class Table2(RuleSettings[Literal["table2"]]):
    """The weight of the band (mine.bands) that the estimated gap lies in: the report's Table 2, literally."""


class PosteriorRule(RuleSettings[Literal["posterior"]]):
    """Expected band weight given the gap's error, less `penalty` times P(false negative)."""

    penalty: float = Field(default=0.0, ge=0, le=100)
    """Cost of a false negative, in weight."""


class Percentile(RuleSettings[Literal["percentile"]]):
    """Weights 0, .5, 1, .3 between the 10th, 25th and 75th percentile of the query's own gaps.

    Refuses a tenth of every query, whatever its documents are, and gaps of 0 and below.
    """


class Relative(RelativeRule[Literal["relative"]]):
    """Positive-relative (NV-Retriever, on ratings): full weight for least <= gap/unit <= most, fading on both sides.

    Below `least` linear to 0 at a gap of 0, above `most` as exp(-(gap/unit - most)/fade).
    """

    least: float = Field(default=1.5, gt=0, le=100)
    """Least gap of full weight, units (anchored: .05)."""
    most: float = Field(default=2.5, gt=0, le=100)
    """Largest gap of full weight, units (anchored: .30)."""
    fade: float = Field(default=1.0, gt=0, le=100)
    """Units in which the weight falls by e beyond `most`."""

    @model_validator(mode="before")
    @classmethod
    def _anchored_defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("form") == "anchored":
            return {"least": 0.05, "most": 0.30, "fade": 0.20, **data}
        return data

    def _problems(self) -> Iterator[str]:
        if self.least >= self.most:
            yield f"least is {self.least} and most {self.most}: least must be smaller"


class BetaMixture(RuleSettings[Literal["beta-mixture"]]):
    """ProGCL: two Betas on scaled gaps of all queries; weight = P(true negative) times information."""


class GaussianMixture(RuleSettings[Literal["gaussian-mixture"]]):
    """One to four Gaussians on the gaps of all queries; weight = P(true negative) times information."""


class Reliability(RuleSettings[Literal["reliability"]]):
    """RocketQA's confidence as a weight: max(0, (p - .5)/.5), p = P(gap > 0)."""


class Optimum(RuleSettings[Literal["optimum"]]):
    """Theorem 12: the information of a gap in bits, less `cost` times P(gap < false_gap), at least 0."""

    cost: float = Field(default=5.0, ge=0, le=1000)
    """Cost of a false negative, bits."""
    false_gap: float = Field(default=0.0, ge=-1000, le=1000)
    """True gap below which it is one, points."""


class Equal(RuleSettings[Literal["equal"]]):
    """Weight 1 for whatever is allowed."""


class Top(RuleSettings[Literal["top"]]):
    """The largest weights; equal ones by the smaller gap."""


class Weighted(RuleSettings[Literal["weighted"]]):
    """Drawn without replacement, with chances in proportion to the weights."""


class UniformSample(RuleSettings[Literal["uniform"]]):
    """Drawn without replacement, all alike."""


class RankedSample(RuleSettings[Literal["ranked"]]):
    """The retriever's best first."""


class SimANS(RuleSettings[Literal["simans"]]):
    """Drawn without replacement with chances exp(-a (gap/100 - b)^2), or exp(-a |r - b r+|) of ranks by rating.

    r is a document's rank by rating in its query and r+ the anchor's, both from 1.
    """

    form: Literal["gap", "rank"] = "gap"
    """Variable of the probability."""
    a: float = Field(default=1.0, gt=0, le=1e6)
    """sharpness: large takes the nearest to the target."""
    b: float = Field(default=4.0, ge=-100, le=1000)
    """target: gap/100, or a multiple of the anchor's rank."""

    @model_validator(mode="before")
    @classmethod
    def _rank_defaults(cls, data: Any) -> Any:
        return {"a": 0.1, "b": 10.0, **data} if isinstance(data, dict) and data.get("form") == "rank" else data


class Closed(RuleSettings[Literal["closed"]]):
    """The nearest to the report's closed optimum, 260 (sd / reference_sd) points.

    sd is the query's spread of ratings; 260 is 200 (1 + 2 rho) for a share rho = .15 of false negatives.
    """

    reference_sd: float = Field(default=170.0, gt=0, le=1e4)
    """Spread of ratings at which the target is 260 points."""


def _named(value: Any) -> Any:
    """Expand a rule's name to the rule with its defaults."""
    return {"rule": value} if isinstance(value, str) else value


AnyAllow = GateRule | Denoise | RocketQA | RankWindow | ScoreMargin | PositiveRelative | Validate
AnyWeigh = (
    Table2 | PosteriorRule | Percentile | Relative | BetaMixture | GaussianMixture | Reliability | Optimum | Equal
)
AnySample = Top | Weighted | UniformSample | RankedSample | SimANS | Closed
AllowRule = Annotated[AnyAllow, Field(discriminator="rule"), BeforeValidator(_named)]
WeighRule = Annotated[AnyWeigh, Field(discriminator="rule"), BeforeValidator(_named)]
SampleRule = Annotated[AnySample, Field(discriminator="rule"), BeforeValidator(_named)]

# Compositions by name: what the field does, each as published or as close as ratings come to it. Where a rule says
# nothing about the draw, the sample of the settings (or its default) is used.
NAMED: dict[str, dict[str, Any]] = {
    "posterior": {"allow": ["gate"], "weigh": "posterior"},
    "penalised": {"allow": [], "weigh": {"rule": "posterior", "penalty": 1.0}},
    "table2": {"allow": [], "weigh": "table2"},
    "percentile": {"allow": [], "weigh": "percentile"},
    "relative": {"allow": [], "weigh": "relative"},
    "relative-literal": {"allow": [], "weigh": {"rule": "relative", "form": "anchored"}},
    "beta-mixture": {"allow": [], "weigh": "beta-mixture"},
    "gaussian-mixture": {"allow": [], "weigh": "gaussian-mixture"},
    "optimum": {"allow": [], "weigh": "optimum"},
    "validated": {"allow": ["validate"], "weigh": "table2"},
    "denoise": {"allow": ["denoise"], "weigh": "reliability"},
    "rocketqa": {"allow": ["rocketqa"], "weigh": "equal", "sample": "uniform"},
    "simans": {"allow": [], "weigh": "equal", "sample": "simans"},
    "simans-rank": {"allow": [], "weigh": "equal", "sample": {"rule": "simans", "form": "rank"}},
    "closed-optimum": {"allow": [], "weigh": "equal", "sample": "closed"},
    "rank-window": {"allow": ["rank-window"], "weigh": "equal", "sample": "ranked"},
    "score-margin": {"allow": ["score-margin"], "weigh": "equal", "sample": "ranked"},
    "uniform": {"allow": [], "weigh": "equal", "sample": "uniform"},
}


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint for an unknown name: the nearest known one, or all."""
    near = difflib.get_close_matches(name, known := list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


# Recipes: which negatives, which loss, which curriculum; as close to their sources as ratings and a cross-encoder come.
# Sizes are the experiment's own. A recipe sets what the file does not; on the command line it wins over the file.
_INFONCE = {"train.loss.ranking": "infonce", "train.balance.rule": "fixed", "train.curriculum.rule": "fixed"}

RECIPES: dict[str, dict[str, Any]] = {
    # what most libraries do: the retriever's ranks below the top, all alike, one contrastive loss
    "infonce-mined": {
        "mine.allow": ["rank-window"],
        "mine.weigh": "equal",
        "mine.sample": "ranked",
        **_INFONCE,
        "train.balance.alpha": 1.0,
    },
    # zELO: a pointwise reranker from regression on ratings alone (its own are comparable across queries, ours are not);
    # which documents it reads is of no matter to the loss, so they are drawn alike, and random documents, which have no
    # rating, stay out
    "zelo": {
        "mine.allow": [],
        "mine.weigh": "equal",
        "mine.sample": "uniform",
        "mine.random_negatives": 0,
        **_INFONCE,
        "train.loss.regression": "ratings",
        "train.loss.target": "centred",
        "train.balance.alpha": 0.0,
    },
    # ANMI 2.0: Table 2's weights, a temperature that stays, Table 3's schedule of gaps and alpha
    "anmi2": {
        "mine.allow": [],
        "mine.weigh": "table2",
        "mine.sample": "weighted",
        **_INFONCE,
        "train.curriculum.rule": "table3",
    },
    # ANMI 2.0 Extended, the seven methods in the report's order: denoising by the pairwise judge, a threshold relative
    # to the positive, debiased loss, Gaussian mixture of gaps, SimANS on ranks by rating, bands of gaps by learning
    # progress, a learned temperature (from .5, where Chuang et al. and Robinson et al. trained: at .07 the correction
    # is cut off in most lists after ten steps, and their negatives teach nothing)
    "anmi2-extended": {
        "mine.allow": ["denoise", {"rule": "positive-relative", "form": "anchored"}],
        "train.loss.ranking": "debiased",
        "mine.weigh": "gaussian-mixture",
        "mine.sample": {"rule": "simans", "form": "rank"},
        "train.curriculum.rule": "progress",
        "train.loss.learn_temperature": True,
        "train.loss.temperature": 0.5,
        "train.loss.bound": 3.0,
        "train.balance.rule": "fixed",
    },
}

# what a recipe on the command line takes out of the file besides its own settings: they would half belong to another
_REPLACED = ("mine.rule", "mine.allow", "mine.weigh", "mine.sample", "train.loss", "train.balance", "train.curriculum")


def recipe(name: object) -> dict[str, Any]:
    """The settings of a recipe by dotted name. Raises ValueError with the nearest known name."""
    if isinstance(name, str) and name in RECIPES:
        return deepcopy(RECIPES[name])
    raise ValueError(f"recipe: none is called {name!r}; {nearest(str(name), RECIPES)}")


def fill(content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings completed by their recipe; explicit settings win. Raises ValueError."""
    filled = deepcopy(dict(content))
    mine = filled.get("mine")
    # a composition by name says what the recipe would
    spoken = NAMED.get(str(mine.get("rule")), {}) if isinstance(mine, dict) else {}
    train = filled.get("train")
    vectors = isinstance(train, dict) and train.get("student", "cross-encoder") != "cross-encoder"
    for key, value in recipe(filled["recipe"]).items():
        if key == "train.loss.bound" and vectors:
            continue  # a cosine is bounded as it is
        *groups, last = key.split(".")
        node: Any = filled
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else None
        if isinstance(node, dict) and not (groups == ["mine"] and last in spoken):
            node.setdefault(last, value)
    return filled


def clear(content: Mapping[str, Any], name: object) -> None:
    """Take out of settings what recipe `name` is about, in place. An unknown name takes nothing."""
    for key in (*_REPLACED, *RECIPES.get(str(name), {})):
        *groups, last = key.split(".")
        node: Any = content
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
