"""A browser without a window, and a Jupyter server for it to visit."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOKEN = secrets.token_hex()
FLAGS = [
    "--no-sandbox",  # Chromium refuses to run as root with it, and CI is often root
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium():
    """Return the path of an installed Chromium or Chrome, or None."""
    names = ["chromium", "chromium-browser", "google-chrome", "chrome"]
    return next(filter(None, map(shutil.which, names)), None)


def missing(what):
    """Skip a test for want of something, but fail where CI is set: there it must be installed."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} was not found")


@contextmanager
def chromium():
    """Yield a running Chromium, as playwright's Browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright (tests/requirements-browser.txt)")
    path = find_chromium() or missing("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


def copy_course(folder):
    """Copy what a reader needs into a folder, as notebooks save themselves; returns the folder."""
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ["helpers", "notebooks", "data"]:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def served(command, state):
    """Run a Jupyter server that asks for TOKEN, and yield its address.

    `command` starts it, but for the address; `state` is a folder for what Jupyter keeps, so that
    it neither reads nor changes a user's settings.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    environment = {
        **os.environ,
        **{variable: str(state / name) for variable, name in folders.items()},
        "JUPYTER_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTHONPATH", None)
    place = ["--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    log = state / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, *place], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            if server.poll() is not None or answers(f"{address}/api/status?token={TOKEN}"):
                break
            time.sleep(0.25)
        else:
            server.kill()
            server.wait()
        assert server.poll() is None, log.read_text(encoding="utf-8", errors="replace")
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def answers(url):
    """Tell whether a server answers, without a proxy between."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def jupyterlab(course, state):
    """Run JupyterLab on a copy of the course, and yield its address."""
    command = [
        *[sys.executable, "-m", "jupyter", "lab", f"--ServerApp.root_dir={course}"],
        "--LabApp.expose_app_in_browser=True",  # as window.jupyterapp
    ]
    with served(command, state) as address:
        yield address


@contextmanager
def run_in_lab(browser, address, stem):
    """Open a notebook in JupyterLab, run all its cells, and yield (page, complaints).

    `complaints` lists what the page reports as errors, and grows while the page is open.
    """
    page, complaints = browser.new_page(viewport={"width": 1400, "height": 1000}), []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    url = f"{address}/lab/tree/notebooks/{stem}.ipynb?token={TOKEN}&reset"
    page.goto(url, wait_until="domcontentloaded")
    page.wait_for_function(
        """() => {
            const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
            return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
        }""",
        timeout=60_000,
    )
    # not awaited: behind a dialog it would never end
    page.evaluate(
        """() => {
            const run = jupyterapp.commands.execute('notebook:run-all-cells');
            run.finally(() => window.ran = true);
        }"""
    )
    page.wait_for_function("() => window.ran", timeout=300_000)
    yield page, complaints
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


def explorer_in(page):
    """Return the cell with the explorer, as playwright's Locator."""
    return page.locator(".jp-CodeCell", has=page.locator(".widget-hslider"))
