"""Where a flight record goes when an exchange fails: into a folder of the job, by itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..folder import private_folder
from ..launcher import find_launch, restart_count
from ..settings import record_choice

if TYPE_CHECKING:
    from .values import FlightRecord

__all__ = ["dump", "dumped_jobs", "job_name"]

_MOST_JOBS = 32


def dump(record: FlightRecord) -> Path | None:
    """Save a record for the post-mortem; called on the way to raising an error, so it never raises.

    The environment variable ``COLLECTIVES_FLIGHT_RECORD`` names the folder, or is ``off``. The
    default is a folder of the job in the temporary folder of this host, which only this user can
    enter; the newest 32 of them are kept. Simulated ranks have no post-mortem unless it is asked
    for: their errors say everything.

    Returns:
        The path of the file; ``None`` if it was not, or could not be written.
    """
    try:
        choice = record_choice(os.environ)
        if choice == "off" or (not choice and record.group == "simulation"):
            return None
        folder = Path(choice) if choice else _folder_of_job(job_name(os.environ))
        return record.save(folder)
    except Exception:  # noqa: BLE001 - whatever it is, the failure that is recorded matters more
        return None


def dumped_jobs() -> list[Path]:
    """Return the folders of jobs in the default place, the newest first."""
    with suppress(OSError):
        folders = [p for p in private_folder("flight-record").iterdir() if p.is_dir()]
        return sorted(folders, key=_changed, reverse=True)
    return []


def job_name(environ: Mapping[str, str]) -> str:
    """Return what tells this job from others of this user on this host: alike on all its ranks.

    Args:
        environ: The process's environment.
    """
    launch = find_launch(environ)
    job = launch.job if launch is not None else environ.get("SLURM_JOB_ID", "")
    if job in ("", "none"):  # torchrun's own name for a job that was given none
        port = environ.get("MASTER_PORT", "")
        # Lightning's first rank starts the others: they have a port in common, and no parent.
        alone = "TORCHELASTIC_RUN_ID" in environ or not port
        job = f"parent-{os.getppid()}" if alone else f"port-{port}"
    restarts = restart_count(environ)
    return _plain(f"{job}.{restarts}" if restarts else job)


def _plain(name: str) -> str:
    """Return a name that stays in its folder."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name[:100])


def _folder_of_job(job: str) -> Path:
    folder = private_folder("flight-record", job)
    for old in dumped_jobs()[_MOST_JOBS:]:
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another rank removes it
        return 0.0
