"""What the report says of an adaptive design's rounds: what was asked, and how certain it made the ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DesignRound:
    """What is known after round `number` (1, 2, ...), from all that was asked so far.

    queries: those with pairs chosen in this round. pairs: mean over all queries, of all rounds so far. answers: mean
    over judges. Standard errors of ratings in Elo points: mean over documents, and over those that are the best of
    their query; None where nothing was rated. prior_elo: sd of the fit's prior.
    """

    number: int
    queries: int
    pairs: float
    answers: float
    std_err_elo: float | None
    top_std_err_elo: float | None
    prior_elo: float | None = None


@dataclass(frozen=True)
class Rounds:
    """The rounds of an adaptive design, and how many documents count as the best of a query.

    uniform_pairs: about the pairs a query that a uniform graph would need for the last round's error of the best.
    """

    rounds: tuple[DesignRound, ...]
    top: int
    uniform_pairs: float | None


def uniform_pairs(rounds: Sequence[DesignRound]) -> float | None:
    """Pairs a query, extrapolated from the first round, whose graph is uniform.

    What answers add to the prior's precision grows about as their pairs: 1/error² = 1/prior² + c pairs.

    >>> uniform_pairs([DesignRound(1, 9, 100.0, 100.0, 180.0, 200.0), DesignRound(2, 9, 150.0, 150.0, 150.0, 100.0)])
    400.0
    """
    before, after = (_added(one) for one in (rounds[0], rounds[-1]))
    return rounds[0].pairs * after / before if before > 0 and after > 0 else None


def _added(one: DesignRound) -> float:
    """The precision of the best documents' ratings, less the prior's."""
    if not one.top_std_err_elo:
        return 0.0
    return one.top_std_err_elo**-2 - (one.prior_elo**-2 if one.prior_elo else 0.0)
