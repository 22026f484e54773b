"""kill -9 while judges are asked, over a server that fails three calls in ten: nothing is lost, doubled or asked again.

The witness is the server's own log. ANMI_KILLS makes it longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.config.load import load
from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.api import ApiEngine
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.stages.judge.asking import QuestionSources
from anmi_ray.stages.judge.dispatch import log_of
from anmi_ray.store import Artifact, Store
from tests.commands import anmi
from tests.faults.test_kill import carried_out, command, kill_tree
from tests.interrupts import heeding
from tests.judging.serving import Chat, serving
from tests.small import start_from, write_config

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(1800)]
KILLS = int(os.environ.get("ANMI_KILLS", "3"))
FAULTS = {"429:0": 0.06, "500": 0.06, "reset": 0.04, "invalid": 0.04, "empty": 0.03, "wrong": 0.03, "503": 0.04}
IN_FLIGHT, ACTORS, PUBLISHED = 16, 2, 256


@dataclass(frozen=True)
class Campaign:
    """A configuration of one api judge, and the server that it asks."""

    config: Path
    root: Path
    chat: Chat

    @property
    def experiment(self) -> Experiment:
        return load(self.config, [f"execution.root={self.root}"])

    def artifact(self, stage: str) -> Artifact:
        return Artifact(Store(str(self.root)), stage, resolve(self.experiment)[stage].fingerprint)

    def prompts(self) -> dict[str, tuple[int, bytes]]:
        """What is said to the server of every question: its bucket and its id."""
        judge = self.experiment.judge.reading[0]
        assert isinstance(judge, ApiJudgeConfig)
        engine = ApiEngine(judge)
        compare, retrieve, ingest = (self.artifact(stage) for stage in ("compare", "retrieve", "ingest"))
        sources = QuestionSources(compare, retrieve, ingest)
        found = {}
        for bucket in range(self.experiment.execution.buckets):
            questions = sources.questions(bucket)
            prompt = engine.builder.prompts(questions)
            for q, key in enumerate(questions.ids):
                found[prompt(q)[-1]["content"]] = (bucket, key.tobytes())
        return found

    def final(self, prompts: dict[str, tuple[int, bytes]]) -> set[str]:
        """The prompts whose answers are in the log for good."""
        log = log_of(self.artifact("judge").store, kinds.reading(self.experiment.judge)[0])
        known: set[bytes] = set()
        for bucket in range(self.experiment.execution.buckets):
            held = log.read(bucket)
            ids = held.ids.filter(pc.invert(held.table["transient"].combine_chunks()))
            known |= set(ids.to_pylist())
        return {prompt for prompt, (_, key) in prompts.items() if key in known}


@pytest.fixture(scope="module")
def campaign(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    folder = tmp_path_factory.mktemp("asking")
    root = start_from(prepared, folder / "root", "retrieve")
    with serving() as port:
        chat = Chat(port, "campaign")
        judge = {"kind": "api", "name": "llm", "endpoint": chat.config(concurrency=IN_FLIGHT, retries=3).model_dump()}
        config = write_config(
            folder / "api.yaml",
            small_collection,
            judge={"judges": [judge | {"prompt": {"template": "letters", "document_tokens": 64}}], "retry_passes": 2},
            compare={"degree": 3},
            execution={"buckets": 4, "askers": ACTORS, "chunk": 2048},
        )
        chat.setup(faults=FAULTS, latency_s=0.004)
        carried_out(config, root, "--until", "compare")
        yield Campaign(config, root, chat)


def part_of(process: psutil.Process, title: str) -> psutil.Process | None:
    """A process of a run by its title, if it is at work."""
    for child in process.children(recursive=True):
        try:
            if title in " ".join(child.cmdline()):
                return child
        except psutil.Error:
            continue
    return None


@contextmanager
def asking(campaign: Campaign, delay: float) -> Iterator[subprocess.Popen[str]]:
    """A run that has been asking for so long."""
    begun = len(campaign.chat.log())
    with subprocess.Popen(
        heeding([*command(campaign.config, campaign.root), "--until", "judge"]),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and len(campaign.chat.log()) == begun:
            time.sleep(0.05)
        time.sleep(delay)
        yield process


def disturb(campaign: Campaign, chance: random.Random, parts: tuple[str, ...]) -> bool:
    """Start the run, and kill all of it or some of its processes at random moments; whether it was at work then."""
    with asking(campaign, chance.uniform(0.0, 1.5)) as process:
        if process.poll() is not None:
            return False
        if not parts:
            kill_tree(process)
            return True
        for title in parts:
            part = part_of(psutil.Process(process.pid), title)
            assert part is not None, title
            part.kill()
            time.sleep(chance.uniform(0.5, 1.0))
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, said
        return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_asking(campaign: Campaign, number: signal.Signals, code: int) -> None:
    with asking(campaign, 0.7) as process:
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    lines = said.splitlines()
    assert lines[-1].startswith("anmi: interrupted; ")
    assert not [line for line in lines if "Traceback" in line or "***" in line or line.startswith(("[", "("))], said
    assert json.loads((campaign.root / "progress" / "small.json").read_text())["state"] == "interrupted"


def test_killed_while_asking(campaign: Campaign) -> None:
    chance, prompts = random.Random(4), campaign.prompts()
    killed = 0
    for number in range(KILLS):
        known, told = campaign.final(prompts), len(campaign.chat.log())
        if not disturb(campaign, chance, () if number < KILLS - 1 else ("MapWorker", "BudgetActor", "MapWorker")):
            break
        killed += 1
        again = {entry["question"] for entry in campaign.chat.log()[told:]} & known
        assert not again, f"{len(again)} questions were asked again whose answers were in the log"
    assert killed >= min(3, KILLS)
    carried_out(campaign.config, campaign.root, "--until", "judge")

    buckets = range(campaign.experiment.execution.buckets)
    judge, compare = campaign.artifact("judge"), campaign.artifact("compare")
    judgments = pa.concat_tables([judge.read_part("judgments", bucket, JUDGMENT) for bucket in buckets])
    pairs = sum(compare.read_part("comparisons", bucket, COMPARISON).num_rows for bucket in buckets)
    assert judgments.num_rows == 2 * pairs  # the record's key says that none stands twice
    reasons = Counter(judgments["error"].drop_null().to_pylist())
    assert set(reasons) <= {"neither letter"}, reasons  # "wrong letters" is an answer that cannot be read, for good
    audited = judge.read_json("audit.json")["judges"]["llm"]
    assert audited["failures"] == dict(reasons)

    delivered = Counter(e["question"] for e in campaign.chat.log() if e["action"] in ("ok", "wrong"))
    assert set(delivered) == set(prompts)
    lost = sum(delivered.values()) - len(prompts)
    assert lost <= killed * ACTORS * (PUBLISHED + IN_FLIGHT), f"{lost} answers were bought twice in {killed} kills"
    spent = (judge.manifest() or {})["spent"]["llm"]
    assert spent["calls"] + spent["calls_uncounted"] >= len(campaign.chat.log())  # what was lost counts as spent
    assert spent["calls"] <= len(campaign.chat.log())
    print(f"{len(prompts):,} questions, {killed} kills, {lost} bought twice, {len(campaign.chat.log()):,} requests")


def test_two_runs_at_once_share_what_they_buy(campaign: Campaign, prepared: Path, tmp_path: Path) -> None:
    """The later asks from the other end, and each sees what the other bought."""
    latency_s, looked_s = 0.1, 2.0
    root = start_from(prepared, tmp_path / "root", "retrieve")
    carried_out(campaign.config, root, "--until", "compare")
    campaign.chat.setup(latency_s=latency_s)
    first = Campaign(campaign.config, root, campaign.chat)
    with asking(first, 0.0) as process:
        second = anmi("run", campaign.config, "--root", root, "name=second", "--until", "judge")
        said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    assert second.returncode == 0, second.stdout + second.stderr
    assert "is running under the same root" in second.stdout + second.stderr
    delivered = Counter(entry["question"] for entry in campaign.chat.log())
    assert set(delivered) == set(first.prompts())
    twice = sum(delivered.values()) - len(delivered)
    unseen = PUBLISHED + IN_FLIGHT + IN_FLIGHT * looked_s / latency_s  # of an actor, where two runs meet
    assert twice <= 2 * ACTORS * unseen, f"{twice} of {len(delivered)} questions were bought twice"
    print(f"{len(delivered):,} questions, {twice} bought twice")


def forms_of(secret: str) -> set[bytes]:
    """A secret as it may stand in a file: plain, in an address, in JSON, in base64 at each of its three offsets."""
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    for before in ("", "x", "xx"):
        within = b64encode(f"{before}{secret}".encode()).decode().rstrip("=")
        forms.add(within[4:-1])  # the first and the last character depend on what stands beside it
    return {form.encode() for form in forms}


def written_in(folders: list[Path], secret: str) -> list[Path]:
    """The files below the folders that hold a secret in any form."""
    forms = forms_of(secret)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if any(form in path.read_bytes() for form in forms)]


def test_a_key_is_written_nowhere(campaign: Campaign, short_temp: Path, tmp_path: Path) -> None:
    """One that opens the server and one that does not: neither the root nor Ray's own folder has a trace of them."""
    right, wrong = 'right-"key/of+this=server', 'quite-"another/key+al=together'
    for name, key in (("closed", wrong), ("open", right)):
        chat = Chat(campaign.chat.port, name)
        chat.setup(key=right)
        folder = short_temp / name  # Ray's own stands there
        folder.mkdir()
        environment = {**os.environ, "SOME_KEY": key, "TMPDIR": str(folder)}
        endpoint = chat.config(key_env="SOME_KEY").model_dump()
        judge = {"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}
        override = f"judge.judges={json.dumps([judge])}"
        run = [*command(campaign.config, campaign.root), "--until", "judge", override]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300, env=environment)
        said = done.stdout + done.stderr
        assert done.returncode == (0 if key == right else 2), said
        assert "Traceback" not in said
        assert not any(form in said.encode() for form in forms_of(key))
        assert written_in([campaign.root, folder], key) == []
        if key == wrong:
            assert "401" in said
            assert len(chat.log()) <= ACTORS
    (tmp_path / "trace").write_bytes(b64encode(f"Bearer {right}".encode()))  # the search finds what there is
    assert written_in([tmp_path], right)


@pytest.mark.long
def test_killed_while_documents_are_confirmed(campaign: Campaign) -> None:
    """What was published about single documents before all is killed is not asked again."""
    # the server answers A to every pair: of so few documents no model of relevance is fitted that would say so
    few = ("name=confirming", "corpus.max_train_queries=13")
    confirming = (*few, "rate.hide_positives=1", "mine.anchors=confirmed", "--until")
    campaign.chat.setup()
    carried_out(campaign.config, campaign.root, *confirming, "shortlist")
    judge = kinds.reading(campaign.experiment.judge.direct)[0]
    log = log_of(Store(str(campaign.root)), judge)

    def published() -> int:
        return sum(log.read(bucket).table.num_rows for bucket in log.buckets())

    campaign.chat.setup(latency_s=3.0)  # answers are published every five seconds
    with subprocess.Popen(
        heeding([*command(campaign.config, campaign.root, *confirming), "confirm"]),
        stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not published():
            time.sleep(0.05)
        before = published()
        kill_tree(process)
    carried_out(campaign.config, campaign.root, *confirming, "confirm")
    asked = [entry["question"] for entry in campaign.chat.log()]
    assert 0 < before < published() == len(set(asked))
    assert len(asked) - len(set(asked)) <= published() - before
    assert all("yes or no" in question for question in asked)
