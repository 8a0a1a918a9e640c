"""`aiokvoffload top`, on a real endpoint of a real service."""

import asyncio
import json
import signal
import socket
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from aiokvoffload.cli import top
from aiokvoffload.cli.app import app
from aiokvoffload.cli.scrape import NoAnswerError, Scrape, parse
from aiokvoffload.cli.top import TopFigures, figures, look_once, watch
from aiokvoffload.cli.top_view import view
from aiokvoffload.metrics import serve_metrics
from tests.forked import COMMAND, Forks
from tests.metrics.scene import BLOCK_BYTES, get, used_service
from tests.service.conftest import keys_of
from tests.started import started


def rendered(seen: TopFigures | None, trouble: str = "") -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(view(seen, trouble, url="http://there"))
    return capture.get()


async def two_scrapes() -> tuple[Scrape, Scrape]:
    """A service before and after it loads four chunks that CPU memory has."""
    async with used_service() as service, serve_metrics(service, port=0) as server:
        _, before = await get(server.url)
        async with service.request("again") as request:
            request.lookup(keys_of(4))
            await request.load(keys_of(4), range(4))
        _, now = await get(server.url)
    return parse("there", before), parse("there", now)


async def test_rates_are_differences_of_two_scrapes() -> None:
    before, now = await two_scrapes()
    seen = figures("there", Scrape(10.0, before.samples), Scrape(12.0, now.samples))
    cpu, memory = seen.tiers
    assert (seen.open, seen.found_ratio, seen.transfers_per_s) == (True, 1.0, 0.5)
    assert (cpu.tier, cpu.policy, cpu.capacity, cpu.hits_per_s, cpu.misses_per_s) == ("cpu", "adaptive", 8, 2.0, 0.0)
    assert (memory.tier, memory.evictable, memory.hits_per_s, memory.in_service) == ("memory", 4, 0.0, True)
    rates = {(each.tier, each.direction): each.bytes_per_s for each in seen.traffic}
    assert rates == {
        ("cpu", "load"): 2 * BLOCK_BYTES,
        ("cpu", "store"): 0.0,
        ("memory", "cascade"): 0.0,
        ("memory", "promotion"): 0.0,
    }
    text = rendered(seen)
    assert "…" not in text
    assert "100.0% of keys found" in text


async def test_large_figures_fit_a_terminal_of_eighty_columns() -> None:
    before, now = await two_scrapes()
    seen = figures("there", before, now)
    big = 123_456_789
    tier = replace(
        seen.tiers[0], capacity=big, pinned=big, writing=big, hits_per_s=big, failed_per_s=1e4, in_service=False
    )
    text = rendered(replace(seen, tiers=(replace(tier, misses_per_s=9999, evicted_per_s=big, refused_per_s=1e12),)))
    assert "cpu (out)" in text
    assert "123M" in text
    assert "9999" in text
    assert "10k" in text
    assert "…" not in text


async def test_a_server_that_began_anew_has_no_negative_rates() -> None:
    before, now = await two_scrapes()
    seen = figures("there", now, before)
    assert min(tier.hits_per_s for tier in seen.tiers) >= 0
    assert min(each.bytes_per_s for each in seen.traffic) >= 0


async def test_one_look_is_two_scrapes() -> None:
    async with used_service() as service, serve_metrics(service, port=0) as server:
        seen = await look_once(server.url, 0.0)
        assert server.statistics().scrapes == 2
    assert (seen.open, seen.requests, seen.found_ratio) == (True, 0, None)
    assert "no lookups" in rendered(seen)


async def test_a_server_that_goes_away_is_shown_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = await two_scrapes()
    answers: list[Scrape | Exception] = [before, now, NoAnswerError("gone"), now]
    shown: list[tuple[bool, str]] = []

    def answer(_: str) -> Scrape:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def show(seen: TopFigures | None, trouble: str) -> None:
        shown.append((seen is not None, trouble))
        rendered(seen, trouble)
        if not answers:
            watching.cancel()

    monkeypatch.setattr(top, "scrape", answer)
    watching = asyncio.create_task(watch("there", 0.0, show))
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert shown == [(False, ""), (True, ""), (True, "gone"), (True, "")]


async def test_the_command_gives_json_to_scripts(forks: Forks) -> None:
    async with used_service() as service, serve_metrics(service, port=0) as server:
        arguments = ["top", server.url, "--once", "--interval", "0.1", "--json", "-"]
        result = await asyncio.to_thread(forks.run, COMMAND, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    seen = json.loads(result.stdout)
    assert (seen["url"], seen["open"], [tier["tier"] for tier in seen["tiers"]]) == (
        server.url,
        True,
        ["cpu", "memory"],
    )


async def test_ctrl_c_is_the_clean_end_of_a_watch(forks: Forks) -> None:
    async with used_service() as service, serve_metrics(service, port=0) as server:
        with forks.start(COMMAND, "top", server.url, "--interval", "0.1") as child:
            while server.statistics().scrapes < 3:
                await asyncio.sleep(0.01)
            child.send_signal(signal.SIGINT)
            ended = await asyncio.to_thread(child.wait)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "wake-up lag" in ended.stdout


def test_no_answer_is_one_line_and_status_2() -> None:
    result = CliRunner().invoke(app, ["top", "127.0.0.1:1", "--once"])
    assert result.exit_code == 2
    assert result.stderr.startswith("aiokvoffload: http://127.0.0.1:1/metrics: no answer")
    assert result.stderr.count("\n") == 1


def test_json_without_an_end_is_refused() -> None:
    result = CliRunner().invoke(app, ["top", "--json", "-"])
    assert (result.exit_code, result.stderr) == (
        2,
        "aiokvoffload: --json belongs to --once: what is watched has no end\n",
    )


async def test_names_from_elsewhere_are_shown_as_they_are() -> None:
    """A tier is named by a plug-in: brackets in it were taken for a style that ends, and ended the command."""
    before, now = await two_scrapes()
    seen = figures("there", before, now)
    names = ["disk[/]", "[red]disk", "a\nb\x1b[2J"]
    tiers = tuple(replace(seen.tiers[0], tier=name, in_service=name != "[red]disk") for name in names)
    text = rendered(replace(seen, tiers=tiers, traffic=(replace(seen.traffic[0], tier="disk[/red]"),)))
    for shown in ("disk[/]", "[red]disk (out)", r"'a\nb\x1b[2J'", "disk[/red]"):
        assert shown in text


OURS = 'aiokvoffload_build_info{version="1"} 1\n'


def test_labels_that_somebody_added_are_left_out() -> None:
    """A server that federates what it has scraped adds an instance."""
    sample = 'aiokvoffload_evicted_keys_total{tier="cpu",policy="lru",instance="%s"} 1\n'
    scraped = parse("there", OURS + sample % "a" + sample % "b")
    assert [tier.tier for tier in figures("there", scraped, scraped).tiers] == ["cpu"]


@pytest.mark.parametrize(
    "sample",
    [
        "build_info 1",
        "requests NaN",
        'transfer_bytes_total{tier="cpu"} 1',
        'wake_up_lag_seconds_bucket{le="x"} 1',
        "wake_up_lag_seconds_bucket 1",
    ],
)
def test_figures_with_our_names_that_are_not_ours_are_said_to_be(sample: str) -> None:
    ours = "" if sample.startswith("build_info") else OURS
    scraped = parse("there", f"{ours}aiokvoffload_{sample}\n")
    with pytest.raises(NoAnswerError, match="there: its metrics are not those of this library"):
        figures("there", scraped, scraped)


def test_ctrl_c_waits_for_no_answer() -> None:
    """It waited until the server had answered, or been silent for five seconds: one that goes on and on held it up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = f"import sys; from aiokvoffload.cli import scrape; scrape._TIMEOUT_S = 600; {COMMAND}"
        with started("-c", program, "top", f"127.0.0.1:{listener.getsockname()[1]}") as process:
            connection, _ = listener.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_the_usage_has_one_pair_of_brackets() -> None:
    said = CliRunner().invoke(app, ["top", "--help"], env={"COLUMNS": "80"}).output
    assert "[URL]" in said
    assert "[[URL]]" not in said
