from __future__ import annotations

from pathlib import Path

import pytest

from collectives import Graph
from collectives.testing import simulate
from examples import gossip


@pytest.mark.parametrize("title", gossip.TOPOLOGIES)
def test_the_distance_falls_as_the_spectral_gap_predicts(title: str) -> None:
    topology = gossip.TOPOLOGIES[title]
    distances = simulate(gossip.SIZE, gossip.averaging, topology)[0]
    predicted = gossip.predicted_factor(topology)
    assert gossip.measured_factor(topology, distances) == pytest.approx(
        predicted, rel=0.02, abs=1e-9
    )


def test_training_with_gossip_comes_close_to_the_fit_of_all_data() -> None:
    errors = simulate(gossip.SIZE, gossip.training, gossip.TOPOLOGIES["exponential"])
    assert max(errors) < 0.01
    alone = Graph(gossip.SIZE, ())
    assert max(simulate(gossip.SIZE, gossip.training, alone)) > 0.2


def test_the_plot_is_written(tmp_path: Path) -> None:
    distances = {title: [1.0, 0.5, 0.0] for title in gossip.TOPOLOGIES}
    assert gossip.plot(distances, tmp_path / "new").read_bytes().startswith(b"\x89PNG")
