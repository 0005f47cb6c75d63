"""A browser without a window, and a Jupyter server for it to visit."""

import importlib
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


# what is done one after the other: a control, a key or a text for it, and the value that it gets
MOVES = {
    "01_loop_mean": [("T", "ArrowRight", 9), ("t", "ArrowLeft", 4)],
    "02_tril_matmul": [
        ("T", "ArrowLeft", 5),
        ("row", "ArrowRight", 4),
        ("column", "ArrowRight", 1),
    ],
    "03_softmax_mask": [
        ("T", "ArrowRight", 9),
        ("spread", "ArrowRight", 1.1),
        ("temperature", "ArrowLeft", 0.9),
        ("mask", "Space", False),
    ],
    "04_positional": [
        ("T", "ArrowRight", 17),
        ("n_embd", "ArrowRight", 17),
        ("base", "ArrowLeft", 1000),
        ("scheme", "ArrowLeft", "learned"),
    ],
    "05_qkv_head": [
        ("T", "ArrowLeft", 7),
        ("head_size", "ArrowRight", 17),
        ("scale", "Space", False),
        ("mask", "Space", False),
    ],
    "06_transformer": [
        ("prompt", "He had only", "He had only"),  # the model is unsure of what follows
        ("layer", "ArrowRight", 1),
        ("head", "ArrowRight", 1),
        ("step", "ArrowLeft", 300),
        ("temperature", "ArrowRight", 1.1),
        ("top_k", "ArrowLeft", 10),
    ],
    "07_fast_heads": [
        ("T", "ArrowLeft", 63),
        ("n_head", "ArrowRight", 6),
        ("batch", "ArrowLeft", 1),
        ("cache", "Space", True),
    ],
}


class LiveExplorer:
    """An explorer on a page, what a reader does with it, and the settings that it should have.

    `cell` and `said` are playwright's Locators of its cell and of the output with its sentence;
    `handle` selects what moves a slider in this front end.
    """

    def __init__(self, stem, page, complaints, cell, said, handle):
        self.page, self.complaints, self.cell, self.said = page, complaints, cell, said
        self.handle = handle
        self.moves = MOVES[stem]
        self.module = importlib.import_module(f"helpers.explorers.{stem[3:]}")
        self.place = cell.locator(".widget-vbox > .widget-html")
        self.picture = self.place.locator("img")

    def begin(self):
        """Go back to the settings that it starts with."""
        self.press("Reset", "Enter")
        self.settings = self.module.explore().settings
        self.check()

    def press(self, name, key):
        """Go to a control, and press a key; into a line to write, enter a text instead."""
        label = self.page.get_by_text(name, exact=True)
        row = self.cell.locator(".widget-inline-hbox", has=label)
        button = self.cell.get_by_role("button", name=name, exact=True)
        row.locator(f"{self.handle}, input").or_(button).focus()
        if name == "prompt":
            self.page.keyboard.press("ControlOrMeta+A")
            self.page.keyboard.type(key)
            key = "Enter"
        self.page.keyboard.press(key)

    def shown(self):
        """Return the picture on the page, as the text in its src."""
        return self.picture.get_attribute("src")

    def box(self):
        """Return left, top, width and height of the picture, or what replaces it, in its cell."""
        return self.place.locator(".widget-html-content > *").evaluate(
            """picture => {
                const cell = picture.closest('.jp-OutputArea, .output').getBoundingClientRect();
                const {left, top, width, height} = picture.getBoundingClientRect();
                return [left - cell.left, top - cell.top, width, height];
            }"""
        )

    def check(self):
        """Wait for the picture and the sentence of its settings."""
        from playwright.sync_api import expect

        sentence = self.module.look(**self.settings).sentence
        expect(self.picture).to_have_attribute("alt", sentence, timeout=20_000)
        expect(self.said.get_by_role("status")).to_have_text(sentence)
        fresh = self.module.explore()
        fresh.set(**self.settings)
        same = self.shown() in fresh.picture.value
        assert same, self.settings  # without the picture in the message

    def try_every_control(self):
        """Move each control by its key: picture and sentence follow, and nothing jumps."""
        asks_for_times = {"timed"}  # which no other machine gives
        assert {name for name, *_ in self.moves} == set(self.settings) - asks_for_times
        start = self.box()
        for name, key, value in self.moves:
            picture, sentence = self.shown(), self.said.text_content()
            self.press(name, key)
            self.settings[name] = value
            self.check()
            changed = self.shown() != picture and self.said.text_content() != sentence
            assert changed, name
            assert self.box() == start, name

    def try_reset(self, key):
        """Move everything, and press Reset by a key."""
        start = self.settings
        self.settings = start | {name: value for name, _, value in self.moves}
        for name, pressed, _ in self.moves:
            self.press(name, pressed)
        self.check()
        self.press("Reset", key)
        self.settings = start
        self.check()

    def try_an_unknown_word(self):
        """Enter a word that the model lacks, then words that it knows."""
        from playwright.sync_api import expect

        start = self.box()
        with pytest.raises(ValueError, match="The model does not know 'dragon'") as problem:
            self.module.look(**{**self.settings, "prompt": "One dragon"})
        self.press("prompt", "One dragon")
        expect(self.place).to_have_text(str(problem.value))
        expect(self.picture).to_have_count(0)
        expect(self.said).to_have_text("")
        assert self.box() == start
        self.press("prompt", "One rainy")
        self.settings["prompt"] = "One rainy"
        self.check()
        assert self.box() == start


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
