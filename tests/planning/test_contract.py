"""Every policy that comes with the package keeps the contract that is shipped with it."""

from __future__ import annotations

import numpy as np
from forecasts import ByForecast

from bgtplanner.paper import baselines
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.planning import schedules
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.testing import PolicyContract

SHORT = {"initial_rounds": 1, "min_rounds": 8}
SOME = {"weights": np.array([1, 0, 2, 3, 1e-12, 1, 1, 1, 1, 1, 1, 5])}
CASES = {
    "BGTPlanner": (BGTPlanner, {}),
    "BGTPlannerWithoutSkipping": (BGTPlanner, {"skip": False, "levels": 3, "gamma": 2.0}),
    "ByForecastWhereSomeAreAsked": (ByForecast, {"participation": 0.3, "growth": 5.0}),
    "Repaired": (Repaired, SHORT),
    "AsPrinted": (AsPrinted, SHORT),
    "Fixed": (schedules.Fixed, SOME),
    "AdpmlNormalised": (baselines.Adpml, {"mode": "normalised", "shape": "saturating"}),
}
NAMES = ("Uniform", "Early", "Late", "Optimal", "Hong", "TwoPhase", "Random")
CASES |= {name: (getattr(schedules, name), {}) for name in NAMES}
CASES |= {"Adpml": (baselines.Adpml, {}), "Adap": (baselines.Adap, {})}

for name, (kind, options) in CASES.items():
    own = {"policy": kind, "options": options}
    globals()[f"Test{name}"] = type(f"Test{name}", (PolicyContract,), own)
