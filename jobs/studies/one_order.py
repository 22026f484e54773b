"""One order of more pairs, or both orders of half as many? Ratings at the same number of questions.

    python -m jobs.studies.one_order [--queries 30] [--documents 60]

Three judges are asked as often either way: k = 16 opponents a document in one order drawn by hash (`judge.orders: one`,
`rate.judge_offsets: true`), or k = 8 in both. They lean towards the document that is shown first, in probits where the
noise of an answer has sd 1, and the two orders of a pair share a part of that noise: 0 is a judge who is as uncertain
the second time as the first, .9 one who says nearly the same again. Judgments become ratings by the rate stage's own
functions, with the settings that go with either.

To read: an error is the root mean square of fitted less true ratings, in points; coverage is how often the 95 %
interval holds the truth, ± 1.96 standard errors over queries. The last column is the share of questions that one order
saves at both orders' error, since an error falls with the root of their number; below 0 it costs as many more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from anmi_ray.config.rate import RateConfig
from jobs.studies import harness
from jobs.studies.both_orders import RatingError, judged, rating_error
from jobs.studies.harness import Results, Table

STUDY = harness.study("one_order", "One order or both", __doc__ or "")
LEANINGS = ((0.0, 0.0, 0.0), (0.3, 0.3, 0.3), (1.0, 1.0, 1.0))
SHARED = (0.0, 0.5, 0.9)
_COLUMNS = ("leanings", "noise in common", "one, k = 16", "both, k = 8", "coverage, one", "coverage, both", "saves")


def measured(
    leanings: Sequence[float], shared: float, queries: int, documents: int, degree: int = 8
) -> tuple[RatingError, RatingError]:
    """Errors of ratings with one order of twice `degree` opponents, and with both orders of `degree`."""
    size = (leanings, queries, documents)
    one = rating_error(judged(*size, degree=2 * degree, orders="one", shared=shared), RateConfig(judge_offsets=True))
    both = rating_error(judged(*size, degree=degree, shared=shared), RateConfig())
    return one, both


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, print the table."""
    parser = harness.parser(STUDY)
    parser.add_argument("--queries", type=int, default=30, help="simulated queries a row")
    parser.add_argument("--documents", type=int, default=60, help="documents a query")
    given = parser.parse_args(words)

    def run() -> Results:
        rows: list[tuple[str, ...]] = []
        values: list[dict[str, object]] = []
        for leanings in LEANINGS:
            for shared in SHARED:
                one, both = measured(leanings, shared, given.queries, given.documents)
                cover = (f"{each.coverage:.3f} ± {each.half_width:.3f}" for each in (one, both))
                lean = ", ".join(f"{leaning:g}" for leaning in leanings)
                saved = f"{1 - (one.rmse / both.rmse) ** 2:.0%}"
                rows.append((lean, f"{shared:g}", f"{one.rmse:.0f}", f"{both.rmse:.0f}", *cover, saved))
                values.append({"leanings": leanings, "shared": shared, "one": asdict(one), "both": asdict(both)})
        title = "Errors of ratings, points, at the same number of questions"
        return Results([Table(title, _COLUMNS, rows)], values={"cells": values})

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
