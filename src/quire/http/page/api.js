// The server, as the page asks it. All paths are relative, so that a proxy may show it below a path.

const HEADERS = { "x-quire-page": "1" }; // only with it does the login's cookie count

/** The server wants a key, or a login that has not ended. */
export class NeedsLogin extends Error {}

/** An answer that is an error; `message` is the server's own, `field` what of the request it is about. */
export class Refused extends Error {
  constructor(message, status, field = null) { super(message); this.status = status; this.field = field; }
}

async function checked(response) {
  if (response.ok) return response;
  if (response.status === 401) throw new NeedsLogin();
  let error = { message: `${response.status} ${response.statusText}` };
  try { error = (await response.json()).error ?? error; } catch { /* no JSON: the status must do */ }
  throw new Refused(error.message, response.status, error.param);
}

/** A response that went well. `body`: sent as JSON, by POST. */
export async function ask(path, { method, body, headers, signal } = {}) {
  const all = { ...HEADERS, ...headers };
  if (body !== undefined) all["content-type"] = "application/json";
  return checked(await fetch(path, {
    method: method ?? (body === undefined ? "GET" : "POST"), headers: all, signal, cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  }));
}

export const getJson = async (path, options) => (await ask(path, options)).json();

export const logIn = (key) => ask("v1/quire/login", { method: "POST", headers: { authorization: `Bearer ${key}` } });

/** The data of server-sent events, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}
