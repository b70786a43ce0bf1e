"""The command `serve`: the endpoint and the page, and a person's own page, for them alone."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bgtplanner.commands.ledger import statement
from bgtplanner.commands.options import Answer, command, files_of_client, need, show
from bgtplanner.errors import ConfigError
from bgtplanner.privacy.ledger import Ledger

_MOST_CONNECTIONS = 1000  # at a time; more are answered by 503
_NAME = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:\d+)?")


@command()
def serve(
    source: str, *, host: str = "127.0.0.1", port: int = 8000,
    allow_host: list[str] | None = None, cors: list[str] | None = None, rate: int = 100,
    max_body: int = 64, user: str | None = None, as_json: bool,
) -> None:  # fmt: skip
    """Serve a model file: the page at /, and lists for histories that are sent to /recommend.

    What is sent is neither stored nor logged. A new model file is taken up while requests are
    answered; if it is damaged, the last good one is kept. Ctrl-C ends it.

    From the folder of a client here, it shows the person their own page: their ratings, lists from
    them, and what was spent of their budget. The address works once, in this machine's browser.

    Example: `bgtplanner serve films.model --port 8080`

    Example: `bgtplanner serve clients/1`

    Options:
        source (MODEL): A model file, or the folder of a client here.
        host (ADDRESS): Where to listen; by default, this machine alone can ask.
        port: Where to listen; 0: any port that is free.
        allow_host (NAME): A name that others reach it by. Repeatable.
        cors (ORIGIN): A site whose pages may ask, such as https://films.example.org. Repeatable.
        rate: The most requests of an address within a second; 0: any number.
        max_body: The most KiB of a request.
        user: Of a client with several users, whose page it is: the label in the ratings.
    """
    if (Path(source) / "client.toml").is_file():
        strangers = {"host": host != "127.0.0.1", "allow_host": allow_host, "cors": cors}
        for flag, given in strangers.items():
            ConfigError.unless(not given, flag, given, "nothing: a person's page is theirs alone")
        return _own_page(Path(source), user, port, as_json)
    ConfigError.unless(user is None, "user", user, "nothing: a model file has no users")
    for name in allow_host or ():
        plain = bool(_NAME.fullmatch(name))
        ConfigError.unless(plain, "allow_host", name, "a name without scheme and port")
    for origin in cors or ():
        fits = bool(_ORIGIN.fullmatch(origin))
        ConfigError.unless(fits, "cors", origin, "an origin, such as https://films.example.org")
    ConfigError.unless(rate >= 0, "rate", rate, "requests a second, or 0 for any number")
    ConfigError.unless(1 <= max_body <= 1 << 14, "max_body", max_body, "KiB, from 1 to 16384")
    need("serve")
    from bgtplanner.serving.app import Endpoints, LiveModel

    live, (listening, named) = LiveModel(Path(source)), _listening(host, port, allow_host or ())
    hosts = {"localhost", "127.0.0.1", "[::1]", named, host.lower()}
    hosts |= set(map(str.lower, allow_host or ()))
    address = f"http://{named}:{listening.getsockname()[1]}/"
    said = [f"{address}  {source}, {len(live.current[0].items):,} items; Ctrl-C ends it"]
    show(Answer({"address": address, "model": source}, said), as_json=as_json)
    _answer(Endpoints(live, hosts, cors or (), rate, max_body << 10).gate, listening)
    return None


def _own_page(folder: Path, user: str | None, port: int, as_json: bool) -> None:
    """Serve a person their own page, on this machine alone."""
    need("serve")
    from bgtplanner.serving.app import OwnPage

    file = files_of_client(folder / "client.toml")
    model = file.last_model()
    users = sorted(set(map(str, file.histories(model)["user"])))
    fits = len(users) <= 1 if user is None else user in users
    ConfigError.unless(fits, "user", user or "", "the label of one of this client's users")

    def mine() -> dict[str, Any]:
        """Return the ratings as they are now, and what was spent until now."""
        rows = zip(*file.histories(model).values(), strict=True)
        rated = {str(item): rating for of, item, rating in rows if user in (None, str(of))}
        with Ledger.open(file.ledger, budgets=file.agreed().budgets, read_only=True) as ledger:
            return {"ratings": rated, "spent": statement(ledger, file.times())}

    mine()  # what cannot be read is said here, and not on the page
    listening, named = _listening("127.0.0.1", port, ())
    page = OwnPage(file.model, mine, f"{named}:{listening.getsockname()[1]}")
    said = [page.address, "This address works once, in a browser here. Ctrl-C ends the page."]
    show(Answer({"address": page.address, "client": str(folder)}, said), as_json=as_json)
    _answer(page.gate, listening)


def _answer(app: Any, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C; nothing of them is logged."""
    import uvicorn

    config = uvicorn.Config(  # h11 has limits on headers, which other parsers lack
        app, http="h11", ws="none", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=5,
    )  # fmt: skip
    with listening, contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int, names: Sequence[str]) -> tuple[socket.socket, str]:
    """Return a socket that listens, and the address that it is at, as it stands in a URL."""
    ConfigError.unless(0 <= port < 1 << 16, "port", port, "from 0 (any that is free) to 65535")
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        at = ipaddress.ip_address(str(place[0]))
        more = "an address, or --allow-host NAME as well, by which others reach this machine"
        ConfigError.unless(bool(names) or not at.is_unspecified, "host", host, more)
        made = socket.create_server((str(at), port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "no such address"
        problem = f"--host {host} --port {port}: cannot listen there ({why}); choose another"
        raise ConfigError(problem) from error
    return made, f"[{at}]" if at.version == 6 else str(at)
