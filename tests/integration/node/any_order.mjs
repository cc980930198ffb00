// An actor that asks a learner what it learns from, and offers the members of its Dict in an order of its own.
//
//   node any_order.mjs 127.0.0.1:50051 ../../../proto

import { strict as assert } from "node:assert";
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
const { RolloutService, LearnerService } = grpc.loadPackageDefinition(definition).rollcast.v1;
const [rollouts, learner] = [RolloutService, LearnerService].map(
  (Service) => new Service(address, grpc.credentials.createInsecure()),
);
const unary = (stub, method, request) =>
  new Promise((resolve, reject) =>
    stub[method](request, { deadline: Date.now() + 5000 }, (error, response) => (error ? reject(error) : resolve(response))),
  );
const report = (result) => console.log(JSON.stringify(result));
const bytes = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength);
const floats = (shape, value) => ({
  dtype: "DATA_TYPE_FLOAT32",
  shape,
  data: bytes(new Float32Array(shape.reduce((a, b) => a * b)).fill(value)),
});
const members = (substep) => substep.observation.dict.members.map(({ key }) => key);

const { description } = await unary(learner, "DescribeLearner", {});
const [substep] = description.substeps;
const { n_rollout_steps: T, n_envs: B } = description;
report({
  members: members(substep),
  network: description.policy.network,
  n_rollout_steps: T,
  batch_size: description.batch_size,
  n_envs: B,
  max_message_bytes: description.limits.max_message_bytes,
});

const own = structuredClone(substep);
own.observation.dict.members.reverse();
const agreement = await unary(rollouts, "Join", {
  actor_id: "any-order",
  process_nonce: "1",
  protocol_version: description.protocol_version,
  substeps: [own],
  n_envs: B,
  network: description.policy.network,
});
const { actor_id, incarnation } = agreement;

// every leaf is two numbers: 0.5 near, 50 far
const VALUES = { near: 0.5, far: 50 };
const leaves = (leading) => members(own).map((key) => ({ path: key, tensor: floats([...leading, 2], VALUES[key]) }));
const flags = { dtype: "DATA_TYPE_BOOL", shape: [T, B], data: Buffer.alloc(T * B) };
const stream = rollouts.StreamRollouts();
const answers = stream[Symbol.asyncIterator]();
stream.write({ open: { actor_id, incarnation } });
assert.ok(Number((await answers.next()).value.credit_sequence) >= 1);
stream.write({
  rollout: {
    actor_id,
    incarnation,
    sequence: 1,
    policy_version: 1,
    substeps: [
      {
        key: "0",
        observation: leaves([T, B]),
        action: { dtype: "DATA_TYPE_INT64", shape: [T, B], data: Buffer.alloc(8 * T * B) },
        log_prob: floats([T, B], Math.log(0.5)),
        last_observation: leaves([B]),
      },
    ],
    reward: floats([T, B], 1),
    terminated: flags,
    truncated: flags,
  },
});
const { value } = await answers.next();
report({ offered: members(own), order: members(agreement.substeps[0]), acknowledged: value.acknowledged_sequence });
stream.end();
assert.ok((await answers.next()).done);
for (const stub of [rollouts, learner]) stub.close();
