# SPDX-License-Identifier: Apache-2.0
"""What IPython keeps of cells' values: it keeps no graph and no actor that has lost its name."""

from __future__ import annotations

import gc
import os
import sys
import time

import pytest

import rcg
from rcg.runtime.driver.compiled_dag import live_graphs
from tests.harness.shell import interactive_shell

pytestmark = pytest.mark.usefixtures("ray_session")

DEFINITIONS = """
import os
import rcg
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.test_ipython import Stage
"""

# The cells of the notebooks that are run again.
ACTOR = """
stage = Stage.remote()
pids.append(rcg.get(stage.pid.remote()))
"""
COMPILE = """
with InputNode() as inp:
    dag = stage.work.bind(inp)
graph = dag.experimental_compile()
graph"""


@rcg.remote(num_cpus=0)
class Stage:
    def work(self, x):
        return 1 / x

    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def shell():
    with interactive_shell() as made:
        yield made


class Cells:
    """Runs cells, one after the other, as a notebook does."""

    def __init__(self, shell):
        self.shell = shell
        self.pids = shell.user_ns["pids"] = []

    def run(self, source):
        """Run a cell; returns its value."""
        result = self.shell.run_cell(source, store_history=True)
        assert result.success, result.error_in_exec or result.error_before_exec
        return result.result

    def fail(self, source):
        """Run a cell that raises."""
        assert not self.shell.run_cell(source, store_history=True).success

    @property
    def running(self):
        """The processes of actors that are there; those whose handles have gone are waited for."""
        guard = time.monotonic() + 30
        while len(found := [pid for pid in self.pids if is_running(pid)]) > 1:
            if time.monotonic() > guard:
                break
            time.sleep(0.02)
        return found


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def stage(ray_session):
    return Stage.remote()


@pytest.fixture
def cells(shell, stage):
    gc.collect()
    assert live_graphs() == []
    made = Cells(shell)
    made.run(DEFINITIONS)
    made.shell.user_ns["stage"] = stage
    yield made
    made.shell.reset(new_session=False)
    sys.last_type = sys.last_value = sys.last_traceback = None
    shell.last_execution_result = None
    gc.collect()
    assert live_graphs() == []


# What is done between two runs of the cell that compiles; each leaves something in IPython's hands.
BETWEEN = {
    "nothing": "",
    "the graph shown again": "graph",
    "a ref": "graph.execute(2)",
    "a ref that was got": "rcg.get(graph.execute(2))\nref = graph.execute(4)\nref",
    "refs": "[graph.execute(i) for i in (1, 2, 3)]",
    "refs by name": "refs = {i: [graph.execute(i)] for i in (1, 2, 3)}\nrefs",
    "its nodes": "dag",
    "its actor": "stage",
    "actors": "(stage, [stage])",
    "its plan": "graph.plan",
    "its report": "graph.report()",
    "its statistics": "graph.statistics()",
    "its trace": "graph.trace()",
    "a profile": "with rcg.profile() as p:\n    rcg.get(graph.execute(1))\np",
    "its executions": "with rcg.profile() as p:\n    rcg.get(graph.execute(1))\np.executions()",
    "a monitor": "import rcg_widgets\nmonitor = rcg_widgets.LiveMonitor(graph)\nmonitor",
    "widgets": "import rcg_widgets\nrcg_widgets.TopologyWidget(graph)",
    "the magics": "%load_ext rcg\n%rcg_graph\n%rcg_schedule\n%rcg_report\n%rcg_top --text",
    "underscores": "graph; _\n_",
}
FAILURES = {
    "a method": "graph.execute(0).get()",
    "a list": "rcg.get([graph.execute(0), graph.execute(1)])",
    "a function": "def run(g, n):\n    return rcg.get(g.execute(n))\nrun(graph, 0)",
    "its arguments": "graph.execute(1, 2, 3)",
    "a timeout": "graph.execute(1).get(timeout='soon')",
    "an end": "graph.teardown()\ngraph.execute(1)",
}


@pytest.mark.full
@pytest.mark.parametrize("what", BETWEEN)
def test_a_cell_that_is_run_again_leaves_one_graph(cells, what):
    for _ in range(3):
        cells.run(COMPILE)
        cells.run(BETWEEN[what])
    cells.run("graph")
    assert live_graphs() == [cells.shell.user_ns["graph"]]
    assert cells.run("rcg.get(graph.execute(4))") == 0.25


@pytest.mark.full
@pytest.mark.parametrize("what", ["a ref", "its nodes", "its actor", "actors"])
def test_cells_that_are_run_again_leave_one_actor(cells, what):
    for _ in range(2):
        cells.run(ACTOR)
        cells.run(COMPILE)
        cells.run(BETWEEN[what])
    cells.run(ACTOR)
    cells.run(COMPILE)
    assert cells.running == cells.pids[-1:]
    assert len(live_graphs()) == 1


def test_an_error_holds_no_actor_that_has_lost_its_name(cells):
    cells.run(ACTOR)
    cells.run(COMPILE)
    cells.fail(FAILURES["a function"])
    cells.run(ACTOR)
    cells.run(COMPILE)
    assert cells.running == cells.pids[-1:]


@pytest.mark.parametrize("what", FAILURES)
def test_an_error_holds_no_graph_that_has_lost_its_name(cells, what):
    for _ in range(3):
        cells.run(COMPILE)
        cells.fail(FAILURES[what])
    cells.run(COMPILE)
    assert live_graphs() == [cells.shell.user_ns["graph"]]


def test_a_graph_with_a_name_stays_what_ipython_shows(cells):
    cells.run(COMPILE)
    number = max(cells.shell.user_ns["Out"])
    cells.run("1 + 1")
    assert cells.run(f"Out[{number}] is graph and _{number} is graph and __ is graph") is True


def test_a_graph_without_a_name_is_used_by_its_underscore(cells):
    cells.run(COMPILE.replace("graph = ", "").removesuffix("graph"))
    assert cells.run("rcg.get(_.execute(2))") == 0.5
    cells.run("graph = __")
    assert cells.run("rcg.get(graph.execute(2))") == 0.5
    assert len(live_graphs()) == 1


def test_of_graphs_without_a_name_the_newest_is_kept(cells):
    for _ in range(3):
        cells.run(COMPILE.replace("graph = ", "").removesuffix("graph"))
    assert len(live_graphs()) == 1
    assert cells.run("rcg.get(_.execute(2))") == 0.5


def test_refs_stay_while_their_graph_has_a_name(cells):
    cells.run(COMPILE)
    cells.run("graph.execute(2)")
    number = max(cells.shell.user_ns["Out"])
    for _ in range(5):
        cells.run("1 + 1")
    assert cells.run(f"rcg.get(Out[{number}])") == 0.5


def test_a_graph_that_is_kept_elsewhere_lives_on(cells):
    cells.run("kept = []")
    for _ in range(3):
        cells.run(COMPILE)
        cells.run("kept.append(graph)")
    assert len(live_graphs()) == 3
    assert cells.run("[rcg.get(each.execute(2)) for each in kept]") == [0.5] * 3
    cells.run("del kept")
    assert len(live_graphs()) == 1


def test_a_graph_ends_when_its_name_is_deleted(cells):
    cells.run(COMPILE)
    cells.run("del graph")
    assert live_graphs() == []


def test_what_was_let_go_says_so(cells):
    cells.run(COMPILE)
    number = max(cells.shell.user_ns["Out"])
    _, _, number_of_graph = repr(cells.shell.user_ns["graph"]).partition(" ")
    cells.run(COMPILE)
    gone = cells.run(f"Out[{number}]")
    assert number_of_graph in repr(gone)
    assert "let go" in repr(gone)
    with pytest.raises(AttributeError, match="give it a name"):
        gone.execute(1)
    assert cells.run(f"_{number} is Out[{number}]") is True


def test_values_of_others_are_left_alone(cells):
    cells.run("values = [object(), 'text']\nvalues")
    number = max(cells.shell.user_ns["Out"])
    cells.run(COMPILE)
    cells.run("del values")
    assert len(cells.run(f"Out[{number}]")) == 2
