// Codex, as editors drive it: three commands of a shell, whose outputs fill the context; it compacts
// when it is told to, and goes on with the fourth.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const codex = fileURLToPath(new URL("../../node_modules/.bin/codex", import.meta.url));
const shell = (cmd) => [
  "functions__exec",
  { input: `text((await tools.exec_command({ cmd: "${cmd}" })).output)` },
];
const long = [1, 2, 3].map((number) => shell(`echo ${number}; seq 1000 5000`));
const provider = { name: "quire", base_url: process.env.QUIRE_URL + "/v1", request_max_retries: 0 };
const flags = ["-c", 'model_provider="quire"'];
for (const [name, value] of Object.entries(provider)) {
  flags.push("-c", `model_providers.quire.${name}=${JSON.stringify(value)}`);
}

const server = spawn(codex, ["app-server", ...flags], { stdio: ["pipe", "pipe", "inherit"] });
const lines = createInterface({ input: server.stdout })[Symbol.asyncIterator]();
const say = (message) => server.stdin.write(JSON.stringify(message) + "\n");
const heard = [];

// What is said until a message is the one that is waited for.
async function until(found) {
  for (;;) {
    const { value, done } = await lines.next();
    assert(!done, "it has ended");
    const message = JSON.parse(value);
    heard.push(message);
    if (found(message)) return message;
  }
}

let number = 0;
async function ask(method, params) {
  const id = ++number;
  say({ id, method, params });
  const { result, error } = await until((message) => message.id === id);
  assert(result, JSON.stringify(error));
  return result;
}

await ask("initialize", { clientInfo: { name: "quire", title: "Quire", version: "0" } });
say({ method: "initialized" });
const { thread } = await ask("thread/start", {
  cwd: process.cwd(),
  approvalPolicy: "never",
  sandbox: "danger-full-access",
});

async function turn(text) {
  await ask("turn/start", { threadId: thread.id, input: [{ type: "text", text }] });
  const { params } = await until(({ method }) => method === "turn/completed");
  return params.turn;
}

const first = await turn("DO " + JSON.stringify([...long, shell("echo 4")]));
assert.equal(first.status, "failed");
assert.equal(first.error.codexErrorInfo, "contextWindowExceeded");
await ask("thread/compact/start", { threadId: thread.id });
await until(({ method }) => method === "turn/completed");
const second = await turn("Go on.");
assert.equal(second.status, "completed", JSON.stringify(second));
const items = heard.filter(({ method }) => method === "item/completed").map((m) => m.params.item);
const commands = items.filter(({ type }) => type === "commandExecution");
assert.deepEqual(commands.map(({ exitCode }) => exitCode), [0, 0, 0, 0]);
assert.deepEqual(items.filter(({ type }) => type === "agentMessage").at(-1).text, "Done.");
server.kill();
