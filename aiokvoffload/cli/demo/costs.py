"""What loading and computing cost, as measured once by `aiokvoffload bench serve`; says which is done sooner.

Knows seconds and tokens; measures nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import linear_regression, mean
from typing import Any, Self

from aiokvoffload.cli.demo.engine import Hit
from aiokvoffload.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCosts:
    """A load from one tier takes `latency_s`, and `token_s` for each token."""

    latency_s: float
    token_s: float

    def load_s(self, tokens: int) -> float:
        """Seconds until `tokens` tokens of KV are in GPU memory."""
        return self.latency_s + tokens * self.token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCosts:
    """A measured model of one engine on one machine.

    Attributes:
        model: name of the model configuration.
        step_s: seconds of the shortest step of a prompt, whatever its length.
        compute: for some lengths in tokens, ascending, the seconds until a prompt of that length is computed.
        tiers: by name.

    Raises:
        ArgumentError: a number is below 0, or lengths do not ascend.
    """

    model: str
    step_s: float
    compute: tuple[tuple[int, float], ...]
    tiers: Mapping[str, TierCosts]

    def __post_init__(self) -> None:
        lengths = [tokens for tokens, _ in self.compute]
        if not lengths or lengths != sorted(set(lengths)) or lengths[0] < 1:
            raise ArgumentError(f"compute must have lengths above 0 in ascending order, got {lengths}")
        numbers = [self.step_s, *(seconds for _, seconds in self.compute)]
        numbers += [number for tier in self.tiers.values() for number in (tier.latency_s, tier.token_s)]
        if not all(number >= 0 for number in numbers):
            raise ArgumentError(f"seconds must be numbers of at least 0, got {min(numbers)}")

    def compute_s(self, first: int, end: int) -> float:
        """Seconds to compute the tokens of a prompt from `first` up to `end`, with those before `first` at hand."""
        return max(self.step_s, self._from_start_s(end) - self._from_start_s(first))

    def load_s(self, tokens: int, tiers: Sequence[str]) -> float:
        """Seconds to load `tokens` tokens from the slowest of `tiers`; for ever if one was not measured."""
        return max(self.tiers[name].load_s(tokens) if name in self.tiers else float("inf") for name in tiers)

    def decide(self, tiers: Sequence[str]) -> Callable[[Hit], bool]:
        """An `EngineConfig.worth_loading` that loads only what is predicted to be there sooner than if computed.

        Args:
            tiers: that a hit may come from. A lookup does not say which one it will be, so the slowest counts.
        """

        def worth_loading(hit: Hit) -> bool:
            load_s = self.load_s(hit.tier_tokens - hit.gpu_tokens, tiers)
            rest_s = self.compute_s(hit.tier_tokens, hit.prompt_tokens)
            return load_s + rest_s < self.compute_s(hit.gpu_tokens, hit.prompt_tokens)

        return worth_loading

    def break_even_tokens(self, tier: str) -> int | None:
        """The shortest prompt whose KV is loaded from `tier` sooner than computed, all but its last step.

        `None` if there is none up to the longest that was measured.
        """
        cost, longest = self.tiers[tier], self.compute[-1][0]
        if not self._is_sooner(cost, longest):
            return None
        shortest, enough = 0, longest
        while enough - shortest > 1:
            middle = (shortest + enough) // 2
            if self._is_sooner(cost, middle):
                enough = middle
            else:
                shortest = middle
        return enough

    def _is_sooner(self, cost: TierCosts, tokens: int) -> bool:
        return cost.load_s(tokens) + self.step_s < self.compute_s(0, tokens)

    def _from_start_s(self, tokens: int) -> float:
        """Between measured lengths in a straight line, and beyond the last as steep as before it."""
        points = [(0, 0.0), *self.compute]
        index = next((index for index, (length, _) in enumerate(points) if length >= tokens), len(points) - 1)
        (start, start_s), (end, end_s) = points[max(0, index - 1)], points[max(1, index)]
        return start_s + (tokens - start) * (end_s - start_s) / (end - start)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """What `to_dict` gave.

        Raises:
            ArgumentError: it is not that.
        """
        try:
            return cls(
                model=str(data["model"]),
                step_s=float(data["step_s"]),
                compute=tuple((int(tokens), float(seconds)) for tokens, seconds in data["compute"]),
                tiers={
                    str(name): TierCosts(latency_s=float(tier["latency_s"]), token_s=float(tier["token_s"]))
                    for name, tier in data["tiers"].items()
                },
            )
        except ArgumentError:
            raise
        except KeyError as error:
            raise ArgumentError(f"costs must be those of `aiokvoffload bench serve`, they have no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(f"costs must be those of `aiokvoffload bench serve`: {error}") from error


def read_costs(path: Path) -> ServeCosts:
    """The costs in a file that `aiokvoffload bench serve --json` wrote.

    Raises:
        ArgumentError: the file cannot be read, or has none.
    """
    what = f"--costs {path}"
    wanted = "give the file that `aiokvoffload bench serve --json FILE` wrote"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{what} cannot be read: {error.strerror}; {wanted}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{what} is not JSON: {error}; {wanted}") from error
    if not isinstance(data, dict) or not isinstance(data.get("costs"), dict):
        raise ArgumentError(f"{what} has no costs; {wanted}")
    try:
        return ServeCosts.from_dict(data["costs"])
    except ArgumentError as error:
        raise ArgumentError(f"{what}: {error}") from error


def fit_tier(points: Sequence[tuple[int, float]]) -> TierCosts:
    """The line nearest to measured loads (tokens, seconds), by least squares; neither part of it is below 0.

    Args:
        points: a load's seconds are what is left after a subtraction, so noise may leave less than nothing of a short
            one. That counts as it is: without such points, those whose noise was upwards would speak alone.

    Raises:
        ArgumentError: there is no point, or one without tokens.
    """
    if not points or any(tokens < 1 for tokens, _ in points):
        raise ArgumentError(f"points must be tokens above 0 and seconds, one at least, got {points}")
    # Where the nearest line of all has a part below 0, the nearest without is one that has only the other part.
    flat = TierCosts(latency_s=max(0.0, mean(seconds for _, seconds in points)), token_s=0.0)
    steep = TierCosts(latency_s=0.0, token_s=max(0.0, _slope(points)))
    lines = [steep, flat]
    if len({tokens for tokens, _ in points}) > 1:
        slope, intercept = linear_regression(*zip(*points, strict=True))
        if slope >= 0 and intercept >= 0:
            lines = [TierCosts(latency_s=intercept, token_s=slope)]
    return min(lines, key=lambda line: sum((line.load_s(tokens) - seconds) ** 2 for tokens, seconds in points))


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of the nearest line through 0."""
    return sum(tokens * seconds for tokens, seconds in points) / sum(tokens**2 for tokens, _ in points)
