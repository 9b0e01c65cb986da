# SPDX-License-Identifier: Apache-2.0
"""Parses the lines of magics: options, and a name or code that stays as it is."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from typing import Final, NoReturn

from IPython.core.error import UsageError

from rcg.text import visible

_MAX_ERROR_CHARS: Final = 200
_MAX_QUOTED_CHARS: Final = 80  # of what the user wrote

_OPTION: Final = re.compile(r"""\s*(-[^\s=]+)(?:=("[^"]*"|'[^']*'|\S+))?""")
_LATER_OPTION: Final = re.compile(r"\s(?=-)")
_VALUE: Final = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")


def whole_number(text: str) -> int:
    """Return a whole number. Python refuses to read one of very many digits, too."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {quoted(text)}") from None


def seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {quoted(text)}") from None


def number_text(number: int) -> str:
    """Return a number as text; a long one is described, because Python prints no 5000 digits."""
    return str(number) if abs(number) < 10**20 else "one of more than 20 digits"


def cut(text: str) -> str:
    """Return the user's text on one line, cut if it is long."""
    return visible(text[:_MAX_QUOTED_CHARS] + ("..." if len(text) > _MAX_QUOTED_CHARS else ""))


def quoted(text: str) -> str:
    """Return the user's text on one line, in quotes, cut if it is long."""
    return f"'{cut(text)}'"


class HelpPrinted(Exception):
    """The help was printed, as the user asked for."""


class MagicParser(argparse.ArgumentParser):
    """A parser that raises instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as an error of usage, with the middle of a long one left out."""
        half = _MAX_ERROR_CHARS // 2
        if len(message) > _MAX_ERROR_CHARS:
            message = f"{message[:half]}...{message[-half:]}"
        raise UsageError(f"%{self.prog}: {visible(message)} (see %{self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise ``HelpPrinted``: argparse exits after it has printed the help."""
        raise HelpPrinted

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
            options.append(name if value is None else f"{name}={' '.join(self._unquote(value))}")
            takes_value = action is not None and action.nargs is None
            if takes_value and value is None and (found := _VALUE.match(line, at)):
                at = found.end()
                options += self._unquote(found[1])
        return self.parse_args(options), line[at:].strip()

    def split_name(self, line: str) -> tuple[argparse.Namespace, str]:
        """Parse a line with a name and options on either side of it; return options and name."""
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
                    self.error(f"there is unexpected text after the options: {quoted(rest)}")
                return options, before
        return options, name

    def _is_joined(self, text: str) -> bool:
        """Return whether a word is a short option with its value, as in ``-n5`` and ``-op``."""
        action = self._option_string_actions.get(text[:2])
        if action is None or action.nargs is not None or len(text) < 3 or text[1] == "-":
            return False
        return text[2:].isdecimal() if action.type is whole_number else text[2:].isidentifier()

    def _unquote(self, value: str) -> list[str]:
        try:
            return shlex.split(value)
        except ValueError as error:
            self.error(f"{cut(value)}: {error}")


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def parser_of(name: str, what: str, instead: str, subject: str = "") -> MagicParser:
    """Return the parser of a magic, without options; ``instead`` is the call that does the same."""
    return MagicParser(
        prog=name,
        usage=f"%%{name} [options] {subject}".strip(),  # argparse formats it
        description=what,
        epilog=f"In code: {instead}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return visible(str(error).strip().partition("\n")[0])[:_MAX_ERROR_CHARS]
