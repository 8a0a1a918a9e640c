"""What the demo does: the same conversations without and with offloading, and the same questions from every tier."""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

from aiokvoffload.cli.demo.checkpoints import Checkpoint, Messages
from aiokvoffload.cli.demo.conversations import PROBES, Chat, document_of, question
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.cli.demo.report import DemoReport
from aiokvoffload.cli.demo.restarted import RestartedFigures
from aiokvoffload.cli.demo.setup import (
    BLOCK_TOKENS,
    Answer,
    Job,
    Sizes,
    ask,
    count_events,
    load_model,
    open_service,
    place,
    storage_of,
    use_cores,
)
from aiokvoffload.copy.direction import Direction
from aiokvoffload.device import open_device
from aiokvoffload.errors import ArgumentError, ConfigError, InternalError
from aiokvoffload.service.results import ServiceStatistics
from aiokvoffload.tiering.disk.directory import DIRECTORY_MODE

CPU_PIECE_TOKENS, GPU_PIECE_TOKENS = 64, 512
PROBE_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo runs; the options of `aiokvoffload demo`, which docs/cli.md describes."""

    model: str = "smollm2"
    device: str = "auto"
    conversations: int = 4
    turns: int = 3
    answer_tokens: int = 16
    gpu_blocks: int | None = None
    disk_dir: Path | None = None


class Stages(Protocol):
    """Who is told how far it is."""

    def begin(self, what: str) -> None:
        """From now on it is this."""

    def advance(self) -> None:
        """One request more is served."""


def count_requests(options: DemoOptions) -> int:
    """How many requests it will be in all."""
    return 2 * options.conversations * options.turns + 5 * len(PROBES)


async def show(options: DemoOptions, stages: Stages) -> DemoReport:
    """Run the demo; takes two to four minutes on two cores, most of them in the model.

    Raises:
        ArgumentError: `disk_dir` cannot be made.
        ConfigError: what the model needs is not installed, or the second process failed.
    """
    if options.disk_dir is not None:
        _make(options.disk_dir)
    use_cores()
    started_s = time.perf_counter()
    with ExitStack() as stack:
        directory = options.disk_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stages.begin(f"loading {options.model}")
        checkpoint = await load_model(options.model, options.device)
        sizes = plan_sizes(checkpoint, options)
        demo = _Demo(options, stages, checkpoint, sizes, await place(checkpoint, sizes))
        plain = await demo.run_without_offloading()
        offloaded = await demo.run_with_offloading(directory)
        restarted = await demo.run_restarted(directory)
    return demo.report(plain, offloaded, restarted, seconds=time.perf_counter() - started_s)


def _make(directory: Path) -> None:
    """Before the model is loaded, which takes longer than to be told."""
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--disk-dir {directory} cannot be made: {error.strerror}: name another") from error


def plan_sizes(checkpoint: Checkpoint, options: DemoOptions) -> Sizes:
    """GPU memory for one conversation or two, and CPU memory for all of them.

    Raises:
        ArgumentError: the GPU memory that is asked for is too little for one.
    """
    encode = checkpoint.text.encode
    # An answer counts twice, since it is not known how many tokens its text will be in the next prompt.
    longest = options.turns * (2 * options.answer_tokens + 16) + max(
        len(encode(_all_questions(number, options.turns))) for number in range(options.conversations)
    )
    blocks = -(-longest // BLOCK_TOKENS)
    if options.gpu_blocks is not None and options.gpu_blocks < blocks:
        raise ArgumentError(
            f"gpu_blocks must be at least the {blocks} that the longest conversation takes, got {options.gpu_blocks}"
        )
    return Sizes(
        gpu_blocks=options.gpu_blocks or blocks,
        stored_blocks=blocks * (options.conversations + 1),
        piece_tokens=CPU_PIECE_TOKENS if checkpoint.model.device.type == "cpu" else GPU_PIECE_TOKENS,
        rows=max(2, min(8, options.conversations)),
    )


def _all_questions(number: int, turns: int) -> Messages:
    chat = Chat(document_of(number))
    for turn in range(turns):
        chat.ask(question(number, turn))
        chat.answer("")
    return chat.messages


@dataclass(frozen=True, slots=True)
class Run:
    """What one engine answered.

    Attributes:
        conversations: for each the answers of its turns.
        probes: by where the document was, the answers to the same questions.
        statistics: of the closed service, if there was one.
        events: keys of all events, by tier and kind.
    """

    conversations: list[list[Answer]]
    probes: dict[str, list[Answer]]
    statistics: ServiceStatistics | None = None
    events: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Demo:
    options: DemoOptions
    stages: Stages
    checkpoint: Checkpoint
    sizes: Sizes
    model: PagedModel

    async def run_without_offloading(self) -> Run:
        device = open_device(self.options.device)
        try:
            async with Engine(self.model, self.sizes.engine_config(), device=device) as engine:
                self.stages.begin("without offloading")
                conversations = await self._converse(engine)
                return Run(conversations, {"computed": await self._probe(engine)})
        finally:
            device.close()

    async def run_with_offloading(self, directory: Path) -> Run:
        events: Counter[str] = Counter()
        storage, namespace = storage_of(self.model, self.sizes, directory), self.sizes.namespace(self.checkpoint)
        service = open_service(self.model, storage, device=self.options.device, namespace=namespace)
        async with asyncio.TaskGroup() as group, service as offload:
            group.create_task(count_events(offload, events))
            async with Engine(self.model, self.sizes.engine_config(), offload=offload) as engine:
                self.stages.begin("with offloading")
                conversations = await self._converse(engine)
                probes = {"gpu": await self._probe_gpu(engine), "cpu": await self._probe(engine)}
        return Run(conversations, probes, offload.statistics(), events)

    async def run_restarted(self, directory: Path) -> RestartedFigures:
        self.stages.begin("from disk, in a new process")
        options = self.options
        job = Job(options.model, options.device, str(directory), self.sizes, self._prompts(), self._probe_tokens)
        figures = await run_in_new_process(job)
        for _ in PROBES:
            self.stages.advance()
        return figures

    async def _converse(self, engine: Engine) -> list[list[Answer]]:
        numbers = range(self.options.conversations)
        return await asyncio.gather(*(self._converse_one(engine, number) for number in numbers))

    async def _converse_one(self, engine: Engine, number: int) -> list[Answer]:
        chat, answers = Chat(document_of(number)), []
        for turn in range(self.options.turns):
            prompt = self.checkpoint.text.encode(chat.ask(question(number, turn)))
            answers.append(await self._ask(engine, prompt, self.options.answer_tokens))
            chat.answer(self.checkpoint.text.decode(answers[-1].tokens))
        return answers

    async def _probe(self, engine: Engine) -> list[Answer]:
        """Each prompt with nothing of it in GPU memory."""
        answers = []
        for prompt in self._prompts():
            engine.pages.forget_idle()
            answers.append(await self._ask(engine, prompt, self._probe_tokens))
        return answers

    async def _probe_gpu(self, engine: Engine) -> list[Answer]:
        """Each prompt with all of it in GPU memory, where asking it once before has left it."""
        answers = []
        for prompt in self._prompts():
            await self._ask(engine, prompt, self._probe_tokens)
            answers.append(await self._ask(engine, prompt, self._probe_tokens))
        return answers

    @property
    def _probe_tokens(self) -> int:
        """Enough to compare; it is the first one that is timed."""
        return min(PROBE_TOKENS, self.options.answer_tokens)

    async def _ask(self, engine: Engine, prompt: Sequence[int], max_tokens: int) -> Answer:
        answer = await ask(engine, prompt, max_tokens=max_tokens, stop=self.checkpoint.text.stop)
        self.stages.advance()
        return answer

    def _prompts(self) -> list[list[int]]:
        return [self.checkpoint.text.encode(Chat().ask(probe)) for probe in PROBES]

    @property
    def device_name(self) -> str:
        """Of what `open_device` would open, for what was asked for may be `auto`."""
        kind: str = self.checkpoint.model.device.type
        return "host" if kind == "cpu" else kind

    def report(self, plain: Run, offloaded: Run, restarted: RestartedFigures, *, seconds: float) -> DemoReport:
        expected = [answer.tokens for answer in plain.probes["computed"]]
        found = [[answer.tokens for answer in answers] for answers in offloaded.probes.values()]
        probes = plain.probes | offloaded.probes
        ttft_s = {source: [each.figures.first_token_s for each in answers] for source, answers in probes.items()}
        statistics = offloaded.statistics
        if statistics is None:
            raise InternalError("the run with offloading has no statistics")
        disk = statistics.tiers[0].tier
        return DemoReport(
            model=self.options.model,
            revision=self.checkpoint.revision,
            device=self.device_name,
            seconds=seconds,
            conversations=self.options.conversations,
            turns=self.options.turns,
            gpu_blocks=self.sizes.gpu_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=self.model.block_bytes,
            prompt_tokens=len(self._prompts()[0]),
            tokens_identical=_tokens(plain) == _tokens(offloaded)
            and all(answers == expected for answers in (*found, restarted.answers)),
            ttft_ms={
                source: round(median(each) * 1e3, 1)
                for source, each in (ttft_s | {"disk": restarted.first_token_s}).items()
            },
            ttft_computed_tokens={source: answers[0].figures.computed_tokens for source, answers in probes.items()}
            | {"disk": restarted.computed_tokens[0]},
            bytes={
                "gpu_to_cpu": _moved(statistics, Direction.STORE),
                "cpu_to_gpu": _moved(statistics, Direction.LOAD),
                "cpu_to_disk": disk.stored_bytes,
                "disk_to_cpu": restarted.disk_loaded_bytes,
            },
            computed_tokens={"without": _computed(plain), "with": _computed(offloaded)},
            asked_tokens=_asked(plain),
            events=dict(sorted(offloaded.events.items())),
            sample=[
                (question(0, turn), self.checkpoint.text.decode(answer.tokens))
                for turn, answer in enumerate(offloaded.conversations[0])
            ],
        )


def _tokens(run: Run) -> list[list[list[int]]]:
    return [[answer.tokens for answer in answers] for answers in run.conversations]


def _computed(run: Run) -> int:
    return sum(answer.figures.computed_tokens for answers in run.conversations for answer in answers)


def _asked(run: Run) -> int:
    return sum(answer.figures.prompt_tokens for answers in run.conversations for answer in answers)


def _moved(statistics: ServiceStatistics, direction: Direction) -> int:
    streams = (stream for worker in statistics.workers for stream in worker.streams)
    return sum(stream.moved_bytes for stream in streams if stream.direction is direction)


async def run_in_new_process(job: Job) -> RestartedFigures:
    """Do `job` in a process that has nothing of this one but its disk.

    Raises:
        ConfigError: it failed; the message is what it said.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiokvoffload.cli.demo.restarted"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate(json.dumps(asdict(job)).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip() or "nothing"
        raise ConfigError(f"the second process ended with status {process.returncode} and said: {said}")
    return RestartedFigures(**json.loads(output))
