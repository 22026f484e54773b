"""`anmi serve`: a trained model as an HTTP service."""

from __future__ import annotations

from typing import Annotated

import typer

from anmi_ray.cli.flags import PrecisionOption, RunRootOption


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="folder of a trained model, a run, or org/model")],
    host: Annotated[str, typer.Option("--host", help="address to listen at; 0.0.0.0: all of this machine's")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="port; 0: any that is free")] = 8000,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="processes that score")] = 1,
    most_replicas: Annotated[
        int, typer.Option("--most-replicas", min=0, help="as many while requests wait; 0: no more than --replicas")
    ] = 0,
    threads: Annotated[int, typer.Option("--threads", min=0, help="threads of each; 0: all cores, shared out")] = 0,
    gpus: Annotated[
        float, typer.Option("--gpus", min=0, max=1, metavar="SHARE", help="share of a GPU that each takes; 0: the CPU")
    ] = 0,
    precision: PrecisionOption = "float32",
    key_env: Annotated[
        str, typer.Option("--key-env", metavar="NAME", help="environment variable with the key that clients must send")
    ] = "",
    max_documents: Annotated[int, typer.Option("--max-documents", min=1, help="documents of a request")] = 1000,
    max_characters: Annotated[
        int, typer.Option("--max-characters", min=1, help="characters of a query or a document")
    ] = 100_000,
    max_body_mb: Annotated[float, typer.Option("--max-body-mb", min=0.001, help="MB of a request's body")] = 8.0,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="seconds until a request is given up")] = 60,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="texts that may wait; beyond them 429 is answered")
    ] = 10_000,
    batch_texts: Annotated[int, typer.Option("--batch-texts", min=1, help="texts computed together")] = 128,
    root: RunRootOption = "results",
) -> None:
    """Serve a trained model over HTTP to clients of Cohere, Jina, vLLM, TEI and OpenAI; of a run, its search too.

    Ctrl-C, or SIGTERM, ends it after the answers under way; again, at once. SIGHUP reloads the model.
    """
    from anmi_ray.cli import console
    from anmi_ray.serving import start
    from anmi_ray.serving.settings import validated

    settings = validated(
        {
            "model": model,
            "root": root,
            "replicas": replicas,
            "most_replicas": most_replicas,
            "threads": threads,
            "gpus": gpus,
            "precision": precision,
            "max_documents": max_documents,
            "max_characters": max_characters,
            "max_body_mb": max_body_mb,
            "timeout_s": timeout_s,
            "max_waiting": max_waiting,
            "batch_texts": batch_texts,
            "key_env": key_env,
        }
    )
    start.serve(settings, host, port, console.stdout().print)
