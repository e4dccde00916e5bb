"""That the benchmarks work and count rightly. How fast anything is, `python -m bench` says; it is never asserted."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import bench.workers
from bench.__main__ import BENCHMARKS
from bench.load import Place, ask_all, connect, echo, hang_up
from bench.measure import QUICK, Contestant, Cost, DidNotFinish, Effort, Row, Turn, race, skipped
from bench.report import table
from bench.workers import Worker

ROOT = Path(__file__).parents[1]


# Those with many processes take half a minute each.
LONG = ("gateway", "governance", "http")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in LONG else []) for name in BENCHMARKS]
)
def test_every_contestant_is_measured_or_says_why_it_is_not(name: str) -> None:
    rows = BENCHMARKS[name](QUICK)
    assert rows
    for row in rows:
        assert row.cpu_us is not None or row.remark.startswith("skipped: "), row


@pytest.mark.parametrize("name", ["memory", "http"])
def test_without_the_official_sdk_it_is_skipped_with_a_word(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.workers, "STRANGERS", tmp_path)
    rows = BENCHMARKS[name](QUICK)
    assert any(row.remark == "skipped: ./scripts/strangers has not installed it" for row in rows)
    assert all((row.cpu_us is None) == row.remark.startswith("skipped: ") for row in rows)


def test_the_program_prints_data_and_talks_elsewhere() -> None:
    finished = run_bench("--quick", "--json", "framing")
    rows = msgspec.convert(msgspec.json.decode(finished.stdout)["rows"], list[Row])
    assert {row.contestant for row in rows} >= {"json.loads", "LineDecoder", "SseDecoder"}
    assert "framing" in finished.stderr


def test_an_unknown_benchmark_is_a_wrong_argument() -> None:
    finished = run_bench("nonsense")
    assert finished.returncode == 2
    assert "envelope" in finished.stderr


def test_a_ratio_is_taken_within_its_round() -> None:
    # Whatever slows down a whole round, be it ten times, is in both and falls out.
    base = Contestant("base", costs(100, 1000, 200))
    other = Contestant("other", costs(300, 3000, 600))
    first, second = race("it", [base, other], Effort(rounds=3, turn_seconds=0))
    assert (first.ratio, first.cpu_us) == (1, 0.1)
    assert (second.ratio, second.low, second.high, second.cpu_us) == (3, 3, 3, 0.3)


def test_the_ratio_is_of_elapsed_time_where_waiting_counts() -> None:
    base = Contestant("base", lambda count: Cost(100 * count, wall=1000 * count))
    other = Contestant("other", lambda count: Cost(500 * count, wall=2000 * count))
    _, second = race("it", [base, other], QUICK, by_wall=True)
    assert (second.ratio, second.cpu_us, second.wall_us) == (2, 0.5, 2)


def test_a_contestant_that_does_not_finish_a_turn_leaves_the_race() -> None:
    left = [100, 100]

    def stuck(count: int) -> Cost:
        if not left:
            raise DidNotFinish("did not finish in 9 s")
        return Cost(left.pop())

    first, second = race("it", [Contestant("base", costs(100, 100, 100)), Contestant("stuck", stuck)], Effort(3, 0))
    assert first.ratio == 1
    assert second == Row("it", "stuck", remark="did not finish in 9 s")
    with pytest.raises(DidNotFinish, match="base did not"):
        race("it", [Contestant("base", stuck)], QUICK)


def test_a_contestant_that_does_not_answer_is_killed_with_all_that_it_started() -> None:
    # Both hold the pipe that is read, so the turn ends only when neither of them lives.
    script = "import subprocess, sys; subprocess.Popen(['sleep', '3600']); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        worker = Worker(process)
        worker.limit = 0.1
        for _ in range(2):
            with pytest.raises(DidNotFinish, match=r"^did not finish in 0\.1 s$"):
                worker.turn("anything")(1)


def test_a_cost_is_shown_for_one_unit() -> None:
    row = race("it", [Contestant("ten at a time", costs(5000), units=10)], QUICK)[0]
    assert row.cpu_us == 0.5


def test_a_turn_does_enough_to_be_measured() -> None:
    asked: list[int] = []

    def turn(count: int) -> Cost:
        asked.append(count)
        is_first_of_many = count == 16 and asked.count(16) == 1  # It has something to import, say.
        return Cost(count * 1000 + is_first_of_many * 10**9)

    race("it", [Contestant("quick one", turn)], Effort(rounds=2, turn_seconds=0.001))
    assert asked[-2:] == [1000, 1000]


def test_the_table_is_aligned_and_names_missing_contestants() -> None:
    row = Row("it", "we", "with a remark", cpu_us=12.34, ratio=1.0, low=0.5, high=1234.5)
    head, _, title, figures, absent = table([row, skipped("it", "they", "not here")]).splitlines()
    assert title == "it"
    assert figures.split() == ["we", "1.00", "0.50–1,234", "12.3", "with", "a", "remark"]
    assert figures.index("12.3") + len("12.3") == head.index("CPU µs") + len("CPU µs")
    assert absent.split() == ["they", "skipped:", "not", "here"]


def test_memory_has_a_column_where_it_is_measured() -> None:
    head, _, _, figures = table([Row("it", "we", cpu_us=5, ratio=1, kib=13.91)]).splitlines()
    assert head.split()[-1] == "KiB"
    assert figures.split()[-1] == "13.9"
    assert "KiB" not in table([Row("it", "we", cpu_us=5, ratio=1)])


async def test_an_answer_without_the_right_words_ends_the_race() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # In pieces, as a busy server may send it.
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        writer.write(b"5\r\nnever\r\n0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with asyncio.timeout(10), server:
        port = server.sockets[0].getsockname()[1]
        [asker] = await connect(port, 1)
        with pytest.raises(RuntimeError, match="not the answer"):
            await ask_all([asker], echo(Place(port, "2026-07-28")), 1)
        await hang_up([asker])


def costs(*nanoseconds: int) -> Turn:
    """A turn that costs these in each round, and the first of them in the warm-up."""
    left = [nanoseconds[0], *nanoseconds]
    return lambda count: Cost(left.pop(0) * count)


def run_bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)
