"""Lightning's advice and banners, switched off: three runs have to share one terminal."""

from __future__ import annotations

import logging
import warnings

__all__ = ["quiet_lightning"]


def quiet_lightning() -> None:
    """Let Lightning speak only of errors."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Few workers, short epochs: right for 1,500 small pictures that are in memory already.
    warnings.filterwarnings("ignore", module=r"lightning\..*")
