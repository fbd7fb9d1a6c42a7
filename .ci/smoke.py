"""Use the installed wheel, never the source tree; say what is in it that should not be."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import torch

import adapters.fabric
import adapters.lightning
import adapters.raw_ddp
import collectives

FRAMEWORKS = {"lightning", "lightning_fabric", "pytorch_lightning"}


def check_origin() -> None:
    for module in (collectives, adapters.fabric, adapters.lightning, adapters.raw_ddp):
        origin = Path(str(module.__file__))
        expect(origin.is_relative_to(sys.prefix), f"{origin} is not in {sys.prefix}")


def check_content(wheel: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    expect(roots == {"collectives", "adapters"}, f"the wheel has {sorted(roots)}")
    for wanted in ("collectives/py.typed", "adapters/py.typed"):
        expect(wanted in names, f"the wheel has no {wanted}")
    expect("adapters/__init__.py" not in names, "adapters/__init__.py would break AdapterHub")
    licenses = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    expect(len(licenses) == 1, "the wheel has no license")


def check_use() -> None:
    exchange = collectives.Exchange(collectives.Ring, adapters.raw_ddp.RawDDPAdapter())
    ones = torch.ones(2, requires_grad=True)
    shifted = exchange.shift(ones)
    shifted.sum().backward()
    expect(torch.equal(shifted, ones) and shifted is not ones, f"shift gave {shifted}")
    expect(ones.grad is not None and torch.equal(ones.grad, ones), f"its gradient is {ones.grad}")
    loaded = FRAMEWORKS & {name.split(".")[0] for name in sys.modules}
    expect(not loaded, f"{sorted(loaded)} was imported")


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        sys.exit(f"wheel: {otherwise}")


if __name__ == "__main__":
    check_origin()
    check_content(sys.argv[1])
    check_use()
    sys.stdout.write(f"{Path(sys.argv[1]).name} works from {sys.prefix}\n")
