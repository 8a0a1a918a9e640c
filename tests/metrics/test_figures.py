"""The catalogue, the page that lists it, the dashboard that uses it: all three against a live exposition."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiokvoffload.histogram import Histogram
from aiokvoffload.metrics import serve_metrics
from aiokvoffload.metrics.catalogue import FIGURES
from aiokvoffload.metrics.event_figures import MAX_SUBSCRIBERS
from aiokvoffload.metrics.families import family_of, text_of
from aiokvoffload.metrics.transfer_figures import added
from tests.metrics.scene import get, used_service

DOCS = Path(__file__).parent.parent.parent / "docs"
ROW = re.compile(r"\| `(aiokvoffload_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|")
HEADER = re.compile(r"# (HELP|TYPE) (\w+) (.*)")
NAME = re.compile(r"aiokvoffload_\w+")
HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")


async def exposition() -> tuple[dict[str, str], dict[str, str]]:
    """For each metric in a live exposition its help and its type."""
    async with used_service() as service, serve_metrics(service, port=0) as server:
        _, text = await get(server.url)
    headers = [HEADER.fullmatch(line) for line in text.splitlines() if line.startswith("#")]
    found = [header.groups() for header in headers if header]
    assert len(found) == len(headers)
    helps = {name: rest for kind, name, rest in found if kind == "HELP"}
    return helps, {name: rest for kind, name, rest in found if kind == "TYPE"}


async def test_the_page_lists_exactly_what_is_exposed() -> None:
    helps, types = await exposition()
    rows = [match.groups() for match in ROW.finditer((DOCS / "metrics.md").read_text())]
    assert {name: meaning for name, _, _, meaning in rows} == helps
    assert {name: kind for name, kind, _, _ in rows} == types
    labels = {figure.name: figure.labels for figure in FIGURES}
    assert {name: tuple(re.findall(r"`(\w+)`", cell)) for name, _, cell, _ in rows} == labels


def expressions(dashboard: dict[str, Any]) -> list[str]:
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return targets + [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]


async def test_every_name_and_label_in_the_dashboard_exists() -> None:
    _, types = await exposition()
    names = {name for name, kind in types.items() if kind != "histogram"}
    names |= {name + part for name, kind in types.items() if kind == "histogram" for part in HISTOGRAM_PARTS}
    labels = {figure.name: {*figure.labels, "instance"} for figure in FIGURES}
    used = expressions(json.loads((DOCS / "grafana-dashboard.json").read_text()))
    assert len(used) > 30
    for expression in used:
        for name in NAME.findall(expression):
            assert name in names, expression
        for by, name, selector in re.findall(r"by \(([^)]*)\) \((?:rate\()?(\w+)\{([^}]*)\}", expression):
            family = re.sub("_bucket$", "", name)
            wanted = set(by.split(", ")) | set(re.findall(r"(\w+)=", selector))
            assert wanted - {"le"} <= labels[family], expression


def test_panels_have_distinct_ids_and_say_what_they_show() -> None:
    panels = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_name_follows_prometheus_conventions(figure: Any) -> None:
    """Base units, `_total` for counters and for nothing else, and a sentence of help."""
    assert figure.name.endswith("_total") is (figure.kind.value == "counter")
    assert not re.search(r"_(ms|us|ns|s|mb|gb|kib)(_|$)", figure.name)
    assert figure.meaning.endswith(".")
    assert set(figure.labels) <= {
        "tier", "direction", "reason", "policy", "pool", "state", "result", "queue", "subscriber", "version",
    }  # fmt: skip


def test_histograms_of_several_workers_are_added_class_by_class() -> None:
    one, other = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    one.add(0.5)
    other.add(1.5)
    other.add(9.0)
    both = added([one.statistics(), other.statistics(), Histogram(()).statistics()])
    assert (both.bounds, both.counts, both.total) == ((1.0, 2.0), (1, 1, 1), 11.0)
    assert added([]).count == 0


@dataclass(frozen=True)
class Subscriber:
    name: str
    lag: int


@dataclass(frozen=True)
class Bus:
    subscriptions: tuple[Subscriber, ...]


def lag_of(*subscribers: Subscriber) -> dict[str, float]:
    """The figure as it is exposed, by subscriber."""
    figure = next(figure for figure in FIGURES if figure.name == "aiokvoffload_event_lag")
    statistics: Any = SimpleNamespace(events=Bus(subscribers))
    return {sample.labels["subscriber"]: sample.value for sample in family_of(figure, statistics).samples}


def test_each_subscriber_has_its_lag_and_names_are_told_once() -> None:
    """Two samples of one name would make the whole exposition invalid."""
    lags = lag_of(Subscriber("router", 3), Subscriber("", 5), Subscriber("router", 4))
    assert lags == {"router": 4, "1": 5}


def test_of_many_subscribers_those_furthest_behind_are_told() -> None:
    """Invariant I11: labels are bounded."""
    lags = lag_of(*(Subscriber(f"router-{number}" + "x" * 99, number) for number in range(100)))
    assert sorted(lags.values()) == list(range(100 - MAX_SUBSCRIBERS, 100))
    assert max(map(len, lags)) == 64


def test_a_name_that_utf8_cannot_say_does_not_end_the_exposition() -> None:
    """Fault 52."""
    figure = next(figure for figure in FIGURES if figure.name == "aiokvoffload_event_lag")
    statistics: Any = SimpleNamespace(events=Bus((Subscriber("router \ud800", 1),)))
    assert b'{subscriber="router ?"} 1.0' in text_of(family_of(figure, statistics))
