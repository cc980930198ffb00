// The events of a run: a line for each, with its traceback behind a disclosure. All text is set as text, never as HTML.
export default {
  template: `
  <ol class="events">
    <li v-for="event in events" :key="event.key" :class="event.severity">
      <time :title="event.clock">{{ event.at }}</time>
      <span class="severity" :title="event.severity">{{ marks[event.severity] }}</span>
      <span class="who" :title="event.who">{{ event.who }}</span>
      <details v-if="event.detail"><summary :title="event.text">{{ event.text }}</summary><pre>{{ event.detail }}</pre></details>
      <span v-else class="text" :title="event.text">{{ event.text }}</span>
    </li>
  </ol>`,
  props: { events: Array },
  created() {
    this.marks = { info: "i", warning: "!", error: "✕" };
  },
};
