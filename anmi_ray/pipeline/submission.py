"""A job for a cluster: its name, its files, and the meaning of its end; without Ray.

The name follows from what the job would compute, so the same command finds the existing job. Its files are the resolved
settings and a script that starts the driver; the image of the cluster's nodes has the package.
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
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core import environment, redaction
from anmi_ray.core.errors import AnmiError, BudgetError, ConfigError
from anmi_ray.core.identity import digest
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.store import public_root

JOBS = {"pipeline": "run", "tune": "tune"}  # the command of each job
CONFIGS = {"pipeline": "experiment.yaml", "tune": "campaign.yaml"}  # and its settings file
DRIVER = "driver.sh"  # starts it; both files are its working directory
OURS = "anmi_job"  # key of a job's metadata that marks these jobs

# Settings that are files or folders (and, in _PERHAPS, may also be names, on a hub or in the package).
_PLACES = frozenset({"path", "root", "storage_path", "documents", "queries", "qrels", "examples"})
_BY_SPLIT = "qrels"  # a mapping of files
_FREE = "extra"  # sent to a server unchanged
_PERHAPS = frozenset({"model", "template", "relevance", "tokenizer", "pointwise"})
_EXCLUDED = ["__pycache__", "*.pyc", ".?*"]  # of the code that is shipped
_STOP_S = 30  # time that a cancelled driver has to end
# exit statuses of a shell that found no command
_NO_COMMAND = (126, 127)
# Ray's names of permanent failures
_LASTING = ("RUNTIME_ENV_SETUP_FAILURE", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "JOB_ENTRYPOINT_COMMAND_START_ERROR")

# A node's `python` may differ from Ray's, which is in the command line of the raylet above the driver.
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
    """A job to be submitted.

    arguments: follow the settings on its command line.
    code: folders that are shipped with it.
    campaign: for the job tune, the campaign around `experiment`.
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
        """32 hexadecimal digits that identify what the job computes and its root.

        Files and runs that stages read count by their names, since they are on the cluster. More trials of a campaign
        do not change it.
        """
        stages = [(stage.name, stage.version) for stage in stages_of(self.experiment)]
        root = self.experiment.execution.root
        what = [self.job, *self.arguments, __version__, self.run, root, stages]
        searched = [] if self.campaign is None else [result_settings(self.campaign)]
        found = [what, result_settings(self.experiment), list(named_inputs(self.experiment)), *searched]
        settings = json.dumps(found, sort_keys=True, ensure_ascii=False)
        code: list[bytes] = []  # names and contents of files, without those of _EXCLUDED
        for part in self.code:
            for path in sorted(part.rglob("*")):
                name = path.relative_to(part.parent)
                if path.is_file() and path.suffix != ".pyc" and not any(one.startswith(".") for one in name.parts):
                    code += (str(name).encode(), path.read_bytes())
        return digest("job", settings, *code).hex()

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
        """Write the job's working directory: the script that starts it, and its settings file."""
        (folder / DRIVER).write_text(_DRIVER, encoding="utf-8")
        content = settings(self.experiment if self.campaign is None else self.campaign)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        (folder / CONFIGS[self.job]).write_text(text, encoding="utf-8")

    def runtime_env(self, folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return Ray's runtime environment; `variables` override those of all workers."""
        stopping = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_S)}
        variables = {**environment.WORKERS, **stopping, **variables}
        made: dict[str, Any] = {"working_dir": str(folder), "env_vars": variables, "excludes": _EXCLUDED}
        return {**made, "py_modules": [str(part) for part in self.code]} if self.code else made


def settings(group: Settings) -> dict[str, Any]:
    """Return the explicit settings as JSON values; validating them gives the same experiment or campaign."""
    return group.model_dump(mode="json", exclude_unset=True)


def for_cluster(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Return the experiment for a job's driver, and notices about the difference.

    Relative paths become absolute, since a job has another working directory, and the driver connects to the cluster
    that runs it.
    """
    content = settings(experiment)
    notices = _to_cluster(content, experiment)
    return validate(content, "the job"), notices


def campaign_for_cluster(campaign: CampaignConfig, place: str) -> tuple[Experiment, CampaignConfig, list[str]]:
    """Do the same for a campaign; return its experiment, the campaign with that experiment, and notices.

    Raises ConfigError if the search space has a relative path, which would be part of the campaign's identity.
    """
    content = deepcopy(campaign.experiment)  # unresolved: trials change its settings
    notices = _to_cluster(content, validate(content, f"{place}, experiment"))
    for name, value in campaign.values():
        for _, absolute in _absolute({name.rpartition(".")[2]: value}):
            raise ConfigError(f"{value} is a relative place", f"{place}, space, {name}", f"write {absolute}")
    given = {**settings(campaign), "experiment": content}
    given.pop("settings", None)  # the experiment has them
    return (
        validate(content, "the job"),
        validate_as(CampaignConfig, given, "the job", "fix the campaign's file"),
        notices,
    )


def _to_cluster(content: dict[str, Any], experiment: Experiment) -> list[str]:
    """Change an experiment's settings for a job, in place; return notices."""
    content.setdefault("execution", {}).update(root=as_written(experiment.execution.root), address="auto")
    return [f"{name} is {place}: every node must reach it" for name, place in _absolute(content)]


def _absolute(node: Any, name: str = "", place: bool = False, perhaps: bool = False) -> Iterator[tuple[str, str]]:
    """Make relative paths in settings absolute, in place; yield their names and new values.

    place: all values in `node` are paths.
    perhaps: they are paths or names.
    """
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        inner = f"{name}.{key}" if name else str(key)
        known = place or key in _PLACES
        if isinstance(value, list) or (isinstance(value, dict) and key == _BY_SPLIT):
            yield from _absolute(value, inner, known, key in _PERHAPS)
        elif isinstance(value, dict) and key != _FREE:  # a group; `queries` is one too
            yield from _absolute(value, inner)
        elif not isinstance(value, str) or "://" in value or Path(value).is_absolute():
            continue
        elif known or ((perhaps or key in _PERHAPS) and Path(value).expanduser().exists()):
            node[key] = str(Path(value).expanduser().absolute())
            yield inner, node[key]


def variables(names: Iterable[str], secrets: Iterable[str]) -> dict[str, str]:
    """Return environment variables of this process for a job.

    The cluster stores them and shows them to all users of its job server, so one that looks like a secret, by name or
    value, must be among `secrets`. Raises ConfigError if it is not, or if a variable is not set.
    """
    secrets = tuple(secrets)
    found: dict[str, str] = {}
    for name in (*names, *secrets):
        option = "--secret" if name in secrets else "--env"
        if "=" in name:
            what = f"{name.partition('=')[0]} is given a value"
            raise ConfigError(what, option, "give the name alone: the value is this process's own")
        secret = f"{name} looks like a secret" if redaction.NAMES.search(name) else ""
        if not secret and redaction.in_address(os.environ.get(name, "")):
            secret = f"the value of {name} holds a credential"
        if secret and name not in secrets:
            raise ConfigError(
                f"{secret}, and all users of the cluster's job server could read it",
                "--env",
                f"give it to the nodes as a secret of the cluster's; where that server is yours alone, --secret {name}",
            )
        if name not in os.environ:
            raise ConfigError(f"{name} is not set here", option, f"export {name}, or leave it out")
        found[name] = os.environ[name]
    return found


def checkout() -> tuple[Path, ...]:
    """Return the code to ship: the package and jobs. Raises ConfigError outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    parts = (root / "anmi_ray", root / "jobs")
    if not all(part.is_dir() for part in parts):
        raise ConfigError(
            "the package that runs here is not a checkout", "--ship-code", "leave it out: the image holds the package"
        )
    return parts


def passing(exit_code: int | None, error: str | None) -> bool:
    """Return whether a failed job may succeed when it is started again.

    exit_code: of the driver; None if it was lost with its node.
    error: Ray's name of the failure.
    """
    return exit_code not in (AnmiError.exit_code, BudgetError.exit_code, *_NO_COMMAND) and error not in _LASTING


def exit_status(status: str, exit_code: int | None) -> int:
    """Return the exit status of a finished job: the driver's own, 128 plus a signal, or 143 if cancelled."""
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return 143
    return 1 if exit_code is None else exit_code if exit_code > 0 else 128 - exit_code
