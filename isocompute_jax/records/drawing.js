// Elements, ticks and axes of a chart, for the fit's report and for `watch`. Whatever comes from a run is only ever
// text: nothing here parses HTML.
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function mark(name, attributes, parent, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const picture = (width, height, label, attributes = {}) => mark("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, ...attributes });

function ticks(low, high, most) {
  const span = high - low || 1, raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * span; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

function logTicks(low, high, most) {
  let found = [];
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      found.push(...factors.map((factor) => factor * 10 ** power).filter((value) => value >= low * 0.999 && value <= high * 1.001));
    if (found.length <= most) break;
  }
  return found;
}

// Lines and numbers of both axes; box: { left, right, top, bottom }; x and y: { at, ticks, text, lines }, `at` from a
// value to its place.
function axes(svg, box, x, y) {
  for (const value of y.ticks) {
    if (y.lines !== false) mark("line", { x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value), stroke: "#e3e6e9" }, svg);
    mark("text", { x: box.left - 7, y: y.at(value) + 4, "text-anchor": "end" }, svg, y.text(value));
  }
  for (const value of x.ticks) {
    if (x.lines) mark("line", { x1: x.at(value), x2: x.at(value), y1: box.top, y2: box.bottom, stroke: "#e3e6e9" }, svg);
    mark("text", { x: x.at(value), y: box.bottom + 16, "text-anchor": "middle" }, svg, x.text(value));
  }
}

// Where the pointer is, in the picture's own units.
function pointer(event, svg, width) {
  const box = svg.getBoundingClientRect(), ratio = width / box.width;
  return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
}
