"""`anmi refine`: a run gone on with where its model contradicts its ratings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anmi_ray.cli.flags import FiguresOption, OverrideArg, RunRootOption

if TYPE_CHECKING:
    from anmi_ray.evaluation.significance import SystemComparison
    from anmi_ray.pipeline.refining import Refined, Refinement


def refine(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="name of a run that has trained a model")],
    overrides: OverrideArg = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, max=50, help="carry out so many, whatever they yield")
    ] = None,
    plan: Annotated[bool, typer.Option("--dry-run", help="say what the next round would do and cost")] = False,
    root: RunRootOption = "results",
    json_: FiguresOption = None,
) -> None:
    """Ask judges about the pairs where a run's model contradicts what is known, and train on, round after round.

    Every round is a run of its own, RUN-refine-1, RUN-refine-2, ...; RUN itself stays what it was. Rounds end when they
    yield less than half of the first one, or when dev says that a round gained nothing. Given again, it goes on.
    """
    from anmi_ray.cli.output import output_of, write_figures
    from anmi_ray.pipeline import refining
    from anmi_ray.tables import formats

    experiment = refining.of_run(run_name, root, overrides or [])
    formats.check_outputs({"json": json_}, [])
    with output_of(experiment.execution) as output:
        if plan:
            from anmi_ray.api import experiments

            following = refining.next_of(experiment)
            output.heading("plan of", following.name, root)
            output.show(*experiments.plan(following).blocks)
            return
        output.heading("refine", run_name, root)
        steps = refining.carry_out(experiment, rounds, output.reporter)
        while True:
            try:
                one = next(steps)
            except StopIteration as end:
                refined: Refined = end.value
                break
            output.make_room()
            output.told("round is complete", **one.to_json())
            output.show(_line(one))
        output.told("refined", why=refined.why, best=refined.best)
        output.show(f"no more rounds: {refined.why}", f"best by dev: the model of {refined.best}")
    if json_ is not None:
        write_figures(refined.to_json(), json_)


def _line(one: Refinement) -> str:
    """What there is to say of a round."""
    share = one.turned / one.pairs if one.pairs else 0.0
    paid = f", {one.dollars:,.2f} dollars" if one.dollars else ""
    return (
        f"{one.run}: {one.pairs:,} pairs, {one.answers:,} answers{paid}; of {share:.0%} of the pairs the better "
        f"document is the other one now, {one.yields:.2f} a query; gain on dev {_gain(one.dev)}, on test "
        f"{_gain(one.test)}"
    )


def _gain(row: SystemComparison | None) -> str:
    if row is None or row.difference is None:
        return "not measured"
    interval = f"[{row.difference_low:+.4f}, {row.difference_high:+.4f}]"
    return f"{row.difference:+.4f} {interval} {row.measure}"
