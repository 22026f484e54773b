"""The model that training starts from: a system without any training, unless it would need a head drawn at random."""

from __future__ import annotations

from dataclasses import replace

from anmi_ray.config.evaluate import HeldOutConfig, PeerConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.models import loading
from anmi_ray.models.pooling import draws_head


def config_of(experiment: Experiment) -> HeldOutConfig:
    """The settings that the stage works with."""
    return HeldOutConfig.of(experiment.rerank, experiment.train, experiment.partners)


def start_of(config: HeldOutConfig) -> PeerConfig | None:
    """The start, as a peer that scores dev queries too; None where it is not wanted, or has no scoring head.

    Raises ConfigError where there is no such model.
    """
    peer = config.untrained
    if peer is None or peer.start is None or peer.model is None:
        return None
    source = loading.resolve(peer.model, peer.trust_remote_code)
    if draws_head(source, peer.start.student, peer.start.pooling):
        return None
    # nothing is drawn, so trainings of other seeds share its scores
    return peer.model_copy(update={"start": replace(peer.start, seed=0)})
