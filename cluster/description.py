"""What a cluster needs, typed: the fields of cluster/sizes.yaml, and the tags, labels and resources that follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

import anmi_ray
from anmi_ray.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
SIZES = ROOT / "cluster" / "sizes.yaml"
USER = 1000  # the image's, not root
SUBCLUSTER = "ray-subcluster"  # Ray Data keeps demands of different values of this node label apart
ACCELERATOR = "ray.io/accelerator-type"  # the node label that Ray itself sets where it finds a GPU
MARKET = "ray.io/market-type"
SERVED = 8000  # the port of a service
POOL = "anmi-ray/pool"  # the label of Kubernetes' nodes, not of Ray's

# a name of a Kubernetes object (RFC 1123), short enough for what the operator adds to it
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=30)]
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
Image = Literal["gpu", "cpu"]


class Described(BaseModel):
    """Base of the parts of the description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Gpu(Described):
    """GPUs of a node."""

    type: Literal["L4", "L40S", "A10G", "A100", "H100", "H200", "B200"] = Field(description="Ray's name of the GPU")
    count: int = Field(ge=1, le=16)


class Node(Described):
    """A kind of node: what Ray may use of it."""

    cpus: int = Field(ge=1)
    memory_gb: int = Field(ge=2, description="GiB, the object store among them")
    disk_gb: int = Field(ge=1, description="GiB for spilled objects, downloaded weights and caches")
    gpu: Gpu | None = None
    spot: bool = Field(default=False, description="may be taken away at any time, for a lower price")
    subcluster: Literal["annotate", "train"] | None = Field(default=None, description="the only work it is for")
    pool: Name | None = Field(
        default=None, description=f"value of the label {POOL} on Kubernetes' nodes; null: any node"
    )
    instance: str | None = Field(default=None, description="AWS's name of the machine; null: not offered as a VM")
    devices: dict[str, int] = Field(
        default={}, description="further devices of a pod, such as vpc.amazonaws.com/efa or rdma/ib"
    )
    variables: dict[Variable, str] = Field(
        default={}, description="environment variables of a pod's Ray processes, such as NCCL_SOCKET_IFNAME"
    )

    @property
    def labels(self) -> dict[str, str]:
        """Ray's labels of the node."""
        labels = {MARKET: "spot" if self.spot else "on-demand"}
        if self.gpu:
            labels[ACCELERATOR] = self.gpu.type
        if self.subcluster:
            labels[SUBCLUSTER] = self.subcluster
        return labels

    @property
    def resources(self) -> dict[str, int]:
        """Ray's resources besides CPU, GPU and memory.

        Ray finds out a GPU's type on a node that is there; to start the first one the autoscaler must be told. The
        subcluster's name is a resource too, one for a GPU, as `execution.train.resources` asks for resources.
        """
        resources = {f"accelerator_type:{self.gpu.type}": 1} if self.gpu else {}
        if self.subcluster:
            resources[self.subcluster] = self.gpu.count if self.gpu else self.cpus
        return resources


class Group(Described):
    """Nodes of one kind in a cluster."""

    min: int = Field(ge=0, description="nodes that are always there")
    max: int = Field(ge=1)
    idle_s: int | None = Field(default=None, ge=30, description="seconds without work after which a node goes")
    priority: int = Field(default=0, ge=0, description="the higher is started first where several would do")

    @model_validator(mode="after")
    def _whole(self) -> Group:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        if (self.idle_s is None) != (self.min == self.max):
            raise ValueError("idle_s is for groups that grow and shrink (min below max), and needed there")
        return self


class Queue(Described):
    """Gang admission: the cluster starts when all of its nodes fit into the quota."""

    name: Name
    jobs_at_once: int = Field(default=1, ge=1, description="clusters of this size that the quota has room for")


class Job(Described):
    """A run as a RayJob: the cluster is made for it, and deleted `keep_s` after it."""

    config: str = Field(pattern=r"^[\w.-]+\.yaml$", description="file of jobs/configs")
    first: str | None = Field(
        default=None, description="first stage, those before it being there; null: from the start"
    )
    last: str | None = Field(default=None, description="last stage; null: to the end")
    own_root: bool = Field(
        default=False,
        description="a root next to storage.root, named after the cluster: a root keeps its first buckets",
    )
    hours: int = Field(ge=1, description="after which it is ended")
    retries: int = Field(ge=0, description="new clusters after a failure; each goes on where the last one was")
    keep_s: int = Field(ge=0, description="seconds that the cluster stays to be looked at")


class Storage(Described):
    """The root that all nodes reach, and the Secret with its credentials."""

    root: str = Field(pattern=r"^\w+://[^\s'\"$?@]+$", description="URI without credentials")
    secret: Name
    keys: tuple[Variable, ...] = Field(min_length=1)
    optional_keys: tuple[Variable, ...] = ()


class Grown(Described):
    """What the clusters on Kubernetes and on virtual machines share."""

    image: Image
    head: str
    groups: dict[Name, Group] = Field(min_length=1, description="by kind of node")

    @property
    def secrets(self) -> dict[str, str]:
        """Further variables of every Ray process, by name the Kubernetes Secret that has a key of that name."""
        return {}

    @property
    def ports(self) -> dict[str, int]:
        """Further ports of every node, by name."""
        return {}

    @property
    def autoscales(self) -> bool:
        """Whether any group grows."""
        return any(group.min < group.max for group in self.groups.values())


class Cluster(Grown):
    """A cluster on Kubernetes."""

    job: Job
    queue: Queue | None = None

    @model_validator(mode="after")
    def _gang(self) -> Cluster:
        if self.queue and self.autoscales:
            raise ValueError("a queue admits a cluster whole: its groups need min equal to max")
        return self


class Service(Grown):
    """A cluster on Kubernetes that serves a trained model, by `anmi serve`'s application."""

    model: str = Field(min_length=1, description="a run under storage.root, org/model of the hub, or a folder of nodes")
    replicas: int = Field(ge=1, description="processes that score at all times")
    most_replicas: int = Field(ge=1, description="while requests wait")
    threads: int = Field(ge=1, description="CPUs of each")
    gpus: float = Field(default=0.0, ge=0, le=1, description="share of a GPU of each; 0: it computes on its CPUs")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="float32", description="arithmetic of the model"
    )
    key: Variable = Field(description="variable with the key that clients send, and its name in the Secret")
    secret: Name = Field(description="the Kubernetes Secret that has it")

    @property
    def secrets(self) -> dict[str, str]:
        """The key that clients send."""
        return {self.key: self.secret}

    @property
    def ports(self) -> dict[str, int]:
        """HTTP, of every node that has a proxy of Ray Serve."""
        return {"serve": SERVED}

    @model_validator(mode="after")
    def _whole(self) -> Service:
        if self.replicas > self.most_replicas:
            raise ValueError("replicas must not be above most_replicas")
        return self


class Aws(Grown):
    """A cluster on AWS's virtual machines."""

    region: str
    zones: tuple[str, ...] = Field(min_length=1)
    ssh_user: str
    instance_profile: str
    login: str | None = Field(default=None, description="command on each machine, such as the registry's docker login")

    @model_validator(mode="after")
    def _zones_of_the_region(self) -> Aws:
        if strangers := [zone for zone in self.zones if not zone.startswith(self.region)]:
            raise ValueError(f"zones outside {self.region}: {', '.join(strangers)}")
        return self


class Description(Described):
    """All of cluster/sizes.yaml."""

    namespace: Name
    registry: str = Field(pattern=r"^[\w.:/-]+[\w]$")
    pull_secret: Name | None = Field(default=None, description="Secret with the registry's login; null: none is needed")
    object_store: float = Field(gt=0, le=0.6, description="share of a node's memory")
    token: Name = Field(description="Secret whose key auth_token holds what a job's sender must show")
    storage: Storage
    nodes: dict[Name, Node]
    clusters: dict[Name, Cluster]
    service: Service
    aws: Aws

    @field_validator("nodes")
    @classmethod
    def _gangs_are_on_demand(cls, nodes: dict[str, Node]) -> dict[str, Node]:
        if wrong := [name for name, node in nodes.items() if node.spot and node.subcluster == "train"]:
            raise ValueError(
                f"{', '.join(wrong)}: a gang is as short-lived as its shortest-lived node; train on demand"
            )
        return nodes

    @model_validator(mode="after")
    def _nodes_are_described(self) -> Description:
        for name, cluster in (*self.clusters.items(), ("service", self.service), ("aws", self.aws)):
            for kind in (cluster.head, *cluster.groups):
                if kind not in self.nodes:
                    raise ValueError(f"{name}: no node '{kind}'; there are {', '.join(self.nodes)}")
                if cluster.image == "cpu" and self.nodes[kind].gpu:
                    raise ValueError(f"{name}: the image 'cpu' has no use for the GPUs of '{kind}'")
                if name == "aws" and self.nodes[kind].instance is None:
                    raise ValueError(f"aws: the node '{kind}' names no instance")
            if name == "service" and self.service.gpus and not any(self.nodes[kind].gpu for kind in cluster.groups):
                raise ValueError("service: its processes take GPUs, and no group has nodes with one")
            if self.nodes[cluster.head].spot:
                raise ValueError(f"{name}: the head '{cluster.head}' is on spot, and the cluster ends with its head")
        return self

    def tag(self, image: Image) -> str:
        """Name and tag of an image: a cluster's nodes and its jobs' drivers must have one version of all."""
        return f"{self.registry}:{anmi_ray.__version__}-ray{ray_version()}-{image}"

    def root_of(self, name: str) -> str:
        """Root of a cluster's job."""
        root = self.storage.root.rstrip("/")
        if not self.clusters[name].job.own_root:
            return self.storage.root
        in_folder = "/" in root.partition("://")[2]
        return f"{root}-{name}" if in_folder else f"{root}/{name}"  # a bucket's name is not ours to extend

    def object_store_bytes(self, node: Node) -> int:
        """Bytes of a node's object store."""
        return int(node.memory_gb * 2**30 * self.object_store)


def ray_version() -> str:
    """Ray's version, as constraints.txt pins it."""
    found = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "constraints.txt pins ray"
    return found[1]


def load(path: Path = SIZES) -> Description:
    """Read and validate the description. Raises ConfigError with every mistake, one line each."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Description.model_validate(content)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error}", str(path), "see cluster/sizes.yaml") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", str(path), "correct the line it names") from None
    except ValidationError as error:
        mistakes = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in error.errors()]
        raise ConfigError("\n  ".join(mistakes), str(path), "cluster/description.py describes every field") from None
