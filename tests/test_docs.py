import re
from pathlib import Path

import pytest

import aiokvoffload

ROOT = Path(__file__).parent.parent
DOCS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def example() -> str:
    """The program in docs/index.md."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    return str(code)


async def test_the_example_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    code, last_line = example().rstrip().rsplit("\n", 1)
    assert last_line == "asyncio.run(main())  # 2 True"
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the documentation's own code
    await names["main"]()  # type: ignore[operator]
    assert capsys.readouterr().out == "2 True\n"


def test_the_reference_names_everything_public() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in aiokvoffload.__all__ if not re.search(rf"`{name}\b", reference)]
    assert not missing


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_has_both_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "pip install -e '.[cli]' && aiokvoffload replay\n" in readme
    assert "pip install -e '.[test]' && pytest\n" in readme
