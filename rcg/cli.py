# SPDX-License-Identifier: Apache-2.0
"""The command line: ``rcg``, and the same as ``python -m rcg``.

The exit status is 0 for success, 1 for a failure, which a sentence explains, and 2 for a wrong
command line. ``rcg migrate --help`` explains its own status. Each command loads what it needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rcg.version import __version__

FINE: Final = 0
WRONG: Final = 1
USAGE: Final = 2

_MIN_SECONDS: Final = 0.05
_MAX_SECONDS: Final = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        arguments: The arguments after the program's name; those of this process if None.

    Raises:
        SystemExit: After ``--help`` and ``--version``, and with 2 for a wrong command line.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["bench"]:  # it has a parser of its own
        from rcg.bench.__main__ import main as bench

        return bench(given[1:])
    parser = _parser()
    asked = parser.parse_args(given)
    if asked.command == "attach" and asked.html is not None and asked.profile is None:
        parser.error("attach: --html needs --profile")
    try:
        match asked.command:
            case "trace":
                return _trace(asked)
            case "doctor":
                if asked.connect is not None:
                    return _connect(asked.connect)
                if asked.listen is not None:
                    return _listen(asked.listen)
                return _doctor(is_json=asked.json)
            case "top":
                return _top(asked)
            case "attach":
                return _attach(asked)
            case "migrate":
                return _migrate(asked)
            case _:
                parser.print_help(sys.stderr)
                return USAGE
    except BrokenPipeError:  # `rcg trace FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG


def _trace(asked: argparse.Namespace) -> int:
    from rcg.errors import RcgError
    from rcg.trace.measured import summarize
    from rcg.trace.trace import Trace
    from rcg.views.html.mimebundle import text_of

    try:
        trace = Trace.load(asked.file)
        print(summarize(trace).to_json() if asked.json else text_of(trace))
        if asked.perfetto is not None:
            trace.to_chrome(asked.perfetto)
            _say(f"wrote {asked.perfetto}: open it on ui.perfetto.dev")
        if asked.html is not None:
            from rcg.views.html.page import page_of

            page = page_of(trace, asked.title or asked.file.name)
            asked.html.write_text(page, encoding="utf-8")
            _say(f"wrote {asked.html}: open it in a browser")
    except BrokenPipeError:
        raise
    except (OSError, RcgError) as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _say(f"error: {where}{text}")
        return WRONG
    return FINE


def _doctor(*, is_json: bool) -> int:
    from rcg.doctor import examine

    report = examine()
    print(report.to_json() if is_json else report)
    return WRONG if report.problems else FINE


def _connect(target: str) -> int:
    from rcg.doctor.reach import target_of, try_connect

    try:
        addresses = target_of(target)
    except ValueError as error:
        _say(f"error: {error}")
        return USAGE
    found = []
    for address, is_fine, verdict in try_connect(addresses):
        found.append(is_fine)
        print(f"{'ok' if is_fine else 'failed':<6}  {address}  {verdict}", flush=True)
    if not any(found):
        _say("no way there: see each verdict above")
    return FINE if any(found) else WRONG


def _listen(host: str) -> int:
    from rcg.doctor.nodes import address_here
    from rcg.doctor.reach import listen
    from rcg.errors import RcgError

    try:
        listen(host or address_here(), lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        return FINE
    except (OSError, ValueError, RcgError) as error:
        _say(f"error: {error}")
        return WRONG
    return FINE


def _top(asked: argparse.Namespace) -> int:
    from rcg.top import top

    trouble = top(
        asked.pid,
        is_once=asked.once,
        is_json=asked.json,
        interval_s=asked.interval,
        stuck_after_s=asked.stuck_after,
    )
    if trouble:
        _say(trouble)
    return WRONG if trouble else FINE


def _attach(asked: argparse.Namespace) -> int:
    from rcg.errors import RcgError
    from rcg.runtime.observe.attach import find_live

    try:
        graph = find_live(asked.name, pid=asked.pid)
        if asked.profile is None:
            print(graph.report())
            return FINE
        profile = graph.profile(asked.profile, until_interrupt=True)
        print(profile)
        if asked.html is not None:
            profile.save_html(asked.html)
            _say(f"wrote {asked.html}: open it in a browser")
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return WRONG
    except (OSError, RcgError) as error:
        _say(f"error: {error}")
        return WRONG
    return FINE


def _migrate(asked: argparse.Namespace) -> int:
    from rcg.migrate.command import migrate

    return migrate(asked.paths, is_written=asked.write, is_checked=asked.check)


def _seconds(text: str) -> float:
    found = float(text)
    if not _MIN_SECONDS <= found <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"must be from {_MIN_SECONDS:g} to {_MAX_SECONDS:g} seconds, found {text}"
        )
    return found


def _say(text: str) -> None:
    print(f"rcg: {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rcg", description="Compiled graphs of Ray actors.")
    parser.add_argument("--version", action="version", version=f"rcg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    trace = commands.add_parser(
        "trace", help="what a saved trace shows", description="Print the summary of a saved trace."
    )
    trace.add_argument("file", type=Path, metavar="FILE", help="what `trace.save(FILE)` wrote")
    trace.add_argument("--json", action="store_true", help="print the summary as JSON")
    trace.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained HTML page")
    trace.add_argument(
        "--title", metavar="TEXT", help="title of the page (default: the file's name)"
    )
    trace.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write Chrome trace JSON (.gz: compressed)"
    )
    commands.add_parser("bench", help="measure rcg beside Ray (rcg bench --help)", add_help=False)
    doctor = commands.add_parser(
        "doctor",
        help="what works on this machine, what does not, and what to do",
        description="Check this machine. The exit status is 1 if rcg cannot work here.",
    )
    what = doctor.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print it as JSON")
    what.add_argument(
        "--connect",
        metavar="HOST[:PORT]",
        help="try to reach another node, on which `rcg doctor --listen` runs; without PORT all "
        "ports of RCG_PORT_RANGE",
    )
    what.add_argument(
        "--listen",
        nargs="?",
        const="",
        metavar="HOST",
        help="listen where a graph would, at this machine's address or at HOST, until Ctrl-C",
    )
    top = commands.add_parser(
        "top",
        help="what the graphs of this user's processes do now",
        description="Show the compiled graphs that processes of this user run on this machine: "
        "rates, queues and memory, what each actor does, and where a graph hangs. Their actors are "
        "not asked. The exit status is 1 if there is none.",
    )
    top.add_argument("pid", nargs="?", type=int, metavar="PID", help="only the graphs of this one")
    top.add_argument("--once", action="store_true", help="print text once, after two looks")
    top.add_argument("--json", action="store_true", help="print JSON once")
    top.add_argument(
        "--interval", type=_seconds, default=0.5, metavar="SECONDS", help="between looks; 0.5"
    )
    top.add_argument(
        "--stuck-after",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="a graph hangs after so long without progress, and five times what is usual; 5",
    )
    attach = commands.add_parser(
        "attach",
        help="the report, or a profile, of a graph that another process runs",
        description="Print the report of a graph that another process of this user runs on this "
        "machine, or record it for some seconds and print its profile. The exit status is 1 if "
        "there is no such graph, or several.",
    )
    attach.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the graph, or the beginning of its id"
    )
    attach.add_argument("--pid", type=int, metavar="PID", help="only the graphs of this process")
    attach.add_argument(
        "--profile", type=_seconds, metavar="SECONDS", help="record it so long, from now on"
    )
    attach.add_argument(
        "--html", type=Path, metavar="FILE", help="write the profile as an HTML page as well"
    )
    migrate = commands.add_parser(
        "migrate",
        help="rewrite the import lines of programs written for Ray",
        description="Rewrite import lines so that programs written for Ray use rcg: ray, ray.dag "
        "and ray.experimental become rcg, and nothing else changes. Without --write the changes "
        "are printed as a diff. Remarks on stderr name the lines that you have to check.",
        epilog="Exit status: 0, nothing is left to change; 1, the diff that was printed is not "
        "written, or --check found something; 2, a path could not be read, parsed or written (the "
        "others are processed), or libcst is missing.",
    )
    migrate.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a Python file, a notebook, or a folder with *.py and *.ipynb files",
    )
    how = migrate.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="change the files in place")
    how.add_argument(
        "--check",
        action="store_true",
        help="print only what would not work, or has to be looked at, with rcg",
    )
    return parser
