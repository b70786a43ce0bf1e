"""The server's part on real machines: plan, reserve, ask, check the answers, learn from them.

Planning and paying are the same as in a simulation (:mod:`bgtplanner.federation.coordinator`), and
so is the step (:meth:`bgtplanner.federation.rounds.Federation.received`). This module does what
lies between: a round trip to clients that may be slow, gone, wrong or hostile.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation.messages import Request as SumRequest
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server as SumServer
from bgtplanner.federation.client import coordinates_of, first_parameters, without_features
from bgtplanner.federation.coordinator import Engine
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.result import RoundResult, Seen
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.flower import messages
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.messages import Request, Sent, SentCatalogue, SentModel, SumStep, read_word
from bgtplanner.models.learner import settings_of
from bgtplanner.models.metrics import Metrics
from bgtplanner.planning.plan import Plan, noise_of
from bgtplanner.privacy.accountants import Accountant
from bgtplanner.privacy.mechanisms import Limits, Neighbours
from bgtplanner.privacy.shares import Shares, Tolerance

_Answer = TypeVar("_Answer", bound=Sent)

_log = logging.getLogger("flwr")  # what `flwr log` shows

_received = jax.jit(Federation.received, static_argnums=0)


class Pace(NamedTuple):
    """How long a server waits, as in the settings of the section `deployment`."""

    least_clients: int = 1
    wait_seconds: float = 3600.0
    round_seconds: float = 600.0
    pause_seconds: float = 0.0


class Group(NamedTuple):
    """With whom sums are made under secure aggregation, and what a round of them bears."""

    roster: Roster
    tolerance: Tolerance
    neighbours: Neighbours

    @property
    def fewest(self) -> int:
        """The fewest clients that can make a sum, with what is tolerated of so many."""
        for number in range(2, len(self.roster)):
            with contextlib.suppress(ConfigError):
                degree_and_threshold(number, *self.tolerance.of(number))
                return number
        most = len(self.roster)
        degree_and_threshold(most, *self.tolerance.of(most))  # raises if all of them are too few
        return most


class Deployment(Engine):
    """A federation on real machines, stepped round by round.

    Its `run` has the same name when the server is restarted; sums are made with a `group`. Only
    connected clients are asked. The server's ledger records what it has asked of each: a client
    that refused or was never reached is recorded as having paid, which errs on the safe side. What
    a client has really spent is in its own ledger.
    """

    everyone_joins: ClassVar[bool] = False  # ``deployment.clients`` is the most there can be

    def __init__(
        self, federation: Federation, machines: Machines, catalogue: SentCatalogue, *,
        model: str, accountant: Accountant, run: str, pace: Pace, seed: int = 0,
        group: Group | None = None,
    ) -> None:  # fmt: skip
        if federation.protection is None:
            raise ConfigError("privacy.mechanism = none: expected one; real clients need privacy")
        self.federation, self.machines, self.catalogue = federation, machines, catalogue
        self.protection: Protection = federation.protection
        self.run, self.pace, self.group = run, pace, group
        self.n_clients, self.n_items = machines.places, len(catalogue.items)
        self.next_round = 0
        self._nothing_yet(asked=0)
        self._model, self._rule = model, accountant
        self._began = -np.inf
        learner, key = federation.model, jax.random.split(jax.random.key(seed))[0]
        features = jnp.asarray(catalogue.features)
        shared = first_parameters(learner, key, 1, features)[0]
        self.state = State(shared, (), learner.server_initial(shared, federation.server))
        self._coordinates = coordinates_of(federation.model, shared)
        self._fewest = max(pace.least_clients, 0 if group is None else group.fewest)

    def present(self) -> NDArray[np.bool_]:
        """Wait until a round is due and enough clients are connected, and return which are."""
        time.sleep(max(0.0, self._began + self.pace.pause_seconds - time.monotonic()))
        self._began = time.monotonic()
        return self.machines.wait_for(self._fewest, self.pace.wait_seconds)

    def _nothing_yet(self, asked: int) -> None:
        """Begin a round, in which nothing has been seen and nobody has answered."""
        self.seen, self.useless = Seen(), Counter[str]()
        self.asked, self.refused = asked, 0

    def step(self, terms: RoundParameters, plan: Plan) -> RoundResult:
        """Ask all clients that have paid for their uploads, and learn from the usable ones."""
        places = np.flatnonzero(np.asarray(terms.granted) > 0)
        self._nothing_yet(asked=len(places))
        if self.group is not None:
            found = self._added_up(places, terms, plan, self.group)
        else:
            found = self._each_alone(places, terms, plan)
        if found is None:
            return replace(self._record(0), aborted=True)
        total, accepted = found
        used = terms._replace(granted=jnp.asarray(accepted))
        self.state, released = _received(
            self.federation, self.state, jnp.asarray(total, dtype=jnp.float32), used
        )
        self.seen = Seen.of(jax.device_get(released))
        return self._record(int(accepted.sum()))

    def _requests(
        self, places: NDArray[np.int64], charges: NDArray[Any], clips: NDArray[Any]
    ) -> dict[int, Request]:
        """Return what each place is asked for in this round, at a charge and a clip of its own."""
        sent = self._sent()
        return {
            place: Request(
                run=self.run, round=self.next_round, accountant=self._rule.name,
                trust=self.protection.trust, unit=self.protection.unit, charge=float(charge),
                clip=float(clip), model=sent,
            )
            for place, charge, clip in zip(places.tolist(), charges, clips, strict=True)
        }  # fmt: skip

    def _each_alone(
        self, places: NDArray[np.int64], terms: RoundParameters, plan: Plan
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the sum of the uploads that could be used, by weight, and whose they are."""
        classes = np.asarray(terms.class_of_client)
        charges = np.asarray(plan.charge_by_class)[classes[places]]
        requests = self._requests(places, charges, np.full(len(places), plan.largest_clip))
        limits = jax.device_get(self.protection.limits(terms, self._coordinates))
        total, weights = np.zeros(self._coordinates), np.asarray(self.protection.weights(terms))
        accepted = np.zeros(self.n_clients, dtype=np.float32)
        for place, answer in self._answers(requests, messages.TRAIN, messages.Upload).items():
            upload, of_class = answer.values, classes[place]
            own, scale = Limits(*(part[of_class] for part in limits)), float(terms.scale[of_class])
            if upload.shape != (self._coordinates,):
                self.useless["malformed"] += 1
            elif not self.protection.is_possible(upload, scale, own):
                self.useless["outside"] += 1
            else:
                total += weights[of_class] * upload
                accepted[place] = 1.0
        return total, accepted

    def _added_up(
        self, places: NDArray[np.int64], terms: RoundParameters, plan: Plan, group: Group
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]] | None:
        """Return the sum of the uploads, and who is in it; None if it could not be opened.

        The server never sees an upload. Whatever goes wrong, the charge stays spent.
        """
        classes = np.asarray(terms.class_of_client)
        charges = np.asarray(plan.charge_by_class, dtype=np.float64)
        noise = noise_of(self._rule, "secagg", plan.largest_clip, charges, group.neighbours)
        dropouts, colluders = group.tolerance.of(len(places))
        scale, largest = float(noise.scale[charges > 0].max()), float(noise.clip.max())
        shares = Shares(
            scale=scale, clip=largest, invited=len(places),
            most_dropouts=dropouts, most_colluders=colluders,
        )  # fmt: skip
        own = classes[places]
        requests = self._requests(places, charges[own], noise.clip[own])
        context = SumStep.context(next(iter(requests.values())), scale, largest)
        agreed = SumRequest(
            run=self.run, round=self.next_round, roster=group.roster.digest,
            members=frozenset(requests), bits=shares.bits(self._coordinates),
            size=self._coordinates, dropouts=dropouts, colluders=colluders, context=context,
        )  # fmt: skip
        contents = dict.fromkeys(requests, b"")
        try:
            summing = SumServer(agreed, group.roster)
            while summing.step is not None:
                steps = {
                    place: SumStep(
                        step=summing.step, round=agreed.to_bytes(), message=content,
                        catalogue=self.catalogue.digest, scale=scale, largest_clip=largest,
                        request=requests[place] if summing.step == "upload" else None,
                    )
                    for place, content in contents.items()
                }  # fmt: skip
                answers = self._answers(steps, messages.SUM, messages.StepAnswer)
                for place, answer in answers.items():
                    try:
                        summing.receive(place, answer.answer)
                    except MessageError:
                        self.useless["malformed"] += 1
                contents = summing.close_step()
            found = summing.finish()
        except (MessageError, ConfigError) as error:  # or too few clients could be asked at all
            _log.warning("a sum was not opened: %s", error)
            return None
        accepted = np.zeros(self.n_clients, dtype=np.float32)
        accepted[list(found.places)] = 1.0
        return shares.decode(found.values, len(found.places)), accepted

    def _answers(
        self, contents: Mapping[int, Sent], kind: str, expected: type[_Answer]
    ) -> dict[int, _Answer]:
        """Return the answers of one kind, in the order of places; the others are counted."""
        found: dict[int, _Answer] = {}
        for place, answer in sorted(self._ask(contents, kind).items()):
            try:
                read = messages.read_answer(expected, answer)
            except MessageError:
                self.useless["error" if answer.has_error() else "malformed"] += 1
                continue
            if read is None:
                self.refused += 1
            else:
                found[place] = read
        return found

    def _ask(self, contents: Mapping[int, Sent], kind: str) -> dict[int, Message]:
        """Exchange messages; clients that lack the catalogue get it and are asked once more.

        All of it together takes no longer than a round may. Useless answers are counted.
        """
        deadline = time.monotonic() + self.pace.round_seconds
        answers, useless = self.machines.exchange(contents, kind, self.pace.round_seconds)
        self.useless.update(useless)
        lacking = [place for place, answer in answers.items() if read_word(answer) == "unknown"]
        if lacking:
            left, catalogue = deadline - time.monotonic(), dict.fromkeys(lacking, self.catalogue)
            sent, _ = self.machines.exchange(catalogue, messages.CATALOGUE, max(left, 1.0))
            again = {place: contents[place] for place in sent if read_word(sent[place]) == "kept"}
            left = deadline - time.monotonic()
            later, useless = self.machines.exchange(again, kind, max(left, 1.0))
            self.useless.update(useless)
            answers = {place: of for place, of in answers.items() if place not in again} | later
        return answers

    def _sent(self) -> SentModel:
        """Return the model as clients get it: without the features, which are in the catalogue."""
        shared = without_features(self.federation.model, self.state.shared)
        chosen = settings_of(self.federation.model)  # what is left open, clients leave open, too
        parts = [np.asarray(part, dtype=np.float32) for part in (shared.items, shared.dense)]
        return SentModel(
            name=self._model, catalogue=self.catalogue.digest, items=parts[0], dense=parts[1],
            settings={name: value for name, value in chosen.items() if value is not None},
        )  # fmt: skip

    def _record(self, clients: int) -> RoundResult:
        """Return the result of a round, and go on to the next."""
        index, self.next_round = self.next_round, self.next_round + 1
        late = self.useless.pop("late", 0)
        return RoundResult(
            round=index, loss=None, clients=clients, ratings=None,
            metrics=Metrics(),  # clients do not report errors: no charge has paid for that
            dropped=sum(self.useless.values()), dropped_by_kind=dict(self.useless),
            late=late, asked=self.asked, refused=self.refused,
        )  # fmt: skip

    def publish(self, model: bytes) -> int:
        """Send a model file to all connected clients, and return how many stored it."""
        sent = messages.ModelFile(model)
        places = np.flatnonzero(self.machines.look()).tolist()
        answers = self._ask(dict.fromkeys(places, sent), messages.KEEP)
        return sum(read_word(answer) == "kept" for answer in answers.values())

    def rest(self) -> RoundResult:
        """Record a round in which nothing is asked of any client."""
        self._nothing_yet(asked=0)
        return self._record(0)

    def divide(self, split: Mapping[str, float]) -> None:
        """Ask clients to divide their next uploads so; it is sent out with the parameters."""
        shared = self.federation.model.asking(self.state.shared, split)
        self.state = self.state._replace(shared=shared)

    def evaluate(self) -> NoReturn:
        """Refuse: the server has no ratings."""
        raise ConfigError("planning.reward = test: expected none or released on real machines")

    def shown_pairs(self) -> NoReturn:
        """Refuse: clients do not say which items they have rated."""
        raise ConfigError("planning.context = usage: expected none, released or forecast here")
