"""How long is it from a key press to the new picture of an explorer, in JupyterLab?

python tests/browser_latency.py [NOTEBOOK ...], such as 01_loop_mean; without a name, every notebook
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

from browser import ROOT, chromium, copy_course, explorer_in, jupyterlab, run_in_lab

PRESSES = 20
WATCH = """place => {
    let pressed = null;
    window.took = [];
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(async () => {
        const since = pressed;
        pressed = null;
        await place.querySelector('img').decode();
        if (since !== null) requestAnimationFrame(now => took.push(performance.now() - since));
    }).observe(place, {childList: true, subtree: true});
}"""


def latencies(page):
    """Press keys on every slider, there and back; returns {slider: milliseconds of each press}.

    The time ends with the frame in which the new picture is painted. A slider that does not change
    the picture at these settings is left out.
    """
    from playwright.sync_api import TimeoutError as NothingNew

    found = {}
    for slider in explorer_in(page).locator(".widget-hslider").all():
        handle = slider.locator(".noUi-handle")
        handle.focus()
        now, most = (float(handle.get_attribute(f"aria-value{part}")) for part in ["now", "max"])
        keys = ["ArrowRight", "ArrowLeft"] if now < most else ["ArrowLeft", "ArrowRight"]
        page.evaluate("() => { took.length = 0; }")
        try:
            for count in range(PRESSES):
                page.keyboard.press(keys[count % 2])
                page.wait_for_function("count => took.length > count", arg=count, timeout=3000)
        except NothingNew:
            continue
        found[slider.locator("label").text_content()] = page.evaluate("() => took")
    return found


def report(name, found):
    """Print the median and the largest latency of every slider, and of all."""
    for slider, took in found.items():
        print(f"{name:16} {slider:12} median {median(took):4.0f} ms, largest {max(took):4.0f} ms")
    everything = [time for took in found.values() for time in took]
    print(f"{name:16} {'all':12} median {median(everything):4.0f} ms", flush=True)


def main(stems):
    """Measure the explorers of these notebooks as they start, and with the largest T."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        course, state = Path(folder, "course"), Path(folder, "jupyter")
        course.mkdir()
        state.mkdir()
        with jupyterlab(copy_course(course), state) as address:
            for stem in stems:
                with run_in_lab(browser, address, stem) as (page, _):
                    explorer_in(page).locator(".widget-vbox > .widget-html").evaluate(WATCH)
                    report(stem, latencies(page))
                    first = explorer_in(page).locator(".widget-hslider").first
                    if first.locator("label").text_content() == "T":
                        first.locator(".noUi-handle").press("End")
                        page.wait_for_timeout(1000)
                        report(f"{stem[:2]}, largest T", latencies(page))


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")))
