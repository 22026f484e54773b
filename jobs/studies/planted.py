"""What do false negatives do to a model, and does the hybrid loss hold them off? Planted ones, under six losses.

    python -m jobs.studies.planted [--root results] [--seeds 3] [--epochs 1] [--losses InfoNCE,hybrid] [--workers 2]

Claims tested. Theorem 10: under InfoNCE the damage of a false negative with score s grows as exp(s/τ)/Z. Theorem 11:
the hybrid's damage is α D_NCE + (1 - α) D_MSE and far less than D_NCE; with weights by gap, and by a debiased loss, it
is said to be less still. Theorem 7: on false negatives both terms' gradients are opposed; Theorem 8: they are
unrelated. Opposed is called a cosine whose 95 % interval lies below 0, unrelated one whose interval holds 0 and whose
mean size is no more than .1.

Trains the quickstart's examples, all that comes before being made once under ROOT. Into 0, 10 and 30 % of the lists a
false negative is planted: another known positive of the query, beside the list's own six negatives, with weight 1
(under `weighted` the weight of mining's rule, which reads the gap alone). Everything else is the same: lists, order,
first weights. Damage is measured against the training of the same loss and seed with nothing planted: nDCG@10 of the
hybrid's top ten, reranked alone, on the dev queries and 120 train queries that nothing is trained on; and where planted
documents stand among the negatives of their lists, in standard deviations of all scores. Intervals are over queries or
documents, seeds averaged; p-values are sign flips, Holm's correction within a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.config.train import TrainConfig
from anmi_ray.identity import hash_sample
from anmi_ray.models.cross_encoder import CrossEncoder, torch_threads
from anmi_ray.records import GAP, RATING
from anmi_ray.store import Store
from anmi_ray.training.batching import TrainingSet, prepare
from anmi_ray.training.module import Trainable
from jobs.studies import planted_figures as figures
from jobs.studies.planted_gradients import (
    cosines,
    damages,
    follow,
    lists_before,
    see,
    weight_groups,
)
from jobs.studies.planted_lists import pick, plant, rule_weights, siblings, unweighted
from jobs.studies.small_trainings import cores, kept_out, of_process, quickstart, side_by_side, without

RATES = (0.0, 0.1, 0.3)
BOUND = 3.0
LOSSES: dict[str, dict[str, Any]] = {
    "InfoNCE": {"balance": {"alpha": 1.0}},
    "weighted": {"balance": {"alpha": 1.0}},
    "bounded": {"balance": {"alpha": 1.0}, "loss": {"bound": BOUND}},
    "debiased": {"balance": {"alpha": 1.0}, "loss": {"bound": BOUND, "ranking": "debiased"}},
    "hybrid": {"balance": {"alpha": 0.7}},
    "regression": {"balance": {"alpha": 0.0}},
}
SMALL = {"lists_per_step": 4, "max_tokens": 80, "freeze_layers": 4, "engine": "ddp", "dev_points": []}
PROBES, PLANTED_OF_PROBE, OTHERS_OF_PROBE = 8, 6, 10  # times a training, lists at a time


def tasks(root: str, mined: str, seeds: int, epochs: float, losses: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every training by name, seed after seed. Without false negatives a debiased loss is the bounded one."""
    found = {}
    for seed in range(seeds):
        for loss in losses:
            for rate in RATES[1 if loss == "debiased" else 0 :]:
                config = {**SMALL, **LOSSES[loss], "epochs": epochs, "seed": seed}
                task = {"root": root, "mined": mined, "loss": loss, "rate": rate, "config": config}
                found[f"{loss}-{rate:g}-s{seed}" + (f"-e{epochs:g}" if epochs != 1 else "")] = task
    return found


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """One training: nDCG@10 by query, where planted documents stand, and the gradients on them on the way."""
    quick, held = of_process(task["root"])
    loss, rate = task["loss"], task["rate"]
    examples = without(quick.examples, kept_out(quick.examples))
    found = siblings(examples, quick.qrels, quick.table("rate", "gaps", GAP), quick.table("rate", "ratings", RATING))
    chosen, order = pick(examples, found, max(RATES), 0)
    planted = order[: round(rate / max(RATES) * len(order))]
    given = rule_weights([found[one] for one in planted], quick.settings.mine)
    weights = dict(zip(planted, given.tolist(), strict=True)) if loss == "weighted" else None
    table = plant(chosen, {one: found[one] for one in planted}, weights)
    negatives = sum(map(len, table["doc_ids"].to_pylist())) - table.num_rows
    share = len(planted) / negatives
    content = {**task["config"], "loss": {**task["config"].get("loss", {}), **_share(loss, share)}}
    config = TrainConfig.model_validate(content)
    model = CrossEncoder.load(config.model, max_tokens=config.max_tokens, seed=config.seed)
    beside = ([quick.texts], [quick.queries], model.pairs)
    data = prepare([table if loss == "weighted" else unweighted(table)], *beside)
    watched = _Watched(data, config, planted, share, loss, rate)
    clamped = follow(Trainable(model, config).train(), data, config, None, watched.observe)
    every = prepare([plant(chosen, {one: found[one] for one in order})], *beside)
    return {
        "ndcg": held.ndcg(model),
        "lists": table.num_rows,
        "share": share,
        "clamped": clamped,
        "weights": given.tolist() if weights else [1.0] * len(planted),
        "steps": watched.steps,
        "others": watched.others,
        "cosines": watched.cosines,
        "norms": watched.norms,
        "standing": standing(every, model, order),
    }


def _share(loss: str, share: float) -> dict[str, Any]:
    return {"positive_share": share} if loss == "debiased" else {}


class _Watched:
    """What is seen of planted documents before every step.

    steps: rows of (example, score, w exp(s/τ)/Z, ranking's and regression's gradient on the score); others: the same
    two gradients on the other rated negatives of these lists; cosines: a probe a row; norms: rows of (w exp(s/τ)/Z,
    norm of the ranking term's gradient on all that is trained).
    """

    def __init__(
        self, data: TrainingSet, config: TrainConfig, planted: Sequence[bytes], share: float, loss: str, rate: float
    ) -> None:
        self.data, self.config, self.share = data, config, share
        ids = [bytes(row) for row in data.example_E]
        self.lists = {ids.index(one): one for one in planted}
        self.planted_P = np.zeros(len(data.doc_id_P), dtype=bool)
        self.planted_P[[data.start_E[e + 1] - 1 for e in self.lists]] = True
        self.loss, self.most = loss, rate == max(RATES)
        self.steps: list[list[Any]] = []
        self.others: list[list[float]] = []
        self.cosines: list[dict[str, dict[str, float]]] = []
        self.norms: list[list[float]] = []
        self.every = max(1, round(config.epochs * len(data) / config.lists_per_step) // PROBES)

    def observe(self, step: int, module: Trainable) -> None:
        """Before `step`."""
        if not self.lists:
            return
        lists = lists_before(self.data, self.config, step, self.planted_P)
        if lists:
            seen = see(module, self.data, self.config, lists, self.planted_P, self.share)
            columns = (seen.score_N.detach(), seen.probability_N, seen.ranking_N, seen.regression_N)
            rows = np.stack([one.double().numpy() for one in columns], axis=1)
            of = [self.lists[int(np.searchsorted(self.data.start_E, one[0], side="right")) - 1] for one in lists]
            for n in np.flatnonzero(seen.planted_N):
                self.steps.append([of[seen.list_N[n]].hex(), *rows[n].tolist()])
            self.others += rows[seen.rated_N, 2:].tolist()
        if self.most and step % self.every == 0 and self.loss in ("InfoNCE", "hybrid"):
            self._probe(step, module)

    def _probe(self, step: int, module: Trainable) -> None:
        """Both terms' gradients on the weights, on some lists of the whole training, drawn by hash."""
        ids = {bytes(row): e for e, row in enumerate(self.data.example_E)}
        salt = ("probe", self.config.seed, step)
        first = hash_sample(list(self.lists.values()), PLANTED_OF_PROBE, *salt)
        rest = hash_sample([one for one in ids if ids[one] not in self.lists], OTHERS_OF_PROBE, *salt)
        start = self.data.start_E
        lists = [np.arange(start[ids[one]], start[ids[one] + 1]) for one in [*first, *rest]]
        groups = weight_groups(module)
        if self.loss == "InfoNCE":
            seen = see(module, self.data, self.config, lists[:PLANTED_OF_PROBE], self.planted_P)
            norms = damages(seen, groups["all that is trained"])
            p = seen.probability_N[torch.from_numpy(seen.planted_N)].double().numpy()
            self.norms += np.stack([p, norms], axis=1).tolist()
            return
        seen = see(module, self.data, self.config, lists, self.planted_P)
        of = {"all": np.ones(len(seen.planted_N), dtype=bool), "planted": seen.planted_N, "others": seen.rated_N}
        self.cosines.append(cosines(seen, groups, of))


def standing(data: TrainingSet, model: CrossEncoder, order: Sequence[bytes]) -> dict[str, list[float]]:
    """By planted list: (s - mean of the list's other negatives)/sd of all scores, and the share of these below it."""
    ids = {bytes(row): e for e, row in enumerate(data.example_E)}
    rows = np.array([ids[one] for one in order])
    lists = [np.arange(data.start_E[e], data.start_E[e + 1]) for e in rows]
    positions, query = np.concatenate(lists), np.repeat(data.query_E[rows], [len(one) for one in lists])
    with torch_threads(1):
        score = model.scorer("auto").score_tokens(data.queries, query, data.documents, data.document_P[positions])
    parts = np.split(score.astype(np.float64), np.cumsum([len(one) for one in lists])[:-1])
    return {one.hex(): list(place(part, float(score.std()))) for one, part in zip(order, parts, strict=True)}


def place(score_K: NDArray[np.float64], spread: float) -> tuple[float, float]:
    """Where the last of a list stands among its negatives (the first is the anchor): in units of `spread`, as a share.

    >>> place(np.array([9.0, 1.0, 3.0, 2.5]), 0.5)
    (1.0, 0.5)
    """
    last, others = score_K[-1], score_K[1:-1]
    return float(last - others.mean()) / spread, float((others < last).mean() + (others == last).mean() / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, print the tables and verdicts."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="results", help="folder of artifacts")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of every loss at every rate")
    parser.add_argument("--epochs", type=float, default=1.0, help="passes over the lists")
    parser.add_argument("--losses", default=",".join(LOSSES), help="some of them; InfoNCE is always needed")
    parser.add_argument("--workers", type=int, default=cores(), help="trainings at once, a core each")
    given = parser.parse_args(arguments)
    losses = [name for name in LOSSES if name in given.losses.split(",")]
    if "InfoNCE" not in losses or ("debiased" in losses and "bounded" not in losses):
        parser.error("InfoNCE is what others are compared with, and bounded is debiased with nothing planted")
    console = Console(stderr=True)
    quick = quickstart(given.root, console)
    wanted = tasks(given.root, quick.artifacts["mine"].fingerprint, given.seeds, given.epochs, losses)
    out = Store(str(Path(given.root) / "studies" / "planted"))
    found = side_by_side(wanted, work, out, given.workers, lambda text: console.print(text, highlight=False))
    figures.show({name: {**wanted[name], **one} for name, one in found.items()})


if __name__ == "__main__":
    main()
