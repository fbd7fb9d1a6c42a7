"""What ``python -m collectives`` does.

``main``           the parser: a subcommand each
``doctor``         what keeps ranks from starting or exchanging
``flight_record``  who was where when an exchange failed
``output``         how text gets to the terminal
"""

from .main import main as main
