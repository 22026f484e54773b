"""`anmi demo`: four commands on a tiny collection, in less than a minute, without a download, a GPU or Ray."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    context: typer.Context,
    to: Annotated[Path, typer.Option("--to", help="folder to write: new, or empty")] = Path("anmi-demo"),
) -> None:
    """See in under a minute what judges' preferences give, on Python's own documentation: nothing is downloaded.

    Writes preferences of three simulated judges, then audits the judges, rates the documents, reranks with an untrained
    model, and measures that: by the commands that it prints, which may be given again.
    """
    from anmi_ray.api.demo import DEPTH, JUDGES, QUERIES, write_demo
    from anmi_ray.cli.output import working
    from anmi_ray.models.loading import PACKAGED

    began = time.monotonic()
    with working("reads Python's documentation"):
        write_demo(to)
    folder = shlex.quote(str(to))
    collection = f"{folder}/collection"
    made = f"{QUERIES} queries, {DEPTH} documents each, and what {len(JUDGES)} simulated judges say of pairs of them"
    print(f"{made}: {to}/judgments.csv")
    steps = {
        "Which judge can be trusted?": f"audit {folder}/judgments.csv",
        "How good is each document, and how sure is that?": f"rate {folder}/judgments.csv --judge-offsets "
        f"--out {folder}/ratings.csv --gaps {folder}/gaps.csv",
        "What does a model say that has learned nothing of it?": f"rerank --model {PACKAGED} --collection {collection} "
        f"--run {folder}/bm25.trec --out {folder}/reranked.trec",
        "Which ranking is better?": f"evaluate --collection {collection} --run {folder}/bm25.trec "
        f"--run {folder}/reranked.trec --measures nDCG@10,MRR@10",
    }
    for question, command in steps.items():
        print(f"\n{question}\n$ anmi {command}", flush=True)
        context.find_root().command.main(shlex.split(command), prog_name="anmi", standalone_mode=False)
    print(_END.format(to=to, seconds=time.monotonic() - began))


_END = """
Done in {seconds:.0f} s. Judges were simulated, and nothing was trained: the model is what training begins with.
{to}/ratings.csv has every document's rating with its standard error, {to}/gaps.csv how far each stands
below the best of its query: that is what hard negatives are chosen by. Next:
  anmi rate YOUR.csv --out ratings.csv    preferences of your own: query_id, doc_a, doc_b, preference
  anmi doctor                             what is installed here for judges, training and serving
  anmi init --example own-documents       settings for documents and queries of your own, to edit
  anmi run own-documents.yaml             the whole path, from these files to a trained reranker and its report"""
