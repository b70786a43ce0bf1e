"""The paper's Table 2, against its source where that lies beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.paper.printed import published

NAMES = {
    "unlimited": "FedSGD",
    "bgt": "OURS",
    "adpml": "ADPML",
    "adap": "ADAP",
    "uniform": "DPSGD",
}


def test_as_printed() -> None:
    paper = Path(__file__).parents[3] / "shared/paper/bgtplanner.tex"
    if not paper.is_file():
        pytest.skip(f"no paper: {paper} is not there")
    rows = {}
    for line in paper.read_text(encoding="utf-8").splitlines():
        name = line.partition("&")[0].strip()
        if name in NAMES.values():
            plain = line.replace(r"\diagbox[]{}{}", "").replace(r"\\", "").split("&")[1:]
            wide = 2 if "multicolumn" in line else 1
            rows[name] = [_number(cell) for cell in plain for _ in range(wide)]
    assert list(rows) == list(NAMES.values())
    for policy, name in NAMES.items():
        assert len(rows[name]) == 12
        for place, dataset in enumerate(("filmtrust", "ml-100k", "ml-1m")):
            for side, mechanism in enumerate(("gaussian", "laplace")):
                kind = "none" if policy == "unlimited" else mechanism
                ours = published(dataset, kind, policy)
                theirs = [rows[name][2 * place + side + shift] for shift in (0, 6)]
                assert list(ours or (None, None)) == theirs


def _number(cell: str) -> float | None:
    digits = cell.replace(r"\multicolumn{2}{c|}", "").replace(r"\textbf", "").strip(" {}")
    return float(digits) if digits else None
