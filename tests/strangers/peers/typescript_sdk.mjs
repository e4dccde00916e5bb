// `sdk(name)`: a package of the folder that the program runs in. They are installed there, not beside this file, and
// an `import` looks nowhere else.
import { createRequire } from "node:module";

export const sdk = createRequire(`${process.cwd()}/`);
