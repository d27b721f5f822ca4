"""all_reduce and all_reduce_chunks on two to four devices, and the group that exchanges by them.

Sums are those of float32 in the order of ranks, on every rank bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import output_dtypes
import pytest
from build_standin import KERNEL_CACHE
from guarded import Gpu
from numpy.typing import NDArray
from pinned_memory import Pinned

from rocmforge.errors import DeviceError, OutOfMemoryError
from rocmforge.gpu import exchange_time, peers
from rocmforge.gpu.arrays import Q8
from rocmforge.gpu.compiler import Kernels
from rocmforge.gpu.cuda import CudaRuntime
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops import all_reduce as op
from rocmforge.gpu.peers import CHUNK, MOST_RANKS, Group
from rocmforge.gpu.runtime import Runtime
from rocmforge.ops import reference
from rocmforge.ops.cases import relative_rms

Floats = NDArray[np.float32]
WORDS, NUMBERS = 1 << 12, 1 << 15  # fewer than in use: borders are near, and inboxes small
COUNTS = (4, 32, 252, WORDS, WORDS + 4, 3 * CHUNK - 12, NUMBERS, NUMBERS + 8, 36, CHUNK + 32)


@dataclass(frozen=True)
class Ranks:
    """Open devices, and the group that they are."""

    gpus: Sequence[Gpu]
    group: Group

    def run(self, launches: Sequence[Sequence[Launch]]) -> None:
        """Enqueue what each rank runs, the first rank's before the next one's, and wait."""
        for gpu, own in zip(self.gpus, launches, strict=True):
            for launch in own:
                launch.enqueue(gpu.runtime)
        for gpu in self.gpus:
            gpu.runtime.synchronize()

    def launches(self, rank: int, x: int, count: int) -> list[Launch]:
        """Of one rank's part in a sum."""
        own = self.group.peers[rank]
        return op.all_reduce(self.gpus[rank].kernels, x=x, count=count, peers=own)

    def sums(self, parts: Sequence[Floats]) -> list[list[Floats]]:
        """All sums of some calls in a row, by rank; `parts` have (ranks, count) numbers."""
        places = [[gpu.upload(part[i]) for part in parts] for i, gpu in enumerate(self.gpus)]
        self.run(
            [
                [
                    one
                    for x, p in zip(own, parts, strict=True)
                    for one in self.launches(i, x, p[0].size)
                ]
                for i, own in enumerate(places)
            ]
        )
        return [
            [gpu.download(x, p[0].size, np.float32) for x, p in zip(own, parts, strict=True)]
            for gpu, own in zip(self.gpus, places, strict=True)
        ]


Open = Callable[..., Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORDS", WORDS), ("NUMBERS", NUMBERS)):
        monkeypatch.setattr(peers, name, value)
    monkeypatch.setattr(op, "WORDS", WORDS)


@pytest.fixture
def opened(alike: Callable[[int], list[str]], repo: Path) -> Iterator[Callable[[int], list[Gpu]]]:
    """Opens so many devices."""
    with ExitStack() as stack:

        def opens(count: int) -> list[Gpu]:
            gpus = []
            for name in alike(count):
                platform, _, index = name.partition(":")
                runtime = {"hip": HipRuntime, "cuda": CudaRuntime}[platform](int(index))
                stack.callback(runtime.close)
                kernels = Kernels(runtime, folder=repo / "kernels", cache=KERNEL_CACHE)
                stack.callback(kernels.close)
                gpus.append(Gpu(kernels))
                stack.callback(gpus[-1].free)
            return gpus

        yield opens


@contextmanager
def grouped(gpus: Sequence[Gpu], through_host: bool = False) -> Iterator[Ranks]:
    group = Group([gpu.runtime for gpu in gpus], through_host)
    try:
        yield Ranks(gpus, group)
        for gpu in gpus:
            gpu.check_guards()
    finally:
        group.close()


def random_parts(ranks: int, counts: Sequence[int]) -> list[Floats]:
    """Numbers of many sizes, whose sum depends on the order."""
    random = np.random.default_rng(ranks)
    parts = []
    for count in counts:
        sizes = 10 ** random.uniform(-3, 3, (ranks, count))
        parts.append(random.standard_normal((ranks, count), np.float32) * sizes.astype(np.float32))
    return parts


def in_order(part: Floats) -> Floats:
    """The sum of (ranks, …) numbers, rank 0's first."""
    total: Floats = part[0].copy()
    for own in part[1:]:
        total += own
    return total


def check_sums(ranks: Ranks, parts: Sequence[Floats]) -> None:
    for own in ranks.sums(parts):
        for got, part in zip(own, parts, strict=True):
            np.testing.assert_array_equal(got.view(np.uint32), in_order(part).view(np.uint32))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("through_host", [False, True])
def test_every_rank_gets_the_bits_of_the_sum_in_the_order_of_ranks(
    opened: Open, count: int, through_host: bool
) -> None:
    parts = random_parts(count, COUNTS)
    with grouped(opened(count), through_host) as ranks:
        assert ranks.group.way == ("host memory" if through_host else "peer access")
        check_sums(ranks, parts)
        check_sums(ranks, parts[::-1])  # which begin in the other half of the inboxes


def test_sums_at_the_border_of_words_that_are_in_use(opened: Open) -> None:
    with grouped(opened(2)) as ranks:
        check_sums(ranks, random_parts(2, [peers.WORDS, peers.WORDS + 4]))


@pytest.mark.usefixtures("small")
def test_cards_that_do_not_reach_each_other_take_the_hosts_memory(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = opened(2)
    monkeypatch.setattr(type(gpus[0].runtime), "can_reach", lambda self, other: False)
    with grouped(gpus) as ranks:
        assert ranks.group.way == "host memory"
        check_sums(ranks, random_parts(2, COUNTS[:5]))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (3, 96), (4, 1024), (7, 544)])
def test_a_sum_is_normed_but_for_the_factor_of_each_row(
    opened: Open, rows: int, columns: int
) -> None:
    count = 3
    (part,) = random_parts(count, [rows * columns])
    norm = np.random.default_rng(1).standard_normal(columns, np.float32)
    total = in_order(part).reshape(rows, columns)
    with grouped(opened(count)) as ranks:
        for _ in range(3):
            places = []
            for i, gpu in enumerate(ranks.gpus):
                squares = gpu.empty(4 * rows * columns // 32)
                out = output_dtypes.make(gpu, Q8, rows, columns)
                assert isinstance(out, Q8)
                places.append((gpu.upload(part[i]), gpu.upload(norm), out, squares))
            launches = []
            for gpu, own, (x, weight, normed, squares) in zip(
                ranks.gpus, ranks.group.peers, places, strict=True
            ):
                one = op.all_reduce_rmsnorm(
                    gpu.kernels,
                    x=x,
                    norm=weight,
                    normed=normed,
                    squares=squares,
                    rows=rows,
                    columns=columns,
                    peers=own,
                )
                launches.append([one])
            ranks.run(launches)
            for gpu, (x, _, normed, squares) in zip(ranks.gpus, places, strict=True):
                np.testing.assert_array_equal(gpu.download(x, total.shape, np.float32), total)
                groups = gpu.download(squares, (rows, columns // 32), np.float32)
                wanted = np.square(total, dtype=np.float64).reshape(rows, -1, 32).sum(axis=2)
                np.testing.assert_allclose(groups, wanted, 1e-5)
                factors = 1 / np.sqrt(groups.sum(axis=1, keepdims=True) / columns + 1e-5)
                got = output_dtypes.read(gpu, normed, rows, columns) * factors
                exact = reference.rmsnorm(total, norm, 1e-5)
                assert relative_rms(got, exact) <= output_dtypes.TOLERANCES[Q8]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [300, CHUNK + 300])
def test_a_rank_may_be_a_call_ahead_of_another_one(opened: Open, count: int) -> None:
    """The host plays the second rank, which has sent two calls before the first one begins."""
    first, second = random_parts(2, [count, count])
    with grouped(opened(2)) as ranks:
        gpu, own = ranks.gpus[0], ranks.group.peers[0]

        def send(view: tuple[int, ...], at: int, array: NDArray[Any]) -> None:
            gpu.runtime.copy_to_device(view[0] + at, np.ascontiguousarray(array))

        for call, part in ((1, first), (2, second)):
            place = (call % 2) * 2 + 1  # by sender in a half
            if count <= WORDS:
                words = np.uint64(call << 32) | part[1].view(np.uint32)
                send(own.of_words, 8 * place * WORDS, words)
            send(own.of_chunks, 4 * place * own.room, part[1])
        flags = np.full(own.flags, 2, np.uint32)
        send(own.of_chunks, 4 * (4 * own.room + flags.size), flags)
        places = [gpu.upload(part[0]) for part in (first, second)]
        launches = [one for x in places for one in ranks.launches(0, x, count)]
        hung = Timer(20, ranks.group.stop)
        hung.start()
        try:
            ranks.run([launches, []])
            assert hung.is_alive()
        finally:
            hung.cancel()
        for x, part in zip(places, (first, second), strict=True):
            np.testing.assert_array_equal(gpu.download(x, count, np.float32), in_order(part))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("through_host", [False, True])
def test_a_group_that_is_stopped_waits_for_nobody_and_begins_anew(
    opened: Open, through_host: bool
) -> None:
    with grouped(opened(2), through_host) as ranks:
        check_sums(ranks, random_parts(2, COUNTS[:5]))
        alone = [ranks.launches(0, ranks.gpus[0].empty(4 * n), n)[0] for n in (32, WORDS + 4)]
        stop = Timer(0.2, ranks.group.stop)
        stop.start()
        ranks.run([alone, []])  # its peer does not come
        stop.join()
        ranks.group.restart()
        check_sums(ranks, random_parts(2, COUNTS))


def free_bytes(gpus: Sequence[Gpu]) -> list[int]:
    return [gpu.runtime.memory_info()[0] for gpu in gpus]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("through_host", [False, True])
def test_a_group_gives_all_memory_back(
    opened: Open, through_host: bool, pinned: dict[int, int]
) -> None:
    gpus = opened(2)
    if gpus[0].runtime.platform == "cuda":
        pytest.skip("CUDA's driver keeps what it caches")
    before = free_bytes(gpus)
    with grouped(gpus, through_host) as ranks:
        assert all(now < was for now, was in zip(free_bytes(gpus), before, strict=True))
        assert len(pinned) == (5 if through_host else 1)  # and where the host says stop
        kernels = [gpu.kernels for gpu in gpus]
        assert exchange_time.all_reduce_seconds(kernels, ranks.group, 64) > 0
        ranks.group.close()
        assert (free_bytes(gpus), set(pinned)) == (before, set())


def test_a_group_that_does_not_fit_leaves_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = opened(2)
    before = free_bytes(gpus)
    kind, left = type(gpus[0].runtime), [3]
    allocate = kind.allocate_shared

    def full(self: Runtime, nbytes: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfMemoryError("no memory")
        return allocate(self, nbytes)

    monkeypatch.setattr(kind, "allocate_shared", full)
    with pytest.raises(OutOfMemoryError):
        Group([gpu.runtime for gpu in gpus])
    if gpus[0].runtime.platform == "hip":
        assert free_bytes(gpus) == before


def test_a_group_has_two_ranks_or_more_and_not_too_many(opened: Open) -> None:
    (gpu,) = opened(1)
    for count in (1, MOST_RANKS + 1):
        with pytest.raises(ValueError, match=f"GPUs: got {count}, wanted 2 to {MOST_RANKS}"):
            Group([gpu.runtime] * count)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    return Pinned(monkeypatch).held


@pytest.fixture
def short(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small sums say which way devices exchange."""
    monkeypatch.setattr(exchange_time, "CALLS", 2)
    monkeypatch.setattr(exchange_time, "TOKEN", 64)


PEERS, HOST = "peer access", "host memory"
SECONDS = ((1.0, 0.5, HOST), (1.0, 0.95, PEERS), (1.0, 3.0, PEERS))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("peers", "host", "wanted"), SECONDS)
def test_devices_exchange_the_way_that_takes_less_time(
    opened: Open,
    pinned: dict[int, int],
    peers: float,
    host: float,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = exchange_time.all_reduce_seconds

    def given(kernels: Sequence[Kernels], group: Group, count: int) -> float:
        assert timed(kernels, group, count) > 0
        return {PEERS: peers, HOST: host}[group.way]

    monkeypatch.setattr(exchange_time, "all_reduce_seconds", given)
    gpus = opened(2)
    kernels, before = [gpu.kernels for gpu in gpus], free_bytes(gpus)
    assert exchange_time.exchange_seconds(kernels) == {PEERS: peers, HOST: host}
    group = exchange_time.fastest_group(kernels)
    assert group.way == wanted
    check_sums(Ranks(gpus, group), random_parts(2, COUNTS))  # with memory for many numbers
    group.close()
    for gpu in gpus:
        gpu.free()
    assert not pinned
    if gpus[0].runtime.platform == "hip":
        assert free_bytes(gpus) == before


@pytest.mark.usefixtures("short")
def test_cards_without_peer_access_have_one_way(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [gpu.kernels for gpu in opened(2)]
    monkeypatch.setattr(Runtime, "can_reach", lambda self, other: False)
    assert list(exchange_time.exchange_seconds(kernels)) == [HOST]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("failing", [PEERS, HOST])
def test_a_way_that_fails_is_none(
    opened: Open, pinned: dict[int, int], failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [gpu.kernels for gpu in opened(2)]
    timed = exchange_time.all_reduce_seconds

    def failed(own: Sequence[Kernels], group: Group, count: int) -> float:
        if group.way == failing:
            raise DeviceError("got a fault")
        return timed(own, group, count)

    monkeypatch.setattr(exchange_time, "all_reduce_seconds", failed)
    (other,) = {PEERS, HOST} - {failing}
    assert list(exchange_time.exchange_seconds(kernels)) == [other]
    assert not pinned
    monkeypatch.setattr(Group, "__init__", failed_init)
    with pytest.raises(OutOfMemoryError, match="no inbox"):
        exchange_time.exchange_seconds(kernels)


def failed_init(self: Group, *given: Any, **more: Any) -> None:
    raise OutOfMemoryError("no inbox")


@pytest.mark.usefixtures("short")
def test_a_sum_that_is_wrong_or_does_not_come_is_no_way(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a card says that it reaches another one's memory, and what it writes is lost."""
    kernels = [gpu.kernels for gpu in opened(2)]
    monkeypatch.setattr(exchange_time, "LIMIT_S", 0.3)
    whole, view = Group._view, [0]

    def lost(self: Group, rank: int, inboxes: Sequence[int], room: int, flags: int) -> Any:
        found = whole(self, rank, inboxes, room, flags)
        if self.way == HOST:
            return found
        view[0] += 1
        return (inboxes[rank],) * len(inboxes) + found[len(inboxes) :]  # writes to itself

    monkeypatch.setattr(Group, "_view", lost)
    assert list(exchange_time.exchange_seconds(kernels)) == [HOST]
    assert view[0] > 0
    monkeypatch.setattr(Group, "_reach", lambda self: True)
    host_fails = Group.__init__

    def peers_alone(self: Group, runtimes: Any, through_host: bool = False, **more: Any) -> None:
        if through_host:
            raise DeviceError("got no host memory")
        host_fails(self, runtimes, through_host, **more)

    monkeypatch.setattr(Group, "__init__", peers_alone)
    with pytest.raises(DeviceError, match="got no host memory"):
        exchange_time.exchange_seconds(kernels)
