# SPDX-License-Identifier: Apache-2.0
"""The command ``rcg migrate``: which files it takes, what it prints and writes, and its status."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rcg import cli
from rcg.migrate import command
from rcg.migrate.notebook import rewrite_notebook
from rcg.migrate.rewrite import SourceError
from tests.harness.files import make
from tests.harness.peers import ctrl_c_anywhere, descriptors


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_diff_is_printed_and_nothing_is_written(folder, capsys):
    make(folder, {"a.py": "import ray\nray.get(1)", "b.py": "import os\n"})
    assert cli.main(["migrate", "a.py", "b.py"]) == 1
    found = capsys.readouterr()
    assert found.out == (
        "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n-import ray\n+import rcg as ray\n ray.get(1)\n"
        "\\ No newline at end of file\n"
    )
    assert found.err == "rcg: would change 1 of 2 files; --write changes them\n"
    assert (folder / "a.py").read_text() == "import ray\nray.get(1)"


def test_write_changes_the_files_once(folder, capsys):
    make(folder, {"a.py": "import ray\n", "b.py": "import os\n"})
    assert cli.main(["migrate", "--write", "a.py", "b.py"]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == "rcg: changed 1 of 2 files\n"
    assert (folder / "a.py").read_text() == "import rcg as ray\n"
    before = os.stat("a.py").st_ino, os.stat("b.py").st_ino
    assert cli.main(["migrate", "--write", "."]) == 0
    assert (os.stat("a.py").st_ino, os.stat("b.py").st_ino) == before
    assert capsys.readouterr().err == "rcg: changed 0 of 2 files\n"
    assert cli.main(["migrate", "."]) == 0


def test_encoding_newlines_mode_and_links_are_kept(folder):
    latin = "# coding: latin-1\r\nimport ray  # \xe9\r\n"
    (folder / "latin.py").write_bytes(latin.encode("latin-1"))
    (folder / "bom.py").write_bytes(b"\xef\xbb\xbfimport ray\n")
    (folder / "latin.py").chmod(0o751)
    (folder / "link.py").symlink_to("latin.py")
    assert cli.main(["migrate", "--write", "link.py", "bom.py"]) == 0
    wanted = latin.replace("import ray", "import rcg as ray")
    assert (folder / "latin.py").read_bytes() == wanted.encode("latin-1")
    assert (folder / "latin.py").stat().st_mode & 0o777 == 0o751
    assert (folder / "link.py").is_symlink()
    assert (folder / "bom.py").read_bytes() == b"\xef\xbb\xbfimport rcg as ray\n"
    assert len(list(folder.iterdir())) == 3


def test_a_failed_write_leaves_the_file_and_nothing_else(folder, monkeypatch, capsys):
    make(folder, {"a.py": "import ray\n", "b.py": "import ray\n"})

    def refuse(source: str, target: Path) -> None:
        if Path(target).name == "a.py":
            raise PermissionError(13, "Permission denied")
        os.rename(source, target)

    monkeypatch.setattr(command.os, "replace", refuse)
    assert cli.main(["migrate", "--write", "."]) == 2
    assert "rcg: error: a.py: Permission denied\n" in capsys.readouterr().err
    assert (folder / "a.py").read_text() == "import ray\n"
    assert (folder / "b.py").read_text() == "import rcg as ray\n"
    assert len(list(folder.iterdir())) == 2


def test_ctrl_c_while_a_file_is_written_leaves_it_old_or_new_and_nothing_else(folder):
    old, new = "import ray\n", "import rcg as ray\n"
    path = folder / "program.py"
    path.write_text(old)
    before = descriptors()
    for _ in ctrl_c_anywhere(lambda: command.write(command.read(path), new), command.__name__):
        assert path.read_text() in (old, new)
        assert list(folder.iterdir()) == [path]
        assert descriptors() <= before
        path.write_text(old)


def test_folders_are_searched_without_what_is_not_the_users(folder):
    names = ["b.py", "a/x.py", "a/y.ipynb", "a/z.txt", ".git/x.py", "a/.venv/x.py", "env/x.py"]
    names += ["env/pyvenv.cfg", "node_modules/pack/x.py", "a/__pycache__/x.py", ".hidden.py"]
    make(folder, dict.fromkeys(names, ""))
    found = [str(path) for path in command.find(Path("."))]
    assert found == [".hidden.py", "a/x.py", "a/y.ipynb", "b.py"]
    assert [str(path) for path in command.find(Path("env"))] == ["env/x.py"]  # asked for by name


def test_a_check_prints_only_what_would_not_work(folder, capsys):
    old = "import ray\nfrom ray.dag import GPUFuture\n\nnode.traverse_and_apply(print)\n"
    make(folder, {"a.py": old, "b.py": "import ray\n"})
    assert cli.main(["migrate", "--check", "."]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "rcg: a.py:2: rcg has no `GPUFuture` of ray.dag; the import stays Ray's",
        "rcg: a.py:4: `.traverse_and_apply` is internal to Ray's graphs, and rcg's have none",
        "rcg: 2 remarks on 2 files",
    ]
    assert (folder / "a.py").read_text() == old
    assert cli.main(["migrate", "--check", "b.py"]) == 0
    assert capsys.readouterr().err == "rcg: no remarks on 1 file\n"


def test_a_file_that_is_named_twice_is_done_once(folder, capsys):
    make(folder, {"a.py": "import ray\n"})
    assert cli.main(["migrate", "a.py", ".", "./a.py"]) == 1
    assert capsys.readouterr().out.count("+++") == 1


def test_a_file_by_name_needs_no_suffix(folder, capsys):
    make(folder, {"tool": "#!/usr/bin/env python\nimport ray\n"})
    assert cli.main(["migrate", "tool"]) == 1
    assert "+import rcg as ray" in capsys.readouterr().out


def test_what_cannot_be_done_is_one_sentence_and_the_others_are_done(folder, capsys):
    make(folder, {"a.py": "import ray\n", "broken.py": "import ray\nx = = 1\n", "no.ipynb": "[]"})
    (folder / "binary.py").write_bytes(b"import ray\n\xff\n")
    (folder / "cookie.py").write_bytes(b"# coding: no-such\nimport ray\n")
    assert cli.main(["migrate", "--write", "gone", "."]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rcg: error: gone: there is no such file or folder"
    assert "rcg: error: binary.py: the file is not UTF-8" in lines
    assert "rcg: error: cookie.py: the file is not UTF-8" in lines
    assert "rcg: error: broken.py:2: the code does not parse as Python" in lines
    assert "rcg: error: no.ipynb:1: this is not a notebook of version 4" in lines
    assert lines[-1] == "rcg: changed 1 of 5 files"
    assert len(lines) == 6
    assert (folder / "a.py").read_text() == "import rcg as ray\n"


def test_a_folder_without_programs_is_nothing_to_do(folder, capsys):
    assert cli.main(["migrate", "."]) == 0
    assert capsys.readouterr().err == "rcg: there are no Python files and no notebooks here\n"


def test_remarks_have_the_lines_of_the_file_as_it_is_left(folder, capsys):
    make(folder, {"a.py": 'import ray.util\nimport_module("ray.dag")\n'})
    expected = 'the string "ray.dag" names Ray\'s own; write rcg if that is meant'
    cli.main(["migrate", "."])
    assert f"rcg: a.py:2: {expected}\n" in capsys.readouterr().err
    cli.main(["migrate", "--write", "."])
    found = capsys.readouterr().err
    assert f"rcg: a.py:3: {expected}\n" in found
    assert found.endswith("rcg: changed 1 of 1 file, 1 remark\n")
    cli.main(["migrate", "."])
    assert f"rcg: a.py:3: {expected}\n" in capsys.readouterr().err


def test_without_libcst_it_says_what_to_install(folder, monkeypatch, capsys):
    make(folder, {"a.py": "import ray\n"})
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert cli.main(["migrate", "--write", "a.py"]) == 2
    expected = "migrate needs libcst: pip install 'rcg[migrate]'"
    assert capsys.readouterr().err == f"rcg: error: {expected}\n"
    assert (folder / "a.py").read_text() == "import ray\n"


# --- what a star import binds -------------------------------------------------------------------

IMPORTER = "import ray\nfrom {} import *\n"
KNOWN = {
    "import ray": True,
    "import ray.util": True,
    "import os as ray\nimport ray": True,
    "try:\n    import ray\nexcept ImportError:\n    pass": True,
    "if True:\n    from other import *": True,
    "from .other import ray": True,
    "__all__ = ['ray']\nimport ray": True,
    "import rcg as ray": False,
    "import ray\nimport rcg as ray": False,
    "import ray as r": False,
    "from ray import get": False,
    "def f():\n    import ray": False,
    "__all__ = ['x']\nimport ray": False,
    "from helpers import *": False,
    "x = 1": False,
}


@pytest.mark.parametrize(("text", "binds"), KNOWN.items())
def test_a_star_import_of_a_file_beside_is_looked_into(text, binds, folder, capsys):
    make(
        folder, {"a.py": IMPORTER.format("helpers"), "helpers.py": text, "other.py": "import ray\n"}
    )
    cli.main(["migrate", "a.py"])
    expected = "rcg: a.py:2: `from helpers import *` binds `ray` to Ray again: "
    found = capsys.readouterr().err
    assert (expected in found) is binds
    assert found.count("rcg: a.py") == binds


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("x.helpers", "x/helpers.py"),
        ("x", "x/__init__.py"),
        (".helpers", "pack/helpers.py"),
        (".", "pack/__init__.py"),
        ("..helpers", "helpers.py"),
        ("pack.helpers", "pack/helpers.py"),
    ],
)
def test_where_a_module_is_looked_for(module, path, folder, capsys):
    make(folder, {"pack/a.py": IMPORTER.format(module)})
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text("\nimport ray\n")
    cli.main(["migrate", "."])
    found = capsys.readouterr().err
    expected = (
        f"pack/a.py:2: `from {module} import *` binds `ray` again, to rcg only once {path}:2 "
    )
    assert expected in found


def test_a_module_that_is_not_found_may_bind_it(folder, capsys):
    make(folder, {"a.py": IMPORTER.format("helpers")})
    cli.main(["migrate", "a.py"])
    assert "a.py:2: `from helpers import *` may bind `ray`" in capsys.readouterr().err


# --- notebooks ----------------------------------------------------------------------------------


def notebook(*cells: str | list[str], **metadata: Any) -> dict[str, Any]:
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    text = {"cell_type": "markdown", "metadata": {}, "source": "import ray"}
    return {"cells": [*made, text], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def cells_of(text: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"][:-1]]


@pytest.mark.parametrize(
    "style",
    [
        {"indent": 1, "ensure_ascii": False},
        {"indent": 1},
        {"indent": 2},
        {"indent": "\t"},
        {},
        {"separators": (",", ":")},
    ],
)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_notebook_keeps_its_format(style, end):
    before = notebook(["import ray\n", "import ray.util"], "import ray.dag  # \xe9", "1")
    after = notebook(
        ["import rcg as ray\n", "import ray.util as _ray_util"], "import rcg as ray  # \xe9", "1"
    )
    assert rewrite_notebook(json.dumps(before, **style) + end).text == (
        json.dumps(after, **style) + end
    )


@pytest.mark.parametrize(
    "cell",
    [
        "%matplotlib inline\nimport ray",
        "!pip install ray\nimport ray",
        "!pip install \\\n  ray\nimport ray",
        "if x:\n    !ls\n    import ray",
        "files = !ls\nimport ray\nray?",
        "??ray\nimport ray\nx = %time f()",
        "%%time\nimport ray\nawait f()",
        "%%capture out\nimport ray",
        "s = '''\n%s\n!ls\n'''\nimport ray  # magic0",
        "import ray\nx = 5 \\\n  % 3",
        "import ray; x = a['b'] != c",
    ],
)
def test_what_only_ipython_reads_stays(cell):
    done = rewrite_notebook(json.dumps(notebook(cell)))
    assert done.remarks == ()
    assert cells_of(done.text) == [cell.replace("import ray", "import rcg as ray")]
    assert rewrite_notebook(done.text).text == done.text


@pytest.mark.parametrize("cell", ["%%bash\nimport ray", "%%javascript\nimport ray", ""])
def test_cells_in_other_languages_stay(cell):
    assert cells_of(rewrite_notebook(json.dumps(notebook(cell))).text) == [cell]


@pytest.mark.parametrize("metadata", [[], 1, {"kernelspec": 1}])
def test_metadata_may_be_anything(metadata):
    text = json.dumps({**notebook("import ray"), "metadata": metadata})
    assert cells_of(rewrite_notebook(text).text) == ["import rcg as ray"]


def test_notebooks_in_other_languages_stay():
    text = json.dumps(notebook("import ray", language_info={"name": "julia"}))
    assert rewrite_notebook(text).text == text


def test_remarks_of_a_notebook_name_the_cell(folder, capsys):
    cells = ["import ray", "x = = 1", "1\nray._private.x", "from helpers import *"]
    make(folder, {"a.ipynb": json.dumps(notebook(*cells))})
    assert cli.main(["migrate", "--write", "."]) == 0
    found = capsys.readouterr().err
    assert (
        "rcg: a.ipynb:cell 2:1: the code does not parse as Python, so the cell is left as it is"
        in found
    )
    assert "rcg: a.ipynb:cell 3:2: `ray._private` does not reach Ray" in found
    assert "rcg: a.ipynb:cell 4:1: `from helpers import *` may bind `ray`" in found
    assert cells_of((folder / "a.ipynb").read_text()) == ["import rcg as ray", *cells[1:]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"cells": 1}',
        '{"cells": [{"cell_type": "code", "source": 1}]}',
        '{"cells":  []}',
        '{"cells": [], "metadata": [], "x": 1, "cells": [{"cell_type": "code", "source": ""}]}',
    ],
)
def test_what_is_not_a_notebook_is_an_error(text):
    with pytest.raises(SourceError) as raised:
        rewrite_notebook(text)
    assert "\n" not in str(raised.value)
