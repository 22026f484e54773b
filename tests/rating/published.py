"""Published Bradley-Terry fits: the games, and what was printed about them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from anmi_ray.rating.games import Games
from tests.rating.single import single

Wins = Mapping[tuple[str, str], float]  # (winner, loser): games

# Citations between statistics journals, 1987-88 (Stigler 1994; Agresti 2002, table 10.10): the cited one wins.
JOURNALS = ("Biometrika", "Comm Statist", "JASA", "JRSS-B")
CITATIONS: Wins = {
    ("Biometrika", "Comm Statist"): 730,
    ("Biometrika", "JASA"): 498,
    ("Biometrika", "JRSS-B"): 221,
    ("Comm Statist", "Biometrika"): 33,
    ("Comm Statist", "JASA"): 68,
    ("Comm Statist", "JRSS-B"): 17,
    ("JASA", "Biometrika"): 320,
    ("JASA", "Comm Statist"): 813,
    ("JASA", "JRSS-B"): 142,
    ("JRSS-B", "Biometrika"): 284,
    ("JRSS-B", "Comm Statist"): 276,
    ("JRSS-B", "JASA"): 325,
}
# Relative to Biometrika, as printed by Turner and Firth (2012), J. Stat. Software 48(9): ability, standard error.
CITATION_ABILITIES = {"Biometrika": 0.0, "Comm Statist": -2.94907, "JASA": -0.47957, "JRSS-B": 0.26895}
CITATION_ERRORS = {"Comm Statist": 0.10255, "JASA": 0.06059, "JRSS-B": 0.07083}
# Ratings about their mean, and variances and covariances relative to JASA, as BradleyTerryScalable prints them. It
# stops where a step is small: the fit that it prints expects 885.47 wins of JRSS-B, which has 885. So the nine digits
# of its variances agree to two parts in a thousand only.
CITATION_RATINGS = {"JRSS-B": 1.06, "Biometrika": 0.79, "JASA": 0.31, "Comm Statist": -2.16}
CITATION_VARIANCES = {"JRSS-B": 0.005323938, "Biometrika": 0.003671841, "Comm Statist": 0.009638953}
CITATION_COVARIANCES = {
    ("JRSS-B", "Biometrika"): 0.001988435,
    ("JRSS-B", "Comm Statist"): 0.001172936,
    ("Biometrika", "Comm Statist"): 0.001396292,
}

# American League baseball 1987 (Agresti 2002, table 10.11): wins of the home team (row) over the visitors (column),
# and of the visitors; abilities relative to Baltimore and their standard errors, home and away pooled.
TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
HOME_WINS = [
    [0, 4, 4, 4, 6, 4, 6],
    [3, 0, 4, 4, 6, 6, 4],
    [2, 4, 0, 2, 4, 4, 6],
    [3, 5, 2, 0, 4, 4, 6],
    [5, 2, 3, 4, 0, 5, 6],
    [2, 3, 3, 4, 4, 0, 2],
    [2, 1, 1, 2, 1, 3, 0],
]
AWAY_WINS = [
    [0, 3, 2, 3, 1, 2, 0],
    [3, 0, 2, 3, 0, 1, 3],
    [5, 3, 0, 4, 3, 2, 0],
    [3, 1, 5, 0, 3, 2, 1],
    [1, 5, 3, 2, 0, 2, 0],
    [5, 3, 4, 3, 2, 0, 4],
    [5, 5, 6, 4, 6, 4, 0],
]
BASEBALL_ABILITIES = {
    "Milwaukee": 1.58,
    "Detroit": 1.44,
    "Toronto": 1.29,
    "New York": 1.25,
    "Boston": 1.11,
    "Cleveland": 0.68,
    "Baltimore": 0.0,
}
BASEBALL_ERROR = 0.33  # of each, about

# BradleyTerryScalable's example: eight players who do not all meet; W1, W2 or a draw of half a win each. Ratings and
# standard errors of its two strongly connected parts.
TOY = """
Cyd Amy 1|Amy Ben .5|Ben Eve 0|Cyd Dan 0|Ben Dan .5|Dan Eve 0|Fin Eve 0|Fin Gal 0|Fin Han 0|Eve Gal 1|Fin Gal .5
Han Gal 1|Han Gal 0|Amy Dan 1|Cyd Amy 1|Ben Dan .5|Dan Amy 0""".strip().replace("\n", "|")
TOY_RATINGS = [
    {"Han": 0.696, "Gal": 0.413, "Fin": -1.11},
    {"Cyd": 0.592, "Amy": 0.0325, "Ben": -0.243, "Dan": -0.382},
]
TOY_ERRORS = {"Han": 0.911, "Gal": 0.768, "Fin": 1.05, "Cyd": 0.991, "Amy": 0.699, "Ben": 0.944, "Dan": 0.712}


def pooled(names: tuple[str, ...], wins: Wins) -> Games:
    """One game a pair, as strong as it was often played; documents in the order of the names."""
    pairs = list(itertools.combinations(range(len(names)), 2))
    won = [wins[names[i], names[j]] for i, j in pairs]
    played = [wins[names[i], names[j]] + wins[names[j], names[i]] for i, j in pairs]
    first, second = zip(*pairs, strict=True)
    return single(len(names), first, second, [w / n for w, n in zip(won, played, strict=True)], played)
