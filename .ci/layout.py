"""`python .ci/layout.py`: the layout of the source in figures and as a picture of who imports whom.

Prints lines, files, classes and functions, the longest chain of imports (lazy ones included, those for types alone
not), private functions with one caller, and each folder with the folders it imports. `lint-imports` checks that all of
it runs downwards; exit code 1 here means that the chain is longer than it may be.
"""

from __future__ import annotations

import ast
import signal
from collections import Counter
from functools import lru_cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("loadgen", "tui")
MAX_CHAIN = 15
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    trees = [ast.parse(path.read_text()) for path in files]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    classes = sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree))
    functions = sum(isinstance(node, _FUNCTIONS) for tree in trees for node in tree.body)
    # To `head`, too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(f"{lines:,} lines in {len(files)} files, {classes} classes, {functions:,} functions of modules")

    private, once = map(sum, zip(*(private_functions(tree) for tree in trees), strict=True))
    print(f"{private:,} private functions, {once / private:.0%} of them used once")

    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    chain = longest_chain(graph)
    print(f"longest chain of imports, {len(chain)}: {' > '.join(chain)}")
    print()
    for folder, imported in sorted(folders(graph).items()):
        print(f"{folder:24} > {', '.join(sorted(imported))}")
    if len(chain) > MAX_CHAIN:
        raise SystemExit(f"the longest chain of imports may have {MAX_CHAIN} modules")


def private_functions(tree: ast.Module) -> tuple[int, int]:
    """How many private functions a module has, and how many of them it uses once."""
    names = [node.name for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and is_private(node.name)]
    used = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    used.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return len(names), sum(used[name] == 1 for name in names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def longest_chain(graph: grimp.ImportGraph) -> tuple[str, ...]:
    """The longest chain of modules of which each imports the next; there are no cycles, which `lint-imports` checks."""

    @lru_cache(None)
    def chain_from(module: str) -> tuple[str, ...]:
        below = map(chain_from, graph.find_modules_directly_imported_by(module))
        return (module, *max(below, key=len, default=()))

    return max(map(chain_from, graph.modules), key=len)


def folders(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """For each folder the other folders that its modules import."""
    arrows: dict[str, set[str]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = folder_of(module), folder_of(imported)
            if here != there:
                arrows.setdefault(here, set()).add(there)
    return arrows


def folder_of(module: str) -> str:
    """The folder of a module down to two levels; the leaf modules of `loadgen` are one folder."""
    parts = module.split(".")
    is_folder = len(parts) > 1 and ROOT.joinpath(*parts[:2]).is_dir()
    return ".".join(parts[:2]) if is_folder else parts[0]


if __name__ == "__main__":
    main()
