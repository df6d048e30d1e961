// Bundles the console into ../dist, from where the Go package embeds it. With "test" it bundles the unit tests into
// .test instead.
import { build } from "esbuild";
import { copyFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { readFileSync } from "node:fs";

const here = new URL(".", import.meta.url).pathname;

if (process.argv[2] === "test") {
  rmSync(here + ".test", { recursive: true, force: true });
  await build({
    entryPoints: readdirSync(here + "test").map((f) => `${here}test/${f}`),
    outdir: here + ".test",
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
} else {
  const dist = here + "../dist/";
  for (const f of readdirSync(dist)) if (f !== "unbuilt.html") rmSync(dist + f, { recursive: true });
  await build({
    entryPoints: { app: here + "src/main.tsx", style: here + "src/style.css" },
    outdir: dist,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["chrome123", "firefox120", "safari17.5"],
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  for (const f of ["index.html", "icon.svg", "theme.js"]) copyFileSync(`${here}static/${f}`, dist + f);
  for (const f of readdirSync(dist).sort()) {
    const size = statSync(dist + f).size;
    console.log(`${String(size).padStart(8)} B ${String(gzipSync(readFileSync(dist + f)).length).padStart(7)} B zipped  ${f}`);
  }
}
