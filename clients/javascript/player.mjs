// Connects environments to rollcast: sends their spaces and observations, and receives actions. Over a WebSocket
// (`ws://...`, `wss://...`), in browsers and Node.js 22, it needs no package; over gRPC, @grpc/grpc-js and grpc.mjs.

export const RUNNING = 1;
export const TERMINATED = 2;
export const INTERRUPTED = 3;
export const REWARDED = 4;
const FLOAT32 = 8;
const [FIRST_PAUSE_S, LONGEST_PAUSE_S] = [0.5, 30];
const NAME_TRIES = 6; // attempts to get a name that is taken, before the client has played

// The server's refusal of this client: the name of the gRPC code, and the reason.
export class Refusal extends Error {
  constructor(code, details) {
    super(`${code}: ${details}`);
    this.code = code;
  }
}

// Plays environments until training ends. If the connection is lost, it reconnects and begins new episodes.
//
// An environment has two methods. Each returns a turn, { agents: [...] }, or a promise of one. A turn has an entry for
// each agent with news: an observation, a reward, or an end.
//   reset(seed)     begins an episode; the first one of a stream gets a seed, a BigInt. Some agents are RUNNING.
//   step(actions)   plays until agents need actions, or until the episode is over: then no agent is RUNNING.
export class Player {
  #environments;
  #hello;
  #episodes;
  #nEnded = 0;
  #pauseS = FIRST_PAUSE_S;
  #hasPlayed = false;
  #nNameTaken = 0;
  #isOver = false;

  // substeps: the spaces of each environment. An ordinary environment has one substep, with the key "0".
  // name: the client's name in logs; empty: the server chooses one.
  // episodes: the number of episodes to play; 0: until training ends.
  constructor(environments, substeps, { name = "", episodes = 0 } = {}) {
    this.#environments = environments;
    this.#hello = { protocol: 1, client: name, substeps, n_envs: environments.length };
    this.#episodes = episodes;
  }

  // Plays; returns the reason of the end, as a sentence. Throws a Refusal if the server refuses this client.
  //
  // address: host:port for gRPC, or ws://host:port.
  // token: a token of the role `actor`, if the server has tokens.
  // rootCertificates: for gRPC, PEM of the authority that signed the server's certificate; absent: no TLS.
  async play(address, { token = "", rootCertificates = null } = {}) {
    const { open } = await import(/^wss?:/.test(address) ? "./websocket.mjs" : "./grpc.mjs");
    for (;;) {
      let why;
      const stream = open(address, token, rootCertificates);
      try {
        why = await this.#playStream(stream);
      } catch (error) {
        // A lost connection of this process, or of the previous one, may still hold the name.
        const mayBeOurs = error.code === "ALREADY_EXISTS" && (++this.#nNameTaken < NAME_TRIES || this.#hasPlayed);
        if (error.code !== "UNAVAILABLE" && !mayBeOurs) throw error;
        why = error.message;
      } finally {
        stream.close();
      }
      if (this.#isOver) return why;
      console.error(`${why}; trying again within ${this.#pauseS} s`);
      // so that clients do not reconnect all at once
      await new Promise((resolve) => setTimeout(resolve, 1000 * this.#pauseS * (0.5 + Math.random() / 2)));
      this.#pauseS = Math.min(2 * this.#pauseS, LONGEST_PAUSE_S);
    }
  }

  async #playStream(stream) {
    const steps = []; // the last step of each environment
    let [turns, isOpen, maxMessageBytes] = [[], true, 0];
    const send = (...more) => {
      // environments that are ready at the same time share a message
      if (turns.push(...more) === more.length) queueMicrotask(flush);
    };
    const flush = () => {
      if (!isOpen) return;
      write(turns);
      turns = [];
      if (this.#isOver) stream.end(); // closes our side; the server then closes its own
    };
    const write = (some) => {
      const message = stream.encode({ turns: { turns: some } });
      if (message.length <= maxMessageBytes || some.length === 1) return stream.write(message);
      const half = some.length >> 1; // the message is too large for the server
      write(some.slice(0, half));
      write(some.slice(half));
    };
    const begin = async (environment, seed) => {
      send({ environment, ...(await this.#environments[environment].reset(seed)) });
    };
    const step = async (environment, actions) => {
      const turn = { environment, ...(await this.#environments[environment].step(actions)) };
      if (turn.agents.some(({ state }) => state === RUNNING)) return send(turn);
      this.#isOver ||= ++this.#nEnded === this.#episodes;
      send(turn, { environment, ...(await this.#environments[environment].reset()) });
    };
    const run = (environment, work) => (steps[environment] = work.catch(stream.fail));

    stream.write(stream.encode({ hello: this.#hello }));
    try {
      for await (const { welcome, actions, farewell } of stream) {
        if (farewell) {
          this.#isOver = farewell.training_ended;
          return farewell.reason;
        }
        if (this.#isOver) continue; // actions that the server sent before it received our end
        if (welcome) {
          this.#hello.client = welcome.client; // it reconnects under this name
          maxMessageBytes = Number(welcome.max_message_bytes);
          welcome.seeds.forEach((seed, environment) => run(environment, begin(environment, BigInt(seed))));
          continue;
        }
        [this.#hasPlayed, this.#pauseS] = [true, FIRST_PAUSE_S];
        actions.environments.forEach(({ environment, agents }) => run(environment, step(environment, agents)));
      }
    } finally {
      isOpen = false;
      await Promise.all(steps); // no environment is still stepping when the next stream resets it
    }
    this.#isOver = true;
    return `${this.#nEnded} episodes played`;
  }
}

// The turn of an environment with one agent that sees a vector; `values` are statistics of the episode.
export function singleTurn(observation, { reward = 0, state = RUNNING, values = {} } = {}) {
  const episode_values = Object.entries(values).map(([name, value]) => ({ name, value }));
  return { agents: [{ state, observation: [floats(observation)], reward }], episode_values };
}

// The space of a vector of float32 with these bounds.
export function box(low, high) {
  const shape = [low.length];
  const [lower, upper] = [low, high].map((bound) => ({ dtype: FLOAT32, shape, data: floats(bound) }));
  return { box: { low: lower, high: upper, shape } };
}

// The space of the integers 0 to n - 1.
export const discrete = (n) => ({ discrete: { n } });

// The action in a discrete space.
export const integer = ({ action }) =>
  Number(new DataView(action.buffer, action.byteOffset, action.byteLength).getBigInt64(0, true));

// The bytes of float32 values: a typed array has them little-endian on every machine that runs JavaScript today.
const floats = (values) => new Uint8Array(Float32Array.from(values).buffer);
