"""The parser of ``python -m collectives``: a subcommand each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import doctor, flight_record

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the name of the program; the default is what the process was given.

    Returns:
        The exit status: 0, or 1 where something is wrong; each command says what.
    """
    parser = argparse.ArgumentParser(
        prog="python -m collectives", description="Neighbour exchange for PyTorch."
    )
    commands = parser.add_subparsers(dest="command", title="commands", required=True)
    flight_record.define(
        commands.add_parser(
            "flight-record",
            help="say who was where when an exchange failed",
            description="Read the flight records that the ranks of a job have left, and say who was"
            " where: who ran another exchange than the rest, who is behind, who is missing.",
        )
    )
    doctor.define(
        commands.add_parser(
            "doctor",
            help="say what keeps ranks from starting or exchanging, and what to do",
            description="Look at this process, its host and its network, start two ranks for a"
            " self-test, and say what is wrong and what to do. Started by a launcher (torchrun,"
            " srun, mpirun) it reports all ranks of the job at once. With a log it says what is"
            " known of the errors in it. Exit status 1: there is a problem.",
        )
    )
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
