"""`deploy init`, `enroll`, `roster`, `check`, and `recommend` on a client."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bgtplanner.cli import app
from bgtplanner.errors import ConfigError, LedgerError, MissingExtraError, RunFolderError
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower import check, example
from bgtplanner.flower.check import check_client
from bgtplanner.flower.client import Client, client_app
from bgtplanner.flower.clientfile import load_client
from bgtplanner.flower.in_process import InProcessGrid
from bgtplanner.flower.messages import SentModel
from bgtplanner.models.tastes import Tastes
from bgtplanner.runs.assembly import federation_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.deployable import agreed_settings, catalogue_of, check_deployable
from bgtplanner.runs.deployed import carry_out
from command_line import Call

pytestmark = pytest.mark.usefixtures("compiled_once")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """To hash all that is installed takes seconds, each time."""
    monkeypatch.setattr(check, "installed_with", lambda *_: {"packaging": "", "bgtplanner": ""})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "deployment"
    done = call("deploy", "init", folder, "--clients", 6, "--address", "localhost:8443")
    assert done.exception is None, done.output
    return folder


@pytest.fixture
def deployment(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "deployment"))


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A federation in which no one but oneself is trusted."""
    done = call("deploy", "init", tmp_path / "local", "--clients", 3, "--trust", "local")
    assert done.exception is None, done.output
    return tmp_path / "local"


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


def test_init_writes_a_federation_that_can_run(written: Path) -> None:
    config = load_config(file=written / "server" / "config.toml")
    check_deployable(config)
    assert len(catalogue_of(config, written / "server").items) == 300
    project = tomllib.loads((written / "app" / "pyproject.toml").read_text(encoding="utf-8"))
    components = project["tool"]["flwr"]["app"]["components"]
    assert project["project"]["dependencies"] == []
    for reference in components.values():
        name, _, attribute = reference.partition(":")
        assert hasattr(__import__(name, fromlist=[attribute]), attribute)
    paths = project["tool"]["flwr"]["app"]["config"]
    assert paths == {
        "config": str(written / "server" / "config.toml"),
        "out": str(written / "server" / "run"),
    }
    for number in range(1, 7):
        client = Client(load_client(written / "clients" / str(number) / "client.toml"))
        assert client.policy.epsilon == config.privacy.epsilon
        assert len(client.file.table().rating) > 1000
    ratings = (written / "clients" / "1" / "ratings.csv").stat()
    assert stat.S_IMODE(ratings.st_mode) == 0o600


def test_nothing_phones_home(written: Path) -> None:
    environment = (written / "environment").read_text(encoding="utf-8").splitlines()
    for switch in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"):
        assert switch in environment
    for service in (written / "systemd").iterdir():
        assert f"EnvironmentFile={written}/environment" in service.read_text(encoding="utf-8")


def test_only_the_installed_client_is_started(written: Path) -> None:
    names = {path.name for path in (written / "pinned").iterdir()}
    assert names >= {"flwr-clientapp", "flwr-agentapp", "flwr-serverapp"}
    for name in names - {"flwr-clientapp"}:
        done = subprocess.run([str(written / "pinned" / name)], capture_output=True, check=False)
        assert done.returncode == 1
    script = [str(written / "pinned" / "flwr-clientapp"), "--help"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert "--runtime-api-address" in done.stdout


def test_certificates_are_made(deployment: Path) -> None:
    for program in ("openssl", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    script = [str(deployment / "certificates.sh"), "localhost", "127.0.0.1", "2"]
    subprocess.run(script, check=True, capture_output=True)
    chain = ["openssl", "verify", "-CAfile", "ca.crt", "server.pem"]
    subprocess.run(chain, cwd=deployment / "certificates", check=True, capture_output=True)
    assert sorted(path.name for path in (deployment / "keys").iterdir()) == [
        "client-1", "client-1.pub", "client-2", "client-2.pub",
    ]  # fmt: skip
    for secret in ("certificates/ca.key", "certificates/server.key", "keys/client-1"):
        assert stat.S_IMODE((deployment / secret).stat().st_mode) == 0o600


def test_init_never_writes_over_something(deployment: Path) -> None:
    assert isinstance(call("deploy", "init", deployment).exception, RunFolderError)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--clients", "0"], "--clients = 0"),
        (["--clients", "2"], "--clients = 2: expected from 3 to 300, with --trust secagg"),
        (["--clients", "0", "--trust", "local"], "--clients = 0: expected from 1"),
        (["--trust", "nobody"], "--trust = 'nobody': expected secagg or local"),
        (["--clients", "301"], "--clients = 301"),
        (["--address", "nowhere"], "--address = 'nowhere'"),
        (["--address", "here:99999"], "--address"),
    ],
)
def test_init_says_what_is_wrong(tmp_path: Path, arguments: list[str], problem: str) -> None:
    error = call("deploy", "init", tmp_path / "new", *arguments).exception
    assert isinstance(error, ConfigError)
    assert problem in str(error)
    assert not (tmp_path / "new").exists()
    assert isinstance(call("deploy", "init", tmp_path / "with space").exception, ConfigError)
    assert isinstance(call("deploy", "init", "").exception, ConfigError)


def test_enroll_makes_one_ledger_and_one_identity_and_leaves_both(deployment: Path) -> None:
    file = deployment / "clients" / "1" / "client.toml"
    made = json.loads(call("deploy", "enroll", file, "--json").output)
    assert (made["made"], made["made_identity"], made["name"]) == (True, True, "1")
    state = file.parent / "state"
    assert stat.S_IMODE((state / "identity").stat().st_mode) == 0o600
    before = [(state / name).read_bytes() for name in ("ledger.sqlite", "identity")]
    done = call("deploy", "enroll", file, "--name", "library of Ghent")
    assert done.stderr.count("left as it is") == 2
    assert done.stdout == f"{made['key']} library of Ghent\n"
    assert [(state / name).read_bytes() for name in ("ledger.sqlite", "identity")] == before


def test_a_client_of_an_earlier_version_gets_an_identity(deployment: Path) -> None:
    file = deployment / "clients" / "1" / "client.toml"
    first = json.loads(call("deploy", "enroll", file, "--json").output)["key"]
    ledger = (file.parent / "state" / "ledger.sqlite").read_bytes()
    (file.parent / "state" / "identity").unlink()
    done = call("deploy", "enroll", file)
    assert f"left as it is: {file.parent}/state/ledger.sqlite" in done.stderr
    assert f"Created: {file.parent}/state/identity" in done.stderr
    assert len(done.stdout.split()[0]) == 64
    assert first not in done.stdout
    assert (file.parent / "state" / "ledger.sqlite").read_bytes() == ledger


def test_a_roster_is_collected_once(tmp_path: Path) -> None:
    one, two, three = ("1" * 64, "2" * 64, "3" * 64)
    (tmp_path / "lines").write_text(f"{one} ann\n\n{two} the library\n", encoding="utf-8")
    home = tmp_path / "roster.txt"
    done = call("deploy", "roster", home, tmp_path / "lines", "--json")
    said = json.loads(done.output)
    assert (said["clients"], said["added"]) == (2, 2)
    assert said["digest"] == hashlib.sha256(home.read_bytes()).hexdigest()
    assert Roster.read(home).names == ("ann", "the library")
    before = home.stat().st_mtime_ns, home.read_bytes()
    assert json.loads(call("deploy", "roster", home, tmp_path / "lines", "--json").output) == (
        said | {"added": 0}
    )
    assert said["digest"] in call("deploy", "roster", home).output
    assert (home.stat().st_mtime_ns, home.read_bytes()) == before
    done = call("deploy", "roster", home, "--add", f"{three} carl", "--add", f"{one} ann")
    assert "3 clients, 1 of them new" in done.output
    assert Roster.read(home).names == ("ann", "the library", "carl")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"{'4' * 64} ann", "'ann' is in the roster already, with another key"),
        (f"{'1' * 64} anna", "this key is in the roster already, as 'ann'"),
        (f"{'A' * 64} carl", "64 hexadecimal digits"),
        ("carl", "64 hexadecimal digits"),
        ("4" * 64, "expected 1 to 256 bytes of visible text"),
        (f"{'4' * 64} a\x1b[2J", "expected 1 to 256 bytes of visible text"),
    ],
)
def test_a_line_that_does_not_fit_changes_nothing(tmp_path: Path, line: str, problem: str) -> None:
    home = tmp_path / "roster.txt"
    call("deploy", "roster", home, "--add", f"{'1' * 64} ann")
    before = home.read_bytes()
    (tmp_path / "lines").write_text(f"{'5' * 64} bob\n{line}\n", encoding="utf-8")
    error = call("deploy", "roster", home, tmp_path / "lines").exception
    assert isinstance(error, ConfigError)
    assert problem in str(error)
    assert home.read_bytes() == before


def test_a_roster_of_nobody_or_of_no_file(tmp_path: Path) -> None:
    for words in ([], [tmp_path / "nothing"], [tmp_path]):
        error = call("deploy", "roster", tmp_path / "roster.txt", *words).exception
        assert isinstance(error, ConfigError)
        assert not (tmp_path / "roster.txt").exists()


def test_check_before_joining(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{deployment}/pinned:{home}:/usr/bin:/bin")
    file = deployment / "clients" / "1" / "client.toml"
    done = call("deploy", "check", file)
    assert done.exit_code == 1
    for what in ("ledger", "identity", "roster"):
        assert f"FAILED {what}" in done.output
    roster = enroll_all(deployment)
    done = call("deploy", "check", file)
    assert done.exit_code == 0, done.output
    assert done.output.count("ok ") == 10
    assert f"6 clients, this one as '1'; digest {roster.digest.hex()}" in done.output
    policy = file.parent / "policy.toml"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace('["tastes"]', '["tastes", "not.installed:Here"]'))
    assert "FAILED models       not.installed:Here" in call("deploy", "check", file).output
    policy.write_text(text, encoding="utf-8")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = call("deploy", "check", file, "--superlink", address)
    assert done.exit_code == 1
    assert "FAILED connection" in done.output
    (file.parent / "ratings.csv").write_text("user,item,rating\nu,i,five\n", encoding="utf-8")
    checks = json.loads(call("deploy", "check", file, "--json").output)["checks"]
    assert [check["what"] for check in checks if not check["well"]] == ["ratings"]
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    assert "FAILED code" in call("deploy", "check", file).output
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "FAILED programs" in call("deploy", "check", file).output
    error = call("deploy", "check", file, "--superlink", "nowhere").exception
    assert isinstance(error, ConfigError)


def test_check_looks_at_identity_and_roster(deployment: Path) -> None:
    roster, home = enroll_all(deployment), deployment / "clients" / "1"
    client = Client(load_client(home / "client.toml"))

    def failed() -> dict[str, str]:
        return {
            found.what: found.note
            for found in check_client(client)
            if not found.well and found.what in ("identity", "roster", "file modes")
        }

    assert failed() == {}
    (home / "state" / "identity").chmod(0o640)
    assert "chmod 600" in failed()["identity"]
    (home / "state" / "identity").chmod(0o600)
    (home / "roster.txt").chmod(0o664)
    assert "others may change it" in failed()["file modes"]
    (home / "roster.txt").chmod(0o644)
    Roster(roster.names[1:], roster.keys[1:]).write(home / "roster.txt")
    assert "not in the roster" in failed()["roster"]
    Roster(roster.names[:3], roster.keys[:3]).write(home / "roster.txt")
    assert "fewer than smallest_group = 4" in failed()["roster"]
    (home / "roster.txt").write_text("no roster", encoding="utf-8")
    assert "no roster" in failed()["roster"]


def test_check_of_the_servers_settings(deployment: Path) -> None:
    file = deployment / "server" / "config.toml"
    done = call("deploy", "check", file)
    assert done.exit_code == 1, "there is no roster yet"
    assert "300 items, 8 features, titles, ratings from 0 to 5" in done.output
    assert "FAILED roster" in done.output
    assert "bgtplanner deploy roster" in done.output
    roster = enroll_all(deployment)
    done = call("deploy", "check", file)
    assert done.exit_code == 0, done.output
    assert f"6 clients; digest {roster.digest.hex()}" in done.output
    assert "of 6 clients 1 may drop out and 1 collude; if all answer, the noise is 22%" in (
        done.output
    )
    assert "smallest_group at most 4, colluders at most 1" in done.output
    text = file.read_text(encoding="utf-8")
    for old, new, problem in (
        ("least_clients = 5", "least_clients = 4", "FAILED sums"),
        ("most_dropouts = 1", "most_dropouts = 2", "FAILED roster       federation.most_dropouts"),
        ("\nclients = 6", "\nclients = 7", "deployment.clients = 7: expected 6"),
    ):
        file.write_text(text.replace(old, new), encoding="utf-8")
        done = call("deploy", "check", file)
        assert done.exit_code == 1
        assert problem in done.output
    for old, new, problem in (
        ('"secagg"', '"local"', "deployment.roster = 'roster.txt': expected a roster with"),
        ('"gaussian/gdp"', '"laplace/basic"', "only Gaussian noise is drawn in shares"),
        ('roster = "roster.txt"', "", "deployment.roster = None: expected a roster"),
    ):
        file.write_text(text.replace(old, new), encoding="utf-8")
        error = call("deploy", "check", file).exception
        assert isinstance(error, ConfigError)
        assert error.exit_code == 2
        assert problem in str(error)


def test_check_where_no_one_is_trusted(local: Path) -> None:
    file = local / "server" / "config.toml"
    done = call("deploy", "check", file)
    assert done.exit_code == 0, done.output
    assert "roster" not in done.output
    assert "replace-one" in done.output
    client = Client(load_client(local / "clients" / "1" / "client.toml"))
    assert (client.policy.trust, client.policy.neighbours) == ("local", "replace-one")
    assert not {found.what for found in check_client(client)} & {"identity", "roster"}
    file.write_text(file.read_text(encoding="utf-8").replace('"local"', '"secagg"'))
    error = call("deploy", "check", file).exception
    assert "only Gaussian noise is drawn in shares" in str(error)


def test_a_ledger_that_cannot_be_written_is_found(deployment: Path) -> None:
    file = deployment / "clients" / "1" / "client.toml"
    call("deploy", "enroll", file)
    (file.parent / "state" / "ledger.sqlite").write_bytes(b"no ledger at all")
    assert "FAILED ledger" in call("deploy", "check", file).output


def test_bad_files_end_with_code_2_and_no_traceback(deployment: Path, command_line: Call) -> None:
    for command in ("check", "enroll"):
        done = command_line("deploy", command, deployment / "nothing.toml")
        assert done.code == 2
        assert done.err.startswith("error: ")
        assert "Traceback" not in done.err


def test_recommend_on_a_client(deployment: Path) -> None:
    home = deployment / "clients" / "1"
    client = Client(load_client(home / "client.toml"))
    user = client.file.table().user[0]
    assert isinstance(call("recommend", home, "--client", user).exception, ConfigError)
    client.enroll()
    items = np.zeros((300, 5), dtype=np.float32)
    items[:, 0] = np.linspace(-0.3, 0.3, 300)
    config = load_config(file=deployment / "server" / "config.toml")
    catalogue = catalogue_of(config, deployment / "server")
    names = catalogue.items
    client.hold(catalogue)
    client.keep(
        SentModel(
            name="tastes", settings={"axes": 0}, catalogue=catalogue.digest,
            items=items, dense=np.zeros(0, dtype=np.float32),
        )
    )  # fmt: skip
    found = json.loads(call("recommend", home, "--client", user, "--top", 3, "--json").output)
    assert len(found["items"]) == 3
    assert all(0 <= entry["predicted"] <= 5 for entry in found["items"])
    assert all(entry["title"] == f"Item {entry['item']}" for entry in found["items"])
    for flag, value in (("--export", "x.npz"), ("--ratings", "demo"), ("--data-dir", "x")):
        error = call("recommend", home, "--client", user, flag, value).exception
        assert isinstance(error, ConfigError)
        assert f"{flag} {value}" in str(error)
    error = call("recommend", home).exception
    assert isinstance(error, ConfigError)
    assert "one of the users of ratings.csv, or --all" in str(error)
    out = home / "lists.csv"
    assert call("recommend", home, "--all", "--top", 2, "--out", out).exception is None
    rated = np.unique(client.file.table().user, return_counts=True)[1]
    assert len(rated) > 1
    left = np.minimum(2, len(names) - rated).sum()  # one user has rated everything
    assert len(out.read_text().splitlines()) == 1 + left
    rows = client.file.ratings.read_text(encoding="utf-8").splitlines(keepends=True)
    alone = [row for row in rows[1:] if row.startswith(rows[1].partition(",")[0] + ",")]
    client.file.ratings.write_text("".join([rows[0], *alone]), encoding="utf-8")
    assert len(call("recommend", home, "--top", 2).output.splitlines()) == 3, "its only user"


def test_without_the_extra_it_is_named(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    error = call("deploy", "check", deployment / "clients" / "1" / "client.toml").exception
    assert isinstance(error, MissingExtraError)
    assert "bgtplanner[flower]" in str(error)


def test_a_lost_ledger_is_not_made_anew(deployment: Path) -> None:
    file = deployment / "clients" / "1" / "client.toml"
    call("deploy", "enroll", file)
    with Client(load_client(file)).open_ledger() as ledger:
        (file.parent / "state" / "head").write_text(str(ledger.head), encoding="ascii")
    (file.parent / "state" / "ledger.sqlite").unlink()
    assert isinstance(call("deploy", "enroll", file).exception, LedgerError)


# ---- what an operator can rely on


def run_in_process(folder: Path, online: int | None = None) -> list[dict[str, Any]]:
    """Run a federation as it was written; what became of its rounds."""
    files = sorted((folder / "clients").glob("*/client.toml"))
    grid = InProcessGrid(client_app, files)
    grid.online = set(sorted(grid.online)[:online])
    carry_out(grid, folder / "server" / "config.toml", folder / "run", poll_seconds=0.0)
    lines = (folder / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("clients", [6, 5])
def test_a_federation_as_written_is_answered_by_its_clients(
    deployment: Path, clients: int
) -> None:
    enroll_all(deployment)
    records = run_in_process(deployment, clients)
    assert [(one["clients"], one["refused"]) for one in records] == [(clients, 0)] * 3
    assert not any(one.get("aborted") for one in records)
    home = deployment / "clients" / "1"
    user = load_client(home / "client.toml").table().user[0]
    found = json.loads(call("recommend", home, "--client", user, "--top", 3, "--json").output)
    assert [entry["title"] for entry in found["items"]] == [
        f"Item {entry['item']}" for entry in found["items"]
    ]


def test_one_where_no_one_is_trusted_likewise(local: Path) -> None:
    for file in (local / "clients").glob("*/client.toml"):
        call("deploy", "enroll", file)
    assert [(one["clients"], one["refused"]) for one in run_in_process(local)] == [(3, 0)] * 3


@pytest.mark.parametrize("clients", [3, 4, 5, 6, 7, 10, 20, 50])
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


def test_the_policy_names_the_catalogue_that_the_server_will_send(written: Path) -> None:
    (named,) = tomllib.loads((written / "clients/1/policy.toml").read_text())["catalogues"]
    config = load_config(file=written / "server" / "config.toml")
    assert named == catalogue_of(config, written / "server").digest
    checked = call("deploy", "check", written / "server" / "config.toml", "--json")
    notes = {check["what"]: check["note"] for check in json.loads(checked.stdout)["checks"]}
    assert notes["sha256"] == named


@pytest.mark.parametrize(
    ("trust", "epsilon", "axes"),
    [("local", 10.0, 0), ("local", 1000.0, 1), ("secagg", 10.0, 0), ("secagg", 1000.0, 1)],
)
def test_the_policy_names_the_settings_that_the_server_will_choose(
    trust: str, epsilon: float, axes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "_EPSILON", epsilon)
    example.write_example(tmp_path / "home", clients=3, address="localhost:8443", trust=trust)
    policy = load_client(tmp_path / "home/clients/1/client.toml").agreed()
    config = load_config(file=tmp_path / "home/server/config.toml")
    assert policy.models == (config.model.name,)
    model = federation_of(config, 300, clients=3).model
    assert Tastes(**policy.settings["tastes"]) == model
    assert policy.settings["tastes"]["axes"] == axes
    checked = call("deploy", "check", tmp_path / "home/server/config.toml").output
    for name, value in agreed_settings(config, 300).items():
        assert f"{name} = {value}" in checked


@pytest.mark.parametrize(
    ("path", "mode", "fault"),
    [
        ("ratings.csv", 0o604, "others may read"),
        ("ratings.csv", 0o602, "others may read"),
        ("state", 0o755, "others may read"),
        ("policy.toml", 0o646, "others may change it"),
        ("policy.toml", 0o664, "others may change it"),
        (".", 0o770, "others may change it"),
    ],
)
def test_check_looks_at_file_modes(deployment: Path, path: str, mode: int, fault: str) -> None:
    client = Client(load_client(deployment / "clients" / "1" / "client.toml"))
    client.enroll()

    def modes() -> tuple[bool, str]:
        (found,) = [found for found in check_client(client) if found.what == "file modes"]
        return found.well, found.note

    assert modes()[0]
    (deployment / "clients" / "1" / path).chmod(mode)
    well, note = modes()
    assert not well
    assert fault in note


def test_check_notices_a_changed_package(
    deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of_client = deployment / "clients" / "1" / "client.toml"
    assert "FAILED installed" not in call("deploy", "check", file_of_client).output
    record = metadata.distribution("packaging").files or []
    (file,) = [file for file in record if str(file) == "packaging/version.py"]
    read = Path.read_bytes

    def changed(path: Path) -> bytes:
        return read(path) + (b" " if path == file.locate() else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    done = call("deploy", "check", file_of_client)
    assert "FAILED installed" in done.output
    assert "packaging: packaging/version.py" in done.output


def test_the_bill_of_materials_lists_what_a_client_needs(tmp_path: Path) -> None:
    printed = json.loads(call("deploy", "sbom").stdout)
    names = {part["name"]: part["version"] for part in printed["components"]}
    assert {"flwr", "jax", "numpy", "cryptography", "pydantic-core"} <= set(names)
    assert not {"pytest", "mypy", "sphinx"} & set(names)
    assert names["numpy"] == metadata.version("numpy")
    assert printed["metadata"]["component"]["name"] == "bgtplanner"
    assert printed["bomFormat"] == "CycloneDX"
    done = call("deploy", "sbom", "--to", tmp_path / "bom.json")
    assert done.exit_code == 0
    assert json.loads((tmp_path / "bom.json").read_text()) == printed
    assert call("deploy", "sbom", "--to", tmp_path / "no" / "where.json").exit_code == 1


def test_services_may_do_what_they_need_and_nothing_else(written: Path) -> None:
    for service in (written / "systemd").iterdir():
        text = service.read_text(encoding="utf-8")
        for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=",
                     "UMask=0077", "SystemCallFilter=@system-service"):  # fmt: skip
            assert line in text.splitlines()
    client = (written / "systemd" / "bgtplanner-supernode.service").read_text(encoding="utf-8")
    assert f"ReadWritePaths={written}/clients/1/state {written}/flower" in client
