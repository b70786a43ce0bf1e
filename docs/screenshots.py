"""Take the pictures of the report and of the page that the documentation shows.

python docs/screenshots.py [NAME]   from the repository; needs Debian's chromium, takes minutes
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

FIGURES = Path(__file__).parent / "figures"
COMMAND = Path(sys.executable).parent / "bgtplanner"
MOST_BYTES = 200_000
SHOTS = {
    "report-run": (["run"], "light", 2780),
}
STARS = (5, 4, 2, 5)  # of the first titles on the page


def main() -> None:
    """Run, report, open, shoot."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name in sys.argv[1:] or [*SHOTS, "page"]:
            if name == "page":
                shoot_page(browser, Path(folder))
                continue
            arguments, scheme, height = SHOTS[name]
            out = Path(folder) / name
            subprocess.run([COMMAND, *arguments, "--out", out, "--quiet"], check=True)
            subprocess.run([COMMAND, "report", out], check=True)
            page = browser.new_page(
                viewport={"width": 1280, "height": height}, color_scheme=scheme
            )
            page.goto((out / "report.html").as_uri())
            page.screenshot(path=FIGURES / f"{name}.png")
            shrink(FIGURES / f"{name}.png")
        browser.close()


def shoot_page(browser: Browser, folder: Path) -> None:
    """The page of a model of the demo: a wide window, and a phone in the dark beside it."""
    model, height, shots = folder / "demo.model", 888, []
    given = ["--ratings", "demo", "--epsilon", "10", "--ledger", "none", "--out", model]
    subprocess.run([COMMAND, "train", *given, "--quiet"], check=True)
    server = subprocess.Popen(
        [COMMAND, "serve", model, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    address = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"]
    for width, scheme in ((1280, "light"), (390, "dark")):
        size = {"width": width, "height": height}
        page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page.goto(address)
        for row, stars in enumerate(STARS):
            page.locator("#results li").nth(row).get_by_role("radio").nth(stars - 1).click()
        if width < 1280:
            page.locator("nav a").nth(1).click()
        page.mouse.move(0, 0)
        page.screenshot(path=folder / f"{width}.png")
        shots.append(Image.open(folder / f"{width}.png"))
    server.terminate()
    whole = Image.new("RGB", (sum(of.width for of in shots) + 24, height), "#f6f7f9")
    whole.paste(shots[0], (0, 0))
    whole.paste(shots[1], (shots[0].width + 24, 0))
    whole.save(FIGURES / "page.png")
    shrink(FIGURES / "page.png")


def shrink(target: Path) -> None:
    """Write a picture with few colours."""
    Image.open(target).convert("RGB").quantize(256).save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{target}: larger than {MOST_BYTES:,} bytes; show less of it")


if __name__ == "__main__":
    main()
