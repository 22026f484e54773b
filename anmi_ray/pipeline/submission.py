"""A job that a cluster is to carry out: its name, what goes along with it, and what its end means. Knows no Ray.

The name follows from what the job would compute, so the same command finds the job that is there already. What goes
along is the settings, resolved, in one file; the image of the cluster's nodes holds the package.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anmi_ray import __version__
from anmi_ray.config.base import Settings, named_inputs, result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import validate, validate_as
from anmi_ray.config.paths import as_written
from anmi_ray.config.tune import CampaignConfig, Loaded
from anmi_ray.core import environment, redaction
from anmi_ray.core.errors import AnmiError, BudgetError, ConfigError
from anmi_ray.core.identity import digest
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.store import public_root

JOBS = {"pipeline": "run", "tune": "tune"}  # by job, the command that its driver is
CONFIGS = {"pipeline": "experiment.yaml", "tune": "campaign.yaml"}  # and the file of its settings
DRIVER = "driver.sh"  # what starts it; both files are its working directory
OURS = "anmi_job"  # the key of a job's metadata that says it is one of these

# Settings that are places: files and folders, and what may be one or a name (of a hub, of what comes with the package).
_PLACES = frozenset({"path", "root", "storage_path", "documents", "queries", "qrels", "examples"})
_BY_SPLIT = "qrels"  # a mapping of places
_FREE = "extra"  # what a server is sent as it stands
_PERHAPS = frozenset({"model", "template", "relevance", "tokenizer", "pointwise"})
_EXCLUDED = ["__pycache__", "*.pyc", ".?*"]  # of the code that is shipped
_STOP_S = 30  # that a cancelled driver has to end by itself
# exit statuses of a shell that found nothing to run
_NO_COMMAND = (126, 127)
# Ray's names for what another attempt would meet again
_LASTING = ("RUNTIME_ENV_SETUP_FAILURE", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "JOB_ENTRYPOINT_COMMAND_START_ERROR")

# A node's `python` may be another than Ray's. The raylet, above the driver, says what it starts workers with.
_DRIVER = r"""parent=$PPID
python=
while [ -z "$python" ] && [ "${parent:-0}" -gt 1 ]; do
  python=$(tr '\0' '\n' <"/proc/$parent/cmdline" | sed -n 's/^--python_worker_command=\([^ ]*\).*/\1/p')
  parent=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$parent/status")
done 2>/dev/null
[ -x "$python" ] || python=$(command -v python || command -v python3)
if ! error=$("$python" -c 'import anmi_ray.pipeline.run' 2>&1); then
  echo "anmi: error: the cluster's Python (${python:-none was found}) cannot run anmi_ray:"
  echo "  $error" | tail -n 1
  echo "  remedy: give the nodes an image or an environment that has the package (pip install its wheel, see"
  echo "  cluster/images/Dockerfile); where only the package's own code is missing or old, anmi jobs submit --ship-code"
  exit 2
fi >&2
exec "$python" -m anmi_ray "$@"
"""


@dataclass(frozen=True)
class Submission:
    """A job to be submitted. `arguments` follow the settings on its command line; `code` is shipped with it.

    campaign: of the job tune, the campaign around `experiment`, whose settings it holds.
    """

    job: str
    experiment: Experiment
    arguments: tuple[str, ...] = ()
    code: tuple[Path, ...] = ()
    campaign: CampaignConfig | None = None

    @property
    def run(self) -> str:
        """The name of the run, or of the campaign."""
        return self.experiment.name if self.campaign is None else self.campaign.name

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of all that can change what the job computes, and of where it goes.

        What lies on the cluster cannot be looked into from here: files and runs that stages read count by their names.
        A campaign that is to have more trials is the same one.
        """
        stages = [(stage.name, stage.version) for stage in stages_of(self.experiment)]
        root = self.experiment.execution.root
        what = [self.job, *self.arguments, __version__, self.run, root, stages]
        searched = [] if self.campaign is None else [result_settings(self.campaign)]
        found = [what, result_settings(self.experiment), list(named_inputs(self.experiment)), *searched]
        settings = json.dumps(found, sort_keys=True, ensure_ascii=False)
        return digest("job", settings, *(content for part in self.code for content in _contents(part))).hex()

    def id_of(self, attempt: int) -> str:
        """The submission id of an attempt, counted from 1."""
        return f"anmi-{self.job}-{self.fingerprint[:12]}-{attempt}"

    @property
    def entrypoint(self) -> str:
        """The driver's command line."""
        return shlex.join(["sh", DRIVER, JOBS[self.job], CONFIGS[self.job], *self.arguments])

    def metadata(self, attempt: int) -> dict[str, str]:
        """Return an attempt's entry in the job list, without secrets."""
        return {
            OURS: self.job,
            "fingerprint": self.fingerprint,
            "run": self.run,
            "root": public_root(self.experiment.execution.root),
            "attempt": str(attempt),
            "version": __version__,
            "git": environment.git_revision() or "unknown",
        }

    def write(self, folder: Path) -> None:
        """Write the job's working directory: what starts it, and settings as `anmi run` or `anmi tune` reads them."""
        (folder / DRIVER).write_text(_DRIVER, encoding="utf-8")
        content = settings(self.experiment if self.campaign is None else self.campaign)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        (folder / CONFIGS[self.job]).write_text(text, encoding="utf-8")

    def runtime_env(self, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
        """What Ray brings to the nodes: `folder` as working directory, environment variables, and code if there is any.

        `variables` win over what workers are started with otherwise.
        """
        stopping = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_S)}
        made: dict[str, Any] = {
            "working_dir": str(folder),
            "env_vars": {**environment.WORKERS, **stopping, **variables},
            "excludes": _EXCLUDED,
        }
        return {**made, "py_modules": [str(part) for part in self.code]} if self.code else made


def settings(group: Settings) -> dict[str, Any]:
    """The settings that are given, as JSON values: validating them makes the same experiment, or campaign."""
    return group.model_dump(mode="json", exclude_unset=True)


def for_cluster(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """The experiment as a job's driver reads it, and what its user should know of the difference.

    Relative places become absolute ones, since a job has a working directory of its own, and the driver connects to
    the cluster that runs it.
    """
    content = settings(experiment)
    said = _to_cluster(content, experiment)
    return validate(content, "the job"), said


def campaign_for_cluster(loaded: Loaded) -> tuple[Experiment, CampaignConfig, list[str]]:
    """The same of a campaign: its experiment, the campaign with that inside, and what its user should know.

    Raises ConfigError too where the space holds a relative place: as a value it is part of what the campaign is.
    """
    content = deepcopy(loaded.config.experiment)  # as it was written: trials put their settings into it
    said = _to_cluster(content, validate(content, f"{loaded.place}, experiment"))
    for name, value in loaded.config.values():
        for _, absolute in _absolute({name.rpartition(".")[2]: value}):
            raise ConfigError(f"{value} is a relative place", f"{loaded.place}, space, {name}", f"write {absolute}")
    given = {**settings(loaded.config), "experiment": content}
    given.pop("settings", None)  # the experiment has them
    return validate(content, "the job"), validate_as(CampaignConfig, given, "the job", "mend the campaign's file"), said


def _to_cluster(content: dict[str, Any], experiment: Experiment) -> list[str]:
    """Change an experiment's settings for a job, in place; what its user should know."""
    content.setdefault("execution", {}).update(root=as_written(experiment.execution.root), address="auto")
    return [f"{name} is {place}: every node must reach it" for name, place in _absolute(content)]


def _absolute(node: Any, name: str = "", place: bool = False, perhaps: bool = False) -> Iterator[tuple[str, str]]:
    """Make relative places in settings absolute, in place; the names and places that were.

    `place`: whatever stands in `node` is a place, as a setting of several holds them; `perhaps`: or a name.
    """
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        inner = f"{name}.{key}" if name else str(key)
        known = place or key in _PLACES
        if isinstance(value, list) or (isinstance(value, dict) and key == _BY_SPLIT):
            yield from _absolute(value, inner, known, key in _PERHAPS)
        elif isinstance(value, dict) and key != _FREE:  # a group, whatever it is called: `queries` is one too
            yield from _absolute(value, inner)
        elif not isinstance(value, str) or "://" in value or Path(value).is_absolute():
            continue
        elif known or ((perhaps or key in _PERHAPS) and Path(value).expanduser().exists()):
            node[key] = str(Path(value).expanduser().absolute())
            yield inner, node[key]


def variables(names: Iterable[str], secrets: Iterable[str]) -> dict[str, str]:
    """Environment variables of this process that a job is to have.

    They are kept by the cluster and shown to whoever reaches its job server, so one that looks like a secret, by its
    name or its value, must be named among `secrets`. Raises ConfigError for one that does so elsewhere, or is not set.
    """
    secrets = tuple(secrets)
    found: dict[str, str] = {}
    for name in (*names, *secrets):
        option = "--secret" if name in secrets else "--env"
        if "=" in name:
            what = f"{name.partition('=')[0]} is given a value"
            raise ConfigError(what, option, "give the name alone: the value is this process's own")
        if name not in secrets and (secret := _secret_in(name, os.environ.get(name, ""))):
            raise ConfigError(
                f"{secret}, and whoever reaches the cluster's job server could read it",
                "--env",
                f"give it to the nodes as a secret of the cluster's; where that server is yours alone, --secret {name}",
            )
        if name not in os.environ:
            raise ConfigError(f"{name} is not set here", option, f"export {name}, or leave it out")
        found[name] = os.environ[name]
    return found


def _secret_in(name: str, value: str) -> str | None:
    """Describe the secret in an environment variable, or None."""
    if redaction.NAMES.search(name):
        return f"{name} looks like a secret"
    return f"the value of {name} holds a credential" if redaction.in_address(value) else None


def checkout() -> tuple[Path, ...]:
    """Return the code to ship: the package and jobs. Raises ConfigError outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    parts = (root / "anmi_ray", root / "jobs")
    if not all(part.is_dir() for part in parts):
        raise ConfigError(
            "the package that runs here is not a checkout", "--ship-code", "leave it out: the image holds the package"
        )
    return parts


def _contents(part: Path) -> Iterator[bytes]:
    """Names and contents of the files of a part of the code, but for those that `_EXCLUDED` names."""
    for path in sorted(part.rglob("*")):
        name = path.relative_to(part.parent)
        if path.is_file() and path.suffix != ".pyc" and not any(one.startswith(".") for one in name.parts):
            yield from (str(name).encode(), path.read_bytes())


def passing(exit_code: int | None, error: str | None) -> bool:
    """Whether a job that failed may succeed when it is started again, as it is.

    exit_code: the driver's, None where it was lost with its node; error: Ray's name of what failed.
    """
    return exit_code not in (AnmiError.exit_code, BudgetError.exit_code, *_NO_COMMAND) and error not in _LASTING


def exit_status(status: str, exit_code: int | None) -> int:
    """Return the exit status of a finished job: the driver's own, 128 plus a signal, or 143 if cancelled."""
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return 143
    return 1 if exit_code is None else exit_code if exit_code > 0 else 128 - exit_code
