"""Mixture models of gaps pooled over queries; the component of a gap indicates whether it is a false negative.

As in ProGCL (Xia et al., ICML 2022), gaps of false and of true negatives follow two distributions: Betas, as there, or
Gaussians, fitted once on a sample of queries.
Letters: K components in ascending order of their mean gap, N gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy import special

from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.mining import em
from anmi_ray.mining.categories import PLACE, indices

FEWEST = 50  # fewer gaps: no mixture is fitted
FARTHEST = 1e9  # Elo points; larger gaps are errors
# of the Betas' scale
QUANTILES = (0.01, 0.99)
MARGIN = 0.25
EPS = 1e-3
_SAME = 1e-6  # Elo points; a smaller spread counts as constant
_MOST = 4  # Gaussians: false, hard, medium and easy negatives; more would split one group
_BETA_STEPS = 10  # EM steps by weighted moments, as in ProGCL; they have no maximum to converge to
_GRID = 4001  # grid points per component for a monotone P(false negative)
_REACH = 8.0  # extent of that grid, in standard deviations


@dataclass(frozen=True)
class Component:
    """A component: weight, mean and sd of its gaps (Elo points); for a Beta also α and β on u (`Mixture.scaled`)."""

    weight: float
    mean: float
    sd: float
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True)
class Tried:
    """Fit statistics of K components: BIC = −2 log L + (3K − 1) log N, ICL = BIC + 2 · entropy.

    The entropy is that of the posteriors over components (Biernacki et al. 2000), so ICL prefers separated groups,
    while BIC only needs to describe the density.
    """

    components: int
    log_likelihood: float
    bic: float
    icl: float
    converged: bool


@dataclass(frozen=True)
class Mixture:
    """A mixture fitted to N = `gaps` gaps; components in ascending order, the first being false negatives.

    low, high: ends of the Betas' scale, in Elo points.
    thresholds: K − 1 gaps where the posteriors of adjacent components cross; None if they do not cross.
    why: the reason if there is only one component.
    """

    kind: Literal["beta", "gaussian"]
    gaps: int
    low: float
    high: float
    components: tuple[Component, ...]
    tried: tuple[Tried, ...]
    thresholds: tuple[float | None, ...]
    why: str = ""

    @property
    def one_suffices(self) -> bool:
        """True without a mixture: only each gap's own error indicates false negatives."""
        return len(self.components) < 2

    def scaled(self, gap: Reals) -> Reals:
        """Return u = 1 − (Δ − low)/(high − low), clipped into (0, 1); near 1 the document is as good as the anchor."""
        return scale(gap, self.low, self.high)

    def log_joint(self, gap: Reals) -> Reals:
        """Return log π_k + log density of component k, float64[K, N]: per Elo point for Gaussians, per u for Betas."""
        return self._parts().log_joint(self.scaled(gap) if self.kind == "beta" else gap)

    def false_negative(self, gap: Reals) -> Reals:
        """Return P(false negative | Δ), non-increasing in the gap; NaN with a single component.

        It is the first component's posterior π₁f₁/Σπf made monotone. With components of unequal widths that posterior
        is not: a wider second component dominates far to the left, as if documents much better than the anchor were
        true negatives, and a wide first component dominates far to the right. So the running minimum is taken to the
        right of the first component's mean and the running maximum to the left, and it is constant beyond eight sds.
        """
        if self.one_suffices:
            return np.full(len(gap), np.nan)
        at, log_odds = self._falling
        return special.expit(np.interp(gap, at, log_odds))

    def categories(self, gap: Reals) -> Ints:
        """Return indices into CATEGORIES by the fitted thresholds; gaps of at most 0 are danger.

        Two components: danger, goldilocks. Three: danger, goldilocks, easy. Four: danger, soft, goldilocks, easy. More:
        danger, soft, goldilocks ..., medium, easy. Adjacent components that do not cross form one band, named after
        the dominant one.
        """
        names, (edges, owners) = _names(len(self.components)), self._bands
        categories = indices([names[owner] for owner in owners])[np.searchsorted(np.array(edges), gap, side="right")]
        return np.where(gap <= 0.0, indices(["danger"])[0], categories)

    def summary(self) -> str:
        """Return a one-line summary for the report."""
        counts = ", ".join(f"{tried.components}: {tried.icl:,.0f}" for tried in self.tried)
        name = {"beta": "Beta", "gaussian": "Gaussian"}[self.kind]
        by = f"ICL {counts}"
        if self.one_suffices:
            return (
                f"one {name} suffices for {self.gaps:,} gaps: {self.why}{f' ({by})' if counts else ''}; no thresholds, "
                "P(true negative) is each gap's own"
            )
        parts = "; ".join(f"{part.weight:.1%} at {part.mean:.0f} ± {part.sd:.0f}" for part in self.components)
        edges = ", ".join("none" if edge is None else f"{edge:.0f}" for edge in self.thresholds)
        edges += " (none: the two never cross)" if None in self.thresholds else ""
        chosen = next(tried for tried in self.tried if tried.components == len(self.components))
        return (
            f"{len(self.components)} {name}s on {self.gaps:,} gaps ({by}): {parts}; thresholds {edges}; all in points"
            + ("; the first is most gaps, hardly all false negatives" if self.components[0].weight > 0.5 else "")
            + ("" if chosen.converged else "; EM did not converge")
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Mixture:
        """Invert `dataclasses.asdict`."""
        components = tuple(Component(**component) for component in values["components"])
        tried = tuple(Tried(**tried) for tried in values["tried"])
        return cls(**{**values, "components": components, "tried": tried, "thresholds": tuple(values["thresholds"])})

    def _parts(self) -> em.Gaussians | em.Betas:
        def column(name: str) -> Reals:
            return np.array([getattr(component, name) for component in self.components])

        if self.kind == "beta":
            return em.Betas(column("weight"), column("alpha"), column("beta"))
        return em.Gaussians(column("weight"), column("mean"), column("sd") ** 2)

    @cached_property
    def _falling(self) -> tuple[Reals, Reals]:
        """Ascending gaps and the monotone log odds of a false negative."""
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
        """Inner edges of the bands and the component that names each band."""
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
    """Fit a mixture to gaps (Elo points, float64[N]) pooled over a sample of queries, without known positives.

    Gaussians: 1 to 4, by EM from several starts, on bins if there are many gaps. Betas: one or two, as in ProGCL, on
    u = 1 − scaled gap; the scale extends a quarter beyond the 1st and 99th percentiles, since gaps clipped at the
    percentiles would attract a component to u = 0 and 1. ICL chooses the number. It assumes independent gaps, though
    gaps of a query share their anchor's error. BIC also assumes the components' shape: estimated gaps of one population
    are not Gaussian, and BIC finds two to four components (two Betas on 20,000 gaps of any kind) where ICL finds one.
    ICL errs the other way: it merges a tenth N(40, 90²) with N(420, 160²).
    With fewer than FEWEST gaps, or constant ones, there is one component and no threshold. The result does not depend
    on the order of gaps. Raises DataError on non-finite gaps.
    """
    gaps = np.sort(np.asarray(gaps, dtype=np.float64))
    if not (np.abs(gaps) < FARTHEST).all():
        raise DataError("gaps hold values that are not finite", PLACE, "recompute the rate stage")
    kind: Literal["beta", "gaussian"] = "beta" if isinstance(settings, BetaMixture) else "gaussian"
    low, high = (float(edge) for edge in np.quantile(gaps, QUANTILES)) if len(gaps) else (0.0, 0.0)
    low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
    none = Mixture(kind, len(gaps), low, high, (), (), ())
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
    best = min(range(len(fits)), key=lambda i: tried[i].icl)
    why = "more gain less than ICL charges" if best == 0 else ""
    mixture = replace(none, components=_components(fits[best].parts, gaps, low, high), tried=tried, why=why)
    return replace(mixture, thresholds=tuple(_crossing(mixture, i) for i in range(best)))


def scale(gap: Reals, low: float, high: float) -> Reals:
    """Return u = 1 − (Δ − low)/(high − low), clipped into (EPS, 1 − EPS)."""
    return np.clip(1.0 - (gap - low) / (high - low), EPS, 1.0 - EPS)


def _tried(fitted: em.EmFit[em.Gaussians] | em.EmFit[em.Betas], values: Reals, unit: float) -> Tried:
    """Return fit statistics on all N values; `unit` is the log of a value's unit in Elo points."""
    share, density = em.responsibilities(fitted.parts.log_joint(values))
    number = len(share)
    log_likelihood = float(density.sum()) - len(values) * unit
    bic = -2.0 * log_likelihood + (3 * number - 1) * float(np.log(len(values)))
    return Tried(number, log_likelihood, bic, bic + 2.0 * float(special.entr(share).sum()), fitted.converged)


def _components(parts: em.Gaussians | em.Betas, gaps: Reals, low: float, high: float) -> tuple[Component, ...]:
    """Return components in Elo points, by ascending mean gap."""
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
    """Return the log odds of component i against i + 1 at a gap."""
    log_joint = mixture.log_joint(np.array([gap]))[:, 0]
    return float(log_joint[i] - log_joint[i + 1])


def _crossing(mixture: Mixture, i: int) -> float | None:
    """Return the gap between the means of components i and i + 1 where their posteriors are equal, or None.

    The log odds of two Gaussians are quadratic, and those of two Betas have one turning point, so there is exactly one
    such gap if each component leads at its own mean.
    """
    from scipy import optimize  # slow to import

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
