"""What commands need is loaded, and what nobody uses is not."""

from __future__ import annotations

import sys

from processes import Processes

LATER = """
import sys
from bgtplanner.commands.options import need_simulator
need_simulator()
import scipy.special, numpy
print("numpy.f2py.crackfortran" in sys.modules, "numpy.testing._private" in sys.modules)
print(numpy.f2py.get_include().endswith("src"), "numpy.f2py.crackfortran" in sys.modules)
numpy.testing.assert_equal(1, 1)
import numpy.f2py.auxfuncs
need_simulator()
print(numpy.f2py is sys.modules["numpy.f2py"])
"""


def test_modules_are_loaded_when_they_are_used(processes: Processes) -> None:
    done = processes.run([sys.executable, "-c", LATER])
    assert done.stdout == "False False\nTrue True\nTrue\n"
    assert done.stderr == ""


def test_those_that_are_loaded_stay(processes: Processes) -> None:
    code = (
        "import numpy.testing\n"
        "before = numpy.testing\n"
        "from bgtplanner.commands.options import need_simulator\n"
        "need_simulator()\n"
        "print(numpy.testing is before)"
    )
    done = processes.run([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == ("True\n", "")
