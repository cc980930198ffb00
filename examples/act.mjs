// Asks any policy server for actions, in Node.js: node act.mjs HOST:PORT PROTO_FOLDER
// It needs `npm install @grpc/grpc-js @grpc/proto-loader`, and the folder proto/ of rollcast.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [address, proto] = process.argv.slice(2);
const definition = loader.loadSync("rollcast/v1/policy.proto", { includeDirs: [proto], longs: Number });
const { PolicyService } = grpc.loadPackageDefinition(definition).rollcast.v1;
const policy = new PolicyService(address, grpc.credentials.createInsecure());

const observation = Float32Array.of(0, 0, 0.1, 0);
const tensor = { dtype: "DATA_TYPE_FLOAT32", shape: [1, 4], data: Buffer.from(observation.buffer) };
const request = { observation: [{ path: "", tensor }], deterministic: true };
policy.Act(request, { deadline: Date.now() + 5000 }, (error, answer) => {
  if (error) throw error;
  const action = answer.action.data.readBigInt64LE(0);
  console.log(`policy ${answer.policyVersion} would do ${action}`);
  policy.close();
});
