"""The floors of the house: an import only points down, and none hides inside a function."""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "aiokvoffload"

WORDS, FACTS, BYTES, STORAGE = "words", "facts", "bytes", "storage"
CHAIN, OUTLETS, DOORS, FIGURES, GUESTS = "chain", "outlets", "doors", "figures", "guests"

FLOOR_OF = {
    "base": WORDS,
    "errors": WORDS,
    "config": WORDS,
    "registry": WORDS,
    "clock": WORDS,
    "histogram": WORDS,
    "tracing": WORDS,
    "cpu.common": WORDS,
    "cache": FACTS,
    "cpu.manager": FACTS,
    "events.wire": OUTLETS,
    "events.sockets": OUTLETS,
    "events.replies": OUTLETS,
    "events.publisher": OUTLETS,
    "events.client": OUTLETS,
    "events.history": OUTLETS,
    "events.history_files": OUTLETS,
    "events": FACTS,
    "device": BYTES,
    "copy": BYTES,
    "poller": BYTES,
    "transfer": BYTES,
    "cpu.gpu_worker": BYTES,
    "cpu.drain": BYTES,
    "cpu.handler": BYTES,
    "cpu.jobs": BYTES,
    "cpu.ledger": BYTES,
    "cpu.machinery": BYTES,
    "cpu.submission": BYTES,
    "cpu.submitter": BYTES,
    "cpu.threads": WORDS,
    "cpu.worker_statistics": BYTES,
    "tiering.config": WORDS,
    "tiering.actions": FACTS,
    "tiering.budget": FACTS,
    "tiering.cascades": FACTS,
    "tiering.manager": FACTS,
    "tiering.presence": FACTS,
    "tiering.rules": FACTS,
    "tiering.arguments": STORAGE,
    "tiering.disk": STORAGE,
    "tiering.memory": STORAGE,
    "tiering.chain": CHAIN,
    "tiering.spec": DOORS,
    "service": DOORS,
    "cpu.spec": DOORS,
    "metrics": FIGURES,
    "__main__": GUESTS,
    "cli": GUESTS,
    "testing": GUESTS,
}
MAY_USE = {
    WORDS: {WORDS},
    FACTS: {WORDS, FACTS},
    BYTES: {WORDS, BYTES},
    STORAGE: {WORDS, FACTS, STORAGE},
    CHAIN: {WORDS, FACTS, CHAIN},
    OUTLETS: {WORDS, FACTS, OUTLETS},
    DOORS: {WORDS, FACTS, BYTES, STORAGE, CHAIN, OUTLETS, DOORS},
    FIGURES: {WORDS, FACTS, BYTES, STORAGE, CHAIN, OUTLETS, DOORS, FIGURES},
    GUESTS: {WORDS, FACTS, BYTES, STORAGE, CHAIN, OUTLETS, DOORS, FIGURES, GUESTS},
}
TORCH_FREE = {WORDS, FACTS, STORAGE, CHAIN, OUTLETS}
CONTENTS_PAGES = {"", "cpu", "tiering"}
"""Packages whose `__init__` belongs to no floor: they only list names, or nothing."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(name: str) -> str:
    for prefix, floor in FLOOR_OF.items():
        if name == prefix or name.startswith(prefix + "."):
            return floor
    raise AssertionError(f"{name} stands on no floor: add it to FLOOR_OF")


def runtime_imports(tree: ast.AST) -> list[str]:
    """Absolute names of everything imported when the module is imported, `if TYPE_CHECKING` left out."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    if not imports:
        return []
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    names = []
    for node in imports:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"line {node.lineno}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


class Source(NamedTuple):
    """What the rules ask of a module."""

    imports: list[str]
    function_imports: dict[str, list[str]]
    assert_lines: list[int]


@functools.cache
def source_of(path: Path) -> Source:
    """Read once. Its tree is not kept: the collection after each test would walk those of all modules."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Source(
        runtime_imports(tree),
        {f"{node.name} at line {node.lineno}": names for node in functions if (names := runtime_imports(node))},
        [node.lineno for node in nodes if isinstance(node, ast.Assert)],
    )


def inside(names: list[str]) -> list[str]:
    return [name.removeprefix("aiokvoffload.") for name in names if name.startswith("aiokvoffload.")]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_an_import_only_points_down(path: Path) -> None:
    name = module_name(path)
    if name in CONTENTS_PAGES:
        return
    allowed = MAY_USE[floor_of(name)]
    for target in inside(source_of(path).imports):
        assert floor_of(target) in allowed, f"{name} ({floor_of(name)}) imports {target} ({floor_of(target)})"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_facts_and_words_do_without_torch(path: Path) -> None:
    name = module_name(path)
    if name in CONTENTS_PAGES or floor_of(name) not in TORCH_FREE:
        return
    assert not [target for target in source_of(path).imports if target.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_function_imports_from_the_package(path: Path) -> None:
    for function, names in source_of(path).function_imports.items():
        assert not inside(names), f"{function} imports inside a function"


def test_there_is_no_import_cycle() -> None:
    graph = {module_name(path): inside(source_of(path).imports) for path in MODULES}
    edges = {
        name: {target if target in graph else target.rpartition(".")[0] for target in targets} - {name}
        for name, targets in graph.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join([*trail[trail.index(name) :], name])}"
        if name in done:
            return
        for target in edges.get(name, ()):
            visit(target, (*trail, name))
        done.add(name)

    for name in edges:
        visit(name, ())


def test_the_library_asserts_nothing_and_swallows_nothing() -> None:
    for path in MODULES:
        if "testing" in path.parts:
            continue
        assert not source_of(path).assert_lines, f"{path}: assert vanishes under -O"
