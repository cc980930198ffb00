// Everything a client in another language needs: the address, the .proto files and a gRPC library.
//
//   node client.mjs 127.0.0.1:50051 ../../../proto
//
// Prints one line of JSON a step, { call, ... }; ends with 1 and a message when something is not as the contract says.

import { strict as assert } from "node:assert";
import { randomBytes } from "node:crypto";
import path from "node:path";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const here = path.dirname(fileURLToPath(import.meta.url));
const [address = "127.0.0.1:50051", protoRoot = path.join(here, "../../../proto")] = process.argv.slice(2);

const definition = protoLoader.loadSync(
  ["rollout", "policy", "learner"].map((name) => `rollcast/v1/${name}.proto`),
  { includeDirs: [protoRoot], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true },
);
const { RolloutService, PolicyService, LearnerService } = grpc.loadPackageDefinition(definition).rollcast.v1;
const [rollouts, policies, learner] = [RolloutService, PolicyService, LearnerService].map(
  (Service) => new Service(address, grpc.credentials.createInsecure()),
);

process.on("uncaughtException", (error) => {
  console.error(error.details ? `client.mjs: ${grpc.status[error.code]}: ${error.details}` : error.stack);
  process.exit(1);
});

const report = (call, result) => console.log(JSON.stringify({ call, ...result }));
const deadline = (seconds) => ({ deadline: Date.now() + 1000 * seconds });
const unary = (stub, method, request, seconds = 10) =>
  new Promise((resolve, reject) =>
    stub[method](request, deadline(seconds), (error, response) => (error ? reject(error) : resolve(response))),
  );

// -- tensors: little-endian, C-contiguous; a typed array is just that on the machines that run Node --

const DTYPES = new Map([
  [Float32Array, "DATA_TYPE_FLOAT32"],
  [BigInt64Array, "DATA_TYPE_INT64"],
  [Uint8Array, "DATA_TYPE_BOOL"],
]);
const tensor = (shape, values) => ({
  dtype: DTYPES.get(values.constructor),
  shape,
  data: Buffer.from(values.buffer, values.byteOffset, values.byteLength),
});
const leaf = (shape, values) => [{ path: "", tensor: tensor(shape, values) }];

// -- an environment of one's own: CartPole-v1, B of them at once --

const START = () => Math.random() * 0.1 - 0.05;
function step([x, speed, angle, spin], action) {
  const force = action ? 10 : -10;
  const pushed = (force + 0.05 * spin ** 2 * Math.sin(angle)) / 1.1;
  const turn = (9.8 * Math.sin(angle) - Math.cos(angle) * pushed) / (0.5 * (4 / 3 - (0.1 * Math.cos(angle) ** 2) / 1.1));
  const push = pushed - (0.05 * turn * Math.cos(angle)) / 1.1;
  return [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn];
}

const bound = [4.8, Infinity, (24 * 2 * Math.PI) / 360, Infinity];
const SUBSTEP = {
  key: "0",
  observation: {
    box: {
      shape: [4],
      low: tensor([4], Float32Array.from(bound, (high) => -high)),
      high: tensor([4], Float32Array.from(bound)),
    },
  },
  action: { discrete: { n: 2, start: 0 } },
};

// A rollout of T steps of a policy that tosses a coin; no pole falls within 8 steps, so no episode ends.
function play(T, B) {
  let states = Array.from({ length: B }, () => [START(), START(), START(), START()]);
  const [observations, actions] = [[], []];
  for (let t = 0; t < T; t++) {
    observations.push(...states.flat());
    const tossed = states.map(() => (Math.random() < 0.5 ? 1 : 0));
    actions.push(...tossed);
    states = states.map((state, b) => step(state, tossed[b]));
  }
  return {
    substeps: [
      {
        key: "0",
        observation: leaf([T, B, 4], Float32Array.from(observations)),
        action: tensor([T, B], BigInt64Array.from(actions, BigInt)),
        log_prob: tensor([T, B], new Float32Array(T * B).fill(Math.log(0.5))),
        last_observation: leaf([B, 4], Float32Array.from(states.flat())),
      },
    ],
    reward: tensor([T, B], new Float32Array(T * B).fill(1)),
    terminated: tensor([T, B], new Uint8Array(T * B)),
    truncated: tensor([T, B], new Uint8Array(T * B)),
    env_seeds: Array.from({ length: B }, (_, b) => b),
  };
}

// -- the session --

async function getPolicy() {
  const chunks = [];
  for await (const { chunk } of policies.GetPolicy({}, deadline(30))) chunks.push(chunk);
  const [{ version, count, total_bytes }] = chunks;
  assert.deepEqual(chunks.map((chunk) => chunk.index), [...Array(count).keys()], "chunks come in order, all of them");
  const file = Buffer.concat(chunks.map((chunk) => chunk.payload));
  assert.equal(file.length, Number(total_bytes));
  // safetensors: the header's length, the header as JSON, the bytes
  const header = JSON.parse(file.subarray(8, 8 + Number(file.readBigUInt64LE(0))).toString());
  delete header.__metadata__;
  return { version, n_bytes: file.length, shapes: Object.fromEntries(Object.entries(header).map(([k, v]) => [k, v.shape])) };
}

async function watchStatus(messages) {
  const call = learner.WatchStatus({ interval_s: 0.1 }, deadline(10));
  const seen = [];
  try {
    for await (const { status } of call) if (seen.push(status.phase) === messages) break;
  } finally {
    call.cancel();
  }
  return seen;
}

async function actAsForeignActor(B) {
  const agreement = await unary(rollouts, "Join", {
    actor_id: "foreign-node",
    process_nonce: randomBytes(8).readBigUInt64LE().toString(),
    protocol_version: 1,
    software_version: `node ${process.version}`,
    substeps: [SUBSTEP],
    n_envs: B,
    network: "auto",
  });
  report("Join", { slot: agreement.slot, n_rollout_steps: agreement.n_rollout_steps, policy: agreement.policy });
  const { actor_id, incarnation, n_rollout_steps: T } = agreement;
  const stream = rollouts.StreamRollouts();
  const answers = stream[Symbol.asyncIterator]();
  stream.write({ open: { actor_id, incarnation } });
  const { value: opened } = await answers.next();
  report("StreamRollouts", { opened });
  assert.ok(Number(opened.credit_sequence) >= 1, "the first rollout is credited at once");
  const policy_version = (await getPolicy()).version;
  stream.write({ rollout: { actor_id, incarnation, sequence: 1, policy_version, ...play(T, B) } });
  const { value: acknowledged } = await answers.next();
  report("StreamRollouts", { acknowledged });
  assert.equal(acknowledged.acknowledged_sequence, "1");
  stream.end();
  assert.ok((await answers.next()).done, "the learner ends the stream after the actor has");
}

report("GetStatus", (await unary(learner, "GetStatus", {})).status);
report("WatchStatus", { phases: await watchStatus(2) });
report("GetPolicy", await getPolicy());
const observation = leaf([2, 4], Float32Array.from([0.01, 0.02, -0.03, 0.04, 0, 0, 0.1, 0]));
const { action, policy_version } = await unary(policies, "Act", { observation, deterministic: true });
report("Act", { dtype: action.dtype, actions: [0, 8].map((at) => Number(action.data.readBigInt64LE(at))), policy_version });
await actAsForeignActor(2);
report("ListActors", await unary(learner, "ListActors", {}));
const refused = await unary(policies, "Act", { observation: leaf([1, 3], new Float32Array(3)) }).catch((error) => error);
report("Act", { refused: grpc.status[refused.code], message: refused.details });
for (const stub of [rollouts, policies, learner]) stub.close();
