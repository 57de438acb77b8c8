// Claude Code: three commands of a shell, whose outputs fill the context; it compacts, and goes on
// with the fourth.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const claude = fileURLToPath(new URL("../../node_modules/.bin/claude", import.meta.url));
const shell = (command) => ["Bash", { command, description: "Say something" }];
const long = [1, 2, 3].map((number) => shell(`echo ${number}; seq 1000 5000`));
const task = "DO " + JSON.stringify([...long, shell("echo 4")]);
const flags = ["--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"];
const env = {
  ...process.env,
  ANTHROPIC_BASE_URL: process.env.QUIRE_URL,
  ANTHROPIC_API_KEY: "none",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", // it finds nobody
};

const done = spawnSync(claude, ["--print", task, ...flags], { env, encoding: "utf8" });
assert(done.stdout, done.stderr);
const events = done.stdout.trim().split("\n").map(JSON.parse);
const blocks = events.flatMap(({ message }) => message?.content ?? []);
const results = blocks.filter(({ type }) => type === "tool_result");
assert.deepEqual(results.map(({ content }) => content.split("\n")[0]), ["1", "2", "3", "4"]);
assert(events.some(({ subtype }) => subtype === "compact_boundary"));
assert.equal(events.at(-1).result, "Done.");
