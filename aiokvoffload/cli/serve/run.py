"""Everything behind the endpoint, set up in order and taken down in the other: model, service, engine, HTTP server."""

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from aiokvoffload.cli.demo.costs import read_costs
from aiokvoffload.cli.demo.engine import Engine, EngineConfig, Hit, load_always
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.cli.demo.setup import BLOCK_TOKENS, Storage, load_model, open_service, use_cores
from aiokvoffload.cli.serve.endpoint import Served, make_endpoint
from aiokvoffload.cli.serve.listening import address
from aiokvoffload.errors import ArgumentError

GRACE_S = 5
"""How long answers may go on after the server was told to end."""
LEAVE_S = 1
"""How long after that clients may take to hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How the endpoint is served; the options of `aiokvoffload serve`, which docs/cli.md describes."""

    model: str = "smollm2"
    device: str = "auto"
    gpu_tokens: int = 8192
    cpu_bytes: int = 1 << 30
    disk_dir: Path | None = None
    disk_bytes: int | None = None
    max_requests: int = 256
    costs: Path | None = None

    def decision(self) -> Callable[[Hit], bool]:
        """What is to be loaded: all hits, unless there are costs.

        Raises:
            ArgumentError: the costs cannot be read, or are not those of this model and these tiers.
        """
        if self.costs is None:
            return load_always
        costs, tiers = read_costs(self.costs), ("cpu",) if self.disk_dir is None else ("cpu", "disk")
        if costs.model != self.model or not set(tiers) <= set(costs.tiers):
            raise ArgumentError(
                f"--costs {self.costs} are of {costs.model} with {', '.join(costs.tiers)}: measure {self.model} with "
                f"{', '.join(tiers)} by `aiokvoffload bench serve`"
            )
        return costs.decide(tiers)

    def storage(self) -> Storage:
        """Where blocks go.

        Raises:
            ArgumentError: there is a directory without a size, or the other way round.
        """
        if (self.disk_dir is None) is not (self.disk_bytes is None):
            raise ArgumentError("--disk-dir and --disk-bytes belong together: where, and how much")
        return Storage(self.cpu_bytes, self.disk_dir, self.disk_bytes or 0)


async def serve(options: ServeOptions, listener: socket.socket) -> None:
    """Serve until the process is told to end.

    Args:
        options: how.
        listener: of `listen`; the caller closes it.

    Raises:
        ArgumentError: options do not go together.
    """
    storage, worth_loading = options.storage(), await asyncio.to_thread(options.decision)
    use_cores()
    checkpoint = await load_model(options.model, options.device)
    num_blocks = -(-options.gpu_tokens // BLOCK_TOKENS)
    device = checkpoint.model.device.type
    make = partial(PagedModel, num_blocks=num_blocks, block_tokens=BLOCK_TOKENS, decode_graphs=device == "cuda")
    model = await asyncio.to_thread(make, checkpoint.model)
    on_cpu = device == "cpu"
    config = EngineConfig(
        piece_tokens=256 if on_cpu else 2048,
        max_rows=16 if on_cpu else 64,
        exact=False,
        max_requests=options.max_requests,
        worth_loading=worth_loading,
    )
    namespace = f"aiokvoffload serve: {checkpoint.revision}, blocks of {BLOCK_TOKENS}"
    service = open_service(model, storage, device=options.device, namespace=namespace)
    async with service as offload, Engine(model, config, offload=offload) as engine:
        endpoint = make_endpoint(Served(options.model, checkpoint.text, engine, offload))
        server = _Server(endpoint, engine)
        signal.signal(signal.SIGTERM, server.end)
        print(f"serving {options.model} at http://{address(listener)}/v1", flush=True)
        await server.serve([listener])


class _Server(uvicorn.Server):
    """Aborts the answers that take too long when it is told to end, so that each client is told why."""

    def __init__(self, endpoint: Starlette, engine: Engine) -> None:
        grace_s = GRACE_S + LEAVE_S
        super().__init__(
            uvicorn.Config(endpoint, lifespan="off", log_level="warning", timeout_graceful_shutdown=grace_s)
        )
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        aborting = asyncio.get_running_loop().call_later(GRACE_S, self._engine.abort)
        try:
            await super().shutdown(sockets)
        finally:
            aborting.cancel()

    def end(self, *_: object) -> None:
        """As the handler of a signal that uvicorn raises again when it has ended: engine and service end after it."""
        self.should_exit = True
