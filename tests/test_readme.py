"""Every piece of code in the README runs, as the README says that it is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from collectives import Adapter, Exchange, Mesh, Ring, Schedule
from collectives.testing import simulate

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
HEADING = re.compile(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets() -> dict[str, str]:
    """The code by the heading that it stands under, and its number where there are several."""
    found: dict[str, str] = {}
    heading = ""
    for match in HEADING.finditer(TEXT):
        if match[1]:
            heading = match[1]
        else:
            number = sum(name.partition(" #")[0] == heading for name in found)
            found[f"{heading} #{number + 1}" if number else heading] = match[2]
    return found


CODE = snippets()


def run(folder: Path, code: str, *command: str, name: str = "snippet.py") -> str:
    (folder / name).write_text(code)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, *command, name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_snippet_has_a_test() -> None:
    assert list(CODE) == [
        "torch-collectives",
        "In a notebook, without any GPU",
        "In Lightning",
        "In Fabric",
        "In a torchrun script",
        "What there is",
        "What there is #2",
        "What there is #3",
        "Fields in shards",
    ]


def test_the_first_lines() -> None:
    def program(adapter: object) -> list[float]:
        names: dict[str, object] = {
            "exchange": Exchange(Ring, adapter),  # type: ignore[arg-type]
            "a": torch.ones(1),
            "b": torch.ones(1) * 2,
            "block": torch.ones(1) * 3,
            "loss": torch.ones(()),
        }
        exec(CODE["torch-collectives"], names)
        block, received = names["block"], names["received"]
        return [x.item() for x in (block, *received)]  # type: ignore[misc]

    assert simulate(2, program) == [[3.0, 2.0, 1.0]] * 2


def test_the_loss_over_all_ranks_is_that_of_the_whole_batch() -> None:
    names: dict[str, object] = {"torch": torch}
    exec(CODE["What there is"], names)
    siglip_loss = cast("Callable[..., torch.Tensor]", names["siglip_loss"])
    images, texts = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    scale, bias = torch.tensor(2.0), torch.tensor(-1.0)

    def program(adapter: Adapter) -> list[torch.Tensor]:
        exchange = Exchange(Ring, adapter)
        text = texts[exchange.rank].clone().requires_grad_()
        loss = siglip_loss(exchange, images[exchange.rank], text, scale, bias)
        loss.backward()
        assert text.grad is not None
        return [loss.detach(), text.grad]

    losses, grads = zip(*simulate(3, program), strict=True)
    whole = texts.reshape(12, 5).requires_grad_()
    logits = scale * images.reshape(12, 5) @ whole.T + bias
    expected = -torch.nn.functional.logsigmoid((2 * torch.eye(12) - 1) * logits).sum() / 4
    expected.backward()
    assert whole.grad is not None
    torch.testing.assert_close(torch.stack(losses).sum(), expected.detach())
    torch.testing.assert_close(torch.cat(grads), whole.grad)


def test_the_decentralised_loop() -> None:
    names: dict[str, object] = {}
    exec(CODE["What there is #2"], names)
    train = cast("Callable[..., float]", names["train"])

    def program(adapter: Adapter) -> tuple[float, float]:
        exchange = Exchange(Schedule.one_peer_exponential, adapter)
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(model.weight, 1.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        target = torch.full((1, 1), float(exchange.rank), dtype=torch.float64)
        batches = [torch.ones(1, 1, dtype=torch.float64)] * 100
        distance = train(
            exchange, model, optimizer, batches, lambda m, x: (m(x) - target).square().mean()
        )
        return model.weight.item(), distance

    weights, distances = zip(*simulate(4, program), strict=True)
    assert sum(weights) / 4 == pytest.approx(1.5)  # the mean of the targets
    assert 0 < distances[0] < 0.5
    assert set(distances) == {distances[0]}


def test_the_layer_on_a_field_in_shards() -> None:
    def program(adapter: Adapter) -> list[int]:
        names: dict[str, object] = {}
        exec(CODE["Fields in shards"], names)
        wide = cast("Callable[[Exchange, torch.Tensor], torch.Tensor]", names["wide"])
        exchange = Exchange(Mesh((2, 1), axes=("y", "x")), adapter)
        return list(wide(exchange, torch.zeros(1, 3, 4 + exchange.rank, 6)).shape)

    assert simulate(2, program) == [[1, 8, 4, 6], [1, 8, 5, 6]]


def test_the_notebook_prints_what_the_comment_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = CODE["In a notebook, without any GPU"]
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rsplit("# ", 1)[1].strip()


@pytest.mark.parametrize("heading", ["In Lightning", "In Fabric"])
def test_a_script_that_starts_its_own_ranks(tmp_path: Path, heading: str) -> None:
    run(tmp_path, CODE[heading])


@pytest.mark.parametrize(
    "launcher", [(), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")]
)
def test_the_torchrun_script(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run(tmp_path, CODE["In a torchrun script"], *launcher)


def test_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["collectives.testing.plugin"]\n')
    code = CODE["What there is #3"]
    assert "3 passed" in run(tmp_path, code, "-m", "pytest", "-q", name="test_snippet.py")
