"""Take the picture of the report that the documentation shows.

python docs/screenshots.py [NAME]   from the repository; needs Debian's chromium, takes minutes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURES = Path(__file__).parent / "figures"
COMMAND = Path(sys.executable).parent / "bgtplanner"
MOST_BYTES = 200_000
SHOTS = {
    "report-run": (["run"], "light", 2780),
}


def main() -> None:
    """Run, report, open, shoot."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name in sys.argv[1:] or SHOTS:
            arguments, scheme, height = SHOTS[name]
            out = Path(folder) / name
            subprocess.run([COMMAND, *arguments, "--out", out, "--quiet"], check=True)
            subprocess.run([COMMAND, "report", out], check=True)
            page = browser.new_page(
                viewport={"width": 1280, "height": height}, color_scheme=scheme
            )
            page.goto((out / "report.html").as_uri())
            target = FIGURES / f"{name}.png"
            page.screenshot(path=target)
            Image.open(target).convert("RGB").quantize(256).save(target, optimize=True)
            size = target.stat().st_size
            print(f"{target}: {size:,} bytes")
            if size > MOST_BYTES:
                raise SystemExit(f"{target}: larger than {MOST_BYTES:,} bytes; show less of it")
        browser.close()


if __name__ == "__main__":
    main()
