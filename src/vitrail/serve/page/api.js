// Talking to the server: JSON out, JSON or safetensors back, and errors as the sentences they are.

export class Refused extends Error {
  constructor(sentence, status) { super(sentence); this.status = status; }
}

async function answered(response) {
  if (response.ok) return response;
  let sentence = `The server answered ${response.status}.`;
  try { sentence = (await response.json()).error ?? sentence; } catch { /* no JSON: the plain sentence will do */ }
  throw new Refused(sentence, response.status);
}

async function asked(path, options) {
  try {
    return await answered(await fetch(path, options));
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused("The Studio can’t be reached: is it still running in its terminal?", 0);
  }
}

export const about = async () => (await asked("/api/studio")).json();

export async function upload(blob, signal) {
  return (await asked("/api/pictures", { method: "POST", body: blob, signal })).json();
}

export async function sample(number, signal) {
  return (await asked(`/api/samples/${number}`, { method: "POST", signal })).json();
}

const json = (body, signal) => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });

export async function ask(what, body, signal) {
  return (await asked(`/api/${what}`, json(body, signal))).json();
}

export async function arrays(what, body, signal) {
  return unpack(await (await asked(`/api/${what}`, json(body, signal))).arrayBuffer());
}

const KINDS = { U8: Uint8Array, I8: Int8Array, I32: Int32Array, F32: Float32Array };

// safetensors: eight bytes of header length, a JSON header with the place of each array, then the numbers.
export function unpack(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  const { __metadata__: { about: words }, ...places } = header;
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(places)) {
    const Kind = KINDS[dtype], start = 8 + length + from;
    const aligned = start % Kind.BYTES_PER_ELEMENT === 0;
    const data = aligned ? new Kind(buffer, start, (to - from) / Kind.BYTES_PER_ELEMENT) : new Kind(buffer.slice(start, 8 + length + to));
    found[name] = { shape, data };
  }
  return { about: JSON.parse(words), arrays: found };
}
