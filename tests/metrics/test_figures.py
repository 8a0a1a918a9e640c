"""The catalogue, the page that lists it, the dashboard that uses it: all three against a live exposition."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aiokvoffload.histogram import Histogram
from aiokvoffload.metrics import serve_metrics
from aiokvoffload.metrics.catalogue import FIGURES
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
