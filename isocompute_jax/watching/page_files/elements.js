// Words, marks and what lies under the pointer; `make` and `mark` are those of records/drawing.js.
const byId = (id) => document.getElementById(id);

function dot(colour, kind = "") {
  const element = make("i", { class: kind });
  element.style.background = colour;
  return element;
}

async function ask(path, fields = {}) {
  const reply = await fetch(`/api/${path}?${new URLSearchParams(fields)}`);
  if (!reply.ok) throw new Error((await reply.json()).error);
  return reply.json();
}

// A name may break where its parts meet.
const breakable = (name) => name.split(/(?<=[\/,])/).flatMap((part) => [part, make("wbr")]);

// --- Numbers in words

const LEVELS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]];

function amount(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, word] of LEVELS) if (Math.abs(value) >= 0.9995 * size) return Number((value / (size === 1e4 ? 1e3 : size)).toPrecision(3)) + word;
  return Math.abs(value) < 100 ? String(Number(value.toPrecision(3))) : Number(value.toPrecision(3)).toLocaleString("en");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${Number((1000 * seconds).toPrecision(2))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(seconds < 10 ? 2 : 3))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
const bytes = (value) => (value === null || value === undefined ? "–" : `${(value / 2 ** 30).toFixed(value < 2 ** 33 ? 2 : 0)} GiB`);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// --- What lies under the pointer

const tip = byId("tip");

function showTip(event, ...lines) {
  tip.replaceChildren(...lines.map((line) => make("div", {}, ...[].concat(line))));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

const hideTip = () => { tip.hidden = true; };

// --- Colours: one for each group size, as the report's

const VIRIDIS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [194, 223, 35]];

function viridis(share) {
  const at = Math.min(0.999, Math.max(0, share)) * (VIRIDIS.length - 1), low = Math.floor(at);
  const mixed = VIRIDIS[low].map((value, i) => Math.round(value + (at - low) * (VIRIDIS[low + 1][i] - value)));
  return `rgb(${mixed.join(" ")})`;
}
