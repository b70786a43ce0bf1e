from bgtplanner.flower.in_process import InProcessGrid, Tamper

__all__ = ["InProcessGrid", "Tamper"]
