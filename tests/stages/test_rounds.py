"""An adaptive design carried out: rounds of one campaign, each question asked once, whatever ends the run between."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.comparisons import pairs_after
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.load import load, validate
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import COMPARISON, FIT, GAP, JUDGMENT, RATING
from anmi_ray.judging.audit.pilot import WHOLE
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.stages.judge.asking import QuestionSources
from anmi_ray.stages.judge.dispatch import spend_log_of
from anmi_ray.store import Artifact, Store, runs
from tests.commands import Done, anmi, printed
from tests.judging.serving import Chat, serving
from tests.small import start_from, write_config

DEGREE, ROUNDS = 4, 3
ADAPTIVE: dict[str, Any] = {"design": "adaptive", "degree": DEGREE, "rounds": ROUNDS}
COMPARE = CompareConfig(**ADAPTIVE)
BUCKETS = 4
PARTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "comp": (("comparisons", COMPARISON),),
    "judg": (("judgments", JUDGMENT),),
    "rate": (("ratings", RATING), ("fits", FIT), ("gaps", GAP)),
}
STAGES = ("compare-1", "judge-1", "rate-1", "compare-2", "judge-2", "rate-2", "compare", "judge", "rate")


@dataclass(frozen=True)
class World:
    """A configuration of one api judge, its server, and a root of one's own."""

    config: Path
    root: Path
    chat: Chat

    def anmi(self, *words: object) -> Done:
        """A run as far as its ratings."""
        return anmi("run", self.config, "--root", self.root, "--until", "rate", *words)

    def artifact(self, stage: str, run: str = "small") -> Artifact:
        stages = (runs.recorded(Store(str(self.root)), run) or {})["stages"]
        return Artifact(Store(str(self.root)), stage, stages[stage]["fingerprint"])

    def part(self, stage: str, part: str, record: Any) -> pa.Table:
        return pa.concat_tables([self.artifact(stage).read_part(part, bucket, record) for bucket in range(BUCKETS)])

    def tables(self) -> dict[tuple[str, str], pa.Table]:
        """What every round has made, by stage and part. A file also names the settings that it comes from."""
        return {(stage, part): self.part(stage, part, kind) for stage in STAGES for part, kind in PARTS[stage[:4]]}

    def questions(self) -> list[str]:
        """What the server was asked, in order of arrival."""
        return [entry["question"] for entry in self.chat.log()]

    def calls(self, *words: object) -> dict[str, int]:
        """By stage, the calls that are planned."""
        said = printed("plan", self.config, "--root", self.root, *words)
        return {stage: int(n.replace(",", "")) for stage, n in re.findall(r"^(judge\S*) +([\d,]+) calls", said, re.M)}


@dataclass(frozen=True)
class Asked:
    """A run that nothing disturbed: its plan's calls by stage, what was asked, and what it made."""

    planned: dict[str, int]
    questions: list[str]
    tables: dict[tuple[str, str], pa.Table]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


@pytest.fixture(scope="module")
def made(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory, port: int) -> World:
    """What nothing has been done with yet but to retrieve."""
    folder = tmp_path_factory.mktemp("rounds")
    chat = Chat(port, "rounds")
    chat.setup(mixed=True)
    judge = {"kind": "api", "name": "llm", "endpoint": chat.config().model_dump(), "prompt": {"template": "letters"}}
    config = write_config(
        folder / "small.json",
        small_collection,
        compare=ADAPTIVE,
        judge={"judges": [judge], "orders": "one"},
        rate={"judge_offsets": True},
    )
    return World(config, start_from(prepared, folder / "root", "retrieve"), chat)


@pytest.fixture(scope="module")
def undisturbed(made: World) -> Asked:
    """A run from its plan to its ratings."""
    planned = made.calls()
    done = made.anmi()
    assert done.returncode == 0, done.stdout + done.stderr
    return Asked(planned, made.questions(), made.tables())


@pytest.mark.ray
@pytest.mark.slow
def test_every_round_asks_its_own_pairs_once_and_a_second_run_nothing(made: World, undisturbed: Asked) -> None:
    compared = [undisturbed.tables[stage, "comparisons"] for stage in STAGES[::3]]
    judged = [undisturbed.tables[stage, "judgments"] for stage in STAGES[1::3]]
    for number, (pairs, judgments) in enumerate(zip(compared, judged, strict=True)):
        counts = Counter(pairs["query_id"].to_pylist())
        documents = Counter(compared[0]["query_id"].to_pylist())  # a cycle has as many pairs
        assert counts == {query: pairs_after(n, COMPARE, number) for query, n in documents.items()}
        assert judgments.num_rows == pairs.num_rows == pc.count_distinct(pairs["comparison_id"]).as_py()
        assert set(pairs["round"].to_pylist()) == set(range(number + 1))
    for table, before in itertools.pairwise([*reversed(compared)]):
        assert set(before["comparison_id"].to_pylist()) < set(table["comparison_id"].to_pylist())
    for table, before in itertools.pairwise([*reversed(judged)]):
        same = table.filter(pc.is_in(table["comparison_id"], value_set=before["comparison_id"]))
        assert same.equals(before)
    assert len(undisturbed.questions) == len(set(undisturbed.questions)) == compared[-1].num_rows
    rated = undisturbed.tables["rate", "ratings"]
    assert set(rated["query_id"].to_pylist()) == set(compared[0]["query_id"].to_pylist())

    [campaign] = (made.root / "spend").iterdir()
    sources = QuestionSources(*map(made.artifact, ("compare", "retrieve", "ingest")), begun=made.artifact("compare-1"))
    log = spend_log_of(made.artifact("judge").store, sources, load(made.config).judge)
    assert log.campaign == campaign.name
    assert sum(record.calls for record in log.records_of_round()) == len(undisturbed.questions)

    again = made.anmi()
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("reused") == 2 + len(STAGES)
    assert len(made.questions()) == len(undisturbed.questions)


@pytest.mark.ray
@pytest.mark.slow
def test_what_is_known_well_enough_is_asked_about_no_more(made: World, undisturbed: Asked) -> None:
    done = made.anmi("name=enough", "compare.target_error=10000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(made.questions()) == len(undisturbed.questions)
    last, first = (made.artifact(stage, "enough") for stage in ("compare", "compare-1"))
    for bucket in range(BUCKETS):
        pairs = last.read_part("comparisons", bucket, COMPARISON)
        assert pairs.equals(first.read_part("comparisons", bucket, COMPARISON))
    said = printed("plan", made.config, "--root", made.root, "name=other", "compare.target_error=10000")
    assert "at most" in said


@pytest.mark.ray
@pytest.mark.slow
def test_a_plan_names_every_round_and_its_calls_add_up(made: World, undisturbed: Asked) -> None:
    assert list(undisturbed.planned) == ["judge-1", "judge-2", "judge"]
    queries, documents = 48, 14
    assert sum(undisturbed.planned.values()) == queries * pairs_after(documents, COMPARE, ROUNDS - 1)
    # of a few queries a positive stands beside the candidates
    assert sum(undisturbed.planned.values()) == pytest.approx(len(undisturbed.questions), rel=0.01)
    said = printed("plan", made.config, "--root", made.root)
    assert set(STAGES) <= {line.split(" ")[0] for line in said.splitlines()}
    assert set(made.calls().values()) == {0}
    first = undisturbed.tables["compare-1", "comparisons"].num_rows  # it is there, and counted
    total = first + undisturbed.planned["judge-2"] + undisturbed.planned["judge"]
    assert f"llm: {total:,} calls, {total:,} already bought" in said


@pytest.mark.ray
@pytest.mark.long
def test_a_pilot_and_a_budget_that_ends_in_a_later_round_change_nothing(
    made: World, undisturbed: Asked, prepared: Path, tmp_path: Path
) -> None:
    """The pilot asks of the first round, in both orders; the budget holds for all; more money goes on from there."""
    world = World(made.config, start_from(prepared, tmp_path / "root", "retrieve"), made.chat)
    world.chat.setup(mixed=True)
    prices = ("judge.judges.0.endpoint.input_price=10.0", "judge.judges.0.endpoint.output_price=0.0")
    piloted = anmi(
        "judge", world.config, "--root", world.root, "--pilot", "40", "--out", tmp_path / "pilot.json",
        *prices, "judge.pilot.max_dollars=1",
    )  # fmt: skip
    assert piloted.returncode in (0, 3, 4), piloted.stdout + piloted.stderr
    assert {path.name for path in (world.root / "artifacts").iterdir()} & set(STAGES) == {"compare-1"}
    first = len(world.questions())
    assert first == 2 * 40
    found = json.loads((tmp_path / "pilot.json").read_text())
    [gate] = [gate for gate in found["judges"][0]["gates"] if gate["name"] == WHOLE]
    assert gate["value"] == pytest.approx(len(undisturbed.questions) * 100 * 10.0 / 1e6)  # of all rounds, in one order

    rounds = [undisturbed.tables[stage, "comparisons"].num_rows for stage in STAGES[::3]]
    extra = len(set(world.questions()) - set(undisturbed.questions))
    assert extra == 40
    budget = rounds[0] + extra + (rounds[1] - rounds[0]) // 2
    stopped = world.anmi(f"judge.budget.calls={budget}")
    assert stopped.returncode == 5, stopped.stdout + stopped.stderr
    assert "stage judge-2: the budget" in stopped.stderr
    assert "raise judge.budget" in stopped.stderr
    asked = len(world.questions())
    assert rounds[0] + extra < asked <= budget
    calls = world.calls(f"judge.budget.calls={budget}")
    assert calls == {"judge-1": 0, "judge-2": rounds[1] - (asked - extra), "judge": undisturbed.planned["judge"]}

    done = world.anmi(f"judge.budget.calls={rounds[2] + extra}")  # to the last question
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(world.questions()) == len(set(world.questions())) == rounds[2] + extra
    assert set(world.questions()) > set(undisturbed.questions)
    assert len([*(world.root / "spend").iterdir()]) == 1
    tables = world.tables()
    assert tables.keys() == undisturbed.tables.keys()
    assert all(table.equals(undisturbed.tables[key]) for key, table in tables.items())


@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        ({"compare": ADAPTIVE, "rate": {"prior": None}}, "which need a prior", "set rate.prior: empirical-bayes"),
        (
            {"compare": ADAPTIVE, "judge": {"judges": [{"kind": "imported", "name": "people", "path": "x.csv"}]}},
            "judge people is a file",
            "set compare.design: imported",
        ),
        (
            {"compare": ADAPTIVE | {"degree": 14}, "retrieve": {"candidates": 14}},
            "expected less than retrieve.candidates = 14",
            "lower compare.degree",
        ),
        ({"compare": {"objective": "all"}}, "`objective` belongs to design: adaptive", "remove it or set"),
        ({"compare": {"rounds": 3}}, "`rounds` belongs to design: adaptive", "remove it or set"),
    ],
)
def test_settings_that_do_not_go_with_rounds_are_refused(settings: dict[str, Any], said: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(settings, "some.yaml")
    text = str(caught.value)
    assert said in text
    assert text.count("remedy: ") == 1
    assert remedy in text[text.index("remedy: ") :]


def test_round_one_is_the_first_of_its_stages_and_the_last_has_the_plain_names() -> None:
    """Whoever asks more later spends from the first round's campaign and reads the last round's pairs."""
    experiment = validate({"compare": ADAPTIVE, "mine": {"anchors": "confirmed"}}, "some.yaml")
    stages = {stage.name: stage for stage in stages_of(experiment)}
    names = list(stages)
    start = names.index("compare-1")
    assert tuple(names[start : start + len(STAGES)]) == STAGES
    assert stages["confirm"].reads["first"] == "compare-1"
    assert stages["shortlist"].reads["rate"] == "rate"
    assert [stages[name].reads.get("begun") for name in STAGES[1::3]] == [None, "compare-1", "compare-1"]
