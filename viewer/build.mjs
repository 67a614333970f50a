// viewer/src -> viewer.js, viewer.css and, where libraries are bundled, NOTICES: what ships inside the wheel.
//
//   node build.mjs [FOLDER]    the folder is that of the Python package unless named
//
// The same source gives the same bytes on every machine: package-lock.json pins the bundler, and nothing of the
// machine (paths, dates) goes in.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const SHIPPED = join(HERE, "../src/torchatlas/render/viewer/asset");
const MOST_BYTES = 400_000; // script and style together
// Inside <script> and <style> the HTML parser ends, or begins to skip, at these.
const MARKUP = { "viewer.js": /<\/script|<script|<!--/i, "viewer.css": /<\/style|<!--|@import/i };

const folder = resolve(process.argv[2] ?? SHIPPED);
const { outputFiles, metafile, warnings } = await build({
  absWorkingDir: HERE,
  entryPoints: { viewer: "src/main.ts", "viewer-style": "src/style.css" },
  outdir: "out", // named in the result only: nothing is written there
  write: false,
  metafile: true,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome109", "firefox115", "safari16.4"],
  charset: "ascii",
  legalComments: "none", // NOTICES has them
});
if (warnings.length > 0) fail("the bundler warned; see above");

const files = new Map(outputFiles.map((file) => [file.path.split(/[\\/]/).at(-1), file.text]));
const made = new Map([
  ["viewer.js", files.get("viewer.js")],
  ["viewer.css", files.get("viewer-style.css")],
]);
if (files.size > made.size)
  fail(`one script and one style were expected, and there are ${[...files.keys()].join(", ")}`);
let total = 0;
for (const [name, text] of made) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are ASCII
  const odd = /[^\x00-\x7f]/u.exec(text);
  if (odd) fail(`${name} holds a character that is not ASCII: U+${odd[0].codePointAt(0).toString(16)}`);
  const markup = MARKUP[name].exec(text);
  if (markup) fail(`${name} holds ${markup[0]}, which a page cannot: write it in two parts`);
  total += text.length;
}
if (total > MOST_BYTES) fail(`script and style are ${total} bytes, more than ${MOST_BYTES}`);
const notices = licences(metafile);
if (notices) made.set("NOTICES", notices);

mkdirSync(folder, { recursive: true });
rmSync(join(folder, "NOTICES"), { force: true });
for (const [name, text] of made) writeFileSync(join(folder, name), text);
console.log(
  `${folder}: ${[...made].map(([name, text]) => `${name} ${text.length}`).join(", ")} of ${MOST_BYTES} bytes`,
);

/** The licence of every package that went into the bundle; the empty string where none did. */
function licences({ inputs }) {
  const packages = new Set();
  for (const path of Object.keys(inputs)) {
    const inside = /^(?:.*\/)?node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
    if (inside) packages.add(inside[0]);
  }
  return [...packages].sort().map(licence).join("\n");
}

function licence(path) {
  const { name, version, license } = JSON.parse(readFileSync(join(HERE, path, "package.json"), "utf8"));
  const file = readdirSync(join(HERE, path)).find((entry) => /^(licen[cs]e|copying)/i.test(entry));
  if (!file) fail(`${name} has no licence file, and its text has to ship with it`);
  const text = readFileSync(join(HERE, path, file), "utf8")
    .replaceAll("\r\n", "\n")
    .trim();
  return `${name} ${version} (${license})\n\n${text}\n`;
}

function fail(message) {
  console.error(`viewer: ${message}`);
  process.exit(1);
}
