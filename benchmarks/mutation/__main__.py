"""How many small faults do the tests notice?  python -m benchmarks.mutation --help."""

from __future__ import annotations

import argparse
import atexit
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.mutation import child
from benchmarks.mutation.baseline import baseline_of
from benchmarks.mutation.mutants import mutants_of
from benchmarks.mutation.play import play, record_of
from benchmarks.mutation.report import argued, printed, read_records
from benchmarks.mutation.suites import suite_of, targets

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")


def main() -> None:
    """Try the faults that are asked for, and say what came of them."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and end what was started
    chosen = options.files or targets(ROOT)
    sources = {file: (ROOT / file).read_bytes() for file in chosen}
    mutants = [mutant for file in chosen for mutant in mutants_of(file, sources[file])]
    if options.only:
        mutants = [mutant for mutant in mutants if options.only in mutant.key]
    if options.sample < 1:
        number = round(options.sample * len(mutants))
        mutants = random.Random(options.seed).sample(mutants, number)
    if options.shard:
        index, number = map(int, options.shard.split("/"))
        mutants = mutants[index - 1 :: number]
    wanted = {mutant.key: record_of(mutant, sources[mutant.file]) for mutant in mutants}
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line}  {mutant.operator}  {mutant.after}")
        print(len(mutants), "faults")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = {
        key: record
        for key, record in read_records([options.out, *options.also]).items()
        if key in wanted and record["source"] == wanted[key]["source"]
    }
    for mutant in mutants if not options.report else ():
        if options.again and known.get(mutant.key, {}).get("outcome") in ("survived", "unreached"):
            del known[mutant.key]
    left = [mutant for mutant in mutants if mutant.key not in known]
    if left and not options.report:
        child.prepare(ROOT)
        scratch = Path(tempfile.mkdtemp(prefix="mutation-logs-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        suites = {suite_of(mutant.file) for mutant in left}
        found = {suite: baseline_of(suite, ROOT, scratch, options.examples) for suite in suites}
        for suite, baseline in found.items():
            seconds = sum(baseline.seconds.values())
            print(f"{suite.name}: {len(baseline.seconds)} tests, {seconds:.0f} s while traced")
            for title, tests in (
                ("do not pass as they are and are left out", baseline.left_out),
                ("are skipped", baseline.skipped),
            ):
                if tests:
                    print(f"  {len(tests)} {title}, such as", *list(tests)[:5])
        begun = time.monotonic()
        with options.out.open("a") as out:

            def keep(record: dict[str, Any]) -> None:
                known[record["key"]] = record
                out.write(json.dumps(record) + "\n")
                out.flush()
                done = len(mutants) - len(left) + next(counter)
                if options.verbose or record["outcome"] in ("survived", "unreached"):
                    passed = time.monotonic() - begun
                    print(
                        f"[{done}/{len(mutants)}, {passed:.0f} s] {record['outcome']} "
                        f"{record['file']}:{record['line']}  {record['after']}",
                        flush=True,
                    )

            counter = iter(range(1, len(left) + 1))
            play(
                left,
                {mutant.file: found[suite_of(mutant.file)] for mutant in left},
                sources,
                root=ROOT,
                scratch=scratch,
                jobs=options.jobs,
                examples=options.examples,
                stages=options.stages,
                keep=keep,
            )
    print(printed(known.values(), argued(SURVIVORS)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    add = parser.add_argument
    add("--files", nargs="*", default=[], help="source files, from the root (default: all)")
    add("--jobs", type=int, default=1, help="how many faults at a time")
    add("--shard", default="", metavar="I/N", help="every N-th fault, from the I-th on")
    add("--sample", type=float, default=1.0, metavar="SHARE", help="a random part of them")
    add("--seed", type=int, default=0, help="of the sample")
    add("--only", default="", metavar="TEXT", help="faults whose key holds this text")
    add(
        "--examples", type=int, default=30, help="of each property that does not say (default: 30)"
    )
    add("--stages", type=int, default=9, help="1: with the tests named after the file only")
    default = ROOT / "build" / "mutation" / "records.jsonl"
    add("--out", type=Path, default=default, help="records, one a line; what is there is kept")
    add("--also", type=Path, nargs="*", default=[], help="more records, of other shards")
    add("--again", action="store_true", help="try those anew that nothing noticed")
    add("--report", action="store_true", help="only say what the records hold")
    add("--list", action="store_true", help="only list the faults")
    add("--verbose", action="store_true", help="a line for every fault")
    return parser.parse_args()


if __name__ == "__main__":
    main()
