// CartPole, as in gymnasium's CartPole-v1: a cart that balances a pole (Barto, Sutton and Anderson, 1983).

import { INTERRUPTED, TERMINATED, box, discrete, integer, singleTurn } from "./player.mjs";

const FALLEN = (12 * Math.PI) / 180;
const BOUNDS = [4.8, Infinity, 2 * FALLEN, Infinity];

export const SUBSTEP = {
  key: "0",
  observation: box(BOUNDS.map((bound) => -bound), BOUNDS),
  action: discrete(2),
};

export class CartPole {
  #seed;
  #random;
  #state;
  #nSteps;

  // seed: the seed of the first episodes, a BigInt; 0: the server's seed.
  constructor(seed = 0n) {
    this.#seed = seed;
  }

  // Begins an episode close to the upright position.
  reset(seed) {
    if (seed !== undefined) this.#random = generator(this.#seed || seed);
    this.#state = Array.from({ length: 4 }, () => 0.1 * this.#random() - 0.05);
    this.#nSteps = 0;
    return singleTurn(this.#state);
  }

  // Pushes the cart to the left or to the right for 0.02 s.
  step([action]) {
    const [position, speed, angle, spin] = this.#state;
    const [sine, cosine] = [Math.sin(angle), Math.cos(angle)];
    const push = ((integer(action) === 1 ? 10 : -10) + 0.05 * spin ** 2 * sine) / 1.1;
    const turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - (0.1 * cosine ** 2) / 1.1));
    const drive = push - (0.05 * turn * cosine) / 1.1;
    this.#state = [position + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * turn];
    this.#nSteps += 1;
    const values = { final_position: this.#state[0] };
    if (Math.abs(this.#state[0]) > 2.4 || Math.abs(this.#state[2]) > FALLEN)
      return singleTurn(this.#state, { reward: 1, state: TERMINATED, values });
    if (this.#nSteps === 500) return singleTurn(this.#state, { reward: 1, state: INTERRUPTED, values });
    return singleTurn(this.#state, { reward: 1 });
  }
}

// Pseudo-random numbers in [0, 1) from a seed: mulberry32.
function generator(seed) {
  let state = Number((seed ^ (seed >> 32n)) & 0xffffffffn);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
