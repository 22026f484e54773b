"""Typed fields of Kubernetes' core/v1 and meta/v1, as far as the manifests have them.

Source: https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.33/ (PodTemplateSpec and what it holds). A
field that is not here fails: whoever needs one adds it with its type from there.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Subdomain = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Label = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Quantity = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$")]
Labels = dict[LabelKey, LabelValue]
ResourceList = dict[Literal["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"], Quantity]
SCALES = {
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def amount(quantity: str) -> float:
    """A quantity in its unit (CPUs, bytes, GPUs).

    >>> amount("500m"), amount("2Gi"), amount("16")
    (0.5, 2147483648.0, 16.0)
    """
    found = re.fullmatch(r"([\d.]+)([A-Za-z]*)", quantity)
    assert found, quantity
    return float(found[1]) * SCALES[found[2]]


class Fields(BaseModel):
    """Base: unknown fields fail, and "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ObjectMeta(Fields):
    name: Subdomain
    namespace: Label | None = None
    labels: Labels | None = None
    annotations: dict[LabelKey, str] | None = None


class SecretKeySelector(Fields):
    name: Subdomain
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$")]
    optional: bool = False


class EnvVarSource(Fields):
    secretKeyRef: SecretKeySelector


class EnvVar(Fields):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: str | None = None
    valueFrom: EnvVarSource | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> EnvVar:
        assert (self.value is None) != (self.valueFrom is None), f"{self.name}: value or valueFrom"
        return self


class ResourceRequirements(Fields):
    requests: ResourceList
    limits: ResourceList

    @model_validator(mode="after")
    def _fit(self) -> ResourceRequirements:
        for name, asked in self.requests.items():
            assert amount(asked) <= amount(self.limits[name]), (
                f"{name}: request {asked} above limit {self.limits[name]}"
            )
        gpu = "nvidia.com/gpu"
        assert self.requests.get(gpu) == self.limits.get(gpu), "GPUs cannot be overcommitted: request equals limit"
        return self


class Capabilities(Fields):
    add: list[str] | None = None
    drop: list[str] | None = None


class SecurityContext(Fields):
    allowPrivilegeEscalation: bool | None = None
    capabilities: Capabilities | None = None
    readOnlyRootFilesystem: bool | None = None
    runAsNonRoot: bool | None = None
    runAsUser: Annotated[int, Field(ge=0)] | None = None


class SeccompProfile(Fields):
    type: Literal["RuntimeDefault", "Unconfined"]


class PodSecurityContext(Fields):
    runAsNonRoot: bool | None = None
    runAsUser: Annotated[int, Field(ge=0)] | None = None
    runAsGroup: Annotated[int, Field(ge=0)] | None = None
    fsGroup: Annotated[int, Field(ge=0)] | None = None
    seccompProfile: SeccompProfile | None = None


class ContainerPort(Fields):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)]
    containerPort: Annotated[int, Field(ge=1, le=65535)]
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"


class Container(Fields):
    name: Label
    image: Annotated[str, StringConstraints(pattern=r"^[\w.:/-]+:[\w][\w.-]{0,127}$")]
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    command: list[str] | None = None
    args: list[str] | None = None
    ports: list[ContainerPort] | None = None
    env: list[EnvVar] | None = None
    resources: ResourceRequirements
    securityContext: SecurityContext | None = None


class Toleration(Fields):
    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> Toleration:
        assert self.operator == "Equal" or self.value is None, "a value goes with operator Equal"
        return self


class PodSpec(Fields):
    containers: Annotated[list[Container], Field(min_length=1)]
    restartPolicy: Literal["Always", "OnFailure", "Never"] = "Always"
    nodeSelector: Labels | None = None
    tolerations: list[Toleration] | None = None
    securityContext: PodSecurityContext | None = None
    serviceAccountName: Subdomain | None = None
    imagePullSecrets: list[dict[Literal["name"], Subdomain]] | None = None
    terminationGracePeriodSeconds: Annotated[int, Field(ge=0)] | None = None
    priorityClassName: Subdomain | None = None


class PodTemplateMeta(Fields):
    labels: Labels | None = None
    annotations: dict[LabelKey, str] | None = None


class PodTemplateSpec(Fields):
    metadata: PodTemplateMeta | None = None
    spec: PodSpec


class LabelSelector(Fields):
    matchLabels: Labels | None = None


class PodMetricsEndpoint(Fields):
    port: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)]
    path: str | None = None
    interval: Annotated[str, StringConstraints(pattern=r"^\d+(ms|s|m|h)$")] | None = None


class PodMonitorSpec(Fields):
    selector: LabelSelector
    podTargetLabels: list[LabelKey] | None = None
    podMetricsEndpoints: Annotated[list[PodMetricsEndpoint], Field(min_length=1)]


class PodMonitor(Fields):
    """The Prometheus operator's: https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1."""

    apiVersion: Literal["monitoring.coreos.com/v1"]
    kind: Literal["PodMonitor"]
    metadata: ObjectMeta
    spec: PodMonitorSpec


class Namespace(Fields):
    apiVersion: Literal["v1"]
    kind: Literal["Namespace"]
    metadata: ObjectMeta
