/* Components of the studio: overlay of a view, line plot, bars. No other files are loaded. */
(function () {
  const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const RESEND_MS = 400;

  /* A component with the size of its element in `width` and `height`. */
  function observed(component) {
    const measure = function () {
      const box = this.$el.getBoundingClientRect();
      this.width = box.width; this.height = box.height;
      if (this.measured) this.measured();
    };
    return {
      ...component,
      methods: { ...component.methods, measure },
      mounted() {
        this.observer = new ResizeObserver(() => this.measure());
        this.observer.observe(this.$el);
        this.measure();
      },
      beforeUnmount() { this.observer.disconnect(); },
    };
  }

  const overlay = observed({
    props: {
      camera: Object, handles: { default: () => [] }, outline: { default: () => [] },
      probes: { default: () => [] }, tool: { default: "pan" }, radius: { default: 0 },
      tick: { default: 0 }, mark: { default: null }, label: { default: "field" },
    },
    emits: ["drag", "paint", "probe", "hover", "zoom", "pan", "size"],
    data: () => ({ width: 1, height: 1, held: null, last: null, cursor: null, queue: null, busy: false }),
    watch: { tick() { this.free(); } },
    computed: {
      unit() { return this.height / (2 * (this.camera ? this.camera.scale : 1)); },
    },
    methods: {
      measured() { this.$emit("size", [this.width, this.height]); },
      px(p) {
        return [(p[0] - this.camera.x) * this.unit + this.width / 2,
                this.height / 2 - (p[1] - this.camera.y) * this.unit];
      },
      line(points) { return points.map((p) => this.px(p).join(",")).join(" "); },
      at(event) {
        const box = this.$el.getBoundingClientRect();
        return [this.camera.x + (event.clientX - box.left - this.width / 2) / this.unit,
                this.camera.y - (event.clientY - box.top - this.height / 2) / this.unit];
      },
      send(name, value) {
        if (this.busy) {
          const joins = name === "paint" && this.queue && this.queue[0] === "paint";
          this.queue = [name, joins ? this.queue[1].concat(value) : value];
          return;
        }
        this.busy = true;
        this.timer = setTimeout(() => this.free(), RESEND_MS);
        this.$emit(name, value);
      },
      free() {
        clearTimeout(this.timer);
        this.busy = false;
        if (this.queue) { const next = this.queue; this.queue = null; this.send(next[0], next[1]); }
      },
      grab(event, name) {
        event.preventDefault();
        event.stopPropagation();
        event.target.focus();
        this.$el.setPointerCapture(event.pointerId);
        this.held = name;
      },
      down(event) {
        this.$el.setPointerCapture(event.pointerId);
        this.last = this.at(event);
        this.held = this.tool;
        if (this.tool === "brush") this.send("paint", [this.last]);
        if (this.tool === "probe") { this.$emit("probe", this.last); this.held = null; }
      },
      move(event) {
        const here = this.at(event);
        this.cursor = here;
        if (this.held === null) { if (this.tool === "hover") this.send("hover", here); return; }
        if (this.held === "brush") this.send("paint", [this.last, here]);
        else if (this.held === "pan") {
          this.$emit("pan", [this.last[0] - here[0], this.last[1] - here[1]]);
          return;
        } else if (this.held === "hover") this.send("hover", here);
        else if (this.held !== "probe") this.send("drag", [this.held, here[0], here[1]]);
        this.last = here;
      },
      up() { this.held = null; this.last = null; },
      wheel(event) {
        event.preventDefault();
        const here = this.at(event);
        this.$emit("zoom", [event.deltaY > 0 ? 1.15 : 1 / 1.15, here[0], here[1]]);
      },
      key(event) {
        const zoom = { "+": 1 / 1.15, "-": 1.15 }[event.key];
        const step = 0.1 * this.camera.scale;
        const pan = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
        if (zoom) this.$emit("zoom", [zoom, this.camera.x, this.camera.y]);
        else if (pan) this.$emit("pan", pan);
        else return;
        event.preventDefault();
      },
      nudge(event, handle) {
        const step = { ArrowUp: 0.004, ArrowDown: -0.004 }[event.key];
        if (!step || handle.fixed) return;
        event.preventDefault(); event.stopPropagation();
        this.send("drag", [handle.name, handle.x, handle.y + step]);
      },
    },
    template: `
      <svg class="studio-overlay" :class="'tool-' + tool" tabindex="0" :aria-label="label" role="application"
           @pointerdown="down" @pointermove="move" @pointerup="up" @pointercancel="up"
           @pointerleave="cursor = null" @wheel="wheel" @keydown="key">
        <g v-if="camera">
          <polyline v-for="(points, i) in outline" :key="'l' + i" :points="line(points)" class="outline"/>
          <g v-for="h in handles" :key="h.name" class="handle" :class="{ fixed: h.fixed, held: held === h.name }"
             :transform="'translate(' + px([h.x, h.y]) + ')'" :tabindex="h.fixed ? -1 : 0" role="slider"
             :aria-label="h.name" :aria-valuenow="h.y" :data-handle="h.name"
             @pointerdown="h.fixed || grab($event, h.name)" @keydown="nudge($event, h)">
            <circle r="16" class="target"/>
            <rect v-if="h.fixed" x="-5" y="-5" width="10" height="10"/><circle v-else r="8"/>
            <text y="-14">{{ h.name }}</text>
          </g>
          <g v-for="(p, i) in probes" :key="'p' + i" class="probe" :transform="'translate(' + px([p.x, p.y]) + ')'">
            <circle r="5"/><text x="9" y="4">{{ p.label }}</text>
          </g>
          <g v-if="mark" class="mark" :transform="'translate(' + px(mark) + ')'"><circle r="6"/></g>
          <circle v-if="tool === 'brush' && cursor" class="brush" :cx="px(cursor)[0]" :cy="px(cursor)[1]"
                  :r="radius * unit"/>
        </g>
      </svg>`,
  });

  function nice(low, high, count) {
    const step0 = (high - low) / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(step0)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= step0) || power;
    const ticks = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + 1e-9 * step; t += step) {
      ticks.push(Math.abs(t) < 1e-12 * step ? 0 : t);
    }
    return ticks;
  }
  const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3
    ? v.toExponential(1).replace("e+", "e").replace(".0e", "e") : String(Number(v.toPrecision(3))));

  const plot = observed({
    props: { plot: Object },
    data: () => ({ width: 1, height: 1 }),
    computed: {
      frame() { return { left: 58, right: 14, top: 10, bottom: 40 }; },
      lines() {
        const p = this.plot;
        if (!p || !p.series) return [];
        const f = p.log ? (v) => Math.log10(Math.max(v, 1e-300)) : (v) => v;
        return p.series.map((s) => ({ ...s, points: s.x.map((x, i) => [x, f(s.y[i])]).filter((q) => isFinite(q[1])) }));
      },
      range() {
        const all = this.lines.flatMap((s) => s.points);
        if (!all.length) return null;
        const bound = (k) => {
          let low = Math.min(...all.map((q) => q[k])), high = Math.max(...all.map((q) => q[k]));
          if (high <= low) { low -= 0.5 * (Math.abs(low) || 1); high += 0.5 * (Math.abs(high) || 1); }
          const pad = k ? 0.06 * (high - low) : 0;
          return [low - pad, high + pad];
        };
        return [bound(0), bound(1)];
      },
      ticks() {
        if (!this.range) return { x: [], y: [] };
        const [x, y] = this.range, rows = Math.max(2, Math.round(this.height / 60));
        const cols = Math.max(2, Math.round(this.width / 90));
        if (!this.plot.log) return { x: nice(...x, cols), y: nice(...y, rows) };
        let marks = nice(Math.ceil(y[0]), Math.floor(y[1]), rows).filter((t) => t === Math.round(t));
        if (marks.length < 2) marks = nice(...y, 3);
        return { x: nice(...x, cols), y: marks };
      },
    },
    methods: {
      short,
      label(v) { return short(this.plot.log ? Math.pow(10, v) : v); },
      color(i) { return COLORS[i % COLORS.length]; },
      sx(v) { const [a, b] = this.range[0], f = this.frame; return f.left + (v - a) / (b - a) * (this.width - f.left - f.right); },
      sy(v) {
        const [a, b] = this.range[1], f = this.frame, h = this.height - f.top - f.bottom;
        const t = (v - a) / (b - a);
        return f.top + (this.plot.inverted ? t : 1 - t) * h;
      },
      path(s) { return s.points.map((q) => this.sx(q[0]).toFixed(1) + "," + this.sy(q[1]).toFixed(1)).join(" "); },
    },
    template: `
      <svg class="studio-plot" role="img" :aria-label="plot && plot.title">
        <g v-if="range">
          <g v-for="t in ticks.y" :key="'y' + t">
            <line :x1="frame.left" :x2="width - frame.right" :y1="sy(t)" :y2="sy(t)" class="grid"/>
            <text :x="frame.left - 6" :y="sy(t) + 4" text-anchor="end">{{ label(t) }}</text>
          </g>
          <g v-for="t in ticks.x" :key="'x' + t">
            <text :x="sx(t)" :y="height - frame.bottom + 16" text-anchor="middle">{{ short(t) }}</text>
          </g>
          <line class="axis" :x1="frame.left" :x2="width - frame.right" :y1="height - frame.bottom" :y2="height - frame.bottom"/>
          <text class="name" :x="(frame.left + width - frame.right) / 2" :y="height - 6" text-anchor="middle">{{ plot.x }}</text>
          <text class="name" :transform="'translate(13,' + (frame.top + height - frame.bottom) / 2 + ') rotate(-90)'" text-anchor="middle">{{ plot.y }}</text>
          <polyline v-for="s in lines" :key="s.name" :points="path(s)" :stroke="color(s.color)"
                    :stroke-dasharray="s.dashed ? '6 4' : ''" class="line"/>
        </g>
      </svg>`,
  });

  const bars = observed({
    props: { values: { default: () => [] }, chosen: { default: -1 }, color: { default: 0 } },
    emits: ["choose"],
    data: () => ({ width: 1, height: 1 }),
    computed: { top() { return Math.max(1e-12, ...this.values); } },
    methods: { short, fill() { return COLORS[this.color % COLORS.length]; } },
    template: `
      <svg class="studio-bars" role="img" aria-label="slice weights of the point">
        <text x="2" y="12">{{ values.length ? short(top) : "" }}</text>
        <g v-for="(v, i) in values" :key="i" @click="$emit('choose', i)" :class="{ chosen: i === chosen }">
          <rect :x="2 + i * (width - 4) / values.length" y="0" :width="(width - 4) / values.length" :height="height" class="hit"/>
          <rect :x="3 + i * (width - 4) / values.length" :width="Math.max(1, (width - 4) / values.length - 2)"
                :y="16 + (height - 34) * (1 - v / top)" :height="(height - 34) * v / top" :fill="fill()"/>
          <text v-if="values.length <= 20 || i % 8 === 0" :x="2 + (i + 0.5) * (width - 4) / values.length" :y="height - 4"
                text-anchor="middle">{{ i + 1 }}</text>
        </g>
      </svg>`,
  });

  const download = {
    props: { file: { default: null } },
    watch: {
      file(file) {
        if (!file) return;
        const link = document.createElement("a");
        link.href = file.url; link.download = file.name;
        link.click();
      },
    },
    template: "<span hidden></span>",
  };

  window.linearnoStudio = {
    install(app) {
      app.component("studio-overlay", overlay);
      app.component("studio-plot", plot);
      app.component("studio-bars", bars);
      app.component("studio-download", download);
    },
  };
})();
