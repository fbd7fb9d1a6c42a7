"""Known texts in a log: each is found by a real line, and told with what to do."""

from __future__ import annotations

import re

import pytest

from collectives.doctor.logs import explain, known_texts, read_log, recognise

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"

# As torch, Lightning, NCCL and this library print them.
REAL = {
    "address-in-use": "torch.distributed.DistNetworkError: The server socket has failed to listen"
    " on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE,"
    " message: address already in use",
    "no-environment": "ValueError: Error initializing torch.distributed using env:// rendezvous:"
    " environment variable RANK expected, but not set",
    "clients-joined": "DistStoreError: Timed out after 6 seconds waiting for clients. 2/3 clients"
    " joined.",
    "client-socket": "DistNetworkError: The client socket has timed out after 600000ms while trying"
    " to connect to (172.17.0.9, 46229).",
    "keys-of-a-peer": "DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/-1",
    "rendezvous": "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The"
    " connection to the C10d store has failed. See inner exception for details.",
    "gloo-interface": f"{GLOO}device.cc:84] ifa != nullptr. Unable to find address for: eth7",
    "gloo-loopback": "[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local)"
    " address. Using the loopback address as fallback.",
    "gloo-full-mesh": f"RuntimeError: Gloo connectFullMesh failed with {GLOO}pair.cc:152] timed out"
    " connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215",
    "gloo-closed-by-peer": f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:23180. This"
    " is typically caused by a remote worker crashing.",
    "gloo-reset": f"{GLOO}pair.cc:537] Read error [127.0.0.1]:12928: Connection reset by peer.",
    "gloo-timeout": f"{GLOO}unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to"
    " complete",
    "gloo-pair-closed": "RuntimeError: Application timeout caused pair closure",
    "gloo-long-message": "terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    " what(): [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8192 vs 4096.",
    "gloo-self": "[enforce fail at pair.cc:801] state_ >= CONNECTED. 1 vs 4. Pair is not connected",
    "nccl-timeout": "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE) ran for 600060 milliseconds",
    "nccl-duplicate-gpu": "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
    "nccl-no-interface": "bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found",
    "nccl-built-in": "RuntimeError: Distributed package doesn't have NCCL built in",
    "killed": "  traceback : Signal 9 (SIGKILL) received by PID 6774",
    "aborted": "  exitcode  : -6 (pid: 41)",
    "bus-error": "RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error.",
    "open-files": "OSError: [Errno 24] Too many open files",
    "device-ordinal": "RuntimeError: CUDA error: invalid device ordinal",
    "cuda-in-fork": "RuntimeError: Lightning can't create new processes if CUDA is already"
    " initialized. Did you manually call `torch.cuda.*` functions",
    "out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "not-initialized": "ValueError: Default process group has not been initialized, please make"
    " sure to call init_process_group.",
    "pickle-group": "TypeError: cannot pickle 'torch._C._distributed_c10d.ProcessGroup' object",
    "ddp-unused": "RuntimeError: Expected to have finished reduction in the prior iteration before"
    " starting a new one.",
    "libuv": "RuntimeError: use_libuv was requested but PyTorch was build without libuv support",
    "lightning-ntasks": "RuntimeError: You set `--ntasks=4` in your SLURM bash script, but this"
    " variable is not supported. HINT: Use `--ntasks-per-node=4` instead.",
    "lightning-slurm-devices": "ValueError: You set `devices=2` in Lightning, but the number of"
    " tasks per node configured in SLURM `--ntasks-per-node=4` does not match. HINT: Set"
    " `devices=4`.",
    "lightning-none": "RuntimeError: Skipping the `training_step` by returning None in distributed"
    " training is not supported.",
    "lightning-module": "TypeError: `model` must be a `LightningModule` or"
    " `torch._dynamo.OptimizedModule`, got `Net`",
    "fabric-launch": "RuntimeError: To use Fabric with more than one device, you must call"
    " `.launch()` or use the CLI: `fabric run --help`.",
    "fabric-forward": "RuntimeError: You are calling the method `Net.embed()` from outside the"
    " model. To avoid issues with the currently selected strategy, explicitly mark it",
    "adapters-hidden": "ModuleNotFoundError: No module named 'adapters.raw_ddp'",
    "collectives-squat": "NotImplementedError: collectives is coming soon",
    "two-claim-a-rank": "collectives.errors.ContextError: RawDDPAdapter: hello: two processes claim"
    " rank 1: process 41 on here and process 42 on here",
    "ranks-disagree": "collectives.errors.ContextError: RawDDPAdapter: hello: rank 1 and rank 0"
    " disagree: size 3 there, 2 here",
    "group-gone": "ValueError: Group <ProcessGroup object at 0x7f> is not registered, please create"
    " group with torch.distributed.new_group API",
    "not-in-group": "ValueError: Global rank 0 is not part of group <ProcessGroup object>",
    "dtensor": "NotImplementedError: Operator c10d.send.default does not have a sharding strategy"
    " registered.",
    "no-group-yet": "ContextError: no process group: the Trainer runs 2 processes, but"
    " torch.distributed is not initialised in this one (rank 0 of 2); call setup() first",
    "runtime-disagrees": "ContextError: the Trainer and torch.distributed disagree: the Trainer"
    " says rank 0 of 1, torch.distributed says rank 1 of 2",
    "time-limit": "slurmstepd: error: *** STEP 12.0 ON gpu07 CANCELLED AT 2026-11-30T20:00:00 DUE"
    " TO TIME LIMIT ***",
    "ended-by-torchrun": "W1130 20:43:14 api.py:1028] Sending process 32040 closing signal SIGTERM",
    "child-failed": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "absent-rank": "collectives.errors.ContextError: RawDDPAdapter: hello: rank 1 did not come"
    " within 8 s: 1 of 2 came",
    "mismatch": "collectives.errors.ExchangeMismatch: exchange #3 shift of 'kv': ranks differ",
    "peer-lost": "collectives.errors.PeerLost: exchange #4 shift: rank 1 raised ValueError",
    "exchange-timeout": "collectives.errors.ExchangeTimeout: exchange #4 shift: no answer",
    "runs-alone": "ContextError: no process group: torchrun started 2 processes, but the Trainer"
    " runs each of them alone, so that nothing would be exchanged (rank 0 of 2)",
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_line_is_known(name: str) -> None:
    known = recognise(f"[rank3]: {REAL[name]}\n")
    assert known is not None
    assert known.name == name


def test_every_text_of_the_catalogue_is_found_by_itself_with_anything_for_the_stars() -> None:
    for known in known_texts():
        for text in known.texts:
            assert recognise(f"Error: {text.replace('*', 'x 1')}") is not None, text


def test_the_catalogue_is_whole() -> None:
    names = [known.name for known in known_texts()]
    assert len(set(names)) == len(names) > 60
    for known in known_texts():
        assert known.kind in ("cause", "hint", "consequence")
        assert known.title
        assert known.title == known.title.rstrip(".")
        assert known.remedy[:1].islower()
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in known.see), known.name
        assert all(len(max(text.split("*"), key=len)) >= 8 for text in known.texts), known.name


_HEAD = (
    "collectives.errors.ExchangeMismatch: exchange #4 shift(offset=1, axis='ring') of 'kv'"
    " (forward, grad, (float32[8, 512]), train.py:25) failed after 1.26 s of 300 s (rank 0 of 3):"
    " the ranks are in different exchanges; "
)
_HEADERS = (
    "ExchangeMismatch: exchange #4 shift(offset=1, axis='ring') (forward, grad, (float32[2])): rank"
    " 1 is in another exchange: they differ (here / there) in "
)
_BACKWARD = "phase: forward / backward (rank 0 / rank 1)"


@pytest.mark.parametrize(
    ("line", "name", "remedy"),
    [
        (_HEAD + _BACKWARD, "mismatch-backward", "exchange.join(loss)"),
        (f"{_HEAD}op: shift(offset=1) / shift(offset=2); {_BACKWARD}", "mismatch-backward", "join"),
        (_HEADERS + "number: #4 / #1; phase: backward / forward", "mismatch-backward", "join"),
        (
            _HEAD + "op: all_reduce(op='sum') / all_reduce(op='max')",
            "mismatch-op",
            "same arguments",
        ),
        (_HEADERS + "operation; rank 1 is at exchange #4", "mismatch-op", "same arguments"),
        (_HEAD + "grad: grad / no_grad (rank 0 / rank 1)", "mismatch-grad", "one grad mode"),
        (_HEADERS + "grad: no_grad / grad; rank 1 is at", "mismatch-grad", "one grad mode"),
        (_HEAD + "step: (0, 3) / (0, 4) (rank 0 / rank 2)", "mismatch-step", "even_steps"),
        (_HEADERS + "step; rank 1 is at exchange #4", "mismatch-step", "even_steps"),
        (_HEAD + "tensors: (float32[3]) / (float32[4])", "mismatch-tensors", "shapes"),
        (
            _HEADERS + "tensors: what it awaits is not what is sent here",
            "mismatch-tensors",
            "shapes",
        ),
        (_HEAD + "op: shift() / permute(); tensors: (float32[3]) / (int8[3])", "mismatch-op", ""),
        (_HEAD + "sequence: 4 / 5 (rank 0 / rank 2)", "mismatch", "same order"),
    ],
)
def test_a_mismatch_is_answered_by_what_differs(line: str, name: str, remedy: str) -> None:
    known = recognise(line)
    assert known is not None
    assert known.name == name
    assert remedy in known.remedy


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3: 100%|####| 120/120 [00:42<00:00, loss=0.12]",
        "wandb: Run data is saved locally in ./wandb/run-1",
        "INFO: connection to rank 0 established",
        "",
    ],
)
def test_other_lines_are_not_taken_for_errors(line: str) -> None:
    assert recognise(line) is None


def test_the_cause_comes_before_what_follows_from_it_wherever_it_stands() -> None:
    reading = read_log(
        [
            REAL["gloo-loopback"],
            REAL["gloo-closed-by-peer"],
            "step 3",
            REAL["killed"],
            REAL["killed"],
        ]
    )
    assert [(s.known.name, s.number, s.count) for s in reading.seen] == [
        ("killed", 4, 2),
        ("gloo-loopback", 1, 1),
        ("gloo-closed-by-peer", 2, 1),
    ]
    assert (reading.lines, reading.errors, reading.has_cause) == (5, 2, True)
    assert not read_log([REAL["gloo-closed-by-peer"]]).has_cause
    assert read_log([REAL["gloo-loopback"]]).errors == 0


def test_a_progress_bar_hides_no_error_and_counts_as_one_line() -> None:
    bar = "".join(f"epoch 1: {step}/500\r" for step in range(500))
    (seen,) = read_log(["first", bar + REAL["killed"], "last"]).seen
    assert (seen.known.name, seen.number) == ("killed", 2)
    assert seen.line.startswith("traceback")


def test_a_long_line_is_looked_at_and_quoted_in_part() -> None:
    reading = read_log(["\x1b[31m" + REAL["killed"] + "\x1b[0m " + "x" * 100_000])
    (seen,) = reading.seen
    assert seen.line.startswith("traceback : Signal 9")
    assert len(seen.line) == 300


def test_an_error_of_a_trial_is_answered_by_its_text_and_else_by_itself() -> None:
    finding = explain("two ranks cannot exchange", REAL["gloo-interface"])
    assert (
        finding.title
        == "two ranks cannot exchange: GLOO_SOCKET_IFNAME is no interface with an address"
    )
    assert finding.topic == "gloo-interface"
    other = explain("two ranks cannot exchange", "ValueError: what  arrived\n\n is wrong")
    assert (other.title, other.detail) == (
        "two ranks cannot exchange",
        "ValueError: what arrived\nis wrong",
    )
