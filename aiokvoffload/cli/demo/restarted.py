"""The demo's second process: a new one with an empty GPU and empty CPU memory, and the disk of the first.

Reads a `Job` as JSON from standard input and writes what it measured to standard output, which nobody else calls.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.setup import Answer, Job, Sizes, ask, load_model, open_service, place, storage_of, use_cores
from aiokvoffload.cli.shell import clear_errors, run


@dataclass(frozen=True, slots=True)
class RestartedFigures:
    """What the second process found.

    Attributes:
        answers: tokens of each prompt's answer.
        first_token_s: seconds to the first token of each.
        computed_tokens: of each prompt, those that did not come from disk.
        disk_loaded_bytes: bytes read from disk.
    """

    answers: list[list[int]]
    first_token_s: list[float]
    computed_tokens: list[int]
    disk_loaded_bytes: int


async def serve_again(job: Job) -> RestartedFigures:
    """Ask each prompt of `job` with its tokens nowhere but on disk."""
    use_cores()
    checkpoint = await load_model(job.model, job.device, with_text=False)
    model = await place(checkpoint, job.sizes)
    answers: list[Answer] = []
    storage, namespace = storage_of(model, job.sizes, Path(job.directory)), job.sizes.namespace(checkpoint)
    service = open_service(model, storage, device=job.device, namespace=namespace)
    async with service as offload, Engine(model, job.sizes.engine_config(), offload=offload) as engine:
        for prompt in job.prompts:
            stop = checkpoint.text.stop
            answers.append(await ask(engine, prompt, max_tokens=job.answer_tokens, stop=stop))
            engine.pages.forget_idle()
            await offload.reset(tiers=["cpu"])
    return RestartedFigures(
        [answer.tokens for answer in answers],
        [answer.figures.first_token_s for answer in answers],
        [answer.figures.prompt_tokens - answer.figures.tier_tokens.get("disk", 0) for answer in answers],
        offload.statistics().tiers[0].tier.loaded_bytes,
    )


def main() -> None:
    """Do the job on standard input."""
    record = json.load(sys.stdin)
    job = Job(**{**record, "sizes": Sizes(**record["sizes"])})
    with clear_errors():
        figures = run(serve_again(job))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
