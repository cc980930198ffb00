// Everything a client in another language needs: the address, the .proto files and a gRPC library.
//
//   node client.mjs 127.0.0.1:50051 ../../../proto
//
// Prints one line of JSON a step, { call, ... }; ends with 1 and a message when something is not as the contract says.

import { calledWith, CODES, connect, deadline, getPolicy, integers, join, leaf, tensor, unary } from "./contract.mjs";

const { rollouts, policies, learner, history, close } = connect(...calledWith());

process.on("uncaughtException", (error) => {
  console.error(error.details ? `client.mjs: ${CODES[error.code]}: ${error.details}` : error.stack);
  process.exit(1);
});

const report = (call, result) => console.log(JSON.stringify({ call, ...result }));

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

async function watchHistory(messages) {
  const call = history.WatchHistory({ interval_s: 0.1 }, deadline(10));
  const seen = [];
  try {
    for await (const update of call) if (seen.push(update) === messages) break;
  } finally {
    call.cancel();
  }
  const [{ run, status }, second] = seen;
  return { algorithm: run.algorithm, phase: status.phase, repeated: second.run !== null };
}

async function actAsForeignActor(B) {
  const actor = await join(rollouts, {
    actor_id: "foreign-node",
    substeps: [SUBSTEP],
    n_envs: B,
    network: "auto",
  });
  const { slot, n_rollout_steps: T, policy } = actor.agreement;
  report("Join", { slot, n_rollout_steps: T, policy });
  report("StreamRollouts", { opened: actor.opened });
  const { version: policy_version } = await getPolicy(policies);
  const acknowledged = await actor.send({ sequence: 1, policy_version, ...play(T, B) });
  report("StreamRollouts", { acknowledged });
  await actor.leave();
}

report("GetStatus", (await unary(learner, "GetStatus", {})).status);
report("WatchStatus", { phases: await watchStatus(2) });
report("WatchHistory", await watchHistory(2));
const { version, n_bytes, tensors } = await getPolicy(policies);
const shapes = Object.fromEntries(Object.entries(tensors).map(([name, { shape }]) => [name, shape]));
report("GetPolicy", { version, n_bytes, shapes });
const observation = leaf([2, 4], Float32Array.from([0.01, 0.02, -0.03, 0.04, 0, 0, 0.1, 0]));
const { action, policy_version } = await unary(policies, "Act", { observation, deterministic: true });
report("Act", { dtype: action.dtype, actions: integers(action), policy_version });
await actAsForeignActor(2);
report("ListActors", await unary(learner, "ListActors", {}));
const refused = await unary(policies, "Act", { observation: leaf([1, 3], new Float32Array(3)) }).catch((error) => error);
report("Act", { refused: CODES[refused.code], message: refused.details });
close();
