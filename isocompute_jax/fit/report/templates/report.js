// The report, moved: a slider over budgets, a choice of measure and axis, and a picture that says what lies under the
// pointer. It shows what the page's JSON holds, and has no words of its own.
const data = JSON.parse(document.getElementById("data").textContent), words = data.words;
const panel = document.getElementById("answer"), controls = document.getElementById("controls");
const figure = document.getElementById("picture"), bars = document.getElementById("bars");
const state = { metric: data.metric, at: data.start, log: true };
const NO_BREAK = "\u00a0", DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2"], INK = "#22262b";
const MOST_BANDS = 8, MOST_LISTED = 8;

const unbroken = (text) => text.replaceAll(" = ", `${NO_BREAK}=${NO_BREAK}`);
const measure = () => data.metrics[state.metric];
const number = (value) => value.toFixed(measure().decimals);
const grouped = (value) => Number(value.toPrecision(3)).toLocaleString("en");

// A text with `--flag=value` kept on one line.
function fill(element, text) {
  const parts = unbroken(text).split(/(--[a-z]\w*(?:=[\w.,:]*\w)?)/);
  element.replaceChildren(...parts.map((part, i) => (i % 2 ? make("span", { class: "flag" }, part) : part)));
}

// The answer of another measure may be missing at a budget: then the nearest one that there is.
function answerAt(index) {
  const { answers } = measure();
  if (answers[index]) return answers[index];
  const known = answers.map((found, i) => [found, Math.abs(i - index)]).filter(([found]) => found);
  return known.sort((a, b) => a[1] - b[1])[0][0];
}

function answer(found) {
  for (const part of panel.querySelectorAll("[data-part]")) {
    fill(part, found[part.dataset.part]);
    part.hidden = !found[part.dataset.part];
  }
  panel.querySelector(".verdict").dataset.level = found.level;
}

// --- The controls -------------------------------------------------------------------------------------------------

let slider, output, status;
const asked = [];

function choice(label, id, names, chosen) {
  const select = make("select", { id }, ...names.map((name) => make("option", { value: name }, name)));
  select.addEventListener("change", () => chosen(select.value));
  controls.append(make("label", {}, `${label} `, select));
}

function build() {
  slider = make("input", { type: "range", min: 0, max: data.budgets.length - 1, step: 1, id: "budget" });
  output = make("output", { for: "budget" });
  controls.append(make("label", { class: "budget" }, words.budget, slider, output));
  slider.addEventListener("input", () => show({ at: Number(slider.value) }));
  if (data.asked.length > 1)
    for (const index of data.asked) {
      const button = make("button", { type: "button" }, data.labels[index]);
      controls.append(button);
      button.addEventListener("click", () => show({ at: index }));
      asked.push([button, index]);
    }
  const names = Object.keys(data.metrics);
  if (names.length > 1) choice(words.metric, "metric", names, (name) => show({ metric: name }));
  choice(words.axis, "scale", [words.logarithmic, words.linear], (name) => show({ log: name === words.logarithmic }));
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

const trained = (curve) => curve.seeds.flatMap((each) => each.x.map((x, i) => [x, each.y[i], each.seed])).filter(([x, y]) => x > 0 && y !== null);

function scales(found, width, height) {
  const { curves } = measure(), dots = curves.flatMap(trained), budget = data.budgets[state.at];
  const first = Math.min(...[budget], ...dots.map(([x]) => x)), last = Math.max(budget, ...curves.map((c) => c.end));
  const lines = curves.flatMap((c) => (c.x ?? []).map((x, i) => [x, c.mean[i]]).filter(([x]) => x >= first && x <= last));
  const rewards = [...dots.map(([, y]) => y), ...lines.map(([, y]) => y), ...found.choices.find((c) => c.of === found.advised).ends.slice(0, 3),
    ...data.schedules.flatMap((each) => each.lines.flatMap((line) => line.y))];
  const bottom = Math.min(...rewards), top = Math.max(...rewards), pad = 0.05 * (top - bottom || 1);
  const box = { left: 48, right: width - 12, top: 10, bottom: height - 40 };
  const turn = state.log ? Math.log : (x) => x, low = state.log ? Math.min(first, last / 3) : 0, high = last * (state.log ? 1.06 : 1.01);
  const x = (c) => box.left + ((turn(c) - turn(low)) / (turn(high) - turn(low))) * (box.right - box.left);
  const y = (r) => box.bottom - ((r - bottom + pad) / (top - bottom + 2 * pad)) * (box.bottom - box.top);
  const back = (pixel) => {
    const share = (pixel - box.left) / (box.right - box.left);
    return state.log ? low * (high / low) ** share : low + share * (high - low);
  };
  return { x, y, back, box, low, high, first, last, bottom: bottom - pad, top: top + pad };
}

// The places of a curve between two computes, its ends included.
function points(curve, s, name, from, to) {
  const inside = curve.x.map((x, i) => [x, curve[name][i]]).filter(([x]) => x > from && x < to);
  const ends = [from, to].map((x) => [x, height(curve, x, name)]);
  return [ends[0], ...inside, ends[1]].filter(([, y]) => y !== null).map(([x, y]) => `${s.x(x).toFixed(1)} ${s.y(y).toFixed(1)}`);
}

const path = (curve, s, from, to) => (from < to ? `M${points(curve, s, "mean", from, to).join("L")}` : "");

// A curve's height at a compute, read off its drawn line; null where it has none.
function height(curve, compute, name = "mean") {
  const xs = curve.x ?? [], ys = curve[name], i = xs.findIndex((x) => x >= compute * 0.9999);
  if (i < 0 || (i === 0 && xs[0] > compute * 1.0001)) return null;
  if (i === 0) return ys[0];
  const share = Math.log(compute / xs[i - 1]) / Math.log(xs[i] / xs[i - 1]);
  return ys[i - 1] + share * (ys[i] - ys[i - 1]);
}

function draw(found) {
  const width = Math.max(280, place.clientWidth), tall = Math.round(Math.min(460, Math.max(250, 0.6 * width)));
  const { curves } = measure(), s = scales(found, width, tall), many = curves.length > MOST_BANDS;
  const svg = picture(width, tall, words.chart, { class: "chart", height: tall, tabindex: 0 });
  const low = s.low || s.high / 1e3, most = width / 75;
  axes(
    svg, s.box, { at: s.x, ticks: state.log ? logTicks(low, s.high, most) : ticks(low, s.high, most), text: short, lines: true },
    { at: s.y, ticks: ticks(s.bottom, s.top, 6), text: short },
  );
  mark("text", { x: (s.box.left + s.box.right) / 2, y: tall - 6, "text-anchor": "middle" }, svg, data.label);
  mark("text", { x: s.box.left + 4, y: s.box.top + 10 }, svg, state.metric);
  const near = new Set(found.choices.filter((c) => c.near).map((c) => c.of)).add(found.advised);
  curves.forEach((c, k) => {
    if (!c.x || (many && !near.has(k))) return;
    const band = [...points(c, s, "low", s.first, s.last), ...points(c, s, "high", s.first, s.last).reverse()];
    mark("path", { d: `M${band.join("L")}Z`, fill: c.colour, "fill-opacity": 0.16, class: "band" }, svg);
  });
  curves.forEach((c) => {
    const r = many ? 1.6 : 2.4, around = `a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
    const dots = trained(c).map(([x, y]) => `M${(s.x(x) - r).toFixed(1)} ${s.y(y).toFixed(1)}${around}`).join("");
    mark("path", { d: dots, fill: c.colour, "fill-opacity": many ? 0.35 : 0.5, class: "dots" }, svg);
  });
  for (const c of curves.filter((each) => each.x)) {
    const stroke = { fill: "none", stroke: c.colour, "stroke-width": many ? 1 : 1.5, "stroke-opacity": many ? 0.6 : 0.95 };
    mark("path", { d: path(c, s, s.first, Math.min(c.end, s.last)), "stroke-dasharray": DASHES[c.dash % DASHES.length], ...stroke }, svg);
    mark("path", { d: path(c, s, c.end, s.last), ...stroke, "stroke-dasharray": "2 4" }, svg);
  }
  for (const each of data.schedules)
    for (const line of state.metric === data.metric ? each.lines : [])
      mark("path", { d: line.x.map((x, i) => `${i ? "L" : "M"}${s.x(x)} ${s.y(line.y[i])}`).join(""), fill: "none", stroke: each.colour, "stroke-width": 1.5, "stroke-dasharray": "6 3" }, svg);
  marked(found, svg, s);
  listen(svg, s, width);
  if (chart) chart.replaceWith(svg); else place.prepend(svg);
  chart = svg;
}

// The advised line, thick up to its stop; the budget; and what to expect.
function marked(found, svg, s) {
  const budget = s.x(data.budgets[state.at]), advised = found.choices.find((c) => c.of === found.advised);
  mark("line", { x1: budget, x2: budget, y1: s.box.top, y2: s.box.bottom, stroke: INK, "stroke-dasharray": "3 3" }, svg);
  if (!found.rises) return;
  const c = measure().curves[found.advised], [reward, low, high] = advised.ends, at = s.x(advised.stop);
  if (c.x) mark("path", { d: path(c, s, s.first, advised.stop), fill: "none", stroke: c.colour, "stroke-width": 4.5, "stroke-linecap": "round", class: "advised" }, svg);
  mark("line", { x1: at, x2: at, y1: s.y(low), y2: s.y(high), stroke: INK, "stroke-width": 5, "stroke-opacity": 0.45, class: "interval" }, svg);
  mark("circle", { cx: at, cy: s.y(reward), r: 5.5, fill: INK, class: "expected" }, svg);
}

function listen(svg, s, width) {
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
}

function nearest(compute) {
  let best = 0;
  data.budgets.forEach((budget, i) => {
    if (Math.abs(Math.log(budget / compute)) < Math.abs(Math.log(data.budgets[best] / compute))) best = i;
  });
  return best;
}

function point(event, s, width) {
  const [px, py] = pointer(event, chart, width), { curves } = measure();
  let close = null, distance = 10;
  for (const c of curves)
    for (const [x, y, seed] of trained(c)) {
      const away = Math.hypot(s.x(x) - px, s.y(y) - py);
      if (away < distance) [close, distance] = [`${words.evaluation}: ${c.name}, ${words.seed} ${seed}: ${number(y)}, ${grouped(x)}`, away];
    }
  const compute = s.back(px);
  const rows = curves.map((c) => [c, height(c, compute)]).filter(([, y]) => y !== null).sort((a, b) => b[1] - a[1]);
  tip.replaceChildren(make("b", {}, `${grouped(compute)} ${data.unit}`));
  for (const [c, y] of rows.slice(0, MOST_LISTED)) {
    const ends = ["low", "high"].map((name) => number(height(c, compute, name))).join(" \u2013 ");
    tip.append(make("div", {}, swatch(c.colour), unbroken(`${c.name}: ${number(y)} (${ends})`)));
  }
  if (rows.length > MOST_LISTED) tip.append(make("div", {}, "\u2026"));
  if (close) tip.append(make("div", { class: "close" }, unbroken(close)));
  tip.hidden = false;
  const box = place.getBoundingClientRect(), x = event.clientX - box.left;
  tip.style.left = `${Math.max(0, x > box.width / 2 ? x - tip.offsetWidth - 14 : Math.min(x + 14, box.width - tip.offsetWidth))}px`;
  tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight / 2)}px`;
}

// --- What each would give -----------------------------------------------------------------------------------------

function drawBars(found) {
  if (!bars) return;
  const width = Math.max(280, bars.clientWidth), row = 24, names = Math.min(190, 0.4 * width);
  const tall = row * found.choices.length + 34, right = width - (width > 560 ? 190 : 16);
  const ends = found.choices.flatMap((c) => c.ends), low = Math.min(...ends), high = Math.max(...ends), pad = 0.03 * (high - low || 1);
  const x = (r) => names + 8 + ((r - low + pad) / (high - low + 2 * pad)) * (right - names - 8);
  const svg = picture(width, tall, words.chart, { height: tall, class: "bars" });
  for (const value of ticks(low - pad, high + pad, (right - names) / 60)) {
    mark("line", { x1: x(value), x2: x(value), y1: 0, y2: tall - 26, stroke: "#e3e6e9" }, svg);
    mark("text", { x: x(value), y: tall - 10, "text-anchor": "middle" }, svg, short(value));
  }
  found.choices.forEach((each, k) => {
    const { name, colour } = measure().curves[each.of], y = row * k + row / 2, best = each.of === found.advised && found.rises;
    const [reward, meanLow, meanHigh, runLow, runHigh] = each.ends;
    mark("text", { x: names, y: y + 4, "text-anchor": "end", class: best ? "strong" : "" }, svg, unbroken(name));
    mark("line", { x1: x(runLow), x2: x(runHigh), y1: y, y2: y, stroke: colour, "stroke-width": 1.5 }, svg);
    mark("line", { x1: x(meanLow), x2: x(meanHigh), y1: y, y2: y, stroke: colour, "stroke-width": 9, "stroke-opacity": 0.45 }, svg);
    mark("circle", { cx: x(reward), cy: y, r: best ? 6 : 4.5, fill: colour }, svg);
    if (width > 560) mark("text", { x: right + 10, y: y + 4, class: best ? "strong" : "" }, svg, each.text);
  });
  bars.replaceChildren(svg);
  fill(document.getElementById("bars-caption"), found.caption);
}

// --- The legend ---------------------------------------------------------------------------------------------------

function swatch(colour) {
  const patch = make("i");
  patch.style.background = colour;
  return patch;
}

function legend() {
  const shown = new Map();
  for (const c of data.metrics[data.metric].curves) shown.set(c.colour, [...(shown.get(c.colour) ?? []), c.name]);
  const row = make("div", { class: "legend" });
  place.append(row);
  // Of several configurations of one colour the name is what they have in common.
  if (shown.size <= 14)
    for (const [colour, names] of shown) row.append(make("span", {}, swatch(colour), unbroken(names.length > 1 ? names[0].split(/,| \(/)[0] : names[0])));
  for (const [k, name] of (data.batches.length > 1 ? data.batches : []).entries()) {
    const line = picture(26, 8, name, { class: "dash" });
    mark("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: INK, "stroke-width": 1.5, "stroke-dasharray": DASHES[k % DASHES.length] }, line);
    row.append(make("span", {}, line, unbroken(name)));
  }
  for (const each of data.schedules) row.append(make("span", {}, swatch(each.colour), each.name));
  for (const [kind, text] of data.signs) row.append(make("span", {}, make("i", { class: kind }), text));
}

function show(change) {
  Object.assign(state, change);
  const found = answerAt(state.at);
  answer(found);
  slider.value = state.at;
  output.value = `${data.labels[state.at]} ${data.unit}`;
  slider.setAttribute("aria-valuetext", output.value);
  for (const [button, index] of asked) button.setAttribute("aria-pressed", index === state.at);
  draw(found);
  drawBars(found);
  status.textContent = `${found.question}: ${found.pick}. ${found.label}. ${found.expectation}`;
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
  show({});
}).observe(figure);
