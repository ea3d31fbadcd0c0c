"""Offline replay: a recorded (or imported) execution graph, re-timed on a cluster by the engine itself. Needs no
torch."""

from phantora.replay.replayer import ReplayOptions, replay

__all__ = ["ReplayOptions", "replay"]
