// What is shown, and when it is asked for again.
const EVERY = 2500, HIDDEN_EVERY = 15000;
const state = { overview: null, colours: {}, metric: "", axis: "compute", log: true, only: false, focus: false, selected: null, curves: null, detail: null, frontier: null, rollout: 0, follow: true, rolloutShown: "" };

function draw() {
  drawRuns();
  drawMetrics();
  drawCurves();
  drawFrontier();
  drawDetail();
}

async function refresh() {
  const overview = await ask("runs");
  state.overview = overview;
  state.colours = colours(overview.runs);
  byId("root").textContent = overview.root;
  document.title = `Runs · ${overview.root}`;
  const names = overview.runs.map((run) => run.name);
  if (!names.includes(state.selected)) {
    const first = overview.runs.find((run) => run.state === "running") || overview.runs[0];
    state.selected = names.includes(wanted()) ? wanted() : first ? first.name : null;
  }
  drawMetrics();
  const [curves, detail, frontier] = await Promise.all([
    state.metric ? ask("curves", { metric: state.metric }) : null, state.selected === null ? null : ask("run", { name: state.selected }), ask("frontier")]);
  Object.assign(state, { curves, detail, frontier });
  draw();
  await drawRollouts();
  const pulse = byId("pulse");
  pulse.className = "";
  pulse.textContent = `${plural(overview.runs.length, "run")}, read at ${new Date(1000 * overview.now).toLocaleTimeString("en-GB")}`;
}

const wanted = () => decodeURIComponent(location.hash.slice(1));
let timer = null, asking = false, again = false;

async function tick() {
  if (asking) { again = true; return; }
  clearTimeout(timer);
  asking = true;
  try {
    do { again = false; await refresh(); } while (again);
  } catch (error) {
    const pulse = byId("pulse");
    pulse.className = "lost";
    pulse.textContent = `No answer: ${error.message}. Is the watch still running?`;
  }
  asking = false;
  timer = setTimeout(tick, document.hidden ? HIDDEN_EVERY : EVERY);
}

function select(name) {
  state.selected = name;
  state.focus = true;
  Object.assign(state, { rollout: 0, follow: true, rolloutShown: "" });
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  drawRuns();
  tick();
}

byId("metric").addEventListener("change", (event) => { state.metric = event.target.value; tick(); });
byId("axis").addEventListener("change", (event) => {
  state.axis = event.target.value;
  state.log = state.axis === "compute" || state.axis === "tokens";
  byId("log").setAttribute("aria-pressed", String(state.log));
  drawCurves();
});
for (const name of ["log", "only"]) byId(name).addEventListener("click", (event) => {
  state[name] = !state[name];
  event.target.setAttribute("aria-pressed", String(state[name]));
  drawCurves();
});
byId("rollout-step").addEventListener("input", (event) => { Object.assign(state, { rollout: Number(event.target.value), follow: false }); drawRollouts(); });
byId("rollout-latest").addEventListener("click", () => { state.follow = !state.follow; drawRollouts(); });
addEventListener("resize", () => { if (state.overview) draw(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
tick();
