"""docs/deployment.md works word for word, but for the ports: other programs may have those."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flower.loopback import free_port
from processes import PATIENCE

GUIDE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


@pytest.mark.deploy
def test_the_guide_on_one_machine(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", GUIDE, re.S)
    assert len(blocks) == 7
    script = "set -eu\n" + "\n".join(blocks).replace("8443", str(free_port()))
    ports = " ".join(str(free_port()) for _ in range(6))
    script = f"ports=({ports})\n" + script.replace("910$n", "${ports[n - 1]}")
    home = Path(sys.executable).parent
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, start_new_session=True, text=True,
        env=os.environ | {"PATH": f"{home}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=3 * PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-6000:]
    summary = json.loads(
        (tmp_path / "deployment" / "server" / "run" / "summary.json").read_text(encoding="utf-8")
    )
    assert (summary["clients"], summary["rounds_run"], summary["uploads_dropped"]) == (6, 3, 0)
    assert (summary["trust"], summary["rounds_aborted"]) == ("secagg", 0)
    assert "round 3/3: 6 asked, 6 clients, 0 refused" in output
    assert "epsilon 0 of 10 spent" in output
    assert len(re.findall(r"^ +\d +\d+ +The \w+", output, re.M)) == 5, "a list with titles"
