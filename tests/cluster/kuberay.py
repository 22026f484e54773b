"""Typed fields of KubeRay 1.7's ray.io/v1, and what its operator refuses beyond types.

Source: https://ray-project.github.io/kuberay/reference/api/ at release v1.7.0. All fields of the types below are listed
but those whose own types the manifests have no use for (gcsFaultToleranceOptions, historyServerOptions, networkPolicy,
tlsOptions, upgradeStrategy, serveService, headService, ingressOptions, deletionStrategy): they fail like unknown ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from tests.cluster.kubernetes import (
    EnvVar,
    Fields,
    Label,
    LabelKey,
    Labels,
    LabelValue,
    ObjectMeta,
    PodTemplateSpec,
    Quantity,
    ResourceRequirements,
    SecurityContext,
)

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
    enableK8sTokenAuth: bool | None = None


class AutoscalerOptions(Fields):
    version: Literal["v1", "v2"] | None = None
    resources: ResourceRequirements | None = None
    image: str | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    securityContext: SecurityContext | None = None
    idleTimeoutSeconds: Count | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    env: list[EnvVar] | None = None
    command: list[str] | None = None
    args: list[str] | None = None


class HeadGroupSpec(Fields):
    template: PodTemplateSpec
    rayStartParams: StartParams | None = None
    resources: RayResources | None = None
    labels: Labels | None = None
    enableIngress: bool | None = None
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = None


class WorkerGroupSpec(Fields):
    groupName: Label
    replicas: Count = 0
    minReplicas: Count = 0
    maxReplicas: Count = 2**31 - 1
    numOfHosts: Positive = 1
    idleTimeoutSeconds: Count | None = None
    priority: int = 0
    suspend: bool | None = None
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
    headServiceAnnotations: dict[LabelKey, str] | None = None
    workerGroupSpecs: list[WorkerGroupSpec] | None = None
    suspend: bool | None = None
    managedBy: Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"] | None = None

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


class SubmitterConfig(Fields):
    backoffLimit: Count | None = None


class RayJobSpec(Fields):
    entrypoint: Annotated[str, StringConstraints(min_length=1)]
    entrypointNumCpus: Annotated[float, Field(ge=0, strict=False)] = 0.0
    entrypointNumGpus: Annotated[float, Field(ge=0, strict=False)] = 0.0
    entrypointResources: str | None = None
    runtimeEnvYAML: str | None = None
    jobId: str | None = None
    metadata: dict[str, str] | None = None
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"
    submitterConfig: SubmitterConfig | None = None
    submitterPodTemplate: PodTemplateSpec | None = None
    clusterSelector: Labels | None = None
    rayClusterSpec: RayClusterSpec
    backoffLimit: Count = 0
    activeDeadlineSeconds: Positive | None = None
    preRunningDeadlineSeconds: Positive | None = None
    ttlSecondsAfterFinished: Count = 0
    shutdownAfterJobFinishes: bool = False
    suspend: bool = False
    managedBy: Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"] | None = None

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
    rayClusterDeletionDelaySeconds: Count | None = None
    excludeHeadPodFromServeSvc: bool | None = None
    suspend: bool | None = None
    managedBy: Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"] | None = None


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
        assert not (queued and self.spec.clusterSelector), "Kueue admits a job with its own cluster"
        assert not (queued and self.spec.rayClusterSpec.enableInTreeAutoscaling), "a gang has one size"
        return self
