# SPDX-License-Identifier: Apache-2.0
"""Layers: a test's folder gives its marker, and the cheap layers run first. Fixtures of several."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.harness import chance, skips
from tests.harness.board import Board
from tests.harness.driven import Driven
from tests.harness.models import RunModel
from tests.harness.peers import descriptors, until
from tests.harness.places import closing
from tests.harness.served import Served, control_threads, listening

# No test measures its own speed. `make unit` and `make test` draw fewer examples than the whole.
# Every run draws other cases, in CI too, where hypothesis would by itself draw the same ones.
settings.register_profile("rcg", deadline=None, derandomize=False)
settings.register_profile("quick", settings.get_profile("rcg"), max_examples=15)
settings.load_profile("rcg")

LAYERS = (
    "unit",
    "process",
    "conformance",
    "cluster",
    "packaging",
    "notebooks",
    "netns",
    "browser",
    "vllm",
    "gpu",
)
TESTS = Path(__file__).parent
# The doctest collector asks the classes of a module for their names, and these raise.
collect_ignore = ["harness/hostile.py"]
if find_spec("vllm") is None:
    collect_ignore.append("vllm")

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start
# inherits that; some tests are about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nodes", type=int, default=1, help="how many nodes the Ray of the cluster tests has"
    )
    parser.addoption(
        "--first-node",
        type=int,
        default=0,
        help="the node of a module's first actor; 0: the driver's",
    )
    parser.addoption(
        "--any-skip", action="store_true", help="packages are left out on purpose: skips are fine"
    )
    parser.addoption(
        "--random-minutes",
        type=float,
        help="run the tests that draw cases again and again, with other seeds, for so long",
    )
    parser.addoption(
        "--model-minutes",
        type=float,
        default=0.75,
        help="how long each state machine over real processes runs",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    chance.draw_seed(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = chance.seed_of(node.config)


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"random cases: --hypothesis-seed={chance.seed_of(session.config)}")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    minutes = session.config.getoption("--random-minutes")
    if minutes is None or not session.items:
        return None
    chance.in_turn_until(session, time.monotonic() + 60 * minutes)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and chance.is_random(item):
        report.sections.append(("The same random cases again", chance.command_of(item)))
    refuse_unknown_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_unknown_skip(report, collector.config)
    return report


def refuse_unknown_skip(
    report: pytest.TestReport | pytest.CollectReport, config: pytest.Config
) -> None:
    """A test that is skipped for a reason that the table does not have fails."""
    if not report.skipped or config.getoption("--any-skip"):
        return
    reason = getattr(report, "wasxfail", None)
    if reason is None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if skips.where_it_runs(reason) is None:
        vars(report).pop("wasxfail", None)
        report.outcome = "failed"
        report.longrepr = f"{reason}\nNo such reason is in the table of tests/harness/skips.py."


def layer_of(item: pytest.Item) -> str | None:
    """Returns the layer that the folder of `item` stands for, or None outside tests/."""
    try:
        first = item.path.relative_to(TESTS).parts[0]
    except ValueError:
        return None
    return first if first in LAYERS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        layer = layer_of(item)
        if layer is not None:
            item.add_marker(layer)
        if chance.is_random(item):
            item.add_marker("random")
        if "run_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(models_run_by(item.config).timeout_s))
    items.sort(key=lambda item: LAYERS.index(layer_of(item) or "unit"))


def pytest_collection_finish() -> None:
    """What is there for good need not be looked through by each of thousands of collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Draws the cases of a test, from the seed of the run and the name of the test."""
    return random.Random(f"{chance.seed_of(request.config)} {request.node.nodeid}")


def models_run_by(config: pytest.Config) -> RunModel:
    return RunModel(config, config.getoption("--model-minutes"))


@pytest.fixture
def run_model(request: pytest.FixtureRequest) -> RunModel:
    """Runs a state machine over real processes for some minutes."""
    return models_run_by(request.config)


@pytest.fixture
def boards() -> Iterator[Callable[..., Board]]:
    """Makes boards, with the arguments of ``Board``."""
    yield from closing(Board)


@pytest.fixture
def served() -> Iterator[Served]:
    """The control of one graph."""
    made = Served()
    yield made
    made.close()


@pytest.fixture
def graphs() -> Iterator[Callable[..., Served]]:
    """Makes graphs; checks in the end that nothing of the endpoint is left."""
    before = descriptors()
    yield from closing(Served)
    assert not control_threads() and not listening(os.getpid())
    until(lambda: descriptors() <= before)


@pytest.fixture
def driven() -> Iterator[Callable[..., Driven]]:
    """Makes graphs whose actor is the test, with the arguments of ``Driven``."""
    yield from closing(Driven)
