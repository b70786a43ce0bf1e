"""A real client: it trusts no one, pays from its own ledger, and its ratings never leave it.

A server gets no more out of it than its policy file allows and its ledger can pay, whichever
messages arrive, in any order and number, and whenever the client is killed and restarted:

* whether a request is answered, refused or repeated depends on the request, on earlier requests,
  on the policy file, the ledger and the clock, and never on a rating. A client that has no
  ratings, or cannot read them, answers with noise like the others;
* all that is public about the items comes in a catalogue that the policy pins by its digest;
* the charge is on disk before a rating is read, and nothing can leave before that;
* a request that was answered before is answered with the same bytes, at no further charge, while
  they are kept. After that it is refused: the rounds of a run only go up;
* the noise is scaled for the neighbouring relation of policy and ledger; no message names one;
* every answer has its own noise, from the operating system, which no message can change;
* a refusal is one word without a reason, which is in the client's own log only.

Not covered are how long an answer takes, and that the client is there at all. The games in
``tests/games`` play a hostile server against all of this.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replace_file, replacing
from bgtplanner.errors import BGTPlannerError, ConfigError, MessageError
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.randomizer import Randomizer, Release
from bgtplanner.flower import messages
from bgtplanner.flower.clientfile import ClientFile, load_client
from bgtplanner.flower.identity import identity_in, proof_of
from bgtplanner.flower.messages import Request, SentCatalogue, SentModel, SumStep, unless
from bgtplanner.flower.state import ClientState, RoundStore
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.randomness import ExactNoise
from bgtplanner.privacy.shares import Shares
from bgtplanner.published.model import load_model

if TYPE_CHECKING:  # JAX comes with it, and most messages do without: see its head
    from bgtplanner.flower.training import Trainer

NoiseFor = Callable[[ClientFile, Request], ExactNoise]
_Kind = TypeVar("_Kind", bound=messages.Sent)

_LARGEST_PARAMETER = 1e6  # no model of ours comes near: a larger one only overflows
_LARGEST_FEATURE = 1.0  # of a catalogue, by the way features are made

_log = logging.getLogger("flwr")  # the SuperNode shows its lines; they stay on this machine


class Client(ClientState):
    """One client on one machine, with its files.

    Another source of noise than the operating system, or another clock, is for tests only.
    """

    def __init__(
        self, file: ClientFile, *, noise: NoiseFor | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        super().__init__(file, clock)
        self._noise = noise

    # ---- what the server can ask for

    def hello(self, asked: messages.HelloRequest) -> messages.Hello:
        """Return the client's name, which belongs to its ledger and not to the machine.

        Under secure aggregation, clients are known by their identity keys, and prove it.
        """
        with self.open_ledger() as ledger:
            name, proof = ledger.fingerprint(b"bgtplanner client").hex(), b""
            if self.policy.secagg is not None:
                identity = identity_in(self.file.identity)
                name = public_bytes(identity).hex()
                proof = proof_of(identity, self.file.roster(self.policy), asked)
            return messages.Hello(name=name, accountant=ledger.accountant.name, proof=proof)

    def answer(self, request: Request) -> NDArray[np.float64]:
        """Return the upload of a round, paid for and noised.

        Raises:
            MessageError: If this client does not agree to the request.
            BudgetExceeded: If the ledger cannot pay.
            StaleRoundError: If the round is over, and its answer is not kept.
        """
        alone = self.policy.secagg is None  # else its noise is for a sum, its place among others
        unless(alone, "an upload outside of a sum, which is all that the policy names")
        self._agree(request)
        trainer = self._model_of(request.model)
        with self._alone(), self.open_ledger() as ledger:
            known = self._answered(request.digest)
            if known is not None:
                return known
            self._count()
            guard, reservation = self._pay(ledger, request)
            upload, local = self._train(trainer, request)
            released = guard.protect(reservation, upload[None], clip=request.clip)
            vector = np.ascontiguousarray(released.values[0])
            self._keep_answer(request.digest, vector)
            self._done(guard, released, trainer, local)
            return vector

    def step(self, asked: SumStep) -> bytes:
        """Return the answer to a step of secure aggregation.

        Raises:
            MessageError: If this client does not agree to it; then the round is over for it.
            BudgetExceeded: If the ledger cannot pay; likewise.
        """
        group = self.policy.secagg
        if group is None or asked.step not in STEPS:
            raise MessageError("a step of secure aggregation that the policy does not name")
        request = SumRequest.from_bytes(asked.round)
        with self._alone(), self.open_ledger() as ledger:
            member = Member(
                request, self.file.roster(self.policy), identity_in(self.file.identity),
                group.insists, RoundStore(self.file.state / "sums"),
            )  # fmt: skip
            if asked.step == "keys" and not member.begun:
                self._begin(ledger, request)
            paid: list[Callable[[], None]] = []
            answer = member.answer(
                asked.step, asked.message, lambda: self._share(ledger, asked, request, paid)
            )
            for done in paid:  # none but for an upload that is not a repeated one
                done()
            return answer

    def _begin(self, ledger: Ledger, agreed: SumRequest) -> None:
        """Refuse a round that was paid for before and is forgotten, or one more than allowed."""
        newest = ledger.newest_round(agreed.run)
        unless(newest is None or agreed.round > newest, "a round that is over")
        self._count()

    def _share(
        self, ledger: Ledger, asked: SumStep, agreed: SumRequest, paid: list[Callable[[], None]]
    ) -> NDArray[np.uint64]:
        """Pay, train, and return the upload on its grid, with this client's share of the noise.

        What is to be done once the masked upload is stored is added to `paid`.
        """
        request = asked.request
        if request is None or (request.run, request.round) != (agreed.run, agreed.round):
            raise MessageError("an upload to another round")
        self._agree(request)
        trainer = self._model_of(request.model)
        context = SumStep.context(request, asked.scale, asked.largest_clip)
        shares = Shares(
            scale=asked.scale, clip=asked.largest_clip, invited=len(agreed.members),
            most_dropouts=agreed.dropouts, most_colluders=agreed.colluders,
        )  # fmt: skip
        size = trainer.coordinates
        if (context, size, shares.bits(size)) != (agreed.context, agreed.size, agreed.bits):
            raise MessageError("another upload than the round was begun for")
        guard = Randomizer(ledger, trust="secagg")
        guard.check_shares(shares, charge=request.charge, clip=request.clip)
        guard, reservation = self._pay(ledger, request)
        upload, local = self._train(trainer, request)
        released = guard.share(reservation, upload, clip=request.clip, shares=shares)
        paid.append(lambda: self._done(guard, released, trainer, local))
        return released.values

    def _count(self) -> None:
        """Count a request that was never asked before; refuse one more than allowed."""
        unless(self._pacing.take(), "more requests than requests_per_hour")

    def _pay(self, ledger: Ledger, request: Request) -> tuple[Randomizer, Reservation]:
        """Book the charge of a request, durably, before a rating is read."""
        noise = None if self._noise is None else self._noise(self.file, request)
        guard = Randomizer(ledger, trust=self.policy.trust, noise=noise)
        reservation = guard.reserve(
            request.charge, run=request.run, round=request.round, rising=True
        )
        self._remember(ledger, request.digest)
        return guard, reservation

    def _done(
        self, guard: Randomizer, released: Release, trainer: Trainer,
        local: dict[str, NDArray[Any]] | None,
    ) -> None:  # fmt: skip
        """Store what the client keeps of a round, and settle it.

        Its answer is on disk by now: a client that is killed here repeats what it has paid for.
        """
        if local is not None:
            with replacing(self.file.state / "local.npz") as file:
                np.savez(file, allow_pickle=False, **local)
        self._keep(trainer)
        guard.settle(released)

    def _keep(self, trainer: Trainer) -> None:
        """Store what was sent as a model file, to make lists with until that of the run comes."""
        with contextlib.suppress(BGTPlannerError):  # some learners publish none
            trainer.model(self.policy.promise).save(self.file.model)

    def keep(self, sent: messages.ModelFile) -> None:
        """Store the model file of a run, to make lists with. Nothing is released.

        It is stored as it came, if all of it can be read and the policy names its catalogue.
        """
        model = load_model(sent.file)
        self._agree_to(SentCatalogue.of(Catalogue.of(model), model.low, model.high))
        small = bool((np.abs(model.released) <= _LARGEST_PARAMETER).all())
        unless(small, "parameters that are too large")
        model.verdict()  # its evidence and its guarantee can be read
        replace_file(self.file.model, sent.file)

    def lacks(self, digest: str) -> bool:
        """Return whether the policy names a catalogue that has not come; it is sent then."""
        return digest in self.policy.catalogues and self._find(digest) is None

    def hold(self, catalogue: SentCatalogue) -> None:
        """Store a catalogue that the policy names; those that it no longer names are deleted."""
        self._agree_to(catalogue)
        replace_file(self.file.state / f"catalogue-{catalogue.digest}", catalogue.to_bytes())
        for path in self.file.state.glob("catalogue-*"):
            if path.name.removeprefix("catalogue-") not in self.policy.catalogues:
                path.unlink(missing_ok=True)

    # ---- internals

    def _agree(self, request: Request) -> None:
        """Refuse what the policy does not allow, even if the ledger could pay."""
        self.policy.check(request.accountant, request.charge, request.clip)
        fits = (request.trust, request.unit) == (self.policy.trust, "client")
        unless(fits, "another trust or unit than the policy's")

    def _agree_to(self, catalogue: SentCatalogue) -> None:
        """Refuse a catalogue that the policy does not allow.

        Whatever its features are, one clip and one noise cover the whole upload. What is refused
        here would only cost the client time, or make its arithmetic overflow.
        """
        policy, scale = self.policy, (catalogue.low, catalogue.high)
        small = bool((np.abs(catalogue.features) <= _LARGEST_FEATURE).all())
        named = catalogue.digest in policy.catalogues
        unless(named, "a catalogue that the policy does not name")
        unless(len(catalogue.items) <= policy.most_items, "more items than most_items")
        unless(len(catalogue.names) <= policy.most_features, "more features than most_features")
        unless(small, "features that are not finite, or too large")
        unless(scale == policy.scale, "another scale of ratings than the policy's")

    def _catalogue_of(self, sent: SentModel) -> SentCatalogue:
        """Return the catalogue that a model is about, if this client agrees to it and has it."""
        named = sent.catalogue in self.policy.catalogues
        unless(named, "a catalogue that the policy does not name")
        if (found := self._find(sent.catalogue)) is None:
            raise MessageError("a catalogue that has not come yet")
        self._agree_to(found)
        return found

    def _model_of(self, sent: SentModel) -> Trainer:
        """Return the model that was sent, if this client agrees to it; no rating plays a part.

        Nothing is imported that the policy does not name.
        """
        unless(sent.name in self.policy.models, "a model that the policy does not name")
        catalogue, parts = self._catalogue_of(sent), (sent.items, sent.dense)
        small = all((np.abs(part) <= _LARGEST_PARAMETER).all() for part in parts)
        unless(small, "parameters that are not finite, or too large")
        from bgtplanner.flower.training import Trainer

        return Trainer(sent, self.policy.settings.get(sent.name, {}), catalogue)

    def _train(
        self, trainer: Trainer, request: Request
    ) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]] | None]:
        """Return the client's unprotected upload, and what it keeps of the round.

        Returns zeros and nothing if training fails: a client that refused because of its ratings,
        or of an error with them, would reveal something unpaid. The error is in the log.
        """
        try:
            return trainer.train(self._ratings_for(request.model), self._local(), request.run)
        except BGTPlannerError as error:
            _log.warning("the answer is noise alone: %s", error)
        except Exception as error:  # its text might name a rating, so it is not even logged
            _log.warning("the answer is noise alone: %s", type(error).__name__)
        return np.zeros(trainer.coordinates), None

    def _ratings_for(self, sent: SentModel) -> Ratings:
        """Return the client's ratings of the items of a model's catalogue, within its scale.

        Others are counted in the client's own log; how many there are never leaves it.
        """
        catalogue = self._catalogue_of(sent)
        ratings, left_out = self.file.ratings_over(catalogue.items, catalogue.low, catalogue.high)
        if left_out:
            _log.info("%d ratings left out: not in this run's catalogue or scale", left_out)
        return ratings


def _file_of(context: Context) -> Path:
    """Return the client file that the machine's owner has set; a run cannot change it."""
    path = context.node_config.get("client-file")
    if not isinstance(path, str):
        raise ConfigError('--node-config: expected client-file="/path/to/client.toml"')
    return Path(path)


def make_client_app(*, noise: NoiseFor | None = None) -> ClientApp:
    """Return the client app; the noise is for tests only."""
    app = ClientApp()

    def on(
        register: Any, kind: type[_Kind], handle: Callable[[Client, _Kind], messages.Sent | None]
    ) -> None:
        """Have messages of a kind answered, whatever happens with them."""

        def answer(message: Message, context: Context) -> Message:
            content: messages.Sent = messages.Reply("refused")
            try:
                client = Client(load_client(_file_of(context)), noise=noise)
                asked = kind.read(message.content)
                if client.lacks(getattr(asked, "catalogue", "")):
                    content = messages.Reply("unknown")
                else:
                    content = handle(client, asked) or messages.Reply("kept")
            except BGTPlannerError as error:  # our own errors name no rating and no item
                _log.warning("refused: %s", error)
            except Exception as error:  # others might, so their text is not even logged
                _log.warning("refused: %s", type(error).__name__)
            return Message(content.record(), reply_to=message)

        register()(answer)

    def query(name: str) -> Any:
        return partial(app.query, name.partition(".")[2])

    on(app.train, Request, lambda client, asked: messages.Upload(client.answer(asked)))
    on(query(messages.HELLO), messages.HelloRequest, lambda client, asked: client.hello(asked))
    on(query(messages.SUM), SumStep, lambda client, asked: messages.StepAnswer(client.step(asked)))
    on(query(messages.KEEP), messages.ModelFile, lambda client, asked: client.keep(asked))
    on(query(messages.CATALOGUE), SentCatalogue, lambda client, asked: client.hold(asked))
    return app


client_app = make_client_app()
