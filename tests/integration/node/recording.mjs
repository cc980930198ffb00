// Reads a file that `rollcast record` wrote, with a protobuf library and the .proto files.
//
//   node recording.mjs demo.rollouts ../../../proto
//
// Prints a line of JSON for the header and one for every rollout; ends with 1 and a message when the file is not whole.

import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

import protobuf from "protobufjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const [file, protoRoot = path.join(here, "../../../proto")] = process.argv.slice(2);

const root = new protobuf.Root();
root.resolvePath = (_, target) => path.join(protoRoot, target);
root.loadSync("rollcast/v1/recording.proto", { keepCase: true });
root.loadSync("rollcast/v1/rollout.proto", { keepCase: true });
const [RecordingHeader, Rollout, DataType] = ["RecordingHeader", "Rollout", "DataType"].map((name) =>
  root.lookup(`rollcast.v1.${name}`),
);

// Tensors are little-endian and C-contiguous; a copy, because typed arrays want their bytes aligned.
const ARRAYS = new Map([
  [DataType.values.DATA_TYPE_FLOAT32, Float32Array],
  [DataType.values.DATA_TYPE_INT64, BigInt64Array],
  [DataType.values.DATA_TYPE_BOOL, Uint8Array],
]);
function values({ dtype, shape, data }) {
  const array = new (ARRAYS.get(dtype))(Uint8Array.from(data).buffer);
  assert.equal(array.length, shape.reduce((product, size) => product * Number(size), 1));
  return Array.from(array, Number);
}

const reader = protobuf.Reader.create(readFileSync(file));
const header = RecordingHeader.decodeDelimited(reader);
assert.equal(header.format, "rollcast.v1.Recording");
const { n_rollout_steps, n_envs, env_id, played_by } = header;
console.log(JSON.stringify({ n_rollout_steps, n_envs, env_id, played_by }));
while (reader.pos < reader.len) {
  const { sequence, reward, terminated, substeps, episodes } = Rollout.decodeDelimited(reader);
  const [{ key, observation, action, last_observation }] = substeps;
  console.log(
    JSON.stringify({
      sequence: Number(sequence),
      key,
      shape: reward.shape.map(Number),
      reward: values(reward),
      terminated: values(terminated),
      observation: values(observation[0].tensor),
      action: values(action),
      last_observation: values(last_observation[0].tensor),
      returns: episodes.map((episode) => episode.episode_return),
    }),
  );
}
