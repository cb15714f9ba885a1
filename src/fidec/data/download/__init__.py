"""OGBench's and D4RL's official files, fetched only when the user asks, checked and hashed."""

from fidec.data.download.get import download
from fidec.data.download.mirrors import Wanted, wanted
from fidec.data.download.transfer import Patience

__all__ = ["Patience", "Wanted", "download", "wanted"]
