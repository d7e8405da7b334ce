"""The layout of the project: where code lives, what may import what, what the README must name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import attn_mods
from attn_mods import description, masks, registry, scores
from attn_mods.entry import Entry, entry_name

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attn_mods"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_ENTRY = 200

# What may import what: a module or subpackage imports only from lines above its own, and within its own subpackage.
LAYERS = (
    {"approximate_tanh", "captured_tables", "checks", "entry", "evaluation", "function_state", "realised", "symbols"},
    {"band", "documents", "parameters", "per_axis", "provenance"},
    {"kernels", "structure_facts"},
    {"tiles"},
    {"fused"},
    {"block_mask"},
    {"compact_lists"},
    {"mask", "algebra", "frames", "user_function", "user_rule"},
    {"block_mask_cache"},
    {"bare_block_mask", "block_mask_check", "score", "score_compositions"},
    {"masks", "scores"},
    {"preflight", "recipe", "registry", "sink"},
    {"call_checks"},
    {"backends", "oracle"},
    {"entry_checks", "explanation", "prepared_calls", "tuning"},
    {"dispatch"},
    {"backend_checks", "nn", "work"},
    {"verification"},
    {"description", "drawing"},
    {"presentation"},
    {"cli"},
    {"__init__"},
)
# A base class and what its operators return: each names the other, so they may import within their line.
TOGETHER = ({"mask", "algebra", "frames", "user_function", "user_rule"}, {"score", "score_compositions"})

# The public names, as the README documents them.
PUBLIC = {
    "BlockMaskCache",
    "Mask",
    "Recipe",
    "Score",
    "attention",
    "create_block_mask",
    "explain",
    "find",
    "get",
    "info",
    "masks",
    "names",
    "nn",
    "reference",
    "scores",
    "verify",
}


def unit(path: Path) -> str:
    """The top-level module or subpackage a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> Iterator[str]:
    """Dotted names a file imports at run time, inside functions too; ``from a import b`` gives ``a.b``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    unused = {id(inner) for node in for_types for line in node.body for inner in ast.walk(line)}
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_units(path: Path) -> Iterator[str]:
    """The top-level modules of the package a file imports."""
    units = {unit(module) for module in MODULES}
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "attn_mods":
            yield parts[1] if len(parts) > 1 and parts[1] in units else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_in_one_direction(path: Path) -> None:
    layer_of = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    own = unit(path)
    assert own in layer_of, f"{own} has no place in LAYERS: say what it may import, and what may import it"
    partners = next((group for group in TOGETHER if own in group), {own})
    for other in set(imported_units(path)) - partners:
        assert layer_of[other] < layer_of[own], f"{own} must not import {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_package_imports_nothing_around_it(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)}
    assert not outside & {"benchmarks", "docs", "tests"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_package_never_uses_torch_create_mask(path: Path) -> None:
    forbidden = {"create_block_mask", "create_mask"}
    for name in imports(path):
        assert not (name.startswith("torch") and name.rsplit(".", 1)[-1] in forbidden), f"{path.name} imports {name}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in forbidden:
            assert not ast.unparse(node.value).endswith("flex_attention"), f"{path.name}: {ast.unparse(node)}"


@pytest.mark.parametrize("package", [masks, scores], ids=["masks", "scores"])
def test_folder_holds_what_all_lists(package: ModuleType) -> None:
    assert package.__file__ is not None
    files = {path.stem for path in Path(package.__file__).parent.glob("*.py") if not path.stem.startswith("_")}
    listed = [item.name if isinstance(item, Entry) else entry_name(item.__name__) for item in package.ALL]
    assert len(listed) == len(set(listed))
    assert files == set(listed)
    exported = {item.build.__name__ if isinstance(item, Entry) else item.__name__ for item in package.ALL}
    assert exported <= set(package.__all__)


@pytest.mark.parametrize(
    "item", [*masks.ALL, *scores.ALL], ids=lambda item: getattr(item, "__name__", None) or item.name
)
def test_entry_file_holds_one_entry_of_its_name(item: type) -> None:
    builder = item.build if isinstance(item, Entry) else item
    path = Path(inspect.getfile(builder))
    with_entry = [
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any("entry" in ast.unparse(line).split("=")[0] for line in node.body)
    ]
    assert path.stem == (item.name if isinstance(item, Entry) else item.entry.name)
    assert isinstance(item, Entry) or with_entry == [item.__name__]
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_ENTRY


@pytest.mark.parametrize("name", registry.names())
def test_entry_is_complete(name: str) -> None:
    entry = registry.info(name)
    assert entry.name == name
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert entry.title and entry.summary.endswith(".") and "\n" not in entry.summary
    assert entry.papers and all(paper.arxiv or paper.url for paper in entry.papers)
    assert all(re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv) for paper in entry.papers if paper.arxiv)
    assert entry.tags and all(re.fullmatch(r"[a-z0-9-]+", tag) for tag in entry.tags)
    assert {"tiny", "bench"} <= set(entry.cases)
    assert bool(entry.picture) == (entry.kind == "mask")
    assert description.rule(entry)


@pytest.mark.parametrize("name", registry.names())
def test_every_parameter_of_an_entry_is_described(name: str) -> None:
    entry = registry.info(name)
    assert entry.build is not None
    parameters = [parameter for parameter in inspect.signature(entry.build).parameters if parameter != "entry"]
    assert list(description.parameters(entry)) == parameters


def test_names_are_unique_over_all_kinds() -> None:
    items = [*masks.ALL, *scores.ALL]
    names = [item.name if isinstance(item, Entry) else item.entry.name for item in items]
    assert len(names) == len(set(names)) == len(registry.names())


def test_no_module_shares_a_name_with_a_public_function() -> None:
    functions = {name for name in attn_mods.__all__ if inspect.isfunction(getattr(attn_mods, name))}
    assert functions
    assert not functions & {path.stem for path in PACKAGE.glob("*.py")}
    assert not functions & {path.name for path in PACKAGE.iterdir() if path.is_dir()}


def test_public_names_are_the_documented_ones() -> None:
    assert set(attn_mods.__all__) == PUBLIC
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in sorted(PUBLIC) if not re.search(rf"`(am\.)?{name}\b", readme)]
    assert not missing, f"the README does not mention {missing}"


def test_the_package_declares_its_types() -> None:
    assert (PACKAGE / "py.typed").exists()
