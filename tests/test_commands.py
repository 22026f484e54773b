"""Every command of README.md and docs/ that needs no cluster, key, GPU or network runs as it is written, page by page.

All pages share one copy of what a reader has after cloning, and the default root. A command that several pages show
runs once; a page whose commands need what another page made names those commands in REQUIRED, so it can run alone.
Only the settings' files are read smaller: a collection of a few hundred documents, short texts, a tiny model
that is trained for a few steps. THROUGH_RAY_TRAIN go through Ray Train, the others through one task.
What cannot be carried out here (`test_readme.py`) has its options and settings checked.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anmi_ray import cli
from anmi_ray.config import load, tune
from tests.models.tiny import write_tiny_bert
from tests.small import ALONE
from tests.training.one_task import replace_ray_train
from tests.tuning.one_task import replace_in_campaigns

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md"]
for folder in ("tutorials", "how-to", "explanation", "reference"):
    PAGES += sorted((ROOT / "docs" / folder).rglob("*.md"))
PAGES.append(ROOT / "SKILL.md")

# Programs that change nothing here: they want a cluster, a service, an account, or the reader's own shell.
ELSEWHERE = {"aws", "cd", "curl", "docker", "export", "git", "helm", "kubectl", "make", "ray", "serve", "source", "uvx"}
ON_A_CLUSTER = {"jobs"}  # commands of ours
UNTIL_STOPPED = ("anmi serve",)  # tests/serving starts a service, and asks it
# A command of ours cannot be carried out here where it says one of these.
NEEDS = {
    "s3://": "object storage",
    "/data/": "the reader's own files",
    "docs.csv": "the reader's own files",
    "search.yaml": "the reader's own files",
    "Qwen/": "a download",
    "beir/scifact": "a download",
    "nano-beir": "a download",
    "lucene": "a JDK",
    "--people": "somebody who answers",
    "--min-relevance": "a run with twenty labelled dev queries",
    "--int8": "the part onnx",  # tests/cli/test_export_onnx.py
    "--push-to-hub": "an account",
    "jobs/configs/cluster.yaml": "a download",
    "jobs/configs/api-judge.yaml": "a key",
    "own-documents.yaml": "a key",
    "show own-documents": "a key",
    "jobs/configs/vllm-judge.yaml": "a GPU",
    "jobs/configs/encoder-judge.yaml": "a download",
    "jobs/configs/likelihood-judge.yaml": "a download",
}
SAYS_ONLY = {"plan", "--dry-run"}  # with which no judge is asked
STAND_IN = "kind: similarity"  # a judge in the place of the file's
PILOT_EXITS = {0, 3, 4}
QUICKSTART = "anmi run jobs/configs/quickstart.yaml"  # what `make quickstart` runs
LABELS = "anmi run jobs/configs/quickstart-labels.yaml"
TABLE2 = "anmi run jobs/configs/quickstart.yaml name=table2 mine.rule=table2"
# By page, the commands of other pages whose results its own commands need.
REQUIRED = {
    "SKILL.md": [QUICKSTART],
    "docs/tutorials/quickstart.md": [QUICKSTART],
    "docs/how-to/audit-judges.md": [QUICKSTART],
    "docs/how-to/compare-with-peers.md": [QUICKSTART, TABLE2],
    "docs/how-to/distill-a-judge.md": [LABELS],
    "docs/how-to/export-and-rerank.md": [LABELS],
    "docs/how-to/label.md": [QUICKSTART],
    "docs/how-to/mine-with-another-rule.md": [QUICKSTART],
    "docs/how-to/retrieve-otherwise.md": [QUICKSTART],
    "docs/how-to/watch-a-run.md": [QUICKSTART],
}
# By page, a file below the root that its commands make.
MADE = {
    "README.md": "reports/my-queries/report.html",
    "docs/how-to/resume-and-roots.md": "runs/quickstart.json",
    "docs/how-to/tune-a-campaign.md": "reports/tune-quickstart/campaign.html",
}
THROUGH_RAY_TRAIN = "--until distill"  # commands of ours that train as a reader's do

SMALL: dict[str, Any] = {
    "retrieve": {"depth": 100, "candidates": 18, "random_negatives": 3, "dense": {"max_tokens": 32}},
    "compare": {"degree": 4},
    "distill": {"epochs": 1, "max_tokens": 48, "max_steps": 2},
    "train": {"epochs": 1, "max_tokens": 48, "max_steps": 2, "lists_per_step": 8},
    "rerank": {"depth": 10},
    "execution": ALONE,
}


def commands_of(page: Path) -> list[str]:
    """The commands of a page in order, each once: continued lines joined, comments and a trailing & left out."""
    found: list[str] = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found.append(re.sub(r"\s#.*|&\s*$", "", line).strip())
    return list(dict.fromkeys(line for line in found if line))


def needs(line: str) -> str | None:
    """What a command needs that is not here, or None."""
    words = line.split()
    if words[0] in ELSEWHERE:
        return f"{words[0]} of the reader's machine"
    if words[0] == "anmi" and words[1] in ON_A_CLUSTER:
        return "a cluster"
    if line.startswith(UNTIL_STOPPED):
        return "a service that runs until it is stopped"
    says_only = bool(SAYS_ONLY & set(words)) or STAND_IN in line
    wanted = [what for word, what in NEEDS.items() if word in line]
    return next((what for what in wanted if not (says_only and what in ("a key", "a GPU"))), None)


COMMANDS = {str(page.relative_to(ROOT)): commands_of(page) for page in PAGES}
RUNNABLE = {page: runnable for page, lines in COMMANDS.items() if (runnable := [x for x in lines if needs(x) is None])}


def smaller(content: dict[str, Any], settings: dict[str, Any]) -> None:
    """Lay `settings` over settings from a file, in place."""
    for name, value in settings.items():
        if isinstance(value, dict):
            smaller(content.setdefault(name, {}), value)
        else:
            content[name] = value


def smaller_settings(content: dict[str, Any], collection: Path, model: str) -> dict[str, Any]:
    """What a file of an experiment or a campaign says, so that it is carried out in seconds."""
    if "space" in content:
        short = {"train.max_steps": 4, "train.lists_per_step": 4, "train.max_tokens": 48}
        settings = {**content.get("settings", {}), **short}
        return {**content, "trials": 2, "random": 2, "repeats": 1, "settings": settings}
    if content.get("corpus", {}).get("reader", "pydocs") == "pydocs":
        content["corpus"] = {"reader": "beir", "path": str(collection)}
    smaller(content, SMALL)
    tiny = {"model": model, "freeze_layers": 1}
    late = {"model": model, "max_tokens": 48}  # dense vectors have a judge of their own, who needs a real model's
    smaller(content, {"distill": tiny, "train": tiny, "retrieve": {"late": late}})
    return content


@pytest.fixture(scope="module")
def workplace(ray_local: None, tmp_path_factory: pytest.TempPathFactory, small_collection: Path) -> Iterator[Path]:
    """The working directory of a reader: the files that commands name. Settings are read smaller while it is there."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("jobs", "docs", "cluster"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "constraints.txt", folder)
    (folder / "results").mkdir()
    model = str(write_tiny_bert(tmp_path_factory.mktemp("tiny")))
    read = load.read

    def read_smaller(path: str | Path) -> dict[str, Any]:
        return smaller_settings(read(path), small_collection, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "read", read_smaller)
        patch.setattr(tune, "read", read_smaller)
        patch.chdir(folder)
        yield folder


def anmi(words: list[str], in_one_task: bool) -> None:
    """Carry out a command of ours, in this process: its Ray is the tests', whose workers have another directory."""
    with pytest.MonkeyPatch.context() as patch:
        if in_one_task:
            replace_ray_train(patch)
            replace_in_campaigns(patch)
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
    allowed = PILOT_EXITS if any(word.startswith("--pilot") for word in words) else {0}
    assert ended.value.code in allowed


def shell(line: str) -> None:
    """Carry out any other command, with this Python first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr


def carry_out(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command, and the commands that it prints as the next ones. Fails with the command and its messages."""
    try:
        if not line.startswith("anmi "):
            shell(line)
            return
        capsys.readouterr()
        words = shlex.split(line)[1:]
        words += ["--offline"] * (words[0] == "plan")  # a reader's judges are there
        anmi(words, in_one_task=THROUGH_RAY_TRAIN not in line)
        for following in re.findall(r"^next: anmi (.*)$", capsys.readouterr().out, flags=re.MULTILINE):
            anmi(shlex.split(following), in_one_task=True)
    except (AssertionError, pytest.fail.Exception) as error:
        pytest.fail(f"{line}\n{error}\n{capsys.readouterr().err}")


@pytest.fixture(scope="module")
def done() -> set[str]:
    """The commands that have succeeded in the workplace."""
    return set()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [pytest.param(x, marks=pytest.mark.long if "tune" in x else ()) for x in RUNNABLE])
def test_commands_do_what_the_page_says(
    page: str, workplace: Path, done: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (*REQUIRED.get(page, ()), *RUNNABLE[page]):
        if line not in done:
            carry_out(line, capsys)
            done.add(line)
    if page in MADE:
        assert (workplace / "results" / MADE[page]).exists()


def test_what_is_left_out_is_known() -> None:
    programs = {line.split()[0] for lines in COMMANDS.values() for line in lines}
    assert programs - ELSEWHERE <= {"anmi", "printf", "python"}
    run = {line for lines in RUNNABLE.values() for line in lines}
    assert REQUIRED.keys() | MADE.keys() <= RUNNABLE.keys()
    assert {line for lines in REQUIRED.values() for line in lines} <= run
    ours = [line.split()[1] for line in run if line.startswith("anmi ")]
    assert len(ours) >= 20
    assert set(ours) >= {
        "run",
        "tune",
        "show",
        "export",
        "mine",
        "judge",
        "plan",
        "config",
    }
