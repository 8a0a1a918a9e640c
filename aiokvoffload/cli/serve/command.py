"""`aiokvoffload serve` and its options. The model and what it needs are imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.cli.demo.command import Model
from aiokvoffload.cli.demo.shapes import require_name
from aiokvoffload.cli.serve.listening import listen
from aiokvoffload.cli.shell import Device, DiskBytes, DiskDir, clear_errors, count, run, size

if TYPE_CHECKING:
    from aiokvoffload.cli.serve import run as server
else:
    server = Deferred("aiokvoffload.cli.serve.run", extra="serve")


def serve_command(
    *,
    model: Model = "smollm2",
    device: Device = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on. There is no password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    gpu_tokens: Annotated[int, count(least=16, help="Tokens of KV in GPU memory.")] = 8192,
    cpu_bytes: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="CPU memory for KV.", show_default="1GiB")
    ] = 1 << 30,
    disk_dir: DiskDir = None,
    disk_bytes: DiskBytes = None,
    max_requests: Annotated[int, count(help="Requests open at a time; more get status 429.")] = 256,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON of `bench serve`: load only what is there sooner than computed.",
            show_default="load",
        ),
    ] = None,
) -> None:
    """Serve a language model over HTTP, for OpenAI's clients, with its KV cache offloaded."""
    with clear_errors():
        require_name(model)
        # It listens before anything is imported and loaded, which takes long.
        with listen(host, port) as listener:
            options = server.ServeOptions(
                model=model,
                device=device,
                gpu_tokens=gpu_tokens,
                cpu_bytes=cpu_bytes,
                disk_dir=disk_dir,
                disk_bytes=disk_bytes,
                max_requests=max_requests,
                costs=costs,
            )
            run(server.serve(options, listener))
