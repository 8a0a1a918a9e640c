import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aiokvoffload.cli.app import app
from tests.forked import COMMAND, Forks, without
from tests.started import started

SERVE = ["serve", "--model", "random", "--device", "host"]


def test_the_command_serves_on_loopback_until_it_is_interrupted(tmp_path: Path) -> None:
    disk = ["--disk-dir", str(tmp_path), "--disk-bytes", "16MiB"]
    with started("-m", "aiokvoffload", *SERVE, "--port", "0", "--cpu-bytes", "16MiB", *disk) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("serving random at http://127.0.0.1:")
        url = line.split()[-1]
        body = json.dumps({"model": "random", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
        with urllib.request.urlopen(f"{url}/chat/completions", body.encode(), timeout=30) as response:  # noqa: S310
            assert json.load(response)["usage"]["completion_tokens"] == 3
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (130, "aiokvoffload: interrupted\n")


@pytest.mark.parametrize(("told", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_an_answer_that_outlasts_the_servers_patience_is_told_so(
    told: signal.Signals, status: int, forks: Forks
) -> None:
    program = f"from aiokvoffload.cli.serve import run; run.GRACE_S = 0.3; {COMMAND}"
    with forks.start(program, *SERVE, "--port", "0", "--cpu-bytes", "16MiB") as server:
        address = server.stdout.readline().split("/")[2]
        with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as client:
            body = {"model": "random", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8000}
            client.request("POST", "/v1/chat/completions", json.dumps(body))
            wait_for_a_request(f"http://{address}/metrics")
            server.send_signal(told)
            answer = client.getresponse()
            error = json.load(answer)["error"]
        ended = server.wait()
    assert (answer.status, error["type"]) == (503, "closed")
    assert (ended.returncode, "Traceback" in ended.stderr) == (status, False)


def wait_for_a_request(url: str) -> None:
    while True:
        with urllib.request.urlopen(url, timeout=30) as metrics:  # noqa: S310
            if b"\naiokvoffload_requests 1.0\n" in metrics.read():
                return


def test_an_address_in_use_is_one_line_and_status_2(forks: Forks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = forks.run(COMMAND, *SERVE, "--port", port)
    assert result.returncode == 2
    assert result.stderr.startswith(
        f"aiokvoffload: --host 127.0.0.1 --port {port} cannot be listened on: Address already"
    )
    assert result.stderr.count("\n") == 1


def test_an_address_in_use_is_said_before_anything_slow_is_imported() -> None:
    program = """
import socket, sys
from typer.testing import CliRunner
from aiokvoffload.cli.app import app
with socket.create_server(("127.0.0.1", 0)) as taken:
    result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
print(result.stderr, end="")
sys.exit(f"{result.exit_code} {'torch' in sys.modules}")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert result.stdout.endswith("cannot be listened on: Address already in use\n")
    assert result.stderr == "2 False\n"


def test_a_host_without_a_name_is_not_every_address(forks: Forks) -> None:
    result = forks.run(COMMAND, *SERVE, "--host", "", "--port", "0")
    assert result.returncode == 2
    assert result.stderr.startswith("aiokvoffload: --host must have a name")


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="needs an IPv6 loopback")
def test_an_address_with_colons_is_written_as_a_url_wants_it(forks: Forks) -> None:
    with forks.start(COMMAND, *SERVE, "--host", "::1", "--port", "0", "--cpu-bytes", "16MiB") as server:
        line = server.stdout.readline()
    assert re.fullmatch(r"serving random at http://\[::1\]:\d+/v1\n", line)


@pytest.mark.parametrize("option", [["--disk-bytes", "1GiB"], ["--disk-dir", "somewhere"]])
def test_a_disk_needs_a_directory_and_a_size(option: list[str], forks: Forks) -> None:
    result = forks.run(COMMAND, "serve", "--port", "0", *option)
    assert result.returncode == 2
    assert result.stderr == "aiokvoffload: --disk-dir and --disk-bytes belong together: where, and how much\n"


def test_without_the_extra_the_command_says_what_to_install(forks: Forks) -> None:
    result = forks.run(without("uvicorn") + COMMAND, *SERVE, "--port", "0")
    assert result.returncode == 2
    assert result.stderr == "aiokvoffload: uvicorn is missing: pip install 'aiokvoffload[serve]'\n"


def test_a_port_out_of_range_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "70000"])
    assert result.exit_code == 2
    assert "--port" in result.stderr
