# SPDX-License-Identifier: Apache-2.0
"""The rooms of the package: who may know the native core, and that the documents list them all."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import rcg

PACKAGE = Path(rcg.__file__).parent
ROOT = PACKAGE.parent

# Channels, the node and the flight recorder; the doctor looks whether it can be loaded.
KNOW_THE_CORE = {
    "rcg.channels.crossing",
    "rcg.channels.shm",
    "rcg.runtime.node.host",
    "rcg.runtime.node.node",
    "rcg.runtime.node.memory",
    "rcg.trace.recorder",
    "rcg.trace.spans",
    "rcg.doctor.software",
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_from_the_package(path: Path) -> set[str]:
    """What a file imports by ``from rcg import ...`` and ``import rcg...``."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rcg":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_only_channels_the_node_and_the_recorder_know_the_native_core() -> None:
    found = {
        module_of(path)
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("rcg._native") for name in imported_from_the_package(path))
    }
    assert found == KNOW_THE_CORE


def test_nothing_below_imports_the_face() -> None:
    """Contracts between rooms ignore imports of the package itself: they are of rooms by name."""
    rooms = {path.stem for path in PACKAGE.iterdir()} | {"_native"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "rcg":
                assert {alias.name for alias in node.names} <= rooms, path


def layers_of(container: str) -> set[str]:
    """The rooms that a contract orders."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each.get("containers") == [container]]
    names = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    return {name for name in names if not name.startswith("(")}


def listed_rooms() -> set[str]:
    """The files and folders in the table of rooms of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("## Rooms") :]
    table = table[: table.index("\n## ")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w/.]+?)(?:\.py|/)`", row)}


def test_the_table_of_rooms_lists_what_the_contracts_order() -> None:
    wanted = layers_of("rcg") - {"__main__", "runtime"}
    wanted |= {f"runtime/{name}" for name in layers_of("rcg.runtime")}
    listed = listed_rooms()
    assert listed - {"native"} == wanted
    for name in listed:
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), name


def test_what_is_parsed_is_shown_by_tests_that_exist() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    path = ""
    count = 0
    for row in rows:
        for file, name in re.findall(r"`(tests/[^`:]*)?::(\w+)`", row.split("|")[-2]):
            path = file or path  # of the same file as the one before
            names = {each.name for each in tree_of(ROOT / path).body if hasattr(each, "name")}
            assert name in names, f"{path} has no {name}"
            count += 1
    assert len(rows) == 12 and count >= 17
