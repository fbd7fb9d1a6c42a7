"""A folder on this host that only this user can enter."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["private_folder"]


def private_folder(*parts: str) -> Path:
    """Return ``<temporary folder>/torch-collectives-<user>/<parts>``, made when missing.

    Raises:
        PermissionError: It is there, and others may enter it or own it: nothing in it is to be
            trusted.
        OSError: It cannot be made.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"  # Windows: the temporary one is private
    folder = Path(tempfile.gettempdir()) / f"torch-collectives-{user}"
    with suppress(FileExistsError):  # whatever it is, it is looked at below
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    strange = hasattr(os, "getuid") and (facts.st_uid != user or facts.st_mode & 0o077)
    if strange or not stat.S_ISDIR(facts.st_mode):
        raise PermissionError(f"expected {folder} to be a folder that only this user can enter")
    for part in parts:
        folder /= part
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
