"""`tsc --strict` and pyright in strict mode accept the code for every server we can find, and check its use."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sluicegate.generate.model import GeneratedTool, modules_of
from sluicegate.generate.python import python
from sluicegate.generate.typescript import typescript
from tests.generate.samples import corpus, nasty, odd, our_tools

USE_TS = """\
import { connect, ToolError, Tools } from "./tools/index.ts";

export async function use(): Promise<void> {
  const tools = new Tools(connect("http://127.0.0.1:1/mcp"));
  const text: string = await tools.demo.echo({ text: "hello", times: 2 });
  await tools.demo.clock();
  await tools.demo.clock({ form: "unix" });
  // @ts-expect-error - It is required.
  await tools.demo.echo({ times: 2 });
  // @ts-expect-error - No such form.
  await tools.demo.clock({ form: "roman" });
  // @ts-expect-error - No such member.
  await tools.demo.echo({ text, tmies: 2 });
  const mass: { [planet: string]: number } = await tools.solar.mass({ planet: "mars" });
  for await (const event of tools.solar.watch({ days: 1 })) {
    if (event.type === "lost") console.log(event.days * 2);
    // @ts-expect-error - No stream has such events.
    if (event.type === "found") console.log(event);
    if (event.type === "error") throw new ToolError(event.message);
  }
  const pair: [number, string] | undefined = (await tools.odd.tuples_out()).pair;
  console.log(mass, pair, (await tools.odd.recursive_out()).next?.next?.value);
}
"""

USE_PY = """\
from sluicegate import connect

from tools import Tools


async def use() -> None:
    async with connect("http://127.0.0.1:1/mcp") as client:
        tools = Tools(client)
        text: str = await tools.demo.echo({"text": "hello", "times": 2})
        await tools.demo.clock()
        await tools.demo.clock({"form": "unix"})
        await tools.demo.echo({"times": 2})  # pyright: ignore[reportArgumentType]
        await tools.demo.clock({"form": "roman"})  # pyright: ignore[reportArgumentType]
        await tools.demo.echo({"text": text, "tmies": 2})  # pyright: ignore[reportArgumentType]
        mass: dict[str, float] = await tools.solar.mass({"planet": "mars"})
        async for event in tools.solar.watch({"days": 1}):
            if event["type"] == "lost":
                print(event["days"] * 2, mass)
            if event["type"] == "error":
                print(event["message"])
        print((await tools.odd.recursive_out()).get("next", {}).get("value"))
"""


async def everything() -> list[GeneratedTool]:
    return [*await our_tools(), *corpus(), *nasty(), *odd()]


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def output_of(*command: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


async def test_the_typescript_compiler_accepts_all_of_it(stranger: Callable[[str], Path], tmp_path: Path) -> None:
    npm = stranger("npm")
    write(tmp_path / "tools", typescript(modules_of(await everything())))
    (tmp_path / "use.ts").write_text(USE_TS)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    options = {
        **dict.fromkeys(("strict", "noEmit", "noUncheckedIndexedAccess", "exactOptionalPropertyTypes"), True),
        **dict.fromkeys(("verbatimModuleSyntax", "erasableSyntaxOnly", "allowImportingTsExtensions"), True),
        **{"target": "es2022", "module": "nodenext", "lib": ["es2023", "dom", "dom.asynciterable"], "types": []},
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["**/*.ts"]}))
    tsc = npm / "node_modules" / "typescript" / "bin" / "tsc"
    done = await asyncio.to_thread(output_of, npm / "node", tsc, "-p", tmp_path)
    assert done.returncode == 0, done.stdout[:5000]


async def test_pyright_in_strict_mode_accepts_all_of_it(tmp_path: Path) -> None:
    write(tmp_path / "tools", python(modules_of(await everything())))
    (tmp_path / "use.py").write_text(USE_PY)
    options = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "reportUnnecessaryTypeIgnoreComment": True}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    python_path = ("--pythonpath", sys.executable)
    done = await asyncio.to_thread(
        output_of, sys.executable, "-m", "pyright", "-p", tmp_path, *python_path, "--outputjson"
    )
    report = json.loads(done.stdout)
    assert [
        f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ] == []
    assert report["summary"]["filesAnalyzed"] >= len(list((tmp_path / "tools").iterdir()))
