// An actor that computes its policy by itself: normalised observations, a stack of frames, an MLP with an LSTM or a GRU.
//
//   node recurrent.mjs 127.0.0.1:50051 ../../../proto
//
// Plays two rollouts of an environment of three numbers and some actions, and asks the learner (Act) about every step.
// Prints a line of JSON with the largest differences between the learner's answers and what was computed here.

import { calledWith, connect, floats, getPolicy, integers, join, leaf, tensor, unary } from "./contract.mjs";

const { rollouts, policies, learner, close } = connect(...calledWith());
const { description } = await unary(learner, "DescribeLearner", {});
const { n_rollout_steps: T, n_envs: B, policy: spec } = description;
const [substep] = description.substeps;
const N_NUMBERS = Number(substep.observation.box.shape[0]);
const N_ACTIONS = Number(substep.action.discrete.n);
const { recurrent_size: H, frame_stack: K } = spec;
const S = spec.recurrence === "lstm" ? 2 * H : H;

// -- the policy, for one environment --

const { version, tensors } = await getPolicy(policies);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const sum = (...vectors) => vectors[0].map((_, i) => vectors.reduce((total, vector) => total + vector[i], 0));
// y = weight x + bias, weight [out, in]
function linear(name, suffix, x) {
  const [weight, bias] = [`${name}weight${suffix}`, `${name}bias${suffix}`].map((key) => tensors[key]);
  return Array.from(bias.values, (b, row) => x.reduce((total, xi, i) => total + weight.values[row * x.length + i] * xi, b));
}

const moments = ["mean", "variance"].map((name) => Array.from(tensors[`normalization.0.${name}`].values));
function normalized(frame) {
  return frame.map((x, i) => {
    const [mean, variance] = moments.map((values) => values[i]);
    const scale = Math.fround(Math.max(1 / Math.sqrt(variance + 1e-8), 2 ** -126));
    const y = Math.fround(Math.fround(x - Math.fround(mean)) * scale);
    return Math.min(Math.max(y, -spec.observation_clip), spec.observation_clip);
  });
}

function remembered(x, state) {
  const [fromInput, fromState] = [
    linear("networks.0.recurrence.", "_ih_l0", x).map(Number),
    linear("networks.0.recurrence.", "_hh_l0", state.slice(0, H)),
  ];
  const gate = (vector, i) => vector.slice(i * H, (i + 1) * H);
  if (spec.recurrence === "lstm") {
    const gates = sum(fromInput, fromState);
    const [input, forget, output] = [0, 1, 3].map((i) => gate(gates, i).map(sigmoid));
    const cell = gate(gates, 2).map((g, h) => forget[h] * state[H + h] + input[h] * Math.tanh(g));
    return [...cell.map((c, h) => output[h] * Math.tanh(c)), ...cell];
  }
  const [reset, update] = [0, 1].map((i) => sum(gate(fromInput, i), gate(fromState, i)).map(sigmoid));
  const news = gate(fromInput, 2).map((x, h) => Math.tanh(x + reset[h] * gate(fromState, 2)[h]));
  return news.map((n, h) => (1 - update[h]) * n + update[h] * state[h]);
}

const nLayers = Object.keys(tensors).filter((name) => /^networks\.0\.layers\.\d+\.weight$/.test(name)).length;
// Returns the logits and the next state for the frames, the oldest first.
function forward(frames, state) {
  let x = frames.map(normalized).flat();
  for (let i = 0; i < nLayers - 1; i++) x = linear(`networks.0.layers.${i}.`, "", x).map(Math.tanh);
  const next = remembered(x, state);
  return [linear(`networks.0.layers.${nLayers - 1}.`, "", next.slice(0, H)), next];
}
function logSoftmax(logits) {
  const top = Math.max(...logits);
  const total = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - top), 0));
  return logits.map((logit) => logit - top - total);
}

// -- an environment: numbers at random; an episode ends after 3, 4, 5, ... steps, every second time truncated --

class Environment {
  #steps = 0;
  #lasts = 3;
  observation = this.#number();
  #number() {
    return Array.from({ length: N_NUMBERS }, () => Math.fround(4 * Math.random() - 1));
  }
  // Returns whether the episode terminated or was truncated, and its final observation; begins the next at once.
  step() {
    this.observation = this.#number();
    if (++this.#steps < this.#lasts) return { terminated: 0, truncated: 0 };
    const [final, odd] = [this.observation, this.#lasts % 2];
    [this.#steps, this.#lasts, this.observation] = [0, this.#lasts + 1, this.#number()];
    return { terminated: odd, truncated: 1 - odd, final };
  }
}

// -- the session --

const environments = Array.from({ length: B }, () => new Environment());
const started = ({ observation }) => ({ frames: Array(K).fill(observation), state: Array(S).fill(0) });
const memories = environments.map(started);
let [stateDifference, otherActions] = [0, 0];

async function compareWithLearner(results) {
  const { action, state } = await unary(policies, "Act", {
    observation: leaf([B, N_NUMBERS], Float32Array.from(memories.flatMap(({ frames }) => frames.at(-1)))),
    previous_observation: leaf([B, K - 1, N_NUMBERS], Float32Array.from(memories.flatMap(({ frames }) => frames.slice(0, -1).flat()))),
    state: tensor([B, S], Float32Array.from(memories.flatMap(({ state }) => state))),
    deterministic: true,
  });
  const nexts = results.flatMap(([, next]) => next);
  floats(state).forEach((value, i) => (stateDifference = Math.max(stateDifference, Math.abs(value - nexts[i]))));
  integers(action).forEach((best, b) => (otherActions += results[b][0].indexOf(Math.max(...results[b][0])) !== best));
}

async function play() {
  const rows = { observation: [], action: [], log_prob: [], terminated: [], truncated: [], final: [], index: [] };
  const initial_state = tensor([B, S], Float32Array.from(memories.flatMap(({ state }) => state)));
  const previous = Float32Array.from(memories.flatMap(({ frames }) => frames.slice(0, -1).flat()));
  for (let t = 0; t < T; t++) {
    const results = memories.map(({ frames, state }) => forward(frames, state));
    await compareWithLearner(results);
    results.forEach(([logits, next], b) => {
      const action = Math.floor(Math.random() * N_ACTIONS);
      rows.observation.push(...memories[b].frames.at(-1));
      rows.action.push(BigInt(action));
      rows.log_prob.push(logSoftmax(logits)[action]);
      const { terminated, truncated, final } = environments[b].step();
      rows.terminated.push(terminated);
      rows.truncated.push(truncated);
      if (final) {
        rows.final.push(...final);
        rows.index.push(t, b);
        memories[b] = started(environments[b]);
      } else {
        memories[b] = { frames: [...memories[b].frames.slice(1), environments[b].observation], state: next };
      }
    });
  }
  const nEnds = rows.index.length / 2;
  return {
    policy_version: version,
    substeps: [
      {
        key: "0",
        observation: leaf([T, B, N_NUMBERS], Float32Array.from(rows.observation)),
        action: tensor([T, B], BigInt64Array.from(rows.action)),
        log_prob: tensor([T, B], Float32Array.from(rows.log_prob)),
        last_observation: leaf([B, N_NUMBERS], Float32Array.from(environments.flatMap(({ observation }) => observation))),
        final_observation: nEnds ? leaf([nEnds, N_NUMBERS], Float32Array.from(rows.final)) : [],
        initial_state,
        previous_observation: leaf([B, K - 1, N_NUMBERS], previous),
      },
    ],
    reward: tensor([T, B], new Float32Array(T * B).fill(1)),
    terminated: tensor([T, B], Uint8Array.from(rows.terminated)),
    truncated: tensor([T, B], Uint8Array.from(rows.truncated)),
    final_index: nEnds ? tensor([nEnds, 2], Int32Array.from(rows.index)) : undefined,
  };
}

const actor = await join(rollouts, { actor_id: "recurrent-node", substeps: [substep], n_envs: B, network: spec.network });
let acknowledged;
for (const sequence of [1, 2]) ({ acknowledged_sequence: acknowledged } = await actor.send({ sequence, ...(await play()) }));
await actor.leave();
console.log(JSON.stringify({ acknowledged, stateDifference, otherActions }));
close();
