"""The model that training starts from, as an untrained system, unless its head would be random.

For a run that refines another one, the other run's model.
"""

from __future__ import annotations

from dataclasses import replace

from anmi_ray.config.evaluate import START, HeldOutConfig, PeerConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.models import loading
from anmi_ray.models.pooling import draws_head
from anmi_ray.store import runs

GONE_ON_WITH = f"{runs.TRAINED}{START}"  # the role of the start if it is another run's model


def config_of(experiment: Experiment) -> HeldOutConfig:
    """Return the settings of rerank."""
    return HeldOutConfig.of(experiment.rerank, experiment.train, experiment.partners, experiment.refines)


def gone_on_with(experiment: Experiment, content: str) -> dict[str, str]:
    """Return the model of the refined run by its input role; nothing if the experiment does not refine.

    content: the hash of the collection's content. Raises ConfigError where that run has no model for it.
    """
    if experiment.refines is None:
        return {}
    return {GONE_ON_WITH: runs.trained(experiment.refines, experiment.execution.root, content).fingerprint}


def start_of(config: HeldOutConfig) -> PeerConfig | None:
    """Return the start as a peer that scores dev queries too; None if it is not wanted, or has no scoring head.

    Raises ConfigError if the model does not exist.
    """
    peer = config.untrained
    if peer is not None and peer.run is not None:
        return peer
    if peer is None or peer.start is None or peer.model is None:
        return None
    source = loading.resolve(peer.model, peer.trust_remote_code)
    if draws_head(source, peer.start.student, peer.start.pooling):
        return None
    # nothing is random, so trainings with other seeds share its scores
    return peer.model_copy(update={"start": replace(peer.start, seed=0)})
