"""Mixtures of gaps over all queries: which component a document belongs to says whether it is a false negative.

ProGCL's idea (Xia et al., ICML 2022): pooled over queries, gaps of false negatives and of true ones are two
distributions. Here they are Betas, as there, or Gaussians, fitted once on a sample and then frozen.
Letters: K components in ascending order of their mean gap, N gaps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import optimize, special

from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.mining import em
from anmi_ray.mining.categories import PLACE, indices

FEWEST = 50  # gaps below which no mixture is tried
FARTHEST = 1e9  # points: no gap is wider
# of the Betas' scale
QUANTILES = (0.01, 0.99)
MARGIN = 0.25
EPS = 1e-3
_SAME = 1e-6  # points: gaps that spread less are constant
# points to a component on which P(false negative) is made monotone, and its reach in sds
_MOST = 4  # Gaussians that are tried: false, hard, medium and easy negatives; more split what is one
_BETA_STEPS = 10  # of EM by weighted moments, as ProGCL: it has no maximum to converge to
_GRID = 4001
_REACH = 8.0


@dataclass(frozen=True)
class Component:
    """One component: its share, and mean and sd of its gaps in points; α and β on u (`Mixture.scaled`) if a Beta."""

    weight: float
    mean: float
    sd: float
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class Tried:
    """A number of components and how well it fits: BIC = −2 log L + (3K − 1) log N, ICL = BIC + 2 · entropy.

    The entropy is that of the gaps' posteriors over components (Biernacki et al. 2000): ICL wants groups apart, where
    BIC is content to describe a shape.
    """

    components: int
    log_likelihood: float
    bic: float
    icl: float
    converged: bool


@dataclass(frozen=True)
class Mixture:
    """A fitted mixture of N = `gaps` gaps, components by ascending gap: the first is the false negatives.

    low, high: points that the Betas' scale runs between. criterion: what chose among `tried`. thresholds: points, K − 1
    of them, where the posteriors of neighbouring components cross; None where one of the two is above the other all
    along. why: the reason if only one component stands.
    """

    kind: Literal["beta", "gaussian"]
    gaps: int
    low: float
    high: float
    criterion: Literal["bic", "icl"]
    components: tuple[Component, ...]
    tried: tuple[Tried, ...]
    thresholds: tuple[float | None, ...]
    why: str = ""

    @property
    def one_suffices(self) -> bool:
        """No mixture: nothing tells false negatives from true ones but each gap's own error."""
        return len(self.components) < 2

    def scaled(self, gap: Reals) -> Reals:
        """u = 1 − (Δ − low)/(high − low), clipped into (0, 1): near 1 the document is as good as the anchor."""
        return scale(gap, self.low, self.high)

    def log_joint(self, gap: Reals) -> Reals:
        """log π_k + log density of component k, float64[K, N]: per point for Gaussians, per u for Betas."""
        return self._parts().log_joint(self.scaled(gap) if self.kind == "beta" else gap)

    def false_negative(self, gap: Reals) -> Reals:
        """P(false negative | Δ), never rising with the gap; NaN where one component suffices.

        It is the first component's posterior π₁f₁/Σπf wherever that falls. But posteriors of components of unequal
        widths are not monotone: far on the left a wider second component takes over from the first, as if documents
        much better than the anchor were true negatives again, and a wide first component takes the far right. So from
        the first component's mean to the right the least posterior so far is kept, and to the left the largest; what it
        is eight standard deviations away, it stays.
        """
        if self.one_suffices:
            return np.full(len(gap), np.nan)
        at, log_odds = self._falling
        return special.expit(np.interp(gap, at, log_odds))

    def categories(self, gap: Reals) -> Ints:
        """Index into CATEGORIES by the discovered thresholds; gaps of 0 and below are danger.

        Two components are danger and goldilocks, three danger, goldilocks and easy, four danger, soft, goldilocks and
        easy, more danger, soft, goldilocks ..., medium and easy. Neighbours that never cross are one band, called after
        the one on top.
        """
        names, (edges, owners) = _names(len(self.components)), self._bands
        categories = indices([names[owner] for owner in owners])[np.searchsorted(np.array(edges), gap, side="right")]
        return np.where(gap <= 0.0, indices(["danger"])[0], categories)

    def said(self) -> str:
        """One line for the report."""
        counts = ", ".join(f"{tried.components}: {getattr(tried, self.criterion):,.0f}" for tried in self.tried)
        name = {"beta": "Beta", "gaussian": "Gaussian"}[self.kind]
        by = f"{self.criterion.upper()} {counts}"
        if self.one_suffices:
            return (
                f"one {name} suffices for {self.gaps:,} gaps: {self.why}{f' ({by})' if counts else ''}; no thresholds, "
                "P(true negative) is each gap's own"
            )
        parts = "; ".join(f"{part.weight:.1%} at {part.mean:.0f} ± {part.sd:.0f}" for part in self.components)
        edges = ", ".join("none" if edge is None else f"{edge:.0f}" for edge in self.thresholds)
        edges += " (none: the two never cross)" if None in self.thresholds else ""
        chosen = next(tried for tried in self.tried if tried.components == len(self.components))
        apart = min(self.tried, key=lambda tried: tried.icl).components
        return (
            f"{len(self.components)} {name}s on {self.gaps:,} gaps ({by}): {parts}; thresholds {edges}; all in points"
            + ("; the first is most gaps, hardly all false negatives" if self.components[0].weight > 0.5 else "")
            + ("" if chosen.converged else "; EM was still moving")
            + (
                f"; they overlap (ICL takes {apart}) and may be a shape, not groups"
                if apart < chosen.components
                else ""
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Mixture:
        """The inverse of `to_dict`; DataError on anything else."""
        try:
            if set(values) != {field.name for field in fields(cls)}:
                raise TypeError(f"fields {sorted(values)}")
            return cls(
                **{
                    **values,
                    "components": tuple(Component(**component) for component in values["components"]),
                    "tried": tuple(Tried(**tried) for tried in values["tried"]),
                    "thresholds": tuple(values["thresholds"]),
                }
            )
        except TypeError as error:
            raise DataError(f"not a fitted mixture: {error}", PLACE, "recompute the mine stage") from error

    def _parts(self) -> em.Gaussians | em.Betas:
        def column(name: str) -> Reals:
            return np.array([getattr(component, name) for component in self.components])

        if self.kind == "beta":
            return em.Betas(column("weight"), column("alpha"), column("beta"))
        return em.Gaussians(column("weight"), column("mean"), column("sd") ** 2)

    @cached_property
    def _falling(self) -> tuple[Reals, Reals]:
        """Gaps, ascending, and the log odds of a false negative there, made to fall."""
        ends = [(part.mean - _REACH * part.sd, part.mean + _REACH * part.sd) for part in self.components]
        reach = [np.linspace(low, high, _GRID) for low, high in ends]
        at = np.unique(np.concatenate(reach))
        log_joint = self.log_joint(at)
        log_odds = log_joint[0] - special.logsumexp(log_joint[1:], axis=0)
        middle = int(np.searchsorted(at, self.components[0].mean))
        log_odds[: middle + 1] = np.maximum.accumulate(log_odds[middle::-1])[::-1]
        log_odds[middle:] = np.minimum.accumulate(log_odds[middle:])
        return at, log_odds

    @cached_property
    def _bands(self) -> tuple[list[float], list[int]]:
        """Inner edges of the bands, and the component that each band is called after."""
        edges = list[float]()
        owners = [0]
        for above, edge in enumerate(self.thresholds, start=1):
            if edge is not None:
                edges.append(edge)
                owners.append(above)
            elif _lead(self, above - 1, self.components[above].mean) < 0:
                owners[-1] = above
        return edges, owners


def fit(gaps: Reals, settings: BetaMixture | GaussianMixture) -> Mixture:
    """Fit a mixture to gaps (points, float64[N]) pooled over a sample of queries, known positives left out.

    Gaussians: 1 to 4 by EM from several starts, on bins if there are many gaps; the BIC is of the gaps themselves.
    Betas: one, or two as ProGCL fits them on u = 1 − scaled gap, whose scale runs from the 1st to the 99th percentile
    and a quarter of that further on both sides: with the percentiles at its ends, gaps clipped to them would pull a
    component of their own to u = 0 and 1. The number is the criterion's choice. Both take gaps as independent, though
    those of a query share their anchor's error, and BIC takes the shape of the components at its word: estimated gaps
    of one population are no Gaussian, and it sees two to four (two Betas on 20,000 gaps of any kind), where ICL sees
    one. ICL errs the other way: a tenth N(40, 90²) beside N(420, 160²) is one to it, and each gap's own error then
    speaks. `said` notes where they differ.
    One component, and no thresholds, also where there are fewer than FEWEST gaps, or they are constant.
    The result does not depend on the order of the gaps. Raises DataError on gaps that are not finite.
    """
    gaps = np.sort(np.asarray(gaps, dtype=np.float64))
    if not (np.abs(gaps) < FARTHEST).all():
        raise DataError("gaps hold values that are not finite", PLACE, "recompute the rate stage")
    kind: Literal["beta", "gaussian"] = "beta" if isinstance(settings, BetaMixture) else "gaussian"
    low, high = (float(edge) for edge in np.quantile(gaps, QUANTILES)) if len(gaps) else (0.0, 0.0)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    none = Mixture(kind, len(gaps), low, high, settings.criterion, (), (), ())
    few = len(gaps) < FEWEST
    if few or (high - low if kind == "beta" else gaps.std()) < _SAME:
        whole = (Component(1.0, float(gaps.mean()), float(gaps.std())),) if len(gaps) else ()
        return replace(none, components=whole, why=f"fewer than {FEWEST} gaps" if few else "the gaps are constant")
    if isinstance(settings, BetaMixture):
        values = scale(gaps, low, high)
        fits = em.betas(em.points(values), _BETA_STEPS)
        unit = 0.0
    else:
        values = (gaps - gaps.mean()) / gaps.std()
        fits = em.gaussians(em.points(values), _MOST)
        unit = float(np.log(gaps.std()))
    tried = tuple(_tried(fitted, values, unit) for fitted in fits)
    best = min(range(len(fits)), key=lambda i: getattr(tried[i], settings.criterion))
    why = f"more gain less than {settings.criterion.upper()} charges" if best == 0 else ""
    mixture = replace(none, components=_components(fits[best].parts, gaps, low, high), tried=tried, why=why)
    return replace(mixture, thresholds=tuple(_crossing(mixture, i) for i in range(best)))


def scale(gap: Reals, low: float, high: float) -> Reals:
    """u = 1 − (Δ − low)/(high − low), clipped into (EPS, 1 − EPS)."""
    return np.clip(1.0 - (gap - low) / (high - low), EPS, 1.0 - EPS)


def _tried(fitted: em.EmFit[em.Gaussians] | em.EmFit[em.Betas], values: Reals, unit: float) -> Tried:
    """How well components fit all N values; `unit` is the log of a value's unit in points."""
    share, density = em.responsibilities(fitted.parts.log_joint(values))
    number = len(share)
    log_likelihood = float(density.sum()) - len(values) * unit
    bic = -2.0 * log_likelihood + (3 * number - 1) * float(np.log(len(values)))
    return Tried(number, log_likelihood, bic, bic + 2.0 * float(special.entr(share).sum()), fitted.converged)


def _components(parts: em.Gaussians | em.Betas, gaps: Reals, low: float, high: float) -> tuple[Component, ...]:
    """Components in points, by ascending mean gap."""
    if isinstance(parts, em.Betas):
        size = parts.alpha + parts.beta
        mean = parts.alpha / size
        sd = (high - low) * np.sqrt(mean * (1.0 - mean) / (size + 1.0))
        rows = zip(parts.weight, high - mean * (high - low), sd, parts.alpha, parts.beta, strict=True)
    else:
        mean = gaps.mean() + parts.mean * gaps.std()
        sd = np.sqrt(parts.variance) * gaps.std()
        rows = zip(parts.weight, mean, sd, strict=True)
    return tuple(sorted((Component(*map(float, row)) for row in rows), key=lambda component: component.mean))


def _lead(mixture: Mixture, i: int, gap: float) -> float:
    """Log odds of component i against i + 1 at a gap."""
    log_joint = mixture.log_joint(np.array([gap]))[:, 0]
    return float(log_joint[i] - log_joint[i + 1])


def _crossing(mixture: Mixture, i: int) -> float | None:
    """The gap between the means of components i and i + 1 at which their posteriors are equal, None if there is none.

    Log odds of two Gaussians are quadratic and those of two Betas turn once, so between a lead at one mean and at the
    other there is exactly one such gap.
    """
    left = mixture.components[i].mean
    right = mixture.components[i + 1].mean
    if not _lead(mixture, i, left) > 0.0 > _lead(mixture, i, right):
        return None
    return optimize.bisect(lambda gap: _lead(mixture, i, gap), left, right)  # pyright: ignore[reportReturnType]


def _names(count: int) -> list[str]:
    few = {
        2: ["danger", "goldilocks"],
        3: ["danger", "goldilocks", "easy"],
        4: ["danger", "soft", "goldilocks", "easy"],
    }
    return few.get(count) or ["danger", "soft", *["goldilocks"] * (count - 4), "medium", "easy"]
