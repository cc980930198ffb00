// Plays CartPoles until training ends: node main.mjs ADDRESS NAME N_ENVS SEED EPISODES; seed 0: the server's seeds.
// The token, if the server has tokens, is in ROLLCAST_TOKEN.

import { CartPole, SUBSTEP } from "./cartpole.mjs";
import { Player, Refusal } from "./player.mjs";

const given = process.argv.slice(2);
const option = given.find((argument) => argument.startsWith("-"));
if (option) {
  const usage = `usage: node main.mjs [ADDRESS [NAME [N_ENVS [SEED [EPISODES]]]]]
Plays CartPoles until training ends, or for EPISODES. Seed 0: the server's seeds. The token is in ROLLCAST_TOKEN.`;
  const isHelp = ["-h", "--help"].includes(option);
  (isHelp ? console.log : console.error)(isHelp ? usage : `${option} is no argument\n${usage}`);
  process.exit(isHelp ? 0 : 2);
}
const [address = "localhost:50052", name = "", nEnvs = 1, seed = 0, episodes = 0] = given;
const token = process.env.ROLLCAST_TOKEN;
const poles = Array.from({ length: Number(nEnvs) }, (_, i) => new CartPole(BigInt(seed) && BigInt(seed) + BigInt(i)));
try {
  console.log(await new Player(poles, [SUBSTEP], { name, episodes: Number(episodes) }).play(address, { token }));
} catch (error) {
  if (!(error instanceof Refusal)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
