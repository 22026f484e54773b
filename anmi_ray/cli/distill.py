"""`anmi distill`: a small judge, learned from an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anmi_ray.cli.flags import ConfigArg, OverrideArg, RootOption, load

if TYPE_CHECKING:
    from rich.table import Table

_HELD_OUT = {
    "accuracy_consensus": "right where all agree %",
    "brier": "Brier",
    "ece": "calibration error",
}
_OF_SAMPLE = {
    "pairs": "pairs",
    "queries": "queries",
    "judgments": "judgments of the ensemble",
    "test_pairs": "held-out pairs",
    "temperature": "temperature",
}


def distill(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Learn a small judge from what an ensemble says of a sample of pairs: all stages up to distill.

    A run whose panel holds {kind: distilled} asks that judge. Any other is carried out as NAME-distill, and what is
    made serves every run as a judge of kind encoder.
    """
    from anmi_ray.cli.output import output_of
    from anmi_ray.pipeline import distilling

    experiment = distilling.with_judge(load(config, overrides, root))
    with output_of(experiment.execution) as output:
        output.heading("run", experiment.name, experiment.execution.root)
        made = distilling.distill(experiment, output.reporter)
    output.told("judge is distilled", run=experiment.name, model=str(made.model))
    output.show(*distilled(made.summary), f"model: {made.model}")
    output.show(f"  as a judge of another run: judge.judges=[{made.judge}]")


def distilled(summary: Mapping[str, Any]) -> Iterator[str | Table]:
    """What there is to say of a distilled judge by its summary.json: on held-out pairs, beside what needs no training.

    Figures that are not there are left out, and those without a name here keep their own.
    """
    from rich.text import Text

    from anmi_ray.cli import console

    rows = {"distilled judge": summary, **summary.get("baselines", {})}
    extra = (key for row in list(rows.values())[1:] for key in row if key not in _HELD_OUT)
    heads = {**_HELD_OUT, **{key: key.replace("_", " ") for key in extra}}
    heads = {key: head for key, head in heads.items() if any(_figure(row.get(key)) for row in rows.values())}
    if heads:
        yield ""
        table = console.table("on held-out pairs", *heads.values(), right=heads.values())
        for name, row in rows.items():
            table.add_row(Text(name), *(_figure(row.get(key), 100 if "%" in heads[key] else 1) for key in heads))
        yield table
    sampled = {name: summary[key] for key, name in _OF_SAMPLE.items() if _figure(summary.get(key))}
    if sampled:
        yield ", ".join(f"{name} {_figure(value)}" for name, value in sampled.items())
    if _figure(summary.get("saved")):
        yield f"saved: {_figure(summary['saved'], 100)} % of the ensemble's judgments"


def _figure(figure: Any, times: int = 1) -> str:
    """A number, with its interval where it is an estimate; nothing for anything else."""
    ends: list[Any] = []
    if isinstance(figure, Mapping):
        value = figure.get("mean")
        ends = [figure.get("low"), figure.get("high")]
    elif isinstance(figure, Sequence) and not isinstance(figure, str) and len(figure) == 3:
        value, *ends = figure
    else:
        value = figure
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int) and times == 1:
        return f"{value:,}"
    places = 1 if times == 100 else 3
    numbers = [f"{times * end:.{places}f}" for end in ends if isinstance(end, int | float)]
    return f"{times * value:.{places}f}" + (f" [{', '.join(numbers)}]" if len(numbers) == 2 else "")
