"""A real federation on this machine: a SuperLink and SuperNodes, with TLS and node keys.

Every process is started in a group of its own and ended by it, children and all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib import resources
from pathlib import Path
from string import Template

from processes import PATIENCE, wait_until

TESTS = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loopback:
    """A SuperLink and its SuperNodes.

    Args:
        folder: For certificates, keys, logs and Flower's own files.
        client_files: Of clients 1, 2, ...
    """

    def __init__(self, folder: Path, client_files: list[Path]) -> None:
        self.folder, self.client_files = folder, client_files
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        example = resources.files("bgtplanner.flower") / "templates"
        words = {"folder": str(folder), "address": self.address}
        (folder / "flower").mkdir(parents=True)
        settings = Template((example / "flower.toml").read_text(encoding="utf-8"))
        (folder / "flower" / "config.toml").write_text(settings.substitute(words))
        text = Template((example / "environment").read_text(encoding="utf-8")).substitute(words)
        own = dict(line.split("=", 1) for line in text.splitlines())
        self.environment = (
            os.environ
            | own
            | {
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            }
        )
        script = folder / "certificates.sh"
        script.write_text((example / "certificates.sh").read_text(encoding="utf-8"))
        number = str(len(client_files) + 1)  # one more, that is never registered
        self.call("sh", str(script), "localhost", "127.0.0.1", number)

    def call(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True,
            check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def start_link(self) -> None:
        certificates = self.folder / "certificates"
        self.start(
            "link", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", str(certificates / "ca.crt"),
            "--ssl-certfile", str(certificates / "server.pem"),
            "--ssl-keyfile", str(certificates / "server.key"),
            "--enable-supernode-auth", "--database", str(self.folder / "link.db"),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait_until(self._listens, "the SuperLink")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def register(self, client: int) -> None:
        key = self.folder / "keys" / f"client-{client}.pub"
        self.call("flwr", "supernode", "register", str(key), "deployment")

    def start_node(
        self, client: int, file: Path, key: int | None = None, *, supervised: bool = True
    ) -> None:
        """Start a SuperNode; a supervisor starts it again as long as it is not let in."""
        supervisor = ["sh", "-c", 'until "$@"; do sleep 5; done', "sh"] if supervised else []
        keys = [] if key is None else [
            "--auth-supernode-private-key", str(self.folder / "keys" / f"client-{key}")
        ]  # fmt: skip
        self.start(
            f"node-{client}", *supervisor, "flower-supernode",
            "--root-certificates", str(self.folder / "certificates" / "ca.crt"),
            "--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f'client-file="{file}"', *keys,
        )  # fmt: skip

    def write_app(self, name: str, config: Path, out: Path, code: str) -> Path:
        """An app whose client is a test build, made by this code."""
        app = self.folder / name
        app.mkdir()
        example = resources.files("bgtplanner.flower") / "templates" / "app.toml"
        text = example.read_text(encoding="utf-8")
        text = text.replace("bgtplanner.flower.client:client_app", f"{name}_client:client_app")
        text = text.replace("$folder/server/config.toml", str(config))
        text = text.replace("$folder/server/run", str(out)).replace("bgtplanner-app", name)
        (app / "pyproject.toml").write_text(text, encoding="utf-8")
        head = f"import sys\n\nsys.path.insert(0, {str(TESTS)!r})\n"
        (app / f"{name}_client.py").write_text(head + code, encoding="utf-8")
        return app

    def write_script(self, name: str) -> Path:
        """One of the scripts that keep a SuperNode to the installed client."""
        template = resources.files("bgtplanner.flower") / "templates" / "pinned.sh"
        script = self.folder / "pinned" / name
        script.parent.mkdir(exist_ok=True)
        text = Template(template.read_text(encoding="utf-8")).substitute(bin=str(BIN))
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        return script

    def run(self, app: Path) -> None:
        self.call("flwr", "run", str(app), "deployment")

    def status(self) -> str:
        """Of the newest run."""
        done = self.call("flwr", "list", "deployment", "--format", "json")
        runs = json.loads(done.stdout)["runs"]
        newest = max(runs, key=lambda run: run.get("pending-at") or run.get("created-at") or "")
        return str(newest["status"])

    def online(self) -> int:
        """How many SuperNodes are connected; every look starts a process."""
        done = self.call("flwr", "supernode", "list", "deployment", "--format", "json")
        return sum(node["status"] == "online" for node in json.loads(done.stdout)["nodes"])

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End a process and all that it has started."""
        process = self.processes.pop(name)
        for pid in [*_below(process.pid), process.pid]:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue
        process.wait(PATIENCE)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


def _below(pid: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
