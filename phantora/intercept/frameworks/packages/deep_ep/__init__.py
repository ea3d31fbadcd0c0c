"""Stand-in for DeepEP: dispatch and combine of mixture-of-experts tokens as priced all-to-alls."""

from deep_ep.buffer import Buffer
from deep_ep.events import Config, EventHandle, EventOverlap

__version__ = "1.2.1"
__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
