"""`sluicegate serve` as its users run it: a program, its words and its exit status."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import sluicegate
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "examples" / "demo.py")
COMMAND = [sys.executable, "-m", "sluicegate"]
PROMPTLY = 30.0

ONE = """\
import sluicegate
server = sluicegate.Server("one")
again = server

@server.tool
def whoami() -> str:
    return __name__

if __name__ == "__main__":
    raise SystemExit("it was run")
"""
TWO = """\
import sluicegate
first = sluicegate.Server("first")
second = sluicegate.Server("second")
limit = 5

@second.tool
def which() -> str:
    return "second"
"""
TEAM = """\
import sluicegate
clock = sluicegate.Server("clock")
hub = sluicegate.Hub("team")
hub.mount("clock", clock)

@clock.tool
def now() -> str:
    return "noon"

if __name__ == "__main__":
    sluicegate.run(hub)
"""
HUBS = """\
import sluicegate
clock = sluicegate.Server("clock")
day, night = sluicegate.Hub("day"), sluicegate.Hub("night")
"""


def ended(*words: str, cwd: Path | None = None, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """What the command said and how it ended."""
    return subprocess.run(
        [*COMMAND, *words], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=PROMPTLY, check=False
    )


@contextmanager
def serving(*words: str, cwd: Path | None = None) -> Generator[tuple["subprocess.Popen[str]", str]]:
    """A running command, and the URL that it says it serves at."""
    command = [*COMMAND, "serve", *words]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            while not (found := re.search(r"sluicegate: serving at (\S+)", "".join(said[-1:]))):
                said.append(process.stderr.readline())
                assert said[-1], said
            yield process, found[1]
        finally:
            process.kill()


def write(folder: Path, text: str, name: str = "tools.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


# ------------------------------------------------------------------------------------------------------------ over HTTP


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_file_is_served_over_http(era: sluicegate.Era) -> None:
    with serving(DEMO, "--port", "0") as (_, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url, era=era) as client:
            assert (await client.call("count", to=3)).text == "counted to 3"


async def test_the_main_block_of_the_file_does_not_run(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    with serving("tools.py", "--port", "0", cwd=tmp_path) as (_, url):
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url) as client:
            assert (await client.call("whoami")).text == "tools"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_calls_finish_and_ends_the_server_with_status_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    # The tool tells by one file that it is under way, and waits for another.
    os.mkfifo(tmp_path / "started")
    os.mkfifo(tmp_path / "go")
    write(
        tmp_path,
        "import sluicegate\nserver = sluicegate.Server('s')\n@server.tool\ndef wait() -> str:\n"
        "    open('started', 'w').close()\n    return open('go').read()\n",
    )
    with serving("tools.py", "--port", "0", cwd=tmp_path) as (process, url):
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url) as client, asyncio.TaskGroup() as group:
            call = group.create_task(client.call("wait"))
            await asyncio.to_thread((tmp_path / "started").read_text)
            process.send_signal(number)
            await asyncio.to_thread((tmp_path / "go").write_text, "waited")
            assert (await call).text == "waited"
        assert process.wait(PROMPTLY) == 0
        assert process.stdout is not None and process.stdout.read() == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_an_address_that_others_can_reach_is_status_3_and_one_line_that_names_the_fix(host: str) -> None:
    done = ended("serve", DEMO, "--host", host)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1 and "--host 127.0.0.1" in done.stderr


def test_a_port_that_is_taken_is_status_3_and_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ended("serve", DEMO, "--port", port)
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr == f"sluicegate: port {port} is in use, perhaps by the gateway of another folder; use --port N.\n"
    )


def test_an_address_that_this_machine_has_not_is_status_3() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            done = ended("serve", DEMO, "--host", "::1", "--port", "0")
            assert done.returncode == 3 and "no address ::1" in done.stderr
            return
    with serving(DEMO, "--host", "::1", "--port", "0") as (_, url):
        assert url.startswith("http://[::1]:")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_a_server_runs_without_standard_streams(closed: str, tmp_path: Path) -> None:
    port = free_port()
    # The file tells that it is loaded, and the tool answers until the signal comes.
    os.mkfifo(tmp_path / "loaded")
    write(tmp_path, f"{ONE}\nopen('loaded', 'w').close()\n")
    shell = f'exec "$0" -m sluicegate serve tools.py --port {port} {closed}'
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", shell, sys.executable, cwd=tmp_path)
    try:
        async with asyncio.timeout(PROMPTLY):
            await asyncio.to_thread((tmp_path / "loaded").read_text)
            assert await answer_of(port) == "tools"
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answer_of(port: int) -> str:
    """What the tool answers, as soon as the server listens."""
    while True:
        try:
            async with sluicegate.connect(f"http://127.0.0.1:{port}/mcp") as client:
                return (await client.call("whoami")).text
        except sluicegate.UpstreamUnavailable:
            await asyncio.sleep(0.01)  # It has nobody to tell when it is ready.


# ----------------------------------------------------------------------------------------------------------- over stdio


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_file_is_served_over_stdio(era: sluicegate.Era, tmp_path: Path) -> None:
    # What a file says while it is loaded, or has its children say, is no message.
    write(tmp_path, f"import os\nprint('loading')\nos.system('echo loading')\n{ONE}")
    command = [*COMMAND, "serve", "tools.py", "--stdio"]
    async with asyncio.timeout(PROMPTLY), sluicegate.connect(command, cwd=tmp_path, era=era) as client:
        assert (await client.call("whoami")).text == "tools"


def test_output_of_a_file_while_it_is_loaded_goes_to_stderr(tmp_path: Path) -> None:
    write(tmp_path, f"import os\nprint('one')\nos.system('echo two')\n{ONE}")
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = ended("serve", "tools.py", "--stdio", cwd=tmp_path, stdin=ping)
    assert (done.returncode, done.stdout) == (0, '{"jsonrpc":"2.0","id":1,"result":{}}\n')
    assert {"one", "two"} <= set(done.stderr.splitlines())


def test_native_methods_over_stdio_need_no_handshake(tmp_path: Path) -> None:
    write(tmp_path, ONE)
    call = '{"jsonrpc":"2.0","id":1,"method":"whoami"}\n'
    done = ended("serve", "tools.py", "--stdio", "--native", cwd=tmp_path, stdin=call)
    answer, *events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, answer) == (0, {"jsonrpc": "2.0", "id": 1, "result": 1})
    found = [event["params"]["result"] for event in events]
    assert [event["type"] for event in found] == ["start", "content", "complete"]
    assert found[1]["text"] == "tools"
    for options in ((), ("--mcp",)):
        refused = json.loads(ended("serve", "tools.py", "--stdio", *options, cwd=tmp_path, stdin=call).stdout)
        assert refused["error"]["code"] == -32002, "MCP is the default, and begins with a handshake"


def test_native_is_for_stdio() -> None:
    done = ended("serve", DEMO, "--native")
    assert done.returncode == 2 and "--native is for use with --stdio" in done.stderr


@pytest.mark.parametrize("option", ["--host=127.0.0.1", "--port=4747"])
def test_an_address_for_stdio_is_a_wrong_command_line(option: str) -> None:
    done = ended("serve", DEMO, "--stdio", option)
    assert done.returncode == 2 and "is for HTTP" in done.stderr


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_with_reload_a_changed_file_is_served_to_clients_that_stay(over: str, tmp_path: Path) -> None:
    write(tmp_path, ONE)
    with ExitStack() as stack:
        if over == "stdio":
            target = [*COMMAND, "serve", "tools.py", "--stdio", "--reload"]
        else:
            target = stack.enter_context(serving("tools.py", "--port", "0", "--reload", cwd=tmp_path))[1]
        cwd = tmp_path if over == "stdio" else None
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(target, cwd=cwd) as client:
            assert (await client.call("whoami")).text == "tools"
            async with client.listen(tools=True) as changes:
                write(tmp_path, f"{ONE}\nserver.add_tool(lambda: 'here', name='more')\n")
                await anext(aiter(changes))
            assert (await client.call("more")).text == "here"


def test_reload_is_for_files(tmp_path: Path) -> None:
    done = ended("serve", "--reload", cwd=tmp_path)
    assert done.returncode == 2 and "--reload is for use with FILE.py" in done.stderr


# ---------------------------------------------------------------------------------------------------------------- files


async def test_one_of_several_servers_is_named(tmp_path: Path) -> None:
    write(tmp_path, TWO)
    command = [*COMMAND, "serve", "tools.py:second", "--stdio"]
    async with asyncio.timeout(PROMPTLY), sluicegate.connect(command, cwd=tmp_path) as client:
        assert (await client.call("which")).text == "second"


@pytest.mark.parametrize("target", ["team.py", "team.py:hub"])
async def test_a_hub_is_served_and_counts_more_than_the_servers_in_it(tmp_path: Path, target: str) -> None:
    (tmp_path / "team.py").write_text(TEAM)
    command = [*COMMAND, "serve", target, "--stdio"]
    async with asyncio.timeout(PROMPTLY), sluicegate.connect(command, cwd=tmp_path) as client:
        assert (await client.call("clock__now")).text == "noon" and client.info["name"] == "team"
    with serving(target, "--port", "0", cwd=tmp_path) as (_, url):
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url) as client:
            assert [tool.name for tool in await client.tools()] == ["clock__now"]


@pytest.mark.parametrize(
    ("text", "target", "sentence"),
    [
        (TWO, "tools.py", "tools.py has several servers; say which: tools.py:first or tools.py:second."),
        (TWO, "tools.py:third", "tools.py has no variable third."),
        (TWO, "tools.py:limit", "limit in tools.py has the type int, not sluicegate.Server or sluicegate.Hub."),
        (
            "x = 1\n",
            "tools.py",
            "tools.py has no server: none of its variables is a sluicegate.Server or a sluicegate.Hub, "
            "and it has no class with @sluicegate.activation.",
        ),
        (HUBS, "tools.py", "tools.py has several hubs; say which: tools.py:day or tools.py:night."),
        ("x = 1\n", "tolls.py", "there is no file tolls.py."),
        ("x = 1\n", "tolls.py:server", "there is no file tolls.py."),
        ("x = 1\n", ".", ". is a folder; name a Python file."),
        ("import sys\nsys.exit('no key')\n", "tools.py", "tools.py exits while it is loaded: no key."),
        ("import sys\nsys.exit(4)\n", "tools.py", "tools.py exits while it is loaded: sys.exit(4)."),
        (
            "import sluicegate\nsluicegate.run(sluicegate.Server('x'))\n",
            "tools.py",
            'tools.py could not be loaded: put the call of sluicegate.run() under `if __name__ == "__main__":`.',
        ),
    ],
)
@pytest.mark.parametrize("way", [[], ["--stdio"]], ids=["http", "stdio"])
def test_a_file_that_cannot_be_served_is_status_1_and_one_sentence(
    tmp_path: Path, text: str, target: str, sentence: str, way: list[str]
) -> None:
    write(tmp_path, text)
    done = ended("serve", target, *way, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sluicegate: {sentence}\n")


def test_an_error_in_the_file_shows_the_authors_part_of_the_traceback_only(tmp_path: Path) -> None:
    write(tmp_path, "def half(n):\n    return n / 0\n", "neighbour.py")
    file = write(tmp_path, "import neighbour\n\nneighbour.half(1)\n")
    done = ended("serve", "tools.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{file}", line 3, in <module>'
    assert any("neighbour.py" in line for line in lines)
    assert lines[-2:] == [
        "ZeroDivisionError: division by zero",
        "sluicegate: tools.py could not be loaded: ZeroDivisionError.",
    ]
    assert "importlib" not in done.stderr and "loading.py" not in done.stderr


def test_a_file_that_is_no_python_shows_where(tmp_path: Path) -> None:
    write(tmp_path, "def half(n:\n    return\n")
    done = ended("serve", "tools.py", cwd=tmp_path)
    assert done.returncode == 1
    assert 'tools.py", line 1' in done.stderr and "SyntaxError" in done.stderr
    assert "importlib" not in done.stderr and "Traceback" not in done.stderr


async def test_a_file_may_have_any_name_and_neighbours_that_import_it(tmp_path: Path) -> None:
    neighbour = "import mine\n\ndef name() -> str:\n    return mine.server.name\n"
    write(tmp_path, neighbour, "neighbour.py")
    write(
        tmp_path,
        "import sluicegate\nfrom dataclasses import dataclass\nserver = sluicegate.Server('mine')\n"
        "@dataclass\nclass Answer:\n    name: 'str'\n\n"
        "@server.tool\ndef ask() -> Answer:\n    import neighbour\n    return Answer(neighbour.name())\n",
        "mine.py",
    )
    (tmp_path / "json:v1").write_text((tmp_path / "mine.py").read_text().replace("neighbour.name()", "'json'"))
    for file, name in {"mine.py": "mine", "json:v1": "json"}.items():
        command = [*COMMAND, "serve", file, "--stdio"]
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(command, cwd=tmp_path) as client:
            assert (await client.call("ask")).structured_content == {"name": name}


def test_a_served_file_prints_its_client_entries() -> None:
    with serving(DEMO, "--port", "0") as (process, url):
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
    assert lines[0] == f"  Claude Code:   claude mcp add -t http demo {url}\n"
    assert '"demo": {' in lines[1] and f'"url": "{url}"' in lines[1] and "without a gateway" in lines[2]
