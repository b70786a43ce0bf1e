"""A real client: it trusts no one, pays from its own ledger, and its ratings never leave it.

A server gets no more out of it than its policy file allows and its ledger can pay, whichever
messages arrive, in any order and number, and whenever the client is killed and restarted:

* whether a request is answered, refused or repeated depends on the request, on earlier requests,
  on the policy file, the ledger and the clock, and never on a rating. A client that has no
  ratings, or cannot read them, answers with noise like the others;
* the charge is on disk before a rating is read, and nothing can leave before that;
* a request that was answered before is answered with the same bytes, at no further charge, while
  they are kept. After that it is refused: the rounds of a run only go up;
* the noise is scaled for the neighbouring relation of the policy file and the ledger, which must
  agree; no message names a relation, so that no server can ask for a weaker one;
* every answer has its own noise, from the operating system. There is no setting and no message
  that could take the noise from a seed, or draw it a second time;
* a refusal is one word without a reason. The reason is only in the client's own log.

Not covered are how long an answer takes, and that the client is there at all. The games in
``tests/games`` play a hostile server against all of this.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replace_file
from bgtplanner.errors import BGTPlannerError, ConfigError, LedgerError, MessageError
from bgtplanner.federation.answers import Answers
from bgtplanner.federation.client import (
    coordinates_of,
    features_in,
    first_parameters,
    nothing_kept,
    predictions_of,
    ranking_of,
    train_client,
)
from bgtplanner.federation.guard import Guard
from bgtplanner.federation.pacing import Pacing
from bgtplanner.flower.clientfile import ClientFile, load_client
from bgtplanner.flower.messages import (
    HELLO,
    KEEP,
    Hello,
    Request,
    SentModel,
    catalogue_hash,
    read_hello_request,
    reply,
    upload_record,
)
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import MODELS, Learner, Local
from bgtplanner.models.recommending import Recommender, note_of, pairs_of
from bgtplanner.privacy._journal import Head
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.allowed import Choice, allows
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.noise import NoiseSource
from bgtplanner.privacy.witness import Witness

__all__ = ["Client", "client_app", "make_client_app"]

NoiseFor = Callable[[ClientFile, Request], NoiseSource]

_LARGEST_PARAMETER = 1e6  # no model of ours comes near: a larger one only overflows
_LARGEST_FEATURE = 1.0  # of a catalogue, by the way features are made

_log = logging.getLogger("flwr")  # the SuperNode shows its lines; they stay on this machine


class Client:
    """One client on one machine, with its files.

    Args:
        file: Where its files are.
        noise: Another source of noise than the operating system, for tests only: anyone who knows
            the noise can subtract it.
        clock: Another clock, for tests only.
    """

    def __init__(
        self,
        file: ClientFile,
        *,
        noise: NoiseFor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = file
        self.policy = file.agreed()
        self._noise = noise
        self._witness = None if file.witness is None else Witness(file.witness)
        self._answers = Answers(file.state / "answers", most=self.policy.answers_kept)
        self._pacing = Pacing(file.state / "pace.json", self.policy.requests_per_hour, clock)

    # ---- what the server can ask for

    def hello(self) -> Hello:
        """Return the client's name, which belongs to its ledger and not to the machine."""
        with self.open_ledger() as ledger:
            name = ledger.fingerprint(b"bgtplanner client").hex()
            return Hello(name=name, accountant=ledger.accountant.name)

    def answer(self, request: Request) -> NDArray[np.float64]:
        """Return the upload of a round, paid for and noised.

        Raises:
            MessageError: If this client does not agree to the request.
            BudgetExceeded: If the ledger cannot pay.
            StaleRoundError: If the round is over, and its answer is not kept.
        """
        self._agree(request)
        model, shared = self._model_of(request.model)
        with self._alone(), self.open_ledger() as ledger:
            known = self._answers.find(request.digest)
            if known is not None:
                return known
            if not self._pacing.take():
                raise MessageError("more requests than requests_per_hour")
            noise = None if self._noise is None else self._noise(self.file, request)
            guard = Guard(ledger, trust="local", unit="client", noise=noise)
            reservation = guard.reserve(
                request.charge, run=request.run, round=request.round, rising=True
            )
            replace_file(self.file.state / "head", str(ledger.head).encode())
            upload, kept = self._train(model, shared, request)
            released = guard.protect(reservation, upload[None], clip=request.clip)
            vector = np.ascontiguousarray(released.values[0])
            self._answers.keep(request.digest, reservation.number, vector)
            if kept is not None:
                self._write_arrays("local.npz", **kept)
            self._keep(request.model)
            guard.settle(released)
            return vector

    def keep(self, sent: SentModel) -> None:
        """Store the last model of a run, to recommend with. Nothing is released."""
        self._model_of(sent)
        self._keep(sent)

    # ---- what its owner can ask for

    def enroll(self) -> bool:
        """Create the client's ledger, once, and return whether it was created now.

        This never happens automatically: a client that has lost its ledger must not start again
        with a full budget.
        """
        if self.file.ledger.exists():
            self.open_ledger().close()
            return False
        if self._remembered() is not None:
            raise LedgerError(
                f"{self.file.ledger}: gone, though it was used before: bring it back from where "
                "it was moved to, or from a backup (see 'bgtplanner ledger restore --help')"
            )
        self.file.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._pacing.start()
        Ledger.create(
            self.file.ledger,
            self.policy.budgets,
            self.policy.rule,
            witness=self._witness,
            neighbours=self.policy.neighbours,
        ).close()
        return True

    def open_ledger(self) -> Ledger:
        """Open the client's ledger, which must exist and must not have lost an entry."""
        if not self.file.ledger.exists():
            raise LedgerError(
                f"{self.file.ledger}: there is no ledger. If this client is new, create one with "
                "'bgtplanner deploy enroll'; if it was moved here, copy its state folder, too"
            )
        return Ledger.open(
            self.file.ledger,
            budgets=self.policy.budgets,
            accountant=self.policy.rule,
            neighbours=self.policy.neighbours,
            head=self._remembered(),
            witness=self._witness,
        )

    def recommender(self) -> Recommender:
        """Return all that lists for this client's users are made of.

        They are computed here, from the last model that arrived and the current ratings, with
        titles and features from the client's table of items, if it has one. Nothing is sent.
        """
        sent = self._kept()
        model, shared = self._model_of(sent)
        ratings = self._ratings_for(sent)
        local = self._local(model, sent, ratings)
        predicted = predictions_of(model, shared, ratings, local)
        scores, why = ranking_of(model, shared, ratings, local)
        features = features_in(model, shared.items)
        first = first_parameters(model, jax.random.key(0), 1, features)[0]
        same = zip(first, shared, strict=True)
        titled = replace(ratings, catalogue=self.file.catalogue_over(sent.catalogue))
        return Recommender(
            ratings=titled,
            known=ratings,
            learned=not all(np.array_equal(old, new) for old, new in same),
            rank=lambda users: scores[users],
            explain=why.of_users,
            predict=lambda users, items: predicted[users, items],
        )

    def recommend(self, user: str | None, top: int) -> list[tuple[str, float]]:
        """Return a user's best-ranked unrated items with their predicted ratings, best first.

        Args:
            user: Label in the table of ratings; not needed if there is only one user.
            top: How many items.

        Raises:
            ConfigError: If there is no such user, or no model has come yet.
            NothingLearnedError: If there is nothing to rank items by.
        """
        recommender = self.recommender()
        names = [str(label) for label in recommender.ratings.user_labels.tolist()]
        if user is None and len(names) == 1:
            user = names[0]
        if user not in names:
            known = f"one of the {len(names)} users of {self.file.ratings.name}"
            raise ConfigError(f"--client {user}: expected {known}")
        (block,) = recommender.blocks([names.index(user)], top)
        note = note_of(Counter(block.bases), recommender.learned)
        if note is not None:
            _log.warning("%s", note)
        return pairs_of(block.lists[0])

    # ---- internals

    def _agree(self, request: Request) -> None:
        """Refuse what the policy does not allow, even if the ledger could pay."""
        problem = self.policy.objection(request.accountant, request.charge, request.clip)
        mechanism = accountant_named(self.policy.rule).mechanism
        if not allows(Choice(mechanism, request.trust, request.unit, deployed=True)):
            problem = "another trust or unit than local and client"
        if problem is not None:
            raise MessageError(problem)

    def _model_of(self, sent: SentModel) -> tuple[Learner, Shared]:
        """Return the model that was sent, if this client agrees to it."""
        if sent.name not in self.policy.models or len(sent.catalogue) > self.policy.most_items:
            raise MessageError("a model that the policy does not name, or too long a catalogue")
        if catalogue_hash(sent.catalogue) not in self.policy.catalogues:
            raise MessageError("a catalogue that the policy does not name")
        if (sent.low, sent.high) != self.policy.scale:
            raise MessageError("another scale of ratings than the policy's")
        kind = MODELS[sent.name]
        model = kind(**self.policy.settings.get(sent.name, {}))
        try:
            same = kind(**sent.settings) == model
        except TypeError as error:
            raise MessageError("settings that the model does not have") from error
        if not same:
            raise MessageError("other settings of the model than the policy's")
        shared = Shared(jnp.asarray(sent.items), jnp.asarray(sent.dense))
        self._check_parameters(model, shared)
        return model, shared

    def _check_parameters(self, model: Learner, shared: Shared) -> None:
        """Refuse parameters that no model here can have.

        Features come with the parameters, and a server may choose them as it likes: whatever they
        are, one clip and one noise cover the whole upload. What is refused here would only cost
        the client time, or make its arithmetic overflow. No rating plays a part in it.
        """
        features = features_in(model, shared.items)
        if features.shape[1] > self.policy.most_features:
            raise MessageError("more features than most_features")
        key = jax.random.key(0)
        expected = jax.eval_shape(lambda: first_parameters(model, key, 1, features)[0])
        if [part.shape for part in shared] != [part.shape for part in expected]:
            raise MessageError("parameters of another shape than the model's")
        bounds = [(features, _LARGEST_FEATURE), *((part, _LARGEST_PARAMETER) for part in shared)]
        if not all((np.abs(np.asarray(part)) <= most).all() for part, most in bounds):
            raise MessageError("parameters that are not finite, or too large")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock that keeps other processes from answering; a crash releases it."""
        if not self.file.ledger.exists():  # raises, instead of creating an empty folder
            self.open_ledger().close()
        with (self.file.state / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _train(
        self, model: Learner, shared: Shared, request: Request
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]] | None]:
        """Return the client's unprotected upload, and what it keeps of the round.

        Returns zeros and nothing if training fails. A client that refused because of its ratings,
        or because of an error with them, would reveal something about them, unpaid. The owner
        finds the error in the log.
        """
        try:
            ratings = self._ratings_for(request.model)
            local = self._local(model, request.model, ratings, request.run)
            upload, local = train_client(model, shared, ratings, local)
            about = _bytes(self._about_local(request.model, ratings, request.run))
            leaves = enumerate(jax.tree.leaves(local))
            return upload, {"about": about} | {f"leaf{n}": np.asarray(leaf) for n, leaf in leaves}
        except BGTPlannerError as error:
            _log.warning("the answer is noise alone: %s", error)
        except Exception as error:  # its text might name a rating, so it is not even logged
            _log.warning("the answer is noise alone: %s", type(error).__name__)
        return np.zeros(coordinates_of(model, shared)), None

    def _local(
        self, model: Learner, sent: SentModel, ratings: Ratings, run: str | None = None
    ) -> Local:
        """Return the stored local state, if it belongs to this model, these users and this run."""
        shared = Shared(jnp.asarray(sent.items), jnp.asarray(sent.dense))
        first, stored = nothing_kept(model, shared, ratings), self._read_arrays("local.npz") or {}
        leaves, tree = jax.tree.flatten(first)
        kept = [stored.get(f"leaf{n}") for n in range(len(leaves))]
        about = bytes(stored.get("about", b""))
        if run is None:  # to recommend: the state of the latest run
            about = about[about.find(b"\n") + 1 :]
        same = about == self._about_local(sent, ratings, run) and all(
            mine is not None and mine.shape == leaf.shape and mine.dtype == leaf.dtype
            for mine, leaf in zip(kept, leaves, strict=True)
        )
        return jax.tree.unflatten(tree, [jnp.asarray(mine) for mine in kept]) if same else first

    def _about_local(self, sent: SentModel, ratings: Ratings, run: str | None) -> bytes:
        users = [str(label) for label in ratings.user_labels.tolist()]
        parts = [sent.name, dict(sent.settings), catalogue_hash(sent.catalogue), users]
        about = json.dumps(parts, sort_keys=True).encode()
        return about if run is None else json.dumps(run).encode() + b"\n" + about

    def _ratings_for(self, sent: SentModel) -> Ratings:
        ratings, left_out = self.file.ratings_over(sent.catalogue, sent.low, sent.high)
        if left_out:
            _log.info("%d ratings left out: not in this run's catalogue or scale", left_out)
        return ratings

    def _keep(self, sent: SentModel) -> None:
        about = {
            "name": sent.name,
            "settings": dict(sent.settings),
            "low": sent.low,
            "high": sent.high,
            "catalogue": sent.catalogue,
        }
        text = _bytes(json.dumps(about).encode())
        self._write_arrays("model.npz", items=sent.items, dense=sent.dense, about=text)

    def _kept(self) -> SentModel:
        stored = self._read_arrays("model.npz")
        if stored is None:
            raise ConfigError(
                f"{self.file.state}: no model has come yet; this client has not taken part in a "
                "round"
            )
        about = json.loads(bytes(stored["about"]))
        about["catalogue"] = tuple(about["catalogue"])
        return SentModel(items=stored["items"], dense=stored["dense"], **about)

    def _remembered(self) -> Head | None:
        """Return the ledger's head at the latest release."""
        try:
            return Head.parse((self.file.state / "head").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def _read_arrays(self, name: str) -> dict[str, NDArray[Any]] | None:
        try:
            with np.load(self.file.state / name, allow_pickle=False) as stored:
                return dict(stored)
        except Exception:  # missing or damaged: it can be had again
            return None

    def _write_arrays(self, name: str, **arrays: NDArray[Any]) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        replace_file(self.file.state / name, buffer.getvalue())


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8)


def _file_of(context: Context) -> Path:
    """Return the client file that the machine's owner has set; a run cannot change it."""
    path = context.node_config.get("client-file")
    if not isinstance(path, str):
        raise ConfigError('--node-config: expected client-file="/path/to/client.toml"')
    return Path(path)


def make_client_app(
    *, find: Callable[[Context], Path] = _file_of, noise: NoiseFor | None = None
) -> ClientApp:
    """Return the client app. The arguments are for tests, and for many clients on one machine.

    Args:
        find: Returns the client file of a node.
        noise: See :class:`Client`.
    """
    app = ClientApp()

    def answering(handle: Callable[[Client, RecordDict], RecordDict]) -> Any:
        def answer(message: Message, context: Context) -> Message:
            try:
                content = handle(Client(load_client(find(context)), noise=noise), message.content)
            except BGTPlannerError as error:  # our own errors name no rating and no item
                _log.warning("refused: %s", error)
                content = reply("refused")
            except Exception as error:  # others might, so their text is not even logged
                _log.warning("refused: %s", type(error).__name__)
                content = reply("refused")
            return Message(content, reply_to=message)

        return answer

    def hello(client: Client, content: RecordDict) -> RecordDict:
        read_hello_request(content)
        return client.hello().record()

    def train(client: Client, content: RecordDict) -> RecordDict:
        return upload_record(client.answer(Request.read(content)))

    def keep(client: Client, content: RecordDict) -> RecordDict:
        client.keep(SentModel.read(content))
        return reply("kept")

    app.query(HELLO.partition(".")[2])(answering(hello))
    app.train()(answering(train))
    app.query(KEEP.partition(".")[2])(answering(keep))
    return app


client_app = make_client_app()
