"""The figures of the paper's Table 2, to compare ours with.

They are means of five tests with a total budget of epsilon 10. FedSGD has no budget, so its
figures hold for both mechanisms; DPSGD was run with Gaussian noise only.
"""

from __future__ import annotations

from typing import NamedTuple

EPSILON = 10.0
"""The total budget of the table."""

HEADLINE = (3.40, 10.12, 0.71)
"""Average gains over the second best, in per cent: RMSE Gaussian, RMSE Laplace, F1 of both."""


class Published(NamedTuple):
    """One cell of the table."""

    rmse: float
    f1: float


_TABLE = {  # per data set: RMSE under Gaussian and Laplace noise, then F1
    "unlimited": ((0.2905, 0.8354), (0.2017, 0.9018), (0.2006, 0.9137)),
    "bgt": (
        (0.3746, 0.4114, 0.6685, 0.6517),
        (0.3223, 0.3449, 0.6444, 0.6421),
        (0.3135, 0.3484, 0.6524, 0.6431),
    ),
    "adpml": (
        (0.3898, 0.4258, 0.6395, 0.6338),
        (0.3442, 0.3815, 0.6358, 0.6404),
        (0.3558, 0.4217, 0.6407, 0.6417),
    ),
    "adap": (
        (0.3970, 0.4435, 0.6389, 0.6194),
        (0.3553, 0.4092, 0.6366, 0.6312),
        (0.3958, 0.4621, 0.6404, 0.6379),
    ),
    "uniform": ((0.4093, 0.6680), (0.3356, 0.6412), (0.3210, 0.6501)),
}
_DATASETS = ("filmtrust", "ml-100k", "ml-1m")


def published(dataset: str, mechanism: str, policy: str) -> Published | None:
    """Return what the paper reports for one cell; None where it reports nothing.

    Example:
        >>> published("ml-100k", "gaussian", "bgt")
        Published(rmse=0.3223, f1=0.6444)
    """
    known = "ml-1m" if dataset == "ml-1m-merged" else dataset
    only = {"unlimited": "none", "uniform": "gaussian"}.get(policy)
    kinds = (only,) if only else ("gaussian", "laplace")
    if known not in _DATASETS or policy not in _TABLE or mechanism not in kinds:
        return None
    row, side = _TABLE[policy][_DATASETS.index(known)], kinds.index(mechanism)
    return Published(row[side], row[side + len(kinds)])
