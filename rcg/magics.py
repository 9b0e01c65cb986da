# SPDX-License-Identifier: Apache-2.0
"""Magics of notebooks: ``%load_ext rcg``.

Each does what a call does as well (the help of each names it), so nothing is to be had here only.
Code is taken as it stands: ``$name`` and ``{name}`` are not expanded in it. Errors of the command
line are one sentence.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import re
import shlex
from typing import Any, Final, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from rcg.plan import Plan
from rcg.profiles import Profile
from rcg.progress import progress
from rcg.runtime.execute import CompiledDAG, live_graphs, profile_all
from rcg.runtime.report import Reports
from rcg.trace.summary import summarize
from rcg.trace.trace import Trace
from rcg.views.bundle import bundle
from rcg.views.pictures import predicted_schedule, schedule_picture, topology_picture

__all__ = ["RcgMagics", "load"]

_LIMIT: Final = 10  # executions in flight, of a plan without a graph
_WIDGETS: Final = 'the interactive views need more packages: pip install "rcg[notebook]"'


_OPTION: Final = re.compile(r"\s*(-[^\s=]+)(?:=(\S+))?")
_VALUE: Final = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")


class _HelpTold(Exception):
    """Help was asked for, and printed."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%{self.prog}: {message} (see %{self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpTold

    def split(self, line: str) -> tuple[argparse.Namespace, str]:
        """Parse the options that a line begins with; returns them and the rest, as it stands."""
        options: list[str] = []
        at = 0
        while found := _OPTION.match(line, at):
            name, value = found.groups()
            action = self._option_string_actions.get(name)
            if action is None and not name.startswith("--"):
                break  # code that begins with a minus
            at = found.end()
            if name == "--":
                break
            options.append(name if value is None else f"{name}={value}")
            takes_value = action is not None and action.nargs is None
            if takes_value and value is None and (found := _VALUE.match(line, at)):
                at = found.end()
                options += shlex.split(found[1])
        return self.parse_args(options), line[at:].strip()


def _parser(name: str, what: str, instead: str, subject: str = "") -> _Parser:
    return _Parser(
        prog=name,
        usage=f"%%{name} [options] {subject}".strip(),  # argparse formats it
        description=what,
        epilog=f"In code: {instead}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _profile_parser() -> _Parser:
    parser = _parser(
        "rcg_profile",
        "Profile the compiled graphs that run in a statement (%rcg_profile) or a cell "
        "(%%rcg_profile)\nand show the result. The value of the last expression is returned, and "
        "all variables stay.",
        "with rcg.profile() as p: ...",
        "[statement]",
    )
    parser.add_argument("-o", metavar="NAME", help="keep the Profile in this variable")
    parser.add_argument(
        "-n", metavar="EXECUTIONS", type=int, default=1, help="run the code so often"
    )
    parser.add_argument("--html", metavar="FILE", help="write a self-contained HTML file as well")
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write a file for ui.perfetto.dev as well"
    )
    parser.add_argument(
        "--widget", action="store_true", help="show an interactive timeline as well"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing")
    return parser


@magics_class
class RcgMagics(Magics):
    """The magics; one instance for each shell."""

    @no_var_expand
    @line_cell_magic
    def rcg_profile(self, line: str, cell: str | None = None) -> Any:
        """Profile the compiled graphs that run in a statement or a cell; see --help."""
        with contextlib.suppress(_HelpTold):
            options, code = _profile_parser().split(line)
            if cell is not None and code:
                raise UsageError(f"%%rcg_profile: {code!r} is no option (see %rcg_profile --help)")
            if options.n < 1:
                raise UsageError(f"%rcg_profile: -n takes a positive number, found {options.n}")
            if options.o is not None and not options.o.isidentifier():
                raise UsageError(f"%rcg_profile: -o takes a variable's name, found {options.o!r}")
            if not (code or cell):
                raise UsageError(
                    "%rcg_profile: there is nothing to run: %rcg_profile cdag.execute(x).get()"
                )
            return self._profile(options, _Code(self.shell, code if cell is None else cell))
        return None

    def _profile(self, options: argparse.Namespace, code: _Code) -> Any:
        value = None
        with profile_all() as profile:
            if options.o:
                self.shell.user_ns[options.o] = profile  # also if the code raises
            for _ in progress(range(options.n), "rcg_profile"):
                value = code.run()
        if options.html:
            profile.save_html(options.html)
        if options.perfetto:
            profile.trace.to_chrome(options.perfetto)
        if not options.quiet:
            display(profile)
            if options.widget:
                _display_widget("TimelineWidget", profile.trace)
        return value

    @no_var_expand
    @line_magic
    def rcg_graph(self, line: str) -> None:
        """Show the topology of a compiled graph, a plan or a profile; see --help."""
        parser = _parser(
            "rcg_graph",
            "Show actors, methods and the values between them. Without a name: every live graph.",
            "cdag (as the last line of a cell), or cdag.visualize(...)",
            "[name]",
        )
        parser.add_argument(
            "--channels", action="store_true", help="tell which channel carries what"
        )
        parser.add_argument("--widget", action="store_true", help="show an interactive view")
        with contextlib.suppress(_HelpTold):
            options, name = parser.split(line)
            for shown in self._named(name, "rcg_graph"):
                if options.widget:
                    _display_widget("TopologyWidget", shown)
                else:
                    _display(_topologies(shown, channel_details=options.channels))

    @no_var_expand
    @line_magic
    def rcg_schedule(self, line: str) -> None:
        """Show what each actor does when, predicted or measured; see --help."""
        parser = _parser(
            "rcg_schedule",
            "Show what each actor does when: of a graph or plan as predicted, of a profile as "
            "measured.\nWithout a name: every live graph.",
            "profile (as the last line of a cell)",
            "[name]",
        )
        parser.add_argument("--widget", action="store_true", help="show an interactive view")
        with contextlib.suppress(_HelpTold):
            options, name = parser.split(line)
            for shown in self._named(name, "rcg_schedule"):
                if options.widget:
                    _display_widget("ScheduleWidget", shown)
                else:
                    _display(_schedules(shown))

    @no_var_expand
    @line_magic
    def rcg_report(self, line: str) -> None:
        """Show who does what, since when, and who waits for whom; see --help."""
        parser = _parser(
            "rcg_report",
            "Show who does what, since when, and who waits for whom, also while actors are stuck.\n"
            "Without a name: every live graph.",
            "cdag.report(), rcg.report()",
            "[name]",
        )
        with contextlib.suppress(_HelpTold):
            _, name = parser.split(line)
            found = self._named(name, "rcg_report")
            for graph in found:
                if not isinstance(graph, CompiledDAG):
                    raise UsageError(f"%rcg_report: {name} is no compiled graph")
            display(Reports(graph.report() for graph in found))

    @no_var_expand
    @line_magic
    def rcg_top(self, line: str) -> None:
        """Show throughput, executions in flight and queues while graphs run; see --help."""
        parser = _parser(
            "rcg_top",
            "Watch graphs while they run: throughput, executions in flight, queues, idle share.\n"
            "Without a name: every live graph. Without the notebook packages: the numbers now.",
            "rcg_widgets.LiveMonitor(cdag), cdag.statistics()",
            "[name]",
        )
        parser.add_argument(
            "--interval", type=float, default=0.5, metavar="SECONDS", help="between samples; 0.5"
        )
        parser.add_argument("--text", action="store_true", help="print the numbers now")
        with contextlib.suppress(_HelpTold):
            options, name = parser.split(line)
            if not options.interval > 0:
                raise UsageError("%rcg_top: --interval takes a positive number of seconds")
            for graph in self._named(name, "rcg_top"):
                if not isinstance(graph, CompiledDAG):
                    raise UsageError(f"%rcg_top: {name} is no compiled graph")
                if options.text or not _display_widget(
                    "LiveMonitor", graph, interval_s=options.interval
                ):
                    print(f"{graph}: {graph.statistics()}")

    def _named(self, name: str, magic: str) -> list[Any]:
        """Return what a name stands for, or all live graphs."""
        if not name:
            found = live_graphs()
            if not found:
                raise UsageError(
                    f"%{magic}: there is no compiled graph in this process: compile one first, or "
                    f"name a profile or a plan"
                )
            return sorted(found, key=CompiledDAG.get_id)
        try:
            shown = eval(name, self.shell.user_global_ns, self.shell.user_ns)
        except (NameError, SyntaxError) as error:
            raise UsageError(f"%{magic}: {name!r} names nothing here: {error}") from None
        if not isinstance(shown, CompiledDAG | Plan | Profile | Trace):
            raise UsageError(
                f"%{magic}: {name} is a {type(shown).__name__}; it takes a compiled graph, a "
                "profile, a trace or a plan"
            )
        return [shown]


class _Code:
    """Code of a cell, compiled once; running it leaves its variables in the user's namespace."""

    def __init__(self, shell: InteractiveShell, text: str) -> None:
        self._namespace = shell.user_ns
        source = shell.transform_cell(text)
        try:
            tree = shell.compile.ast_parse(source)
        except SyntaxError as error:
            raise UsageError(f"%rcg_profile: {error.msg} in line {error.lineno}") from None
        tree = shell.transform_ast(tree)
        last = tree.body[-1] if tree.body else None
        shown = last if isinstance(last, ast.Expr) else None
        name = shell.compile.cache(source)  # so that tracebacks show its lines
        body = ast.Module(tree.body[: -1 if shown else None], [])
        try:
            self._body = shell.compile(body, name, "exec")
            self._last = shell.compile(ast.Expression(shown.value), name, "eval") if shown else None
        except SyntaxError as error:
            awaits = any(
                isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
                for node in ast.walk(tree)
            )
            raise UsageError(
                "%rcg_profile: a magic cannot await: write `with rcg.profile() as p:` in the cell"
                if awaits
                else f"%rcg_profile: {error.msg} in line {error.lineno}"
            ) from None

    def run(self) -> Any:
        """Run it and return the value of its last expression, None if it does not end in one."""
        exec(self._body, self._namespace)
        return None if self._last is None else eval(self._last, self._namespace)


def _topologies(shown: Any, *, channel_details: bool) -> list[tuple[str, str]]:
    """Return the topology of each graph, with what it shows."""
    if isinstance(shown, Profile):
        shown = shown.trace
    if isinstance(shown, Trace):
        figures = summarize(shown).graphs
        return [
            (
                f"Topology of {_name(graph.graph_id)}",
                topology_picture(
                    graph.plan,
                    title=_name(graph.graph_id),
                    channel_details=channel_details,
                    measured=(graph, measured),
                ),
            )
            for graph, measured in zip(shown.graphs, figures, strict=True)
        ]
    plan, title = (
        (shown, "Plan") if isinstance(shown, Plan) else (shown.plan, _name(shown.get_id()))
    )
    return [
        (
            f"Topology of {title}",
            topology_picture(plan, title=title, channel_details=channel_details),
        )
    ]


def _schedules(shown: Any) -> list[tuple[str, str]]:
    """Return the schedule of each graph, with what it shows."""
    if isinstance(shown, Profile):
        shown = shown.trace
    if isinstance(shown, Trace):
        made = [(_name(graph.graph_id), schedule_picture(shown, graph)) for graph in shown.graphs]
        return [(f"Schedule of {name}", svg) for name, svg in made if svg is not None]
    if isinstance(shown, Plan):
        return [("Schedule of the plan", predicted_schedule(shown, _LIMIT))]
    limit = shown.session.options.max_inflight_executions
    return [(f"Schedule of {_name(shown.get_id())}", predicted_schedule(shown.plan, limit))]


def _name(graph_id: str) -> str:
    return f"CompiledDAG({graph_id[:8]})"


def _display(pictures: list[tuple[str, str]]) -> None:
    for alt, svg in pictures:
        display(bundle(alt, [(alt, svg)]), raw=True)


def _display_widget(name: str, *args: Any, **options: Any) -> bool:
    """Show an interactive view; False, and one line on how to get it, where it is not installed."""
    try:
        widgets = importlib.import_module("rcg_widgets")
    except ImportError:
        print(_WIDGETS)
        return False
    display(getattr(widgets, name)(*args, **options))
    return True


def load(shell: InteractiveShell) -> None:
    """Register the magics; again is harmless."""
    shell.register_magics(RcgMagics)
