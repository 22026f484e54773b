"""The similarity judge: a label-free stand-in that repeats the bi-encoder's order with a soft confidence."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.judge import SimilarityJudgeConfig
from anmi_ray.judging.protocol import Answers, Order, Questions
from anmi_ray.judging.readout import preference


def ask(asked: Questions, order: Order, config: SimilarityJudgeConfig) -> Answers:
    """p_a = Φ(slope · (similarity_a − similarity_b)), or its sign; without position bias, so `order` has no effect."""
    similarity = asked.documents.similarity
    difference = config.slope * (similarity[asked.a] - similarity[asked.b])
    return Answers(preference(difference, config.readout), np.full(len(difference), -1, dtype=np.int64))
