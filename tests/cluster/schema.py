"""Typed fields of Kubernetes', KubeRay's, Kueue's and the Prometheus operator's objects, as used by the manifests.

Unknown fields fail; add a field with its type from the source:
core/v1, meta/v1: https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.33/
ray.io/v1: https://ray-project.github.io/kuberay/reference/api/ at release v1.7.0
kueue.x-k8s.io/v1beta2: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/
monitoring.coreos.com/v1: https://prometheus-operator.dev/docs/api-reference/api/
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
    drop: list[str] | None = None


class SecurityContext(Fields):
    allowPrivilegeEscalation: bool | None = None
    capabilities: Capabilities | None = None


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


class Container(Fields):
    name: Label
    image: Annotated[str, StringConstraints(pattern=r"^[\w.:/-]+:[\w][\w.-]{0,127}$")]
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    ports: list[ContainerPort] | None = None
    env: list[EnvVar] | None = None
    resources: ResourceRequirements
    securityContext: SecurityContext | None = None


class Toleration(Fields):
    key: LabelKey | None = None
    operator: Literal["Exists"]
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodSpec(Fields):
    containers: Annotated[list[Container], Field(min_length=1)]
    restartPolicy: Literal["Always", "OnFailure", "Never"] = "Always"
    nodeSelector: Labels | None = None
    tolerations: list[Toleration] | None = None
    securityContext: PodSecurityContext | None = None
    imagePullSecrets: list[dict[Literal["name"], Subdomain]] | None = None


class PodTemplateSpec(Fields):
    spec: PodSpec


class LabelSelector(Fields):
    matchLabels: Labels | None = None


class PodMetricsEndpoint(Fields):
    port: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=15)]
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


Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
# of `ray start`, which tests/canaries asks about them; labels and resources are fields of the group since KubeRay 1.5
StartParams = dict[Literal["num-cpus", "num-gpus", "memory", "object-store-memory", "dashboard-host"], str]
RayResources = dict[
    Annotated[str, StringConstraints(pattern=r"^(CPU|GPU|memory|accelerator_type:[\w-]+|[a-z]+)$")], Quantity
]
QUEUE = "kueue.x-k8s.io/queue-name"


class AuthOptions(Fields):
    mode: Literal["disabled", "token"] = "token"
    secretName: Label | None = None


class AutoscalerOptions(Fields):
    version: Literal["v1", "v2"] | None = None
    resources: ResourceRequirements | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    securityContext: SecurityContext | None = None
    idleTimeoutSeconds: Count | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None


class HeadGroupSpec(Fields):
    template: PodTemplateSpec
    rayStartParams: StartParams | None = None


class WorkerGroupSpec(Fields):
    groupName: Label
    replicas: Count = 0
    minReplicas: Count = 0
    maxReplicas: Count = 2**31 - 1
    idleTimeoutSeconds: Count | None = None
    priority: int = 0
    resources: RayResources | None = None
    labels: dict[LabelKey, LabelValue] | None = None
    rayStartParams: StartParams | None = None
    template: PodTemplateSpec

    @model_validator(mode="after")
    def _between(self) -> WorkerGroupSpec:
        assert self.minReplicas <= self.replicas <= self.maxReplicas, f"{self.groupName}: replicas outside min and max"
        return self


class RayClusterSpec(Fields):
    rayVersion: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")]
    authOptions: AuthOptions | None = None
    enableInTreeAutoscaling: bool = False
    autoscalerOptions: AutoscalerOptions | None = None
    headGroupSpec: HeadGroupSpec
    workerGroupSpecs: list[WorkerGroupSpec] | None = None

    @model_validator(mode="after")
    def _as_the_operator_wants_it(self) -> RayClusterSpec:
        names = [group.groupName for group in self.workerGroupSpecs or []]
        assert len(set(names)) == len(names), f"two groups of one name: {names}"
        assert self.enableInTreeAutoscaling == (self.autoscalerOptions is not None), (
            "options of an autoscaler that is off"
        )
        second = self.autoscalerOptions is not None and self.autoscalerOptions.version == "v2"
        for group in self.workerGroupSpecs or []:
            assert second or (group.idleTimeoutSeconds is None and group.priority == 0), (
                "idle times and priorities are v2's"
            )
            assert group.template.spec.restartPolicy == "Never", "autoscaler v2: a pod is a node, once"
        return self


class RayCluster(Fields):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: ObjectMeta
    spec: RayClusterSpec


class RayJobSpec(Fields):
    entrypoint: Annotated[str, StringConstraints(min_length=1)]
    entrypointNumCpus: Annotated[float, Field(ge=0, strict=False)] = 0.0
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"
    submitterPodTemplate: PodTemplateSpec | None = None
    rayClusterSpec: RayClusterSpec
    backoffLimit: Count = 0
    activeDeadlineSeconds: Positive | None = None
    ttlSecondsAfterFinished: Count = 0
    shutdownAfterJobFinishes: bool = False
    suspend: bool = False

    @model_validator(mode="after")
    def _as_the_operator_wants_it(self) -> RayJobSpec:
        assert self.shutdownAfterJobFinishes or not self.ttlSecondsAfterFinished, (
            "a ttl goes with shutdownAfterJobFinishes"
        )
        assert self.shutdownAfterJobFinishes or not self.suspend, "a suspended job ends its cluster (KubeRay, Kueue)"
        return self


class RayServiceSpec(Fields):
    serveConfigV2: Annotated[str, StringConstraints(min_length=1)]
    rayClusterConfig: RayClusterSpec


class RayService(Fields):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: ObjectMeta
    spec: RayServiceSpec


class RayJob(Fields):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: ObjectMeta
    spec: RayJobSpec

    @model_validator(mode="after")
    def _as_kueue_wants_it(self) -> RayJob:
        queued = QUEUE in (self.metadata.labels or {})
        assert queued == self.spec.suspend, "Kueue lets a suspended job start, and no other"
        assert not (queued and self.spec.rayClusterSpec.enableInTreeAutoscaling), "a gang has one size"
        return self


Api = Literal["kueue.x-k8s.io/v1beta2"]
Resource = Literal["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "pods"]


class ResourceFlavorSpec(Fields):
    nodeLabels: Annotated[Labels, Field(max_length=8)] | None = None


class ResourceFlavor(Fields):
    apiVersion: Api
    kind: Literal["ResourceFlavor"]
    metadata: ObjectMeta
    spec: ResourceFlavorSpec


class ResourceQuota(Fields):
    name: Resource
    nominalQuota: Quantity


class FlavorQuotas(Fields):
    name: Subdomain
    resources: Annotated[list[ResourceQuota], Field(min_length=1, max_length=64)]


class ResourceGroup(Fields):
    coveredResources: Annotated[list[Resource], Field(min_length=1, max_length=64)]
    flavors: Annotated[list[FlavorQuotas], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _in_one_order(self) -> ResourceGroup:
        for flavor in self.flavors:
            assert [one.name for one in flavor.resources] == self.coveredResources, f"{flavor.name}: other resources"
        return self


class ClusterQueueSpec(Fields):
    resourceGroups: Annotated[list[ResourceGroup], Field(max_length=16)]
    queueingStrategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    namespaceSelector: LabelSelector | None = None


class ClusterQueue(Fields):
    apiVersion: Api
    kind: Literal["ClusterQueue"]
    metadata: ObjectMeta
    spec: ClusterQueueSpec


class LocalQueueSpec(Fields):
    clusterQueue: Subdomain


class LocalQueue(Fields):
    apiVersion: Api
    kind: Literal["LocalQueue"]
    metadata: ObjectMeta
    spec: LocalQueueSpec
