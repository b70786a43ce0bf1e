"""`deploy init`, `enroll`, `roster`, `check`, and `recommend` on a client."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.serverapp import Grid
from typer.testing import CliRunner

from bgtplanner.cli import app
from bgtplanner.data.datasets import load_ratings
from bgtplanner.errors import BGTPlannerError, ConfigError, RunFolderError
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.check import check_client
from bgtplanner.flower.client import Client, client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.models.tastes import Tastes
from bgtplanner.runs import example
from bgtplanner.runs.assembly import federation_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployed import carry_out, catalogue_of
from flower.in_process import InProcessGrid

pytestmark = pytest.mark.usefixtures("compiled_once")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "deployment"
    done = call("deploy", "init", folder, "--clients", 6, "--address", "localhost:8443")
    assert done.exception is None, done.output
    return folder


@pytest.fixture
def deployment(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "deployment"))


def enroll_all(deployment: Path) -> Roster:
    """As the guide has it: lines, a roster, and a copy of it for everybody."""
    files = sorted((deployment / "clients").glob("*/client.toml"))
    lines = [call("deploy", "enroll", file).stdout for file in files]
    (deployment / "enrolled.txt").write_text("".join(lines), encoding="utf-8")
    home = deployment / "server" / "roster.txt"
    done = call("deploy", "roster", home, deployment / "enrolled.txt")
    assert done.exception is None, done.output
    for file in files:
        shutil.copy(home, file.parent)
    return Roster.read(home)


def failure(client: Client) -> str:
    """What is wrong first; nothing if all is well."""
    try:
        return "" if check_client(client) else "nothing was checked"
    except (BGTPlannerError, OSError) as error:
        return str(error)


def test_init_writes_a_federation_that_can_run(written: Path) -> None:
    config = load_config(file=written / "server" / "config.toml")
    project = tomllib.loads((written / "app" / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dependencies"] == []
    flower = project["tool"]["flwr"]["app"]
    for reference in flower["components"].values():
        name, _, attribute = reference.partition(":")
        assert hasattr(__import__(name, fromlist=[attribute]), attribute)
    server = written / "server"
    assert flower["config"] == {"config": str(server / "config.toml"), "out": str(server / "run")}
    for number in range(1, 7):
        home = written / "clients" / str(number)
        client = Client(load_client(home / "client.toml"))
        assert client.policy.epsilon == config.privacy.epsilon
        assert client.policy.catalogues == (catalogue_of(config, server).digest,)
        assert len(client.file.table().rating) > 1000
        assert stat.S_IMODE((home / "ratings.csv").stat().st_mode) == 0o600
    environment = (written / "environment").read_text(encoding="utf-8").splitlines()
    assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"} <= set(environment)


def test_certificates_are_made(deployment: Path) -> None:
    if shutil.which("openssl") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no openssl or ssh-keygen here")
    script = [str(deployment / "certificates.sh"), "localhost", "127.0.0.1", "2"]
    subprocess.run(script, check=True, capture_output=True)
    chain = ["openssl", "verify", "-CAfile", "ca.crt", "server.pem"]
    subprocess.run(chain, cwd=deployment / "certificates", check=True, capture_output=True)
    for secret in ("certificates/ca.key", "certificates/server.key", "keys/client-2"):
        assert stat.S_IMODE((deployment / secret).stat().st_mode) == 0o600


def test_init_says_what_is_wrong(deployment: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for problem, *arguments in (
        ("--clients = 2: expected from 3 to 300, with --trust secagg", new, "--clients", 2),
        ("--clients = 0: expected from 1", new, "--clients", 0, "--trust", "local"),
        ("--trust = 'nobody': expected secagg or local", new, "--trust", "nobody"),
        ("--address = 'here:99999'", new, "--address", "here:99999"),
        ("", tmp_path / "a b"),
        ("", ""),
    ):
        error = call("deploy", "init", *arguments).exception
        assert isinstance(error, ConfigError)
        assert problem in str(error)
        assert not new.exists()
    assert isinstance(call("deploy", "init", deployment).exception, RunFolderError)


def test_enroll_makes_one_ledger_and_one_identity_and_leaves_both(deployment: Path) -> None:
    file = deployment / "clients" / "1" / "client.toml"
    first = json.loads(call("deploy", "enroll", file, "--json").output)
    assert (first["made"], first["made_identity"], first["name"]) == (True, True, "1")
    state = file.parent / "state"
    assert stat.S_IMODE((state / "identity").stat().st_mode) == 0o600
    before = [(state / name).read_bytes() for name in ("ledger.sqlite", "identity")]
    done = call("deploy", "enroll", file, "--name", "library of Ghent")
    assert done.stdout == f"{first['key']} library of Ghent\n"
    assert [(state / name).read_bytes() for name in ("ledger.sqlite", "identity")] == before
    (state / "identity").unlink()  # a client of a version before 0.2
    second = json.loads(call("deploy", "enroll", file, "--json").output)
    assert (second["made"], second["made_identity"]) == (False, True)
    assert second["key"] != first["key"]
    assert (state / "ledger.sqlite").read_bytes() == before[0]


def test_a_roster_is_collected_once(tmp_path: Path) -> None:
    one, two, three = ("1" * 64, "2" * 64, "3" * 64)
    (tmp_path / "lines").write_text(f"{one} ann\n\n{two} the library\n", encoding="utf-8")
    home = tmp_path / "roster.txt"
    first = json.loads(call("deploy", "roster", home, tmp_path / "lines", "--json").output)
    assert (first["clients"], first["added"]) == (2, 2)
    assert first["digest"] == hashlib.sha256(home.read_bytes()).hexdigest()
    again = json.loads(call("deploy", "roster", home, tmp_path / "lines", "--json").output)
    assert again == first | {"added": 0}
    call("deploy", "roster", home, "--add", f"{three} carl", "--add", f"{one} ann")
    assert Roster.read(home).names == ("ann", "the library", "carl")


def test_a_line_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    home, lines = tmp_path / "roster.txt", tmp_path / "lines"
    call("deploy", "roster", home, "--add", f"{'1' * 64} ann")
    before = home.read_bytes()
    for line, problem in (
        (None, "cannot be read as lines"),
        (f"{'4' * 64} ann", "is enrolled once"),
        (f"{'1' * 64} anna", "is enrolled once"),
        (f"{'A' * 64} carl", "line 2: "),
    ):
        if line is not None:
            lines.write_text(f"{'5' * 64} bob\n{line}\n", encoding="utf-8")
        error = call("deploy", "roster", home, lines).exception
        assert isinstance(error, ConfigError)
        assert problem in str(error)
        assert home.read_bytes() == before


@pytest.fixture
def pinned(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs that a SuperNode would start are ours; return where Python's are."""
    home = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{deployment}/pinned:{home}:/usr/bin:/bin")
    return home


def test_check_before_joining(
    deployment: Path, pinned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = deployment / "clients" / "1" / "client.toml"

    def failed() -> str:
        return str(call("deploy", "check", file, "--json").exception or "")

    assert "there is no ledger" in failed()
    enroll_all(deployment)
    assert failed() == ""
    whole = (file.parent / "ratings.csv").read_bytes()
    (file.parent / "ratings.csv").write_text("user,item,rating\nu,i,five\n", encoding="utf-8")
    assert "ratings.csv, line 2" in failed()
    (file.parent / "ratings.csv").write_bytes(whole)
    (file.parent / "state" / "ledger.sqlite").write_bytes(b"no ledger at all")
    assert "ledger.sqlite" in failed()
    monkeypatch.setenv("PATH", f"{pinned}:/usr/bin:/bin")
    assert "would run code that a run brings along" in failed()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert f"put {pinned} first on PATH" in failed()


@pytest.mark.usefixtures("pinned")
def test_check_looks_at_identity_and_roster(deployment: Path) -> None:
    roster, home = enroll_all(deployment), deployment / "clients" / "1"
    client = Client(load_client(home / "client.toml"))
    (home / "state" / "identity").chmod(0o640)
    assert "chmod 600" in failure(client)
    (home / "state" / "identity").chmod(0o600)
    (home / "roster.txt").chmod(0o664)
    assert "others may change it" in failure(client)
    (home / "roster.txt").chmod(0o644)
    Roster(roster.names[1:], roster.keys[1:]).write(home / "roster.txt")
    assert "not in the roster" in failure(client)
    Roster(roster.names[:3], roster.keys[:3]).write(home / "roster.txt")
    assert "fewer than smallest_group = 4" in failure(client)
    with client.open_ledger() as ledger:
        ledger.reserve(ledger.left(), run="a", round=1)
        assert ledger.left().tolist() == [0.0]
    assert "10 of 10" in failure(client)


@pytest.mark.usefixtures("pinned")
def test_check_looks_at_file_modes(deployment: Path) -> None:
    home = deployment / "clients" / "1"
    client = Client(load_client(home / "client.toml"))
    client.enroll()
    for path, mode, fault in (
        ("ratings.csv", 0o602, "others may read"),
        ("state", 0o755, "others may read"),
        ("policy.toml", 0o646, "others may change it"),
        (".", 0o770, "others may change it"),
    ):
        assert "others may" not in failure(client)
        before = (home / path).stat().st_mode
        (home / path).chmod(mode)
        assert fault in failure(client)
        (home / path).chmod(before)


def test_a_server_that_cannot_run_says_so_before_anybody_is_asked(deployment: Path) -> None:
    file, nobody = deployment / "server" / "config.toml", Mock(spec=Grid)
    text = file.read_text(encoding="utf-8")
    for old, new, problem in (
        ("", "", "bgtplanner deploy roster"),
        ("most_dropouts = 1", "most_dropouts = 2", "federation.most_dropouts"),
        ("\nclients = 6", "\nclients = 7", "expected 6, as in roster.txt"),
        ('"secagg"', '"local"', "deployment.roster = 'roster.txt': expected a roster with"),
        ('"gaussian/gdp"', '"laplace/basic"', "only Gaussian noise is drawn in shares"),
        ('roster = "roster.txt"', "", "deployment.roster = None: expected a roster"),
    ):
        file.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(ConfigError, match=problem):
            carry_out(nobody, file, deployment / "run")
        enroll_all(deployment)
    assert (nobody.mock_calls, (deployment / "run").exists()) == ([], False)
    assert "when it starts" in str(call("deploy", "check", file).exception)


def run_in_process(folder: Path, online: int | None = None) -> list[tuple[int, int]]:
    """Run a federation as it was written; return how many answered and refused in its rounds."""
    files = sorted((folder / "clients").glob("*/client.toml"))
    grid = InProcessGrid(client_app, files)
    grid.online = set(sorted(grid.online)[:online])
    carry_out(grid, folder / "server" / "config.toml", folder / "run", poll_seconds=0.0)
    lines = (folder / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    assert not any(json.loads(line).get("aborted") for line in lines)
    return [(json.loads(line)["clients"], json.loads(line)["refused"]) for line in lines]


def test_a_federation_as_written_is_answered_and_its_clients_recommend(deployment: Path) -> None:
    home = deployment / "clients" / "1"
    user = load_client(home / "client.toml").table().user.rows()[0]
    assert isinstance(call("recommend", home, "--client", user).exception, ConfigError)
    enroll_all(deployment)
    assert run_in_process(deployment, 5) == [(5, 0)] * 3  # least_clients
    found = json.loads(call("recommend", home, "--client", user, "--top", 3, "--json").output)
    films = load_ratings("demo").catalogue
    assert films is not None
    assert films.titles is not None
    for entry in found["items"]:
        assert entry["title"] == films.titles[int(entry["item"])]
        assert 0 <= entry["predicted"] <= 5
    error = call("recommend", home, "--client", user, "--ratings", "demo").exception
    assert isinstance(error, ConfigError)
    assert call("recommend", home, "--all", "--out", home / "lists.csv").exception is None


def test_one_where_no_one_is_trusted_likewise(tmp_path: Path) -> None:
    local = tmp_path / "local"
    call("deploy", "init", local, "--clients", 3, "--trust", "local")
    client = Client(load_client(local / "clients" / "1" / "client.toml"))
    assert (client.policy.trust, client.policy.neighbours) == ("local", "replace-one")
    for path in (local / "clients").glob("*/client.toml"):
        call("deploy", "enroll", path)
    assert run_in_process(local) == [(3, 0)] * 3


@pytest.mark.parametrize("clients", [3, 6, 50])
def test_numbers_that_fit_together_are_written(clients: int, tmp_path: Path) -> None:
    example.write_example(tmp_path / "home", clients=clients, address="localhost:8443")
    config = load_config(file=tmp_path / "home/server/config.toml")
    policy = load_client(tmp_path / "home/clients/1/client.toml").agreed()
    least = config.deployment.least_clients
    dropouts, colluders = config.federation.tolerance.of(least)
    degree_and_threshold(least, dropouts, colluders)  # raises if no sum can be made of so few
    assert policy.secagg is not None
    assert policy.secagg.smallest_group == least - dropouts
    assert policy.secagg.colluders == colluders == 1
    assert dropouts >= 1 or clients < 5, "one client may fail"
    assert least < clients or clients < 6, "one client may be gone"


@pytest.mark.parametrize(("trust", "epsilon", "items"), [("local", 10.0, 14), ("secagg", 1e3, 35)])
def test_the_policy_names_the_settings_that_the_server_will_choose(
    trust: str, epsilon: float, items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "_EPSILON", epsilon)
    example.write_example(tmp_path / "home", clients=3, address="localhost:8443", trust=trust)
    policy = load_client(tmp_path / "home/clients/1/client.toml").agreed()
    config = load_config(file=tmp_path / "home/server/config.toml")
    model = federation_of(config, 300, clients=3).model
    assert Tastes(**policy.settings["tastes"]) == model
    assert policy.settings["tastes"]["taste_items"] == items
