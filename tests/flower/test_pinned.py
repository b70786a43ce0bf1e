"""A SuperNode that is pinned runs the installed client, whatever code a run brings along."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supernode.runtime import run_clientapp

from bgtplanner.data.ratings import Ratings
from bgtplanner.flower import pinned
from bgtplanner.flower.client import client_app
from bgtplanner.runs.folder import RunFolder
from flower.doubles import spent, write_federation
from flower.loopback import Loopback
from processes import wait_until

_HOSTILE = """
from pathlib import Path

Path({marker!r}).write_text("this ran where the ratings are")
from bgtplanner.flower.client import client_app as real
client_app = real
"""


def test_what_came_is_neither_unpacked_nor_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))  # put back later
    pinned.pin()
    assert run_clientapp.install_from_fab(b"no app at all", skip_prompt=True) is None
    load = run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("publisher/app", "1.0.0", "hash") is client_app


def test_a_process_says_that_it_is_alive_before_it_imports_the_client() -> None:
    """Flower gives it 30 s for that, which importing JAX takes on a small machine."""
    code = "import sys, bgtplanner.flower.pinned; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_flower_is_not_run_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(run_clientapp, "get_load_client_app_fn")
    for name in ("install_from_fab", "install_app_dependencies"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    with pytest.raises(AttributeError):
        pinned.pin()


@pytest.mark.deploy
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("is_pinned", [True, False])
def test_code_of_a_run_over_the_network(tmp_path: Path, few: Ratings, is_pinned: bool) -> None:
    """Without the pin the code does run: that is what must be firewalled."""
    slow = {"deployment.round_seconds": 120.0, "deployment.wait_seconds": 120.0}
    config, files = write_federation(tmp_path / "all", few, {"federation.rounds": 1, **slow})
    loopback = Loopback(tmp_path / "loopback", files[:1])
    marker, out = tmp_path / "marker", tmp_path / "run"
    try:
        script = loopback.write_script("flwr-clientapp")
        assert stat.S_IMODE(script.stat().st_mode) & stat.S_IXUSR
        loopback.start_link()
        loopback.register(1)
        if is_pinned:
            path = loopback.environment["PATH"]
            loopback.environment["PATH"] = f"{script.parent}:{path}"
        loopback.start_node(1, files[0], key=1)
        app = loopback.write_app("hostile", config, out, _HOSTILE.format(marker=str(marker)))
        loopback.run(app)
        wait_until((out / "summary.json").exists, "the run to end")
    finally:
        loopback.close()
    assert RunFolder(out).rounds()[0]["clients"] == 1
    assert spent(files[0]) > 0
    assert marker.exists() is not is_pinned
