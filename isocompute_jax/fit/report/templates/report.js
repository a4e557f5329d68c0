// The report, moved: a slider over budgets, a choice of metric and axis, and a picture that says what lies under the
// pointer. It only shows what the page's JSON holds; without it the page reads the same for the budget asked for.
const data = JSON.parse(document.getElementById("data").textContent);
const panel = document.getElementById("answer"), controls = document.getElementById("controls");
const figure = document.getElementById("picture");
const state = { metric: data.metric, at: data.start, log: true };
const NO_BREAK = "\u00a0", DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2"];
const MOST_NAMED = 8;
const LEVELS = [[1e12, " trillion"], [1e9, " billion"], [1e6, " million"]];

const unbroken = (text) => text.replaceAll(" = ", `${NO_BREAK}=${NO_BREAK}`);
const number = (value) => value.toFixed(3);

function amount(value) {
  for (const [size, word] of LEVELS) if (value >= 0.9995 * size) return Number((value / size).toPrecision(3)) + word;
  return value < 100 ? String(Number(value.toPrecision(3))) : Number(value.toPrecision(3)).toLocaleString("en");
}

// A text with `--flag=value` kept on one line.
function fill(element, text) {
  const parts = unbroken(text).split(/(--[a-z]\w*(?:=[\w.,:]*\w)?)/);
  element.replaceChildren(...parts.map((part, i) => (i % 2 ? make("span", { class: "flag" }, part) : part)));
  return element;
}

// --- The answer ---------------------------------------------------------------------------------------------------

function answer() {
  const found = data.metrics[state.metric].answers[state.at];
  for (const part of panel.querySelectorAll("[data-part]")) {
    const text = found[part.dataset.part];
    fill(part, text);
    part.hidden = !text;
  }
  panel.querySelector(".confidence").dataset.level = found.level;
  for (const list of panel.querySelectorAll("[data-list]")) {
    list.replaceChildren(...found[list.dataset.list].map((text) => fill(make("li"), text)));
    list.parentElement.hidden = !found[list.dataset.list].length;
  }
  return found;
}

// --- The controls -------------------------------------------------------------------------------------------------

let slider, output, status;
const asked = [];

function choice(label, id, names, chosen) {
  const select = make("select", { id }, ...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(state.metric)) select.value = state.metric;
  select.addEventListener("change", () => chosen(select.value));
  controls.append(make("label", {}, label, select));
}

function build() {
  slider = make("input", { type: "range", min: 0, max: data.budgets.length - 1, step: 1, id: "budget" });
  output = make("output", { for: "budget" });
  controls.append(make("label", { class: "budget" }, "Budget", slider, output));
  slider.addEventListener("input", () => show({ at: Number(slider.value) }));
  if (data.asked.length > 1 || data.asked[0] !== data.start)
    for (const index of data.asked) {
      const button = make("button", { type: "button" }, data.labels[index]);
      controls.append(button);
      button.addEventListener("click", () => show({ at: index }));
      asked.push([button, index]);
    }
  const names = Object.keys(data.metrics);
  if (names.length > 1) choice("Metric ", "metric", names, (name) => show({ metric: name }));
  choice("Axis ", "scale", ["logarithmic", "linear"], (name) => show({ log: name === "logarithmic" }));
  status = make("span", { class: "seen-by-readers", role: "status" });
  controls.append(status);
  controls.hidden = false;
}

// --- The picture --------------------------------------------------------------------------------------------------

let place, tip, chart;

function short(value) {
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + letter;
  return String(Number(value.toPrecision(3)));
}

function scales(found, width, height) {
  const { curves, answers } = data.metrics[state.metric];
  const last = Math.max(...curves.flatMap((c) => c.x), data.budgets[state.at]);
  const first = Math.min(...curves.flatMap((c) => c.x.filter((x) => x > 0)), data.budgets[state.at]);
  const now = answers[state.at];
  const heights = [...curves.flatMap((c) => c.y.filter((_, i) => c.x[i] > 0)), ...(now.interval ?? []), now.reward]
    .filter((y) => y !== null && Number.isFinite(y));
  const bottom = Math.min(...heights), top = Math.max(...heights), pad = 0.05 * (top - bottom || 1);
  const box = { left: 48, right: width - 12, top: 10, bottom: height - 40 };
  const turn = state.log ? Math.log : (x) => x;
  const low = state.log ? first : 0, high = last * (state.log ? 1.04 : 1.01);
  const x = (c) => box.left + ((turn(c) - turn(low)) / (turn(high) - turn(low))) * (box.right - box.left);
  const y = (r) => box.bottom - ((r - bottom + pad) / (top - bottom + 2 * pad)) * (box.bottom - box.top);
  const back = (pixel) => {
    const share = (pixel - box.left) / (box.right - box.left);
    return state.log ? low * (high / low) ** share : low + share * (high - low);
  };
  return { x, y, back, box, low, high, bottom: bottom - pad, top: top + pad };
}

// A curve's line, or its part between two computes.
function path(curve, s, from = 0, to = Infinity) {
  const whole = curve.lineX.map((x, i) => [x, curve.lineY[i]]).filter(([x]) => x > from && x < to);
  const ends = [from, to].map((x) => [x, height(curve, x)]);
  const points = [...(ends[0][1] === null ? [] : [ends[0]]), ...whole, ...(ends[1][1] === null ? [] : [ends[1]])];
  return points.map(([x, y], i) => `${i ? "L" : "M"}${s.x(x).toFixed(1)} ${s.y(y).toFixed(1)}`).join("");
}

function draw(found) {
  const width = Math.max(300, place.clientWidth), height = Math.round(Math.min(430, Math.max(250, 0.6 * width)));
  const { curves, segments } = data.metrics[state.metric];
  const s = scales(found, width, height);
  const label = `${state.metric} against compute; arrow keys choose the budget`;
  const svg = picture(width, height, label, { class: "chart", height, tabindex: 0 });
  const low = s.low || s.high / 1e3, most = width / 75;
  axes(
    svg, s.box, { at: s.x, ticks: state.log ? logTicks(low, s.high, most) : ticks(low, s.high, most), text: short, lines: true },
    { at: s.y, ticks: ticks(s.bottom, s.top, 6), text: short },
  );
  mark("text", { x: (s.box.left + s.box.right) / 2, y: height - 6, "text-anchor": "middle" }, svg, `compute C (${data.unit})`);
  mark("text", { x: s.box.left + 4, y: s.box.top + 10 }, svg, state.metric);
  const many = curves.length > MOST_NAMED;
  for (const c of curves) {
    mark("path", { d: path(c, s), fill: "none", stroke: c.colour, "stroke-width": many ? 1 : 1.5,
      "stroke-opacity": many ? 0.5 : 0.9, "stroke-dasharray": DASHES[c.dash % DASHES.length] }, svg);
    c.x.forEach((x, i) => {
      if (x > 0) mark("circle", { cx: s.x(x), cy: s.y(c.y[i]), r: many ? 2 : 3, stroke: c.colour,
        fill: c.used[i] ? c.colour : "#fff" }, svg);
    });
  }
  for (const c of curves)
    if (c.peak) {
      const [x, y] = [s.x(c.peak[0]), s.y(c.peak[1])];
      mark("path", { d: `M${x - 5} ${y - 16}h10l-5 9z`, fill: c.colour, class: "peak" }, svg);
      mark("text", { x: x + 8, y: y - 9 }, svg, "falls after this");
    }
  for (const [index, from, to] of segments) {
    const c = curves[index];
    mark("path", { d: path(c, s, from, to), fill: "none", stroke: c.colour, "stroke-width": 4.5,
      "stroke-linecap": "round" }, svg);
  }
  const budget = s.x(data.budgets[state.at]);
  const at = found.stop ? s.x(found.stop) : budget;  // where the answer stops is where its reward is
  mark("line", { x1: budget, x2: budget, y1: s.box.top, y2: s.box.bottom, stroke: "#22262b", "stroke-dasharray": "3 3" }, svg);
  if (found.interval && found.interval[0] !== null)
    mark("line", { x1: at, x2: at, y1: s.y(found.interval[0]), y2: s.y(found.interval[1]), stroke: "#22262b",
      "stroke-width": 5, "stroke-opacity": 0.45, class: "interval" }, svg);
  if (found.reward !== null)
    mark("circle", { cx: at, cy: s.y(found.reward), r: 6, fill: "#fff", stroke: "#22262b", "stroke-width": 2.5,
      class: "expected" }, svg);
  svg.addEventListener("pointermove", (event) => point(event, s, width));
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  svg.addEventListener("click", (event) => show({ at: nearest(s.back(pointer(event, svg, width)[0])) }));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show({ at: Math.min(data.budgets.length - 1, Math.max(0, state.at + step)) });
    chart.focus();
  });
  if (chart) chart.replaceWith(svg); else place.prepend(svg);
  chart = svg;
}

function nearest(compute) {
  let best = 0;
  data.budgets.forEach((budget, i) => {
    if (Math.abs(Math.log(budget / compute)) < Math.abs(Math.log(data.budgets[best] / compute))) best = i;
  });
  return best;
}

// A curve's height at a compute, read off its drawn line; null where it has none.
function height(curve, compute) {
  const { lineX: xs, lineY: ys } = curve;
  const i = xs.findIndex((x) => x >= compute);
  if (i < 0 || (i === 0 && xs[0] > compute)) return null;
  if (i === 0) return ys[0];
  const share = Math.log(compute / xs[i - 1]) / Math.log(xs[i] / xs[i - 1]);
  return ys[i - 1] + share * (ys[i] - ys[i - 1]);
}

function point(event, s, width) {
  const [px, py] = pointer(event, chart, width);
  const { curves } = data.metrics[state.metric];
  let close = null, distance = 10;
  for (const c of curves)
    c.x.forEach((x, i) => {
      const away = x > 0 ? Math.hypot(s.x(x) - px, s.y(c.y[i]) - py) : Infinity;
      if (away < distance) [close, distance] = [`${c.name}: ${number(c.y[i])} at ${amount(x)}${c.used[i] ? "" : ", not fitted"}`, away];
    });
  const compute = s.back(px);
  const rows = curves.map((c) => [c.name, height(c, compute)]).filter(([, y]) => y !== null).sort((a, b) => b[1] - a[1]);
  tip.replaceChildren(make("b", {}, `${amount(compute)} ${data.unit}`));
  tip.append(...rows.slice(0, MOST_NAMED).map(([name, y]) => make("div", {}, unbroken(`${name}: ${number(y)}`))));
  if (rows.length > MOST_NAMED) tip.append(make("div", {}, `and ${rows.length - MOST_NAMED} more`));
  if (close) tip.append(make("div", { class: "close" }, unbroken(`Evaluation: ${close}`)));
  tip.hidden = false;
  const box = place.getBoundingClientRect(), x = event.clientX - box.left;
  tip.style.left = `${x > box.width / 2 ? Math.max(0, x - tip.offsetWidth - 14) : x + 14}px`;
  tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight / 2)}px`;
}

function legend() {
  const shown = new Map();
  for (const c of data.metrics[data.metric].curves) shown.set(c.colour, [...(shown.get(c.colour) ?? []), c.name]);
  if (shown.size > 14) return;
  const row = make("div", { class: "legend" });
  place.append(row);
  for (const [colour, names] of shown) {
    const patch = make("i");
    patch.style.background = colour;
    row.append(make("span", {}, patch, unbroken(names.length > 3 ? `${names[0]} and ${names.length - 1} more` : names.join("; "))));
  }
  const { curves, segments } = data.metrics[data.metric];
  if (segments.length) sign(row, "thick", "the best at that budget");
  if (curves.some((c) => c.used.some((used, i) => !used && c.x[i] > 0))) sign(row, "hollow", "not fitted");
  sign(row, "ring", "expected, with its interval");
}

const sign = (row, kind, text) => row.append(make("span", {}, make("i", { class: kind }), text));

function show(change) {
  Object.assign(state, change);
  const found = answer();
  slider.value = state.at;
  output.value = `${data.labels[state.at]} ${data.unit}`;
  slider.setAttribute("aria-valuetext", output.value);
  for (const [button, index] of asked) button.setAttribute("aria-pressed", index === state.at);
  draw(found);
  status.textContent = `${found.question}: ${found.pick}. ${found.expectation} ${found.label}.`;
}

tip = make("div", { id: "tip", hidden: "" });
place = make("div", { style: "position: relative" }, tip);
figure.replaceChildren(place);
build();
legend();
show({});
let width = figure.clientWidth;
new ResizeObserver(() => {
  if (figure.clientWidth === width) return;
  width = figure.clientWidth;
  draw(data.metrics[state.metric].answers[state.at]);
}).observe(figure);
