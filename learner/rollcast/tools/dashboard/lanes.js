// The lanes: what the learner and each actor did over time. The worst-off actors are rows with columns, all others
// strips of colour on one canvas. All text is set as text, never as HTML.

const ROW_HEIGHT = 20;
const LETTER_WIDTH = 9;

function decode(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

export default {
  template: `
  <div class="lanes" ref="root">
    <table>
      <thead>
        <tr>
          <th scope="col" class="lane-name"></th>
          <th scope="col" class="lane-cells"><span>{{ picture.from }}</span><span>{{ picture.until }}</span></th>
          <th scope="col" v-for="column in columns" :key="column.name" class="number" :title="column.title">{{ column.name }}</th>
        </tr>
      </thead>
      <tbody>
        <tr v-for="row in picture.rows" :key="row.id" :class="{ bad: row.bad }" :data-actor="row.id" tabindex="0" role="button"
            :aria-label="row.says" @click="choose(row.id)" @keydown.enter="choose(row.id)" @keydown.space.prevent="choose(row.id)">
          <th scope="row" class="lane-name" :title="row.title"><span class="state-letter">{{ row.letter }}</span>{{ row.name }}</th>
          <td class="lane-cells"><canvas :ref="(canvas) => keep(row.id, canvas)" :height="${ROW_HEIGHT}"
              @mousemove="(event) => point(event, row.id)" @mouseleave="hide"></canvas></td>
          <td v-for="(cell, index) in row.cells" :key="index" class="number">{{ cell }}</td>
        </tr>
      </tbody>
    </table>
    <div class="strips-head" v-if="picture.order.length">{{ picture.others }}</div>
    <div class="strips-box">
      <canvas v-show="picture.order.length" class="strips" ref="strips" tabindex="0" role="img" :aria-label="stripsSay"
          @mousemove="pointStrip" @mouseleave="hide" @click="choose(chosenStrip)" @keydown="stepStrip" @blur="hide"></canvas>
    </div>
    <div class="lane-tip" v-show="tip.text" :style="{ left: tip.x + 'px', top: tip.y + 'px' }" role="status">{{ tip.text }}</div>
  </div>`,
  props: { states: Object, unknown: String, columns: Array },
  data() {
    return {
      picture: { rows: [], order: [], others: "", from: "", until: "" },
      tip: { text: "", x: 0, y: 0 },
      chosenStrip: null,
    };
  },
  computed: {
    stripsSay() {
      return `${this.picture.others} Arrow keys go from one to the next, Enter shows it.`;
    },
  },
  created() {
    // not reactive: bytes by actor, and the canvas of each row
    this.lanes = new Map();
    this.canvases = new Map();
    this.scale = { n: 1, cell_s: 1, end_unix_s: 0 };
  },
  mounted() {
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.$refs.root);
    this.theme = new MutationObserver(() => this.draw());
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.ready = true;
    this.$emit("ready");
  },
  beforeUnmount() {
    this.sizes.disconnect();
    this.theme.disconnect();
  },
  methods: {
    keep(id, canvas) {
      if (canvas) this.canvases.set(id, canvas);
      else this.canvases.delete(id);
    },

    // Applies an update: the changes since the last one. New cells are appended, and as many old ones are removed.
    change(update) {
      if (update.forget) this.lanes.clear();
      for (const id of update.gone) this.lanes.delete(id);
      Object.assign(this.scale, update.scale);
      for (const [id, kind, width, base64] of update.lanes) {
        const fresh = decode(base64);
        const before = this.lanes.get(id);
        let bytes = fresh;
        if (fresh.length < this.scale.n * width) {
          bytes = new Uint8Array(this.scale.n * width);
          bytes.set(before.bytes.subarray(fresh.length));
          bytes.set(fresh, bytes.length - fresh.length);
        }
        this.lanes.set(id, { kind, width, bytes });
      }
      Object.assign(this.picture, update.picture);
      this.$nextTick(() => this.draw());
    },

    draw() {
      if (!this.ready) return;
      for (const row of this.picture.rows) this.drawRow(row);
      this.drawStrips();
      const said = this.said;
      if (said) this.tip.text = this.tell(said.id, said.cell);
    },

    prepare(canvas, height) {
      const ratio = window.devicePixelRatio || 1;
      const width = canvas.clientWidth;
      const size = [Math.round(width * ratio), Math.round(height * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      return [context, width];
    },

    // Each cell is a stacked bar of its states' shares; a letter names the largest.
    drawRow(row) {
      const canvas = this.canvases.get(row.id);
      const lane = this.lanes.get(row.id);
      if (!canvas || !lane) return;
      const [context, width] = this.prepare(canvas, ROW_HEIGHT);
      const states = this.states[lane.kind];
      const n = this.scale.n;
      const step = width / n;
      const largest = new Int8Array(n).fill(-1);
      for (let cell = 0; cell < n; cell++) {
        const at = cell * lane.width;
        let bottom = ROW_HEIGHT;
        let most = 0;
        for (let state = 0; state < states.length; state++) {
          const share = lane.bytes[at + state];
          if (!share) continue;
          const height = (share / 255) * ROW_HEIGHT;
          bottom -= height;
          context.fillStyle = states[state].colour;
          context.fillRect(cell * step, bottom, step - (step > 4 ? 0.5 : 0), height + 0.5);
          if (share > most) {
            most = share;
            largest[cell] = state;
          }
        }
      }
      context.font = "11px monospace";
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let cell = 0; cell < n; ) {
        let end = cell + 1;
        if (step < LETTER_WIDTH) while (end < n && largest[end] === largest[cell]) end++;
        if (largest[cell] >= 0 && (end - cell) * step >= LETTER_WIDTH) {
          context.fillStyle = states[largest[cell]].ink;
          context.fillText(states[largest[cell]].letter, ((cell + end) / 2) * step, ROW_HEIGHT / 2 + 0.5);
        }
        cell = end;
      }
    },

    stripHeight() {
      return this.picture.order.length > 60 ? 4 : 8;
    },

    // A cell has the colour of its largest state; full height means at work, half height waiting.
    drawStrips() {
      const canvas = this.$refs.strips;
      if (!canvas || !this.picture.order.length) return;
      const high = this.stripHeight();
      const height = this.picture.order.length * high;
      canvas.style.height = height + "px";
      const [context, width] = this.prepare(canvas, height);
      const states = this.states.actor;
      const n = this.scale.n;
      const step = width / n;
      this.picture.order.forEach((id, index) => {
        const lane = this.lanes.get(id);
        if (!lane) return;
        for (let cell = 0; cell < n; ) {
          const state = lane.bytes[cell];
          let end = cell + 1;
          while (end < n && lane.bytes[end] === state) end++;
          if (state) {
            const waits = states[state - 1].waits;
            context.fillStyle = states[state - 1].colour;
            context.fillRect(cell * step, index * high + (waits ? high / 2 : 0), (end - cell) * step, waits ? high / 2 : high - 1);
          }
          cell = end;
        }
        if (id === this.chosenStrip) {
          context.strokeStyle = getComputedStyle(canvas).color;
          context.strokeRect(0.5, index * high + 0.5, width - 1, high - 1);
        }
      });
    },

    tell(id, cell) {
      const lane = this.lanes.get(id);
      if (!lane) return "";
      const states = this.states[lane.kind];
      let what = this.unknown;
      if (lane.width === 1) {
        if (lane.bytes[cell]) what = `mostly ${states[lane.bytes[cell] - 1].name}`;
      } else {
        const shares = states.map((state, i) => [state.name, lane.bytes[cell * lane.width + i]]);
        const known = shares.filter((pair) => pair[1]).sort((a, b) => b[1] - a[1]);
        if (known.length) what = known.map((pair) => `${pair[0]} ${Math.round((pair[1] / 255) * 100)} %`).join(", ");
      }
      const ago = (this.scale.n - cell - 0.5) * this.scale.cell_s;
      const clock = new Date((this.scale.end_unix_s - ago) * 1000).toLocaleTimeString();
      return `${id || "learner"}: ${what}; ${ago.toFixed(0)} s ago, at ${clock}`;
    },

    say(event, id) {
      const canvas = event.target;
      const cell = Math.min(this.scale.n - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * this.scale.n)));
      this.said = { id, cell };
      const root = this.$refs.root.getBoundingClientRect();
      this.tip = { text: this.tell(id, cell), x: event.clientX - root.left + 12, y: event.clientY - root.top + 14 };
    },

    point(event, id) {
      this.say(event, id);
    },

    pointStrip(event) {
      const id = this.picture.order[Math.floor(event.offsetY / this.stripHeight())];
      if (id === undefined) return;
      this.chosenStrip = id;
      this.drawStrips();
      this.say(event, id);
    },

    hide() {
      this.said = null;
      this.tip.text = "";
    },

    choose(id) {
      if (id !== null && id !== undefined) this.$emit("chosen", id);
    },

    stepStrip(event) {
      const order = this.picture.order;
      const at = order.indexOf(this.chosenStrip);
      const places = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: order.length - 1 };
      if (event.key === "Enter") this.choose(this.chosenStrip);
      else if (event.key in places) {
        event.preventDefault();
        const index = Math.min(order.length - 1, Math.max(0, places[event.key]));
        this.chosenStrip = order[index];
        this.drawStrips();
        const cell = this.scale.n - 1;
        this.said = { id: this.chosenStrip, cell };
        const top = this.$refs.strips.offsetTop + (index + 1) * this.stripHeight();
        this.tip = { text: this.tell(this.chosenStrip, cell), x: 12, y: top + 4 };
      }
    },
  },
};
