// Codex: three commands of a shell, whose outputs fill the context; it compacts, and goes on.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const codex = fileURLToPath(new URL("../../node_modules/.bin/codex", import.meta.url));
const shell = (cmd) => ["exec_command", { cmd, max_output_tokens: 100000 }];
const calls = [1, 2, 3].map((number) => shell(`echo ${number}; seq 1000 5000`));
const provider = {
  name: "quire",
  base_url: process.env.QUIRE_URL + "/v1",
  wire_api: "responses",
  request_max_retries: 0,
  stream_max_retries: 0,
};
const flags = ["--json", "--skip-git-repo-check", "--sandbox", "danger-full-access"];
flags.push("-c", 'model_provider="quire"');
for (const [name, value] of Object.entries(provider)) {
  flags.push("-c", `model_providers.quire.${name}=${JSON.stringify(value)}`);
}

function run(...words) {
  const { stdout, stderr } = spawnSync(codex, ["exec", ...words], { encoding: "utf8" });
  assert(stdout, stderr);
  return stdout.trim().split("\n").map(JSON.parse);
}

const told = run(...flags, "DO " + JSON.stringify(calls));
console.log(told);
