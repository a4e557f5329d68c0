// One run: its numbers, what its time goes to, its servers and alarms.
const PHASE_COLOURS = {
  sampling: "#31688e", waiting: "#b9c3cc", grading: "#8fd744", logprobs: "#21918c", update: "#443983", weights: "#f0a202",
  packing: "#a779b8", checkpoint: "#c26a5a",
};

function tile(name, value, note = "") {
  return make("div", { class: "tile" }, make("span", {}, name), make("b", {}, value), note ? make("small", {}, ` ${note}`) : null);
}

function drawTiles(run) {
  const speed = run.speed || {}, left = run.num_steps - run.step;
  const tiles = [
    tile("step", whole(run.step), `of ${whole(run.num_steps)}`),
    tile("time a step", duration(run.step_s ?? speed.step_s), left > 0 && run.step_s && run.state === "running" ? `${duration(left * run.step_s)} left` : ""),
    tile("sampled", amount(speed.sampled_tokens_per_s), "tokens/s"),
    tile("trained", amount(speed.trained_tokens_per_s), "tokens/s"),
    tile("MFU of updates", speed.mfu === null || speed.mfu === undefined ? "–" : percent(speed.mfu), speed.mfu === null ? "peak not known" : ""),
    tile("padding", padding(run)),
    tile("device memory", bytes(speed.device_memory), "peak"),
    tile("host memory", bytes(speed.host_memory), "peak"),
  ];
  byId("tiles").replaceChildren(...tiles);
}

function padding(run) {
  const last = (run.series.padding || []).findLast((value) => value !== null);
  return last === undefined || last === null ? "–" : percent(last);
}

function drawTime(run) {
  const columns = Object.keys(run.series).filter((name) => name.startsWith("phase_s/"));
  byId("time").hidden = !run.series.step.length || !columns.length;
  if (byId("time").hidden) return;
  const known = Object.keys(PHASE_COLOURS);
  const names = columns.map((name) => name.slice(8)).sort((a, b) => (known.indexOf(a) + 99) % 99 - (known.indexOf(b) + 99) % 99);
  const parts = names.map((name, i) => ({ name, colour: PHASE_COLOURS[name] || viridis(i / names.length), values: run.series[`phase_s/${name}`] }));
  // The first step compiles: a picture of it alone would show nothing of the others.
  const from = run.series.step.length > 3 ? 1 : 0, steps = run.series.step.slice(from);
  for (const part of parts) part.values = part.values.slice(from);
  stackedChart(byId("time-view"), steps, parts, { xName: from ? "steps (the first, which compiles, is left out)" : "steps" });
  const mean = (values) => values.reduce((sum, value) => sum + (value || 0), 0) / values.length;
  const means = parts.map((part) => mean(part.values)), total = means.reduce((a, b) => a + b, 0) || 1;
  byId("time-legend").replaceChildren(...parts.flatMap((part, i) => (means[i] > 0 ? [make("span", {}, dot(part.colour), part.name), make("b", {}, percent(means[i] / total)), make("span", {}, duration(means[i]))] : [])));
}

function drawFleet(run) {
  byId("fleet").hidden = !run.fleet;
  if (!run.fleet) return;
  const age = run.now - run.fleet.written;
  byId("fleet-note").textContent = [`${plural(run.fleet.groups_queued, "group")} wait for a server`, `${amount(run.fleet.redrawn_rollouts)} rollouts drawn again`,
    age > 15 ? `as of ${duration(age)} ago` : ""].filter(Boolean).join(" · ");
  byId("fleet-rows").replaceChildren(...run.fleet.members.map((member) => {
    const weights = member.version === null ? "–" : `v${member.version}`;
    const state = !member.up ? "down" : member.leaving ? "leaving" : "up";
    const cells = [member.endpoint, make("span", { class: `chip ${state}` }, member.up ? state : `down ${duration(member.down_s)}`),
      member.receiving_weights ? `${weights}, newer on the way` : weights, amount(member.rollouts), amount(member.groups_running), amount(member.tokens_drawn)];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)), make("td", { class: member.error ? "error" : "" }, member.error || member.last_error || ""));
  }));
}

function drawAlarms(run) {
  const box = byId("alarms"), on = run.alarms, past = run.alarms_raised.filter(([, name]) => !on.includes(name));
  box.className = on.length ? "" : "past";
  const since = (name) => run.alarms_raised.findLast(([, other]) => other === name)?.[0];
  box.replaceChildren(
    ...on.map((name) => make("div", {}, make("b", {}, `Alarm: ${name.replaceAll("_", " ")}`), ` is on since step ${amount(since(name))}. The run's log says what to try; docs/runs.md lists the bounds.`)),
    ...(past.length ? [make("div", {}, `Over again: ${past.slice(-6).map(([step, name]) => `${name.replaceAll("_", " ")} (step ${amount(step)})`).join(", ")}.`)] : []));
}

function drawDetail() {
  const run = state.detail;
  byId("detail").hidden = !run;
  if (!run) return;
  byId("detail-name").textContent = run.name;
  drawAlarms(run);
  drawTiles(run);
  drawTime(run);
  drawFleet(run);
}
