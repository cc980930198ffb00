// An actor that asks a learner what it learns from, and offers the members of its Dict in an order of its own.
//
//   node any_order.mjs 127.0.0.1:50051 ../../../proto

import { calledWith, connect, join, tensor, unary } from "./contract.mjs";

const { rollouts, learner, close } = connect(...calledWith());
const report = (result) => console.log(JSON.stringify(result));
const floats = (shape, value) => tensor(shape, new Float32Array(shape.reduce((a, b) => a * b)).fill(value));
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
const actor = await join(rollouts, {
  actor_id: "any-order",
  substeps: [own],
  n_envs: B,
  network: description.policy.network,
});

// every leaf is two numbers: 0.5 near, 50 far
const VALUES = { near: 0.5, far: 50 };
const leaves = (leading) => members(own).map((key) => ({ path: key, tensor: floats([...leading, 2], VALUES[key]) }));
const flags = tensor([T, B], new Uint8Array(T * B));
const { acknowledged_sequence: acknowledged } = await actor.send({
  sequence: 1,
  policy_version: 1,
  substeps: [
    {
      key: "0",
      observation: leaves([T, B]),
      action: tensor([T, B], new BigInt64Array(T * B)),
      log_prob: floats([T, B], Math.log(0.5)),
      last_observation: leaves([B]),
    },
  ],
  reward: floats([T, B], 1),
  terminated: flags,
  truncated: flags,
});
report({ offered: members(own), order: members(actor.agreement.substeps[0]), acknowledged });
await actor.leave();
close();
