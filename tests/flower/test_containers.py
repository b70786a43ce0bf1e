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
    place, port, health = str(tmp_path / "place"), str(free_port()), str(free_port())
    [steps] = re.findall(r"^RUN (.*)$", text, re.M)
    script = steps.replace(PLACE, place).replace("/source", str(ROOT))
    built = processes.run(["sh", "-euc", script])
    assert built.returncode == 0, built.stderr
    model = tmp_path / "public.model"
    words, more = directive(text, "ENTRYPOINT"), ["--insecure", "--host", "127.0.0.1"]
    if image == "serve":
        train("demo", ledger=None, settings={"federation.rounds": 1}).save(model)
        more = directive(text, "CMD")
    [path] = re.findall(r"^ENV PATH=(\S+)", text, re.M)
    own = {"PATH": path.replace(PLACE, place), "FLWR_HOME": str(tmp_path), "PYTHONPATH": ""}
    swap = {PLACE: place, "/models/public.model": str(model), ":8000": f":{port}",
            ":9099": f":{health}", ":9098": f":{health}"}  # fmt: skip

    def here(words: list[str]) -> list[str]:
        return [reduce(lambda word, of: word.replace(*of), swap.items(), word) for word in words]

    environment = os.environ | own
    processes.start([*here([*words, *more]), "--port", port], env=environment, cwd=tmp_path)
    asked = here(directive(text, "HEALTHCHECK .*CMD"))
    wait_until(lambda: processes.run(asked, env=environment).returncode == 0, "a healthy program")
