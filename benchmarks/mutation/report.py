"""What came of it, file by file, and the faults that nothing has noticed."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.mutation.suites import ORACLES

__all__ = ["argued", "printed", "read_records"]

Record = dict[str, Any]
_NOTICED = ("killed", "timeout")


def read_records(paths: Iterable[Path]) -> dict[str, Record]:
    """The newest record of each fault."""
    records: dict[str, Record] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            records[record["key"]] = record
    return records


def argued(path: Path) -> list[Record]:
    """Faults that nothing can notice, or that do no harm, each with the reason.

    An entry names the file, the function, the changed line as it is `after`, and `why`; it may
    leave out the function, and then holds in the whole file.
    """
    entries: list[Record] = tomllib.loads(path.read_text()).get("survivor", [])
    for entry in entries:
        for name in ("file", "after", "why"):
            if not entry.get(name):
                raise SystemExit(f"{path}: an entry without {name}: {entry}")
    return entries


def reason_for(record: Record, entries: list[Record]) -> str | None:
    for entry in entries:
        if (
            entry["file"] == record["file"]
            and entry.get("function", record["function"]) == record["function"]
            and " ".join(entry["after"].split()) == record["after"]
            and entry.get("before", record["before"]) == record["before"]
        ):
            return str(entry["why"])
    return None


def printed(records: Iterable[Record], entries: list[Record]) -> str:
    """The table and the list, as text."""
    by_file: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_file[record["file"]].append(record)
    rows: list[tuple[str, ...]] = [
        ("file", "faults", "killed", "timeout", "survived", "unreached", "score", "argued")
    ]
    totals: Counter[str] = Counter()
    for file in sorted(by_file):
        counts = Counter(record["outcome"] for record in by_file[file])
        counts["argued"] = sum(
            record["outcome"] not in _NOTICED and reason_for(record, entries) is not None
            for record in by_file[file]
        )
        totals += counts
        rows.append(_row(file.removeprefix("src/bgtplanner/"), counts))
    rows.append(_row("all", totals))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += [
        "",
        "score: noticed of all; argued: noticed of those that could be, see survivors.toml",
    ]
    everything = [record for file in sorted(by_file) for record in by_file[file]]
    missed = [record for record in everything if record["outcome"] not in _NOTICED]
    for title, known in (("Nothing notices", False), ("Argued in survivors.toml", True)):
        chosen = [r for r in missed if (reason_for(r, entries) is not None) is known]
        lines += ["", f"{title}: {len(chosen)}"]
        for record in sorted(chosen, key=lambda record: (record["file"], record["line"])):
            lines += _described(record)
    oracles = [r for r in everything if str(r.get("test", "")).startswith(ORACLES)]
    lines += ["", f"Noticed by oracles alone (dp-accounting): {len(oracles)}"]
    lines += [f"  {r['file']}:{r['line']}  {r['after']}  ({r['test']})" for r in oracles]
    cpu = sum(record["cpu"] for record in everything)
    lines += ["", f"processor time: {cpu:,.0f} s, {cpu / max(len(everything), 1):.2f} s a fault"]
    return "\n".join(lines)


def _row(name: str, counts: Counter[str]) -> tuple[str, ...]:
    noticed = counts["killed"] + counts["timeout"]
    missed = counts["survived"] + counts["unreached"]
    score = noticed / max(noticed + missed, 1)
    without = noticed / max(noticed + missed - counts["argued"], 1)
    numbers = (
        noticed + missed,
        *(counts[n] for n in ("killed", "timeout", "survived", "unreached")),
    )
    return (name, *map(str, numbers), f"{score:.1%}", f"{without:.1%}")


def _described(record: Record) -> list[str]:
    where = f"  {record['file']}:{record['line']} in {record['function'] or 'the module'}"
    about = f"{record['operator']}, {record['outcome']}, {record['tests']} tests"
    return [f"{where} ({about})", f"    - {record['before']}", f"    + {record['after']}"]
