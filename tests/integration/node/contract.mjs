// What every client in JavaScript needs: the services of a learner, tensors, and the file of a policy.

import { strict as assert } from "node:assert";
import { randomBytes } from "node:crypto";
import path from "node:path";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

export const CODES = grpc.status;

// The services at an address, by the .proto files in a folder.
export function connect(address, protoRoot) {
  const definition = protoLoader.loadSync(
    ["rollout", "policy", "learner", "history"].map((name) => `rollcast/v1/${name}.proto`),
    { includeDirs: [protoRoot], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true },
  );
  const { RolloutService, PolicyService, LearnerService, HistoryService } =
    grpc.loadPackageDefinition(definition).rollcast.v1;
  const stubs = [RolloutService, PolicyService, LearnerService, HistoryService].map(
    (Service) => new Service(address, grpc.credentials.createInsecure()),
  );
  const [rollouts, policies, learner, history] = stubs;
  return { rollouts, policies, learner, history, close: () => stubs.forEach((stub) => stub.close()) };
}

// The address and the folder of the .proto files that a program was called with.
export function calledWith() {
  const here = path.dirname(fileURLToPath(import.meta.url));
  const [address = "127.0.0.1:50051", protoRoot = path.join(here, "../../../proto")] = process.argv.slice(2);
  return [address, protoRoot];
}

export const deadline = (seconds) => ({ deadline: Date.now() + 1000 * seconds });

export const unary = (stub, method, request, seconds = 10) =>
  new Promise((resolve, reject) =>
    stub[method](request, deadline(seconds), (error, response) => (error ? reject(error) : resolve(response))),
  );

// -- tensors: little-endian, C-contiguous; a typed array is just that on the machines that run Node --

const DTYPES = new Map([
  [Float32Array, "DATA_TYPE_FLOAT32"],
  [BigInt64Array, "DATA_TYPE_INT64"],
  [Int32Array, "DATA_TYPE_INT32"],
  [Uint8Array, "DATA_TYPE_BOOL"],
]);
export const tensor = (shape, values) => ({
  dtype: DTYPES.get(values.constructor),
  shape,
  data: Buffer.from(values.buffer, values.byteOffset, values.byteLength),
});
export const leaf = (shape, values) => [{ path: "", tensor: tensor(shape, values) }];
// A copy, because typed arrays want their bytes aligned.
const array = (Kind, data) => new Kind(Uint8Array.from(data).buffer);
export const floats = ({ data }) => array(Float32Array, data);
export const integers = ({ data }) => Array.from(array(BigInt64Array, data), Number);

// -- policies: chunks that are a safetensors file: the header's length, the header as JSON, the bytes --

const KINDS = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array };

// The newest policy: its version, the size of its file, and its tensors by name, each with shape and values.
export async function getPolicy(policies) {
  const chunks = [];
  for await (const { chunk } of policies.GetPolicy({}, deadline(30))) chunks.push(chunk);
  const [{ version, count, total_bytes }] = chunks;
  assert.deepEqual(chunks.map((chunk) => chunk.index), [...Array(count).keys()], "chunks come in order, all of them");
  const file = Buffer.concat(chunks.map((chunk) => chunk.payload));
  assert.equal(file.length, Number(total_bytes));
  const start = 8 + Number(file.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(file.subarray(8, start).toString());
  const tensors = Object.entries(header).map(([name, { dtype, shape, data_offsets: [from, to] }]) => [
    name,
    { shape, values: array(KINDS[dtype], file.subarray(start + from, start + to)) },
  ]);
  return { version, n_bytes: file.length, tensors: Object.fromEntries(tensors) };
}

// -- an actor's session --

// Joins as an actor and opens the stream of rollouts.
export async function join(rollouts, request) {
  const agreement = await unary(rollouts, "Join", {
    process_nonce: randomBytes(8).readBigUInt64LE().toString(),
    protocol_version: 1,
    software_version: `node ${process.version}`,
    ...request,
  });
  const { actor_id, incarnation } = agreement;
  const stream = rollouts.StreamRollouts();
  const answers = stream[Symbol.asyncIterator]();
  stream.write({ open: { actor_id, incarnation } });
  const { value: opened } = await answers.next();
  assert.ok(Number(opened.credit_sequence) >= 1, "the first rollout is credited at once");
  return {
    agreement,
    opened,
    // Sends a rollout; returns the learner's answer.
    send: async (rollout) => {
      stream.write({ rollout: { actor_id, incarnation, ...rollout } });
      return (await answers.next()).value;
    },
    leave: async () => {
      stream.end();
      assert.ok((await answers.next()).done, "the learner ends the stream after the actor has");
    },
  };
}
