// The stream of player.mjs over a WebSocket, in browsers and in Node.js: each binary frame is a message, as protobuf
// encodes it.

import { Refusal } from "./player.mjs";

export function open(address, token) {
  const url = new URL(address);
  if (token) url.searchParams.set("token", token); // browsers cannot set headers
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  const [waiting, events] = [[], []];
  let [wake, refusal] = [() => {}, null];
  const tell = (event) => {
    events.push(event);
    wake();
  };
  const fail = (error) => tell({ error });
  const lost = () => fail(refusal ?? new Refusal("UNAVAILABLE", `no connection to ${url.host}`));
  socket.onopen = () => waiting.splice(0).forEach((frame) => socket.send(frame));
  socket.onmessage = ({ data }) => {
    if (typeof data === "string") refusal = new Refusal(...data.split(/: (.*)/s)); // the server's reason to close
    else tell({ response: decode("PlayResponse", new Uint8Array(data)) });
  };
  socket.onclose = ({ code }) =>
    code === 1000 ? tell({}) : code === 1009 ? fail(new Refusal("RESOURCE_EXHAUSTED", "a message is too large")) : lost();
  socket.onerror = lost; // if connecting fails, Node.js 20 does not call onclose
  return {
    encode: (request) => encode("PlayRequest", request),
    write: (frame) => {
      if (socket.readyState === WebSocket.CONNECTING) waiting.push(frame);
      else socket.send(frame);
    },
    end: () => socket.close(1000),
    fail,
    close: () => socket.close(),
    async *[Symbol.asyncIterator]() {
      for (;;) {
        while (events.length === 0) await new Promise((resolve) => (wake = resolve));
        const { response, error } = events.shift();
        if (error) throw error;
        if (!response) return;
        yield response;
      }
    },
  };
}

// -- protobuf, as far as these messages need it: the number and the type of each field; [type]: any number of them --

const FIELDS = {
  PlayRequest: { hello: [1, "Hello"], turns: [2, "Turns"] },
  Hello: { protocol: [1, "int"], client: [2, "string"], substeps: [3, ["SubstepSpaces"]], n_envs: [4, "int"] },
  Turns: { turns: [1, ["EnvironmentTurn"]] },
  EnvironmentTurn: { environment: [1, "int"], agents: [2, ["AgentTurn"]], episode_values: [3, ["EpisodeValue"]] },
  AgentTurn: {
    ...{ substep: [1, "int"], agent: [2, "int"], state: [3, "int"] },
    ...{ observation: [4, ["bytes"]], reward: [5, "double"] },
  },
  EpisodeValue: { name: [1, "string"], value: [2, "double"] },
  SubstepSpaces: { key: [1, "string"], observation: [2, "Space"], action: [3, "Space"], n_agents: [4, "int"] },
  Space: {
    ...{ box: [1, "Box"], discrete: [2, "Discrete"], multi_binary: [3, "MultiBinary"] },
    ...{ multi_discrete: [4, "MultiDiscrete"], dict: [5, "DictSpace"], tuple: [6, "TupleSpace"] },
  },
  Box: { low: [1, "Tensor"], high: [2, "Tensor"], shape: [3, ["int"]] },
  Discrete: { n: [1, "int"], start: [2, "int"] },
  MultiBinary: { shape: [1, ["int"]] },
  MultiDiscrete: { nvec: [1, "Tensor"], start: [2, "Tensor"] },
  DictSpace: { members: [1, ["NamedSpace"]] },
  NamedSpace: { key: [1, "string"], space: [2, "Space"] },
  TupleSpace: { members: [1, ["Space"]] },
  Tensor: { dtype: [1, "int"], shape: [2, ["int"]], data: [3, "bytes"] },
  PlayResponse: { welcome: [1, "Welcome"], actions: [2, "Actions"], farewell: [3, "Farewell"] },
  Welcome: { client: [1, "string"], seeds: [2, ["big"]], max_message_bytes: [3, "int"] },
  Actions: { environments: [1, ["EnvironmentActions"]], policy_version: [2, "int"], progress: [3, "double"] },
  EnvironmentActions: { environment: [1, "int"], agents: [2, ["AgentAction"]] },
  AgentAction: { substep: [1, "int"], agent: [2, "int"], action: [3, "bytes"] },
  Farewell: { reason: [1, "string"], training_ended: [2, "bool"] },
};
const DEFAULTS = { int: 0, bool: false, double: 0, string: "" };

function encode(message, value) {
  const parts = [];
  for (const [name, [number, type]] of Object.entries(FIELDS[message])) {
    const values = Array.isArray(type) ? value[name] : [value[name]];
    for (const one of values ?? []) if (one !== undefined) parts.push(...field(number, [type].flat()[0], one));
  }
  return joined(parts);
}

function field(number, type, value) {
  if (type === "int") return [varint(number << 3), varint(value)];
  if (type === "double") return [varint((number << 3) | 1), new Uint8Array(Float64Array.of(value).buffer)];
  const bytes = type === "string" ? new TextEncoder().encode(value) : type === "bytes" ? value : encode(type, value);
  return [varint((number << 3) | 2), varint(bytes.length), bytes];
}

function varint(value) {
  const bytes = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return [...bytes, Number(rest)];
}

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function decode(message, bytes) {
  const fields = Object.entries(FIELDS[message]);
  const decoded = {};
  for (const [name, [, type]] of fields)
    if (Array.isArray(type) || type in DEFAULTS) decoded[name] = Array.isArray(type) ? [] : DEFAULTS[type];
  let at = 0;
  const integer = () => {
    for (let [value, shift] = [0n, 0n]; ; shift += 7n) {
      value |= BigInt(bytes[at] & 127) << shift;
      if (bytes[at++] < 128) return value;
    }
  };
  const take = (length) => bytes.subarray(at, (at += length));
  while (at < bytes.length) {
    const key = Number(integer());
    const [name, [, type]] = fields.find(([, [number]]) => number === key >> 3) ?? [null, [0, "bytes"]];
    const kind = [type].flat()[0];
    const values = [];
    if ((key & 7) === 0) values.push(ofInteger(kind, integer()));
    else if ((key & 7) === 1) values.push(new DataView(take(8).slice().buffer).getFloat64(0, true));
    else if (kind === "int" || kind === "big")
      for (const end = Number(integer()) + at; at < end; ) values.push(ofInteger(kind, integer())); // packed
    else values.push(ofBytes(kind, take(Number(integer()))));
    if (Array.isArray(type)) decoded[name].push(...values);
    else if (name) decoded[name] = values[0];
  }
  return decoded;
}

const ofInteger = (kind, value) =>
  kind === "big" ? value : kind === "bool" ? value !== 0n : Number(BigInt.asIntN(64, value));

const ofBytes = (kind, bytes) =>
  kind === "bytes" ? bytes : kind === "string" ? new TextDecoder().decode(bytes) : decode(kind, bytes);
