"""Lists a second and their 99th percentile beside a bare Starlette endpoint, and a soak.

python -m benchmarks.speed.serving MODEL --seconds 10 [--soak]   --soak: reloads, hostile requests
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from bgtplanner import load_model

CONNECTIONS = 8
BARE = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def answer(request):
    return JSONResponse({"items": len((await request.json())["history"])})
listening = socket.create_server(("127.0.0.1", 0))
print('{"address": "http://127.0.0.1:%d/"\\n}' % listening.getsockname()[1], flush=True)
app = Starlette(routes=[Route("/recommend", answer, methods=["POST"])])
config = uvicorn.Config(app, http="h11", access_log=False, log_config=None)
uvicorn.Server(config).run(sockets=[listening])
"""
POST = b"POST /recommend HTTP/1.1\r\ncontent-type: application/json\r\n"
HOSTILE = (
    POST + b"host: 127.0.0.1\r\ncontent-length: 99999999\r\n\r\n",
    POST + b"host: evil.example\r\ncontent-length: 2\r\n\r\n{}",
    POST + b"host: 127.0.0.1\r\ncontent-length: 50\r\n\r\nand then nothing",
    b"GET /../../etc/passwd HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 200_000 + b"\r\n",
    b"\x16\x03\x01" + bytes(range(256)),
)


async def ask(port: int, sent: bytes, until: float, found: list[tuple[int, float]]) -> None:
    """Ask again and again over one connection, and note each status and time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < until:
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        found.append((int(head.split()[1]), time.perf_counter() - began))
    writer.close()


async def attack(port: int, until: float, path: Path, found: Counter[str]) -> None:
    """Send what no client would, and hang up; meanwhile the model file is spoilt and renewed."""
    content, at = path.read_bytes(), 0
    while time.perf_counter() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOSTILE[at % len(HOSTILE)])
        try:
            found[(await asyncio.wait_for(reader.read(200), 0.2))[9:12].decode() or "closed"] += 1
        except (TimeoutError, ConnectionError) as error:
            found[type(error).__name__] += 1
        writer.close()
        if (at := at + 1) % 50 == 0:
            path.write_bytes(content[:-9] if at % 100 else content)


async def watch(pid: int, seconds: float, megabytes: list[int]) -> None:
    """Note ten times how much memory the server has."""
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        megabytes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 // 10**6)


async def measure(process: subprocess.Popen[str], seconds: float, path: Path, soak: bool) -> None:
    """Print what was measured of one server, asked for lists of fifty ratings."""
    assert process.stdout is not None
    address = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
    model, port, until = load_model(path), int(address[17:-1]), time.perf_counter() + seconds
    body = json.dumps({"history": dict.fromkeys(model.items[:500:10], model.high)})
    sent = POST + f"host: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    found, refused, megabytes = list[tuple[int, float]](), Counter[str](), list[int]()
    attacks = [attack(port, until, path, refused)] if soak else []
    asking = [ask(port, sent, until, found) for _ in range(CONNECTIONS)]
    await asyncio.gather(*asking, *attacks, watch(process.pid, seconds, megabytes))
    ticks = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15]))
    p50, p99 = np.quantile([1e3 * of for _, of in found], (0.5, 0.99))
    print(f"{len(found) / seconds:,.0f} a second, p50 {p50:.1f} ms, p99 {p99:.1f} ms,")
    print(f"  CPU with its start {10 * ticks / len(found):.2f} ms each, MB {megabytes},")
    print(f"  statuses {dict(Counter(of for of, _ in found))}, of hostile ones {dict(refused)}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--soak", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "served.model").write_bytes(asked.model.read_bytes())
        ours = ["-m", "bgtplanner", "serve", str(path), "--port=0", "--rate=0", "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        for name, words in {"bare": ["-c", BARE], "serve": ours}.items():
            if name == "serve" or not asked.soak:
                with subprocess.Popen([sys.executable, *words], text=True, **pipes) as process:
                    print(name, end=": ")
                    asyncio.run(measure(process, asked.seconds, path, asked.soak))
                    process.terminate()


if __name__ == "__main__":
    main()
