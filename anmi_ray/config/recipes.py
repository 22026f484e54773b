"""Whole recipes by name: which negatives, which loss, which curriculum.

Each is what its source describes, as close as ratings and a cross-encoder come to it; sizes (negatives a list, steps,
learning rates) are the experiment's own. A recipe fills what the file does not say; named on the command line it also
wins over the file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from anmi_ray.config.rules import NAMED

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
    near = difflib.get_close_matches(str(name), RECIPES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(RECIPES)}"
    raise ValueError(f"recipe: none is called {name!r}; {hint}")


def fill(content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings completed by their recipe; explicit settings win. Raises ValueError."""
    found = deepcopy(dict(content))
    mine = found.get("mine")
    # a composition by name says what the recipe would
    spoken = NAMED.get(str(mine.get("rule")), {}) if isinstance(mine, dict) else {}
    train = found.get("train")
    vectors = isinstance(train, dict) and train.get("student", "cross-encoder") != "cross-encoder"
    for key, value in recipe(found["recipe"]).items():
        if key == "train.loss.bound" and vectors:
            continue  # a cosine is bounded as it is
        *groups, last = key.split(".")
        node: Any = found
        for group in groups:
            node = node.setdefault(group, {}) if isinstance(node, dict) else None
        if isinstance(node, dict) and not (groups == ["mine"] and last in spoken):
            node.setdefault(last, value)
    return found


def clear(content: Mapping[str, Any], name: object) -> None:
    """Take out of settings what recipe `name` is about, in place. An unknown name takes nothing."""
    for key in (*_REPLACED, *RECIPES.get(str(name), {})):
        *groups, last = key.split(".")
        node: Any = content
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
