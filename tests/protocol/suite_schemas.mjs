// Prints the official schemas that the conformance suite contains, as a JSON list, oldest revision first.
import { readFileSync } from "node:fs";

const program = readFileSync(process.argv[2], "utf8");
const schemas = [];
for (const start of program.matchAll(/\{\$schema:`[^`]*`,(?:definitions|\$defs):\{Annotations:/g)) {
  let depth = 0;
  let end = start.index;
  do {
    if (program[end] === "`") end = program.indexOf("`", end + 1);
    depth += program[end] === "{" ? 1 : program[end] === "}" ? -1 : 0;
    end += 1;
  } while (depth > 0);
  schemas.push((0, eval)(`(${program.slice(start.index, end)})`));
}
process.stdout.write(JSON.stringify(schemas));
