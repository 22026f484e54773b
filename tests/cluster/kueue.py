"""Typed fields of Kueue's kueue.x-k8s.io/v1beta2, and what its webhooks refuse beyond types.

Source: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/ (apis/kueue/v1beta2/*_types.go). Left out, and so
refused: admission checks, fair sharing, cohorts, topology.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tests.cluster.kubernetes import Fields, Labels, LabelSelector, ObjectMeta, Quantity, Subdomain, Toleration

Api = Literal["kueue.x-k8s.io/v1beta2"]
Resource = Literal["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "pods"]


class Taint(Fields):
    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class ResourceFlavorSpec(Fields):
    nodeLabels: Annotated[Labels, Field(max_length=8)] | None = None
    nodeTaints: Annotated[list[Taint], Field(max_length=8)] | None = None
    tolerations: Annotated[list[Toleration], Field(max_length=8)] | None = None


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


class Preemption(Fields):
    reclaimWithinCohort: Literal["Never", "LowerPriority", "Any"] | None = None
    withinClusterQueue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] | None = None


class ClusterQueueSpec(Fields):
    resourceGroups: Annotated[list[ResourceGroup], Field(max_length=16)]
    queueingStrategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    namespaceSelector: LabelSelector | None = None
    preemption: Preemption | None = None
    stopPolicy: Literal["None", "Hold", "HoldAndDrain"] = "None"


class ClusterQueue(Fields):
    apiVersion: Api
    kind: Literal["ClusterQueue"]
    metadata: ObjectMeta
    spec: ClusterQueueSpec


class LocalQueueSpec(Fields):
    clusterQueue: Subdomain
    stopPolicy: Literal["None", "Hold", "HoldAndDrain"] = "None"


class LocalQueue(Fields):
    apiVersion: Api
    kind: Literal["LocalQueue"]
    metadata: ObjectMeta
    spec: LocalQueueSpec
