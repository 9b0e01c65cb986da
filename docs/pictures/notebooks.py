# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks and stores what they show.

`make pictures` runs this for all of them; names choose some. A notebook is stored only if its run
was clean: no error but in the cells that are there to show one, nothing on stderr, no path of this
machine. What needs a running kernel is left out, and so is what says when a cell ran.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

from tests.harness.drawn import digest
from tests.harness.readme import ROOT

FOLDER: Final = ROOT / "notebooks"
NEEDS_VLLM: Final = ("vllm_inside.ipynb",)
"""Notebooks that run in the environment of ``make vllm``, which also stores them."""
_CELL_TIMEOUT_S: Final = 120
_MAX_BUSY: Final = 0.2
_MAX_RUNS: Final = 3  # on a busy machine, Ray may have remarks about that

_METADATA: Final[dict[str, Any]] = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "pygments_lexer": "ipython3"},
}
_NEEDS_A_KERNEL: Final = "application/vnd.jupyter.widget-view+json"
_RAYLET: Final = re.compile(r"^.*\(raylet\).*(?:\n {4}.*)*\n?|^\n", re.MULTILINE)
"""What Ray prints about a death, whenever that comes, and the blank lines which that leaves."""
_PATH: Final = re.compile(r"/root/|/home/|/tmp/(?!ipykernel_)|site-packages")


def main(names: list[str]) -> None:
    """Store the notebooks with these names; without names, all that need no vLLM."""
    paths = [FOLDER / f"{Path(name).stem}.ipynb" for name in names] or [
        path for path in sorted(FOLDER.glob("*.ipynb")) if path.name not in NEEDS_VLLM
    ]
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # where no other Ray is found
        os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'widgets'}"
        failed = [path.name for path in paths if not store(path)]
    if failed:
        raise SystemExit(f"not stored: {', '.join(failed)}")


def store(path: Path) -> bool:
    """Run a notebook and store it if its outputs are fit for that; return whether they were."""
    for _ in range(_MAX_RUNS):
        busy = _busy()
        if busy > _MAX_BUSY:
            print(f"{path.name}: {busy:.0%} of this machine is busy, so its times will mislead")
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(
            notebook,
            timeout=_CELL_TIMEOUT_S,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(FOLDER)}},
        ).execute()
        notebook.metadata = nbformat.from_dict(_METADATA | {"rcg": {"drawn": digest()}})
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for cell in code:
            cell.metadata.pop("execution", None)
            cell.outputs = cleaned(cell.outputs)
            if path.name in NEEDS_VLLM:  # vLLM's remarks, some on what this machine lacks
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        wrong = [text for cell in code for output in cell.outputs for text in _wrong(output)]
        if not wrong:
            nbformat.write(notebook, path)
            print(f"{path.name}: stored", flush=True)
            return True
        print(f"{path.name}: not stored, because it shows {wrong[0]!r}", flush=True)
    return False


def _busy() -> float:
    """Return which share of the processors other programs have used in a second."""
    found = []
    for wait_s in (1, 0):
        times = [int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]]
        found.append((sum(times), times[3] + times[4]))  # all, idle
        time.sleep(wait_s)
    (first, first_idle), (last, last_idle) = found
    return 1 - (last_idle - first_idle) / (last - first)


def cleaned(outputs: Iterable[Any]) -> list[Any]:
    """Return the outputs of a cell without what passes, and joined: parts are a matter of time."""
    found: list[Any] = []
    for output in outputs:
        data = output.get("data", {})
        if data.pop(_NEEDS_A_KERNEL, None) and "text/html" not in data:
            continue  # a bar of progress, which a busy machine shows
        if "(raylet)" in output.get("text", ""):
            output.text = _RAYLET.sub("", output.text)
        last = found[-1] if found else {}
        if "text" in output and last.get("name") == output.name:
            last.text += output.text
        elif output.get("text", "visible").strip():
            found.append(output)
    return found


def _wrong(output: Any) -> list[str]:
    """Return what must not be stored."""
    if output.get("name") == "stderr":
        return [output.text]
    return [match[0] for match in [_PATH.search(str(output))] if match]


if __name__ == "__main__":
    main(sys.argv[1:])
