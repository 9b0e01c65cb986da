# SPDX-License-Identifier: Apache-2.0
"""The magics.

The help of each magic names the call that does the same. IPython does not expand ``$name`` and
``{name}`` in a line of a magic. Wrong options raise an error of one sentence.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import keyword
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from IPython.core import magic as ipython_magic
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from rcg.callers import end_at_caller
from rcg.errors import RcgError
from rcg.ipython import attach
from rcg.ir.plan import Plan
from rcg.magics.parser import (
    HelpPrinted,
    MagicParser,
    cut,
    first_line,
    number_text,
    parser_of,
    quoted,
    seconds,
    whole_number,
)
from rcg.magics.showing import (
    MAX_WIDGETS,
    display_pictures,
    display_widgets,
    load_widgets,
    print_idle,
    print_more,
    schedules,
    topologies,
    with_executions,
)
from rcg.profiling import Profile
from rcg.progress import progress
from rcg.runtime.driver.compiled_dag import CompiledDAG, live_graphs, profile_all
from rcg.runtime.observe.attach import find_live
from rcg.runtime.observe.report import Reports
from rcg.text import visible
from rcg.trace.trace import Trace

_MAX_RUNS: Final = 1_000_000  # of the code that is profiled
_MIN_INTERVAL_S: Final = 0.05
_MAX_INTERVAL_S: Final = 86_400

_Magic = TypeVar("_Magic", bound=Callable[..., Any])


def _silence(magic: _Magic) -> _Magic:
    """Let a ``;`` at the end of a line hide the value of a magic (IPython 8.11 and later)."""
    silence = getattr(ipython_magic, "output_can_be_silenced", None)
    if silence is not None:
        silence(magic)  # sets an attribute
    return magic


def _profile_parser() -> MagicParser:
    parser = parser_of(
        "rcg_profile",
        "Profile the compiled graphs that run in a statement (%rcg_profile) or a cell "
        "(%%rcg_profile)\nand show the result. A statement returns its value; all variables stay.",
        "with rcg.profile() as p: ...",
        "[statement]",
    )
    parser.add_argument("-o", metavar="NAME", help="keep the Profile in this variable")
    parser.add_argument(
        "--name",
        default="",
        help="what rcg.profiles() calls it; by default the variable, or the time",
    )
    parser.add_argument(
        "-n",
        metavar="EXECUTIONS",
        type=whole_number,
        default=1,
        help="run the code this many times",
    )
    parser.add_argument("--html", metavar="FILE", help="write a self-contained HTML file as well")
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write a file for ui.perfetto.dev as well"
    )
    parser.add_argument(
        "--widget", action="store_true", help="show an interactive timeline as well"
    )
    parser.add_argument(
        "--torch", action="store_true", help="record what torch does in the methods as well"
    )
    parser.add_argument(
        "--attach",
        metavar="NAME",
        help="record the graph of this name (or beginning of its id) that another process runs",
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing")
    return parser


@magics_class
class RcgMagics(Magics):
    """The magics; one instance for each shell."""

    @no_var_expand
    @line_cell_magic
    @_silence
    def rcg_profile(self, line: str, cell: str | None = None) -> Any:
        """Profile the compiled graphs that run in a statement or a cell; see --help."""
        with contextlib.suppress(HelpPrinted):
            options, code = _profile_parser().split(line if cell is None else line.rstrip("; "))
            if cell is not None and code:
                raise UsageError(
                    f"%%rcg_profile: {quoted(code)} is not an option (see %rcg_profile --help)"
                )
            if not 1 <= options.n <= _MAX_RUNS:
                raise UsageError(
                    f"%rcg_profile: -n takes a number from 1 to {_MAX_RUNS:,}, found "
                    f"{number_text(options.n)}"
                )
            name = options.o
            if len(options.name) > 80 or not options.name.isprintable():
                raise UsageError(
                    "%rcg_profile: --name takes at most 80 letters that can be printed"
                )
            if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
                raise UsageError(f"%rcg_profile: -o takes a variable's name, found {quoted(name)}")
            for option in ("html", "perfetto"):
                setattr(options, option, _file(option, getattr(options, option)))
            if not (code or cell):
                raise UsageError(
                    "%rcg_profile: there is nothing to run: %rcg_profile cdag.execute(x).get()"
                )
            run = _compiled(self.shell, code if cell is None else cell)
            try:
                value = self._profile(options, run)
                return value if cell is None else None  # below a cell stands the profile alone
            except BaseException as error:
                end_at_caller(error)
                raise
        return None

    def _profile(self, options: argparse.Namespace, run: Callable[[], Any]) -> Any:
        value, name = None, options.name or options.o or ""
        interrupt: KeyboardInterrupt | None = None
        profile: Profile | None = None
        try:
            recording = (
                find_live(options.attach).profiler(name=name, torch=options.torch)
                if options.attach
                else profile_all(name=name, torch=options.torch)
            )
            with recording as profile:
                if options.o:
                    self.shell.user_ns[options.o] = profile  # also if the code raises
                for _ in progress(range(options.n), "rcg_profile"):
                    value = run()
        except KeyboardInterrupt as error:
            if profile is None:
                raise
            interrupt = error  # what was recorded so far is shown
        with _one_sentence("rcg_profile"):
            # Files come last, so that the profile is shown even if they cannot be written.
            if not options.quiet:
                display(profile)
                if options.widget:
                    display_widgets("TimelineWidget", profile.trace)
            failed = [
                _failure(option, path, write)
                for option, path, write in (
                    ("html", options.html, profile.save_html),
                    ("perfetto", options.perfetto, profile.trace.to_chrome),
                )
                if path is not None
            ]
        if interrupt is not None:
            raise interrupt
        if any(failed):
            raise UsageError(f"%rcg_profile: {'; '.join(filter(None, failed))}")
        return value

    @no_var_expand
    @line_magic
    def rcg_graph(self, line: str) -> None:
        """Show the topology of a compiled graph, a plan or a profile; see --help."""
        parser = parser_of(
            "rcg_graph",
            "Show actors, methods and the values between them. Without a name: every live graph.",
            "cdag (as the last line of a cell), or cdag.visualize(...)",
            "[name]",
        )
        parser.add_argument(
            "--channels",
            action="store_true",
            help="show each call, and which channel carries which value",
        )
        self._show(
            parser,
            line,
            "TopologyWidget",
            lambda shown, options: topologies(shown, channel_details=options.channels),
            "there is no graph in it: compile one before recording",
        )

    @no_var_expand
    @line_magic
    def rcg_schedule(self, line: str) -> None:
        """Show what each actor does when, predicted or measured; see --help."""
        parser = parser_of(
            "rcg_schedule",
            "Show what each actor does when: of a graph or plan as predicted, of a profile as "
            "measured.\nWithout a name: every live graph.",
            "profile (as the last line of a cell)",
            "[name]",
        )
        self._show(
            parser,
            line,
            "ScheduleWidget",
            lambda shown, _: schedules(shown),
            "no execution is in it from beginning to end: run some while recording, or record for "
            "longer",
        )

    def _show(
        self,
        parser: MagicParser,
        line: str,
        widget: str,
        pictures_of: Callable[[Any, argparse.Namespace], list[tuple[str, str]]],
        nothing: str,
    ) -> None:
        """Show the pictures of what a line names, or a widget if it asks for one."""
        parser.add_argument("--widget", action="store_true", help="show an interactive view")
        with contextlib.suppress(HelpPrinted):
            options, name = parser.split_name(line)
            found = self._find(name, parser.prog)
            with _one_sentence(parser.prog):
                found = [each.trace if isinstance(each, Profile) else each for each in found]
                if options.widget and display_widgets(widget, *found):
                    return
                pictures = [each for shown in found for each in pictures_of(shown, options)]
                display_pictures(pictures, parser.prog, nothing)

    @no_var_expand
    @line_magic
    def rcg_report(self, line: str) -> None:
        """Show what each process does, since when, and what it waits for; see --help."""
        parser = parser_of(
            "rcg_report",
            "Show what each process does, since when, and what it waits for, even if actors hang.\n"
            "Without a name: every live graph.",
            "cdag.report(), rcg.report()",
            "[name]",
        )
        with contextlib.suppress(HelpPrinted):
            _, name = parser.split_name(line)
            found = self._find_graphs(name, "rcg_report")
            with _one_sentence("rcg_report"):
                shown = found if name else with_executions(found)
                display(Reports(graph.report() for graph in shown))
                print_idle(len(found) - len(shown))

    @no_var_expand
    @line_magic
    def rcg_top(self, line: str) -> None:
        """Show throughput, executions in flight and queues while graphs run; see --help."""
        parser = parser_of(
            "rcg_top",
            "Watch graphs while they run: throughput, executions in flight, queues, waiting.\n"
            "Without a name: every live graph. Without the notebook packages, print the numbers.",
            "rcg_widgets.LiveMonitor(cdag), cdag.statistics()",
            "[name]",
        )
        parser.add_argument(
            "--interval", type=seconds, default=0.5, metavar="SECONDS", help="between samples; 0.5"
        )
        parser.add_argument("--text", action="store_true", help="print the numbers now")
        with contextlib.suppress(HelpPrinted):
            options, name = parser.split_name(line)
            if not _MIN_INTERVAL_S <= options.interval <= _MAX_INTERVAL_S:
                raise UsageError(
                    f"%rcg_top: --interval takes a number of seconds from {_MIN_INTERVAL_S} to "
                    f"{_MAX_INTERVAL_S:,}, found {options.interval:g}"
                )
            found = self._find_graphs(name, "rcg_top")
            with _one_sentence("rcg_top"):
                shown = found if name else with_executions(found)
                print_idle(len(found) - len(shown))
                widgets = None if options.text else load_widgets()
                if widgets is None:
                    for graph in shown:
                        print(f"{graph}: {graph.statistics()}")
                    return
                for graph in shown[:MAX_WIDGETS]:
                    display(widgets.LiveMonitor(graph, interval_s=options.interval))
                print_more(len(shown) - MAX_WIDGETS)

    def _find_graphs(self, name: str, magic: str) -> list[CompiledDAG]:
        found = self._find(name, magic)
        if not all(isinstance(graph, CompiledDAG) for graph in found):
            raise UsageError(f"%{magic}: {cut(name)} is not a compiled graph")
        return found

    def _find(self, name: str, magic: str) -> list[Any]:
        """Return the object that a name refers to, or all live graphs."""
        if not name:
            found = live_graphs()
            if not found:
                raise UsageError(
                    f"%{magic}: there is no compiled graph in this process: compile one first, or "
                    f"name a profile or a plan"
                )
            return found[::-1]  # the newest first: the user most likely means it
        try:
            shown = eval(name, self.shell.user_global_ns, self.shell.user_ns)
        except (NameError, SyntaxError) as error:
            raise UsageError(
                f"%{magic}: {quoted(name)} names nothing here: {first_line(error)}"
            ) from None
        except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
            raise UsageError(
                f"%{magic}: {quoted(name)} cannot be evaluated: {type(error).__name__}: "
                f"{first_line(error)}"
            ) from None
        if not isinstance(shown, CompiledDAG | Plan | Profile | Trace):
            kind = type(shown).__name__
            article = "an" if kind[:1].lower() in "aeiou" else "a"
            raise UsageError(
                f"%{magic}: {cut(name)} is {article} {kind}; it takes a compiled graph, a profile, "
                "a trace or a plan"
            )
        return [shown]


def _compiled(shell: InteractiveShell, text: str) -> Callable[[], Any]:
    """Compile the code of a cell as IPython does. Its variables stay in the user's namespace.

    Returns:
        A function that runs the code and returns the value of the expression at its end, if any.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError("%rcg_profile: there is a character in the code that Python cannot read")
    source = shell.transform_cell(text)
    try:
        tree = shell.compile.ast_parse(source)
    except SyntaxError as error:
        raise UsageError(f"%rcg_profile: {error.msg} in line {error.lineno}") from None
    tree = shell.transform_ast(tree)
    shown = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    name = shell.compile.cache(source)  # so that tracebacks show its lines
    module = ast.Module(tree.body[: -1 if shown else None], [])
    try:
        body = shell.compile(module, name, "exec")
        last = shell.compile(ast.Expression(shown.value), name, "eval") if shown else None
    except SyntaxError as error:
        awaits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
        if any(isinstance(node, awaits) for node in ast.walk(tree)):
            why = "a magic cannot await: write `with rcg.profile() as p:` in the cell"
        else:
            why = f"{error.msg} in line {error.lineno}"
        raise UsageError(f"%rcg_profile: {why}") from None

    def run() -> Any:
        exec(body, shell.user_ns)
        return None if last is None else eval(last, shell.user_ns)

    return run


@contextlib.contextmanager
def _one_sentence(magic: str) -> Iterator[None]:
    """Turn an error of rcg into one sentence; not used around the user's code."""
    try:
        yield
    except RcgError as error:
        raise UsageError(f"%{magic}: {first_line(error)}") from None


def _file(option: str, name: str | None) -> Path | None:
    """Return the path of a file to write. It is checked before the user's code runs."""
    if name is None:
        return None
    shown = quoted(name)
    try:
        os.fsencode(name)
        path = Path(name).expanduser()
        is_nothing = "\0" in name
    except (RuntimeError, ValueError):  # no such home, or characters that no path can have
        is_nothing = True
    if is_nothing:
        raise UsageError(
            f"%rcg_profile: --{option} takes a file, but {shown} cannot be the name of one"
        )
    if not path.name or os.path.isdir(path):  # isdir also takes names that are too long
        raise UsageError(f"%rcg_profile: --{option} takes a file, found the folder {shown}")
    if not os.path.isdir(path.parent):
        raise UsageError(
            f"%rcg_profile: there is no folder {quoted(str(path.parent))} to write "
            f"{quoted(path.name)} into: make it, or choose another"
        )
    return path


def _failure(option: str, path: Path, write: Callable[[Path], Any]) -> str | None:
    """Write a file; return why that failed, None if it did not."""
    try:
        write(path)
    except OSError as error:
        why = error.strerror or first_line(error)
        return f"--{option}: {quoted(str(path))} cannot be written: {visible(why)}"
    return None


def load(shell: InteractiveShell) -> None:
    """Register the magics. Calling it again has no effect."""
    shell.register_magics(RcgMagics)
    attach()
