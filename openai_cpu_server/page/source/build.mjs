// Bundles the page. Called by scripts/page: `build`, `check` or `licences`.
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const SOURCE = dirname(fileURLToPath(import.meta.url));
const BUILT = join(SOURCE, "..", "built");
const COPIED = ["index.html", "icon.svg"];

/** Makes all files, as a map from name to bytes, and writes nothing. */
async function bundled() {
  const { outputFiles, metafile } = await build({
    absWorkingDir: SOURCE,
    entryPoints: ["app.js", "app.css", "theme.js"],
    outdir: "built",
    bundle: true,
    minify: true,
    splitting: true,
    format: "esm",
    target: ["es2022"],
    chunkNames: "[name]-[hash]",
    legalComments: "none", // licences.txt has all of them
    metafile: true,
    write: false,
    logLevel: "warning",
  });
  const files = new Map(COPIED.map((name) => [name, readFileSync(join(SOURCE, name))]));
  for (const file of outputFiles) files.set(relative(join(SOURCE, "built"), file.path), Buffer.from(file.contents));
  files.set("licences.txt", Buffer.from(licences(metafile)));
  return new Map([...files].sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Packages with code in the bundle, each with its version and the text of its licence. */
function licences(metafile) {
  const inputs = Object.keys(metafile.inputs).map((path) => path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]);
  const packages = [...new Set(inputs.filter(Boolean))].sort();
  return packages.map(licence).join("\n" + "-".repeat(80) + "\n\n");
}

function licence(name) {
  const folder = join(SOURCE, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^(licen[cs]e|copying)/i.test(entry));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : `See ${license}.`;
  return `${name} ${version} (${license})\n\n${text}\n`;
}

function differences(files) {
  const names = existsSync(BUILT) ? readdirSync(BUILT) : [];
  const gone = names.filter((name) => !files.has(name));
  const changed = [...files].filter(([name, body]) => !names.includes(name) || !readFileSync(join(BUILT, name)).equals(body));
  return [...gone, ...changed.map(([name]) => name)];
}

function write(files) {
  rmSync(BUILT, { recursive: true, force: true });
  mkdirSync(BUILT);
  for (const [name, body] of files) writeFileSync(join(BUILT, name), body);
}

function report(files) {
  let total = 0;
  for (const [name, body] of files) {
    const small = gzipSync(body, { level: 9 }).length;
    total += small;
    console.log(`${name.padEnd(32)} ${String(body.length).padStart(9)} ${String(small).padStart(9)} gzip`);
  }
  console.log(`${"all".padEnd(32)} ${"".padStart(9)} ${String(total).padStart(9)} gzip`);
}

const files = await bundled();
switch (process.argv[2]) {
  case "build":
    write(files);
    report(files);
    break;
  case "check": {
    const changed = differences(files);
    if (changed.length) {
      console.error(`run scripts/page build; these are not what the sources make: ${changed.join(", ")}`);
      process.exit(1);
    }
    break;
  }
  case "licences":
    console.log(files.get("licences.txt").toString());
}
