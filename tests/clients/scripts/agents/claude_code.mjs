// Claude Code: three commands of a shell, whose outputs fill the context; it compacts, and goes on.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const claude = fileURLToPath(new URL("../../node_modules/.bin/claude", import.meta.url));
const shell = (command) => ["Bash", { command, description: "Say something" }];
const calls = [1, 2, 3].map((number) => shell(`echo ${number}; seq 1000 5000`));
const env = {
  ...process.env,
  ANTHROPIC_BASE_URL: process.env.QUIRE_URL,
  ANTHROPIC_API_KEY: "none",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", // there is no network
};

function run(...words) {
  const flags = ["--print", "--output-format", "json", "--allowedTools", "Bash"];
  const { stdout, stderr } = spawnSync(claude, [...flags, ...words], { env, encoding: "utf8" });
  assert(stdout, stderr);
  return JSON.parse(stdout);
}

const told = run("DO " + JSON.stringify(calls));
console.log(told);
assert.equal(told.result, "Done.");
