"""Secure aggregation within one process: bytes and CPU seconds of each client, and of the server.

As many clients drop out as was stated, a fifth of them at each step. What a client computes of its
model, what Flower adds, and the disk are not in it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bgtplanner.federation.aggregation.client import Client, Policy
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.federation.aggregation.messages import STEPS, Request
from bgtplanner.federation.aggregation.neighbourhood import degree_and_threshold
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server

BITS = 32


class Memory(dict[str, bytes]):
    """A client's store, without a disk."""

    def load(self, key: str) -> bytes | None:
        return self.get(key)

    def save(self, key: str, content: bytes) -> None:
        self[key] = content


def measure(clients: int, coordinates: int, dropouts: int, colluders: int) -> dict[str, Any]:
    """Play one round; the sum is compared with the plain one."""
    identities = [Ed25519PrivateKey.generate() for _ in range(clients)]
    names = tuple(f"client {place}" for place in range(clients))
    roster = Roster(names, tuple(map(public_bytes, identities)))
    request = Request(
        run="measured", round=0, roster=roster.digest, members=frozenset(range(clients)),
        bits=BITS, size=coordinates, dropouts=dropouts, colluders=colluders, context=bytes(32),
    )  # fmt: skip
    policy = Policy(smallest_group=clients - dropouts, colluders=colluders)
    stores = [Memory() for _ in range(clients)]
    values = np.random.default_rng(0).integers(-1000, 1000, (clients, coordinates))
    leaves = np.array_split(np.random.default_rng(1).permutation(clients)[:dropouts], len(STEPS))
    gone, steps, asked = set[int](), {}, len(request.to_bytes())
    clock = time.process_time
    began = clock()
    server = Server(request, roster)
    of_server = clock() - began
    sent = dict.fromkeys(range(clients), b"")
    for step, now in zip(STEPS, leaves, strict=True):
        gone |= set(now.tolist())
        up, down, of_clients = [], [], []
        for place in sorted(set(sent) - gone):
            began = clock()
            client = Client(request, roster, identities[place], policy, stores[place])
            answer = client.answer(step, sent[place], lambda place=place: values[place])
            of_clients.append(clock() - began)
            up.append(len(answer))
            down.append(len(sent[place]) + asked)
            began = clock()
            server.receive(place, answer)
            of_server += clock() - began
        began = clock()
        sent = server.close_step()
        of_server += clock() - began
        steps[step] = {
            "clients": len(up), "bytes_up": float(np.mean(up)), "bytes_down": float(np.mean(down)),
            "cpu_seconds": float(np.mean(of_clients)),
        }  # fmt: skip
    began = clock()
    found = server.finish()
    of_server += clock() - began
    plain = values[sorted(found.places)].sum(axis=0) % (1 << BITS)
    if found.values.astype(np.int64).tolist() != plain.tolist():
        raise SystemExit("the sum is wrong")
    degree, threshold = degree_and_threshold(clients, dropouts, colluders)
    of_all = {
        name: sum(of[name] for of in steps.values())
        for name in ("bytes_up", "bytes_down", "cpu_seconds")
    }
    return {
        "clients": clients, "coordinates": coordinates, "dropouts": dropouts,
        "colluders": colluders, "neighbours": degree, "threshold": threshold,
        "in_the_sum": len(found.places), "steps": steps, "client": of_all,
        "server_cpu_seconds": of_server, "upload_bytes_plain": coordinates * BITS // 8,
    }  # fmt: skip


def main() -> None:
    """Print what one round takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (
        ("clients", 1000), ("coordinates", 10_000), ("dropouts", 50), ("colluders", 10),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    print(json.dumps(measure(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
