# SPDX-License-Identifier: Apache-2.0
"""Magics of notebooks: ``%load_ext rcg``.

For each magic there is a call that does the same, which its help names. IPython does not expand
``$name`` and ``{name}`` in the code. Errors of the command line are one sentence.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import keyword
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from IPython.core import magic as ipython_magic
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from rcg.errors import RcgError
from rcg.ipython import attach
from rcg.ir.plan import Plan
from rcg.profiles import Profile
from rcg.progress import progress
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.live import live_graphs, profile_all
from rcg.runtime.observe.report import Reports
from rcg.text import visible
from rcg.trace.analysis.figures import summarize
from rcg.trace.trace import Trace
from rcg.views.html.mimebundle import mimebundle
from rcg.views.svg.pictures import predicted_schedule, schedule_picture, topology_picture

__all__ = ["RcgMagics", "load"]

_LIMIT: Final = 10  # executions in flight, of a plan without a graph
_MAX_RUNS: Final = 1_000_000  # of the code that is profiled
_MIN_INTERVAL_S: Final = 0.05
_MAX_INTERVAL_S: Final = 86_400
_MAX_WIDGETS: Final = 3  # at once
_MAX_GRAPHS: Final = 6  # whose pictures are shown at once
_MAX_ERROR_CHARS: Final = 200  # characters of an error
_MAX_QUOTED_CHARS: Final = 80  # of what the user wrote
_WIDGETS: Final = (
    'the interactive views need more packages: pip install ".[notebook]" in the folder of rcg'
)

_OPTION: Final = re.compile(r"""\s*(-[^\s=]+)(?:=("[^"]*"|'[^']*'|\S+))?""")
_LATER_OPTION: Final = re.compile(r"\s(?=-)")
_VALUE: Final = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")

_Magic = TypeVar("_Magic", bound=Callable[..., Any])


def _silenced(magic: _Magic) -> _Magic:
    """Let a ``;`` at the end silence a magic's value, where IPython can (from 8.11 on)."""
    mark = getattr(ipython_magic, "output_can_be_silenced", None)
    if mark is not None:
        mark(magic)  # sets an attribute
    return magic


def _whole(text: str) -> int:
    """Return a whole number; one of very many digits is not for Python to read either."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {_quoted(text)}") from None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {_quoted(text)}") from None


def _number_text(number: int) -> str:
    """Return a number, or of a long one how long it is: Python prints no 5000 digits."""
    return str(number) if abs(number) < 10**20 else "one of more than 20 digits"


def _cut(text: str) -> str:
    """Return the user's text on one line, cut if it is long."""
    return visible(text[:_MAX_QUOTED_CHARS] + ("..." if len(text) > _MAX_QUOTED_CHARS else ""))


def _quoted(text: str) -> str:
    return f"'{_cut(text)}'"


def _shortened(message: str) -> str:
    """Return a message of argparse, with the middle of long words left out."""
    half = _MAX_ERROR_CHARS // 2
    return message if len(message) <= _MAX_ERROR_CHARS else f"{message[:half]}...{message[-half:]}"


class _HelpTold(Exception):
    """Help was asked for, and printed."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%{self.prog}: {visible(_shortened(message))} (see %{self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _HelpTold

    def split(self, line: str) -> tuple[argparse.Namespace, str]:
        """Parse the options at the beginning of a line; return them and the unchanged rest."""
        options: list[str] = []
        at = 0
        while found := _OPTION.match(line, at):
            name, value = found.groups()
            is_joined = value is None and self._is_joined(name)
            action = self._option_string_actions.get(name)
            if action is None and not name.startswith("--") and not is_joined:
                break  # code that begins with a minus
            at = found.end()
            if name == "--":
                break
            options.append(name if value is None else f"{name}={' '.join(self._unquoted(value))}")
            takes_value = action is not None and action.nargs is None
            if takes_value and value is None and (found := _VALUE.match(line, at)):
                at = found.end()
                options += self._unquoted(found[1])
        return self.parse_args(options), line[at:].strip()

    def split_name(self, line: str) -> tuple[argparse.Namespace, str]:
        """Parse a line with a name, before or behind which options are; returns them and it."""
        line = line.strip().rstrip(";")
        options, name = self.split(line)
        for found in _LATER_OPTION.finditer(name):
            before, behind = name[: found.start()].rstrip(), name[found.end() :]
            first = _OPTION.match(behind)
            is_option = first is not None and (
                first[1] in self._option_string_actions or re.match("--[a-z]", first[1])
            )
            if is_option and _is_expression(before):
                ahead = line[: len(line) - len(name)].rstrip().removesuffix("--")
                options, rest = self.split(f"{ahead} {behind}")
                if rest:
                    self.error(f"there is unexpected text after the options: {_quoted(rest)}")
                return options, before
        return options, name

    def _is_joined(self, text: str) -> bool:
        """Whether it is a short option with its value, as in ``-n5`` and ``-op``."""
        action = self._option_string_actions.get(text[:2])
        if action is None or action.nargs is not None or len(text) < 3 or text[1] == "-":
            return False
        return text[2:].isdecimal() if action.type is _whole else text[2:].isidentifier()

    def _unquoted(self, value: str) -> list[str]:
        try:
            return shlex.split(value)
        except ValueError as error:
            self.error(f"{_cut(value)}: {error}")


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


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
        "-n", metavar="EXECUTIONS", type=_whole, default=1, help="run the code this many times"
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
    @_silenced
    def rcg_profile(self, line: str, cell: str | None = None) -> Any:
        """Profile the compiled graphs that run in a statement or a cell; see --help."""
        with contextlib.suppress(_HelpTold):
            options, code = _profile_parser().split(line if cell is None else line.rstrip("; "))
            if cell is not None and code:
                raise UsageError(
                    f"%%rcg_profile: {_quoted(code)} is not an option (see %rcg_profile --help)"
                )
            if not 1 <= options.n <= _MAX_RUNS:
                raise UsageError(
                    f"%rcg_profile: -n takes a number from 1 to {_MAX_RUNS:,}, found "
                    f"{_number_text(options.n)}"
                )
            if options.o is not None and (
                not options.o.isidentifier() or keyword.iskeyword(options.o)
            ):
                raise UsageError(
                    f"%rcg_profile: -o takes a variable's name, found {_quoted(options.o)}"
                )
            for option in ("html", "perfetto"):
                setattr(options, option, _file(option, getattr(options, option)))
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
        with _one_sentence("rcg_profile"):
            # Files come last, so that the profile is shown even if they cannot be written.
            if not options.quiet:
                display(profile)
                if options.widget:
                    _display_widgets("TimelineWidget", profile)
            failed = [
                _failure(option, path, write)
                for option, path, write in (
                    ("html", options.html, profile.save_html),
                    ("perfetto", options.perfetto, profile.trace.to_chrome),
                )
                if path is not None
            ]
        if any(failed):
            raise UsageError(f"%rcg_profile: {'; '.join(filter(None, failed))}")
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
            "--channels", action="store_true", help="show which channel carries which value"
        )
        parser.add_argument("--widget", action="store_true", help="show an interactive view")
        with contextlib.suppress(_HelpTold):
            options, name = parser.split_name(line)
            found = self._named(name, "rcg_graph")
            with _one_sentence("rcg_graph"):
                if options.widget and _display_widgets("TopologyWidget", *found):
                    return
                _display(
                    [
                        picture
                        for shown in found
                        for picture in _topologies(shown, channel_details=options.channels)
                    ],
                    "rcg_graph",
                    "there is no graph in it: compile one before recording",
                )

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
            options, name = parser.split_name(line)
            found = self._named(name, "rcg_schedule")
            with _one_sentence("rcg_schedule"):
                if options.widget and _display_widgets("ScheduleWidget", *found):
                    return
                _display(
                    [picture for shown in found for picture in _schedules(shown)],
                    "rcg_schedule",
                    "no execution is in it from beginning to end: run some while recording, or "
                    "record for longer",
                )

    @no_var_expand
    @line_magic
    def rcg_report(self, line: str) -> None:
        """Show what each process does, since when, and what it waits for; see --help."""
        parser = _parser(
            "rcg_report",
            "Show what each process does, since when, and what it waits for, even if actors hang.\n"
            "Without a name: every live graph.",
            "cdag.report(), rcg.report()",
            "[name]",
        )
        with contextlib.suppress(_HelpTold):
            _, name = parser.split_name(line)
            found = self._named(name, "rcg_report")
            for graph in found:
                if not isinstance(graph, CompiledDAG):
                    raise UsageError(f"%rcg_report: {_cut(name)} is not a compiled graph")
            with _one_sentence("rcg_report"):
                shown = found if name else _that_ran(found)
                display(Reports(graph.report() for graph in shown))
                _tell_idle(len(found) - len(shown))

    @no_var_expand
    @line_magic
    def rcg_top(self, line: str) -> None:
        """Show throughput, executions in flight and queues while graphs run; see --help."""
        parser = _parser(
            "rcg_top",
            "Watch graphs while they run: throughput, executions in flight, queues, idle share.\n"
            "Without a name: every live graph. Without the notebook packages, print the numbers.",
            "rcg_widgets.LiveMonitor(cdag), cdag.statistics()",
            "[name]",
        )
        parser.add_argument(
            "--interval", type=_seconds, default=0.5, metavar="SECONDS", help="between samples; 0.5"
        )
        parser.add_argument("--text", action="store_true", help="print the numbers now")
        with contextlib.suppress(_HelpTold):
            options, name = parser.split_name(line)
            if not _MIN_INTERVAL_S <= options.interval <= _MAX_INTERVAL_S:
                raise UsageError(
                    f"%rcg_top: --interval takes a number of seconds from {_MIN_INTERVAL_S} to "
                    f"{_MAX_INTERVAL_S:,}, found {options.interval:g}"
                )
            found = self._named(name, "rcg_top")
            for graph in found:
                if not isinstance(graph, CompiledDAG):
                    raise UsageError(f"%rcg_top: {_cut(name)} is not a compiled graph")
            with _one_sentence("rcg_top"):
                count = len(found)
                found = found if name else _that_ran(found)
                _tell_idle(count - len(found))
                widgets = None if options.text else _widgets()
                if widgets is not None:
                    for graph in found[:_MAX_WIDGETS]:
                        display(widgets.LiveMonitor(graph, interval_s=options.interval))
                    _tell_more(len(found) - _MAX_WIDGETS)
                    return
                for graph in found:
                    print(f"{graph}: {graph.statistics()}")

    def _named(self, name: str, magic: str) -> list[Any]:
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
                f"%{magic}: {_quoted(name)} names nothing here: {_told(error)}"
            ) from None
        except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
            raise UsageError(
                f"%{magic}: {_quoted(name)} cannot be evaluated: {type(error).__name__}: "
                f"{_told(error)}"
            ) from None
        if not isinstance(shown, CompiledDAG | Plan | Profile | Trace):
            raise UsageError(
                f"%{magic}: {_cut(name)} is {_with_article(type(shown).__name__)}; it takes a "
                "compiled graph, a profile, a trace or a plan"
            )
        return [shown]


class _Code:
    """Code of a cell, compiled once; running it leaves its variables in the user's namespace."""

    def __init__(self, shell: InteractiveShell, text: str) -> None:
        self._namespace = shell.user_ns
        if "\0" in text or not _is_unicode(text):
            raise UsageError(
                "%rcg_profile: there is a character in the code that Python cannot read"
            )
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
    """Return the topology of each graph, with the object to show."""
    if isinstance(shown, Profile):
        shown = shown.trace
    if isinstance(shown, Trace):
        shown = shown.active
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
    """Return the schedule of each graph, with the object to show."""
    if isinstance(shown, Profile):
        shown = shown.trace
    if isinstance(shown, Trace):
        graphs = shown.active.graphs
        made = [(_name(graph.graph_id), schedule_picture(shown, graph)) for graph in graphs]
        return [(f"Schedule of {name}", svg) for name, svg in made if svg is not None]
    if isinstance(shown, Plan):
        return [("Schedule of the plan", predicted_schedule(shown, _LIMIT))]
    limit = shown.plan.window
    return [(f"Schedule of {_name(shown.get_id())}", predicted_schedule(shown.plan, limit))]


def _name(graph_id: str) -> str:
    return f"CompiledDAG({graph_id[:8]})"


def _with_article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _told(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return visible(str(error).strip().partition("\n")[0])[:_MAX_ERROR_CHARS]


@contextlib.contextmanager
def _one_sentence(magic: str) -> Iterator[None]:
    """Show an error of rcg in one sentence; not for code of the user."""
    try:
        yield
    except RcgError as error:
        raise UsageError(f"%{magic}: {_told(error)}") from None


def _file(option: str, name: str | None) -> Path | None:
    """Return the file to write; checked before the user's code runs."""
    if name is None:
        return None
    shown = _quoted(name)
    try:
        os.fsencode(name)
        path = Path(name).expanduser()
        is_nothing = "\0" in name
    except (RuntimeError, ValueError):  # no such home; what no path can have in it
        is_nothing = True
    if is_nothing:
        raise UsageError(
            f"%rcg_profile: --{option} takes a file, but {shown} cannot be the name of one"
        )
    if not path.name or os.path.isdir(path):  # also of names that are too long
        raise UsageError(f"%rcg_profile: --{option} takes a file, found the folder {shown}")
    if not os.path.isdir(path.parent):
        raise UsageError(
            f"%rcg_profile: there is no folder {_quoted(str(path.parent))} to write "
            f"{_quoted(path.name)} into: make it, or choose another"
        )
    return path


def _failure(option: str, path: Path, write: Callable[[Path], Any]) -> str | None:
    """Write a file; returns why that failed."""
    try:
        write(path)
    except OSError as error:
        why = error.strerror or _told(error)
        return f"--{option}: {_quoted(str(path))} cannot be written: {visible(why)}"
    return None


def _display(pictures: Sequence[tuple[str, str]], magic: str, nothing: str) -> None:
    """Show pictures; a sentence if there are none."""
    for alt, svg in pictures[:_MAX_GRAPHS]:
        display(mimebundle(alt, [(alt, svg)]), raw=True)
    _tell_more(len(pictures) - _MAX_GRAPHS)
    if not pictures:
        print(f"%{magic}: there is nothing to show: {nothing}")


def _tell_more(count: int) -> None:
    if count > 0:
        print(f"{count} more graph{'' if count == 1 else 's'}: name one to see it")


def _that_ran(graphs: list[CompiledDAG]) -> list[CompiledDAG]:
    """Return the graphs that something was submitted to; all if there is none."""
    return [graph for graph in graphs if graph.statistics().executions] or graphs


def _tell_idle(count: int) -> None:
    if count:
        have = "graph has" if count == 1 else "graphs have"
        print(f"{count} more {have} not run yet: name one to see it")


def _widgets() -> Any:
    """Return the interactive views; None, and one line on how to get them, without them."""
    try:
        return importlib.import_module("rcg_widgets")
    except ImportError:
        print(_WIDGETS)
        return None


def _display_widgets(name: str, *shown: Any) -> bool:
    """Show an interactive view of each graph; False if they are not installed, or without any.

    Of a trace those graphs are shown that something happened in.
    """
    widgets = _widgets()
    if widgets is None:
        return False
    wanted: list[tuple[Any, dict[str, int]]] = []
    for each in shown:
        trace = each.trace if isinstance(each, Profile) else each
        if isinstance(trace, Trace):
            wanted += [
                (trace, {"graph": number})
                for number, graph in enumerate(trace.graphs)
                if graph.is_active
            ]
        else:
            wanted.append((each, {}))
    for each, options in wanted[:_MAX_WIDGETS]:
        display(getattr(widgets, name)(each, **options))
    _tell_more(len(wanted) - _MAX_WIDGETS)
    return bool(wanted)


def load(shell: InteractiveShell) -> None:
    """Register the magics; again is harmless."""
    shell.register_magics(RcgMagics)
    attach()
