"""What an image of ``containers`` consists of, installed and started as its Dockerfile says.

No daemon is needed: the build's script runs in a fresh folder, which takes the image's place.
"""

from __future__ import annotations

import json
import os
import re
from functools import reduce
from pathlib import Path

import pytest

from bgtplanner import train
from flower.loopback import free_port
from processes import Processes, wait_until

ROOT = Path(__file__).parents[2]
PLACE = "/opt/bgtplanner"


def directive(text: str, name: str) -> list[str]:
    """The words of an instruction in exec form."""
    found = re.search(rf"^{name} .*?(\[.*\])$", text, re.M)
    return json.loads(found[1]) if found else []


@pytest.mark.deploy
@pytest.mark.parametrize("image", ["serve", "server", "client"])
def test_the_image(image: str, processes: Processes, tmp_path: Path) -> None:
    text = (ROOT / "containers" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    assert "USER 10001:10001" in text
    place, port, health = str(tmp_path / "place"), free_port(), free_port()
    swap = {PLACE: place, "/source": str(ROOT), "/models": str(tmp_path),
            ":8000": f":{port}", ":9099": f":{health}", ":9098": f":{health}"}  # fmt: skip
    text = reduce(lambda text, pair: text.replace(*pair), swap.items(), text)
    steps, path = (re.findall(rf"^{of}(.*)$", text, re.M)[0] for of in ("RUN ", "ENV PATH=(?=/)"))
    assert processes.run(["sh", "-euc", steps]).returncode == 0
    words, more = directive(text, "ENTRYPOINT"), ["--insecure", "--host", "127.0.0.1"]
    if image == "serve":
        model = train("demo", ledger=None, settings={"federation.rounds": 1})
        model.save(tmp_path / "public.model")
        more = directive(text, "CMD")
    own = {"PATH": path.split()[0], "FLWR_HOME": str(tmp_path), "PYTHONPATH": ""}
    options = {"env": os.environ | own, "cwd": tmp_path}
    processes.start([*words, *more, "--port", port], **options)
    asked = directive(text, "HEALTHCHECK .*CMD")
    wait_until(lambda: processes.run(asked, **options).returncode == 0, "a healthy program")
