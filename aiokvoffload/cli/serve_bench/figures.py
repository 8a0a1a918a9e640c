"""What the benchmark found, and whether it is what is expected. Records; docs/cli.md says how each is measured."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from aiokvoffload.cli.demo.costs import ServeCosts

TTFT_FACTOR, TTFT_SLACK_MS, TTFT_BAR_TOKENS = 1.15, 5.0, 16_384
PLAIN_FACTOR, DECODE_DROP_PERCENT, STORING_PERCENT = 1.3, 8.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFigure:
    """What computing a prompt of one length takes; milliseconds, medians.

    Attributes:
        prompt_tokens: of the prompt.
        plain_ms: in plain Hugging Face with its concatenating cache, in one forward pass.
        plain_last_ms: there, its last 16 tokens alone.
        engine_ms: time to first token of the engine without offloading.
        last_ms: there, the last 16 tokens alone.
        measurements: of each.
    """

    prompt_tokens: int
    plain_ms: float
    plain_last_ms: float
    engine_ms: float
    last_ms: float
    measurements: int

    @property
    def plain_ratio(self) -> float:
        """The engine's time over that of plain Hugging Face."""
        return self.engine_ms / self.plain_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class HitFigure:
    """A prompt of which a part is in one tier and nothing in GPU memory.

    Attributes:
        tier: `none`, `cpu` or `disk`.
        prompt_tokens: of the prompt.
        hit_percent: of it that is there.
        loaded_tokens: that came from there.
        loaded_bytes: their KV's.
        ttft_ms: time to first token, median; what was computed was stored too.
        measurements: of it.
    """

    tier: str
    prompt_tokens: int
    hit_percent: int
    loaded_tokens: int
    loaded_bytes: int
    ttft_ms: float
    measurements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigure:
    """Answers of others, alone and while loads and stores run at full rate; medians.

    Attributes:
        rows: answers at a time.
        context_tokens: of each one's prompt.
        alone_tokens_per_s: of all of them together.
        beside_tokens_per_s: the same, beside the copies.
        drop_percent: of the first.
        drops_percent: the same, window by window; `drop_percent` is their median.
        load_gbps: of the copies meanwhile, in 10**9 bytes per second.
        store_gbps: the same.
    """

    rows: int
    context_tokens: int
    alone_tokens_per_s: float
    beside_tokens_per_s: float
    drop_percent: float
    drops_percent: tuple[float, ...]
    load_gbps: float
    store_gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringFigure:
    """Prompts of which nothing is known, without and with storing all of them; medians.

    Attributes:
        prompts: at a time.
        prompt_tokens: of each.
        without_tokens_per_s: of all of them together.
        with_tokens_per_s: the same, while everything is stored.
        cost_percent: of the first.
    """

    prompts: int
    prompt_tokens: int
    without_tokens_per_s: float
    with_tokens_per_s: float
    cost_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One expectation of an H200 with the shapes of an 8B model.

    Attributes:
        what: is expected.
        value: measured.
        limit: most that it may be.
        unit: of both.
    """

    what: str
    value: float
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBenchmark:
    """One run.

    Attributes:
        model: name of the configuration.
        revision: its version and data type.
        device: where it ran.
        seconds: of all of it.
        block_tokens: tokens of a block, which is a chunk.
        block_bytes: of its KV.
        piece_tokens: of a prompt that were computed in one step.
        ceiling_gbps: contiguous copies from (`h2d`) and to (`d2h`) pinned memory, and both at once.
        lengths: what computing takes.
        hits: what hits bring.
        costs: the engine's model of both.
        decode: what loads and stores cost others, if that was measured.
        storing: what storing costs, if that was measured.
    """

    model: str
    revision: str
    device: str
    seconds: float
    block_tokens: int
    block_bytes: int
    piece_tokens: int
    ceiling_gbps: dict[str, float]
    lengths: tuple[LengthFigure, ...]
    hits: tuple[HitFigure, ...]
    costs: ServeCosts
    decode: DecodeFigure | None
    storing: StoringFigure | None

    @property
    def break_even_tokens(self) -> dict[str, int | None]:
        """For each tier the shortest prompt that is loaded sooner than computed; `None` if none of those measured."""
        return {tier: self.costs.break_even_tokens(tier) for tier in self.costs.tiers}

    def length(self, prompt_tokens: int) -> LengthFigure:
        """What computing a prompt of this length takes."""
        return next(each for each in self.lengths if each.prompt_tokens == prompt_tokens)

    def ideal_ms(self, hit: HitFigure) -> float:
        """What loading takes at the ceiling."""
        return hit.loaded_bytes / self.ceiling_gbps["h2d"] / 1e6

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Everything that is expected."""
        whole = [hit for hit in self.hits if hit.tier == "cpu" and hit.hit_percent == 100]
        long = [hit for hit in whole if hit.prompt_tokens >= TTFT_BAR_TOKENS] or whole[-1:]
        bars = [self._ttft_bar(hit) for hit in long]
        bars += [
            Bar(
                what=f"engine without offloading / plain Hugging Face, {each.prompt_tokens:,} tokens",
                value=each.plain_ratio,
                limit=PLAIN_FACTOR,
                unit="times",
            )
            for each in self.lengths
        ]
        if self.decode is not None:
            what = "decode throughput lost beside loads and stores"
            bars.append(Bar(what=what, value=self.decode.drop_percent, limit=DECODE_DROP_PERCENT, unit="%"))
        if self.storing is not None:
            what = "throughput lost to storing everything at 0 % hits"
            bars.append(Bar(what=what, value=self.storing.cost_percent, limit=STORING_PERCENT, unit="%"))
        return tuple(bars)

    def _ttft_bar(self, hit: HitFigure) -> Bar:
        limit = TTFT_FACTOR * self.ideal_ms(hit) + self.length(hit.prompt_tokens).last_ms + TTFT_SLACK_MS
        return Bar(
            what=f"TTFT, {hit.prompt_tokens:,} tokens, all in CPU memory", value=hit.ttft_ms, limit=limit, unit="ms"
        )

    def to_json(self) -> str:
        """One JSON object with every attribute and every derived figure."""
        data: dict[str, Any] = asdict(self)
        data["costs"] = self.costs.to_dict()
        data["break_even_tokens"] = self.break_even_tokens
        data["bars"] = [{**asdict(bar), "met": bar.met} for bar in self.bars]
        for each, figure in zip(data["lengths"], self.lengths, strict=True):
            each["plain_ratio"] = figure.plain_ratio
        for each, hit in zip(data["hits"], self.hits, strict=True):
            each["ideal_ms"] = self.ideal_ms(hit)
            each["speedup"] = self.length(hit.prompt_tokens).engine_ms / hit.ttft_ms
        return json.dumps(data, indent=2)
