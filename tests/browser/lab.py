# SPDX-License-Identifier: Apache-2.0
"""A real JupyterLab and a real browser: open a notebook, run it, look at what it shows."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import nbformat

ROOT: Final = Path(__file__).resolve().parents[2]
SCREENSHOTS: Final = ROOT / "build" / "screenshots"
CHROMIUM: Final = os.environ.get("RCG_CHROMIUM") or shutil.which("chromium")

THEMES: Final = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

# Nothing asks whether to fetch news, every cell is in the page, and nothing is saved.
_SETTINGS: Final = {
    "@jupyterlab/apputils-extension/notification": (
        '{"fetchNews": "false", "checkForUpdates": false}'
    ),
    "@jupyterlab/notebook-extension/tracker": '{"windowingMode": "none"}',
    "@jupyterlab/docmanager-extension/plugin": '{"autosave": false}',
}

# Of the lab's own, not of what a notebook shows.
_HARMLESS: Final = (
    "favicon",
    "ResizeObserver loop",
    "Failed to load resource",  # settings that were never saved
)

_RUN = """async () => {
  const panel = jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  return await jupyterapp.commands.execute("notebook:run-all-cells");
}"""

_OUTPUTS = """() => jupyterapp.shell.currentWidget.content.widgets
  .filter((cell) => cell.model.type === "code")
  .map((cell) => cell.model.toJSON().outputs)"""


def data(card: Any) -> dict[str, str]:
    """What a card says of itself."""
    return card.evaluate("(card) => ({...card.dataset})")


def wait_for(card: Any, condition: str) -> None:
    """Until a condition of the card's data holds."""
    card.page.wait_for_function(
        f"(card) => {{ const data = card.dataset; return {condition}; }}",
        arg=card.element_handle(),
    )


class Notebook:
    """An open notebook in a page."""

    def __init__(self, page: Any, name: str) -> None:
        self.page = page
        self.name = name
        self.errors: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _hear(self, message: Any) -> None:
        if message.type == "error" and not any(each in message.text for each in _HARMLESS):
            self.errors.append(f"{message.text} ({message.location.get('url', '')[:120]})")

    def run_all(self, patience_s: float = 240) -> list[list[dict[str, Any]]]:
        """Run all cells to the end; returns the outputs of each code cell."""
        self.page.set_default_timeout(patience_s * 1000)
        self.page.evaluate(_RUN)
        self.page.set_default_timeout(30_000)
        return self.outputs()

    def outputs(self) -> list[list[dict[str, Any]]]:
        return self.page.evaluate(_OUTPUTS)

    def theme(self, name: str) -> None:
        """Switch to light or dark, and wait until the page looks so."""
        self.page.evaluate(
            "(theme) => jupyterapp.commands.execute('apputils:change-theme', {theme})",
            THEMES[name],
        )
        is_light = "true" if name == "light" else "false"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{is_light}']", state="attached")
        self.page.wait_for_function(
            "(name) => [...document.querySelectorAll('.rcg-card[data-theme]')]"
            ".every((card) => card.dataset.theme === name)",
            arg=name,
        )
        self.settle()

    def settle(self) -> None:
        """Wait until the page was drawn twice more."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame("
            "() => requestAnimationFrame(done))))"
        )

    def screenshot(self, name: str, locator: Any = None) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        (self.page if locator is None else locator).screenshot(path=str(path))
        return path

    def screenshot_of_all(self, name: str) -> Path:
        """A picture of the whole notebook, however long it is."""
        height = self.page.evaluate(
            """() => {
              const outer = document.querySelector(".jp-WindowedPanel-outer");
              const cells = [...outer.querySelectorAll(".jp-Cell")];
              const last = cells.at(-1).getBoundingClientRect().bottom;
              const first = cells[0].getBoundingClientRect().top;
              return Math.ceil(window.innerHeight - outer.clientHeight + last - first);
            }"""
        )
        size = self.page.viewport_size
        self.page.set_viewport_size({"width": size["width"], "height": min(height + 40, 16_000)})
        self.page.evaluate(
            "() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0; }"
        )
        self.settle()
        path = self.screenshot(name)
        self.page.set_viewport_size(size)
        return path


class Lab:
    """A running JupyterLab and a browser."""

    def __init__(self, folder: Path, url: str, token: str, browser: Any) -> None:
        self.folder = folder
        self._url, self._token, self._browser = url, token, browser

    @contextmanager
    def open(self, path: Path, *, width: int = 1280, height: int = 1000) -> Iterator[Notebook]:
        """Open a copy of a notebook in a page of its own; its kernel ends with it.

        The modules beside it, which it may import, are copied too.
        """
        copy = self.folder / path.name
        if copy != path:
            for each in (path, *path.parent.glob("*.py")):
                shutil.copy(each, self.folder)
        page = self._browser.new_page(viewport={"width": width, "height": height})
        try:
            page.set_default_timeout(60_000)
            notebook = Notebook(page, path.name)
            page.goto(f"{self._url}/lab/tree/{path.name}?token={self._token}&reset")
            page.wait_for_function("() => globalThis.jupyterapp?.shell?.currentWidget?.content")
            page.wait_for_selector(".jp-Notebook .jp-Cell")
            page.evaluate("() => jupyterapp.shell.collapseLeft()")
            yield notebook
        finally:
            page.evaluate(
                "() => jupyterapp.shell.currentWidget?.context?.sessionContext?.shutdown()"
            )
            page.close()

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """Write a notebook of code cells."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(each) for each in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        path = self.folder / name
        nbformat.write(notebook, path)
        return path


@contextmanager
def running_browser() -> Iterator[Any]:
    """Start a browser, which ends with the block. Playwright allows a process one at a time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], headless=True
        )
        yield browser
        browser.close()


@contextmanager
def running_lab(folder: Path, browser: Any) -> Iterator[Lab]:
    """Start a JupyterLab to look at with `browser`; it ends with the block."""
    work = folder / "work"
    work.mkdir()
    settings = folder / "settings"
    for name, text in _SETTINGS.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--port={port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1"),
                *(f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}"),
                *("--expose-app-in-browser", "--ServerApp.open_browser=False"),
            ],
            env={
                **os.environ,
                "JUPYTERLAB_SETTINGS_DIR": str(settings),
                "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
                "JUPYTER_CONFIG_DIR": str(folder / "config"),
                "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
                "IPYTHONDIR": str(folder / "ipython"),
                "PYTHONPATH": f"{ROOT / 'widgets'}:{ROOT}",
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(url, token, server, folder / "lab.log")
            yield Lab(work, url, token, browser)
        finally:
            server.send_signal(signal.SIGTERM)  # ends its kernels, too
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait(url: str, token: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at once:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/api/status?token={token}", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text()[-3000:]}")
