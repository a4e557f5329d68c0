// The list of runs, and the curves of all of them.
const DASHES = ["none", "5 3", "2 3", "8 3 2 3", "1 2"];
const SCHEDULED = ["#c92a2a", "#e8590c", "#862e9c", "#5c3317"];
const AXIS_NAMES = { compute: "rollouts", step: "steps", wall_s: "wall time", tokens: "tokens" };

function colours(runs) {
  const fixed = runs.filter((run) => !run.schedule);
  const sizes = [...new Set(fixed.map((run) => run.group_size))].sort((a, b) => a - b);
  const byRun = sizes.length < 2 && fixed.length === runs.length, count = byRun ? runs.length : sizes.length;
  const found = {};
  const schedules = [...new Set(runs.map((run) => run.schedule).filter(Boolean))];
  runs.forEach((run, i) => {
    if (run.schedule) {  // it has no n to be coloured by
      found[run.name] = { colour: SCHEDULED[schedules.indexOf(run.schedule) % SCHEDULED.length], dash: DASHES[1] };
      return;
    }
    const rank = byRun ? i : sizes.indexOf(run.group_size);
    const like = runs.filter((other, j) => j < i && !other.schedule && other.group_size === run.group_size).length;
    found[run.name] = { colour: viridis(count === 1 ? 0.4 : 0.06 + (0.82 * rank) / (count - 1)), dash: byRun ? "none" : DASHES[like % DASHES.length] };
  });
  return found;
}

function facts(run) {
  const parts = [run.schedule ? `${run.schedule}, n = ${run.n ?? run.group_size} now` : `n = ${run.group_size} × ${run.problems_per_batch}`, `step ${whole(run.step)} of ${whole(run.num_steps)}`];
  if (run.step_s && run.state === "running") parts.push(`${duration(run.step_s)} a step`);
  for (const [name, score] of Object.entries(run.scores).slice(0, 1)) parts.push(`${name} ${score.toFixed(3)}`);
  if (run.servers) parts.push(`${run.servers[0]} of ${plural(run.servers[1], "server")} up`);
  return parts.join(" · ");
}

function drawRuns() {
  const { runs } = state.overview;
  const list = byId("runs"), focused = document.activeElement?.dataset?.run;
  list.replaceChildren(...runs.map((run) => {
    const swatch = make("span", { class: "dot" }), done = make("i");
    swatch.style.background = state.colours[run.name].colour;
    done.style.width = percent(Math.min(1, run.compute / (run.max_compute || Infinity)));
    const alarm = run.alarms.length ? make("span", { class: "chip alarm", title: run.alarms.join(", ") }, plural(run.alarms.length, "alarm")) : null;
    const button = make("button", { type: "button", class: "run", "data-run": run.name, "aria-pressed": String(run.name === state.selected) },
      swatch, make("span", { class: "name" }, ...breakable(run.name)), make("span", { class: `chip ${run.state}` }, run.state), make("span", { class: "facts" }, alarm, facts(run)), make("span", { class: "bar" }, done));
    button.addEventListener("click", () => select(run.name));
    return button;
  }));
  if (focused !== undefined) [...list.children].find((button) => button.dataset.run === focused)?.focus();
  if (!runs.length) list.replaceChildren(make("p", { class: "empty run" }, "No run directory is here yet."));
  const counts = {};
  for (const run of runs) counts[run.state] = (counts[run.state] || 0) + 1;
  byId("counts").textContent = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
}

function drawMetrics() {
  const select = byId("metric"), names = state.overview.metrics;
  if (select.children.length === names.length && names.every((name, i) => select.children[i].value === name)) return;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name.replace(/^(eval|train)\//, (_, kind) => (kind === "eval" ? "" : "train: ")))));
  if (!names.includes(state.metric)) state.metric = names[0] || "";
  select.value = state.metric;
}

function drawCurves() {
  const found = state.curves, axis = state.axis;
  if (!found) return;
  const shown = state.overview.runs.filter((run) => found.runs[run.name] && (!state.only || run.name === state.selected));
  const series = shown.map((run) => ({
    name: run.name, ...state.colours[run.name], x: found.runs[run.name][axis], y: found.runs[run.name].y,
    faint: !state.only && state.selected !== null && state.focus && run.name !== state.selected,
    width: run.name === state.selected ? 2.8 : 1.7, dots: found.metric.startsWith("eval/"),
  }));
  const result = state.frontier?.result, legend = [];
  const onCurves = result?.budgets.length && axis === "compute" && found.metric.endsWith(`/${result.metric}`) && result.unit === "rollouts" && !state.only;
  if (onCurves) {
    series.unshift({ name: "best n so far", colour: "#22262b", width: 5, faint: true, x: result.budgets.map((row) => row.compute), y: result.budgets.map((row) => row.reward) });
    legend.push(make("span", {}, dot("#22262b55", "line"), "best n so far"));
  }
  const name = found.metric.replace(/^train\//, "").replace(/^eval\//, "");
  lineChart(byId("curves-view"), series, { xName: AXIS_NAMES[axis], yName: name, log: state.log, height: 350, format: axis === "wall_s" ? duration : undefined });
  const scheduled = new Map(shown.filter((run) => run.schedule).map((run) => [run.schedule, state.colours[run.name].colour]));
  const sizes = new Map(shown.filter((run) => !run.schedule).map((run) => [run.group_size, state.colours[run.name].colour]));
  if (sizes.size + scheduled.size > 1) legend.unshift(...[...scheduled].map(([schedule, colour]) => make("span", {}, dot(colour), schedule)));
  if (sizes.size > 1 || (sizes.size && scheduled.size)) legend.unshift(...[...sizes].sort((a, b) => a[0] - b[0]).map(([size, colour]) => make("span", {}, dot(colour), `n = ${size}`)));
  else if (sizes.size + scheduled.size < 2) legend.unshift(...shown.slice(0, 12).map((run) => make("span", {}, dot(state.colours[run.name].colour), run.name)));
  byId("curves-legend").replaceChildren(...legend);
}

// --- The best n so far

function verdictOf(budget) {
  const others = budget.named.filter((size) => size !== budget.group_size);
  if (budget.verdict === "clear") return "this is clear";
  if (budget.verdict === "open") return "this is open: the runs so far do not settle it";
  return others.length ? `n = ${others.join(" and ")} would do as well` : "what else was tried does as well";
}

function drawFrontier() {
  const found = state.frontier, result = found?.result;
  byId("frontier").hidden = !found || found.state === "off";
  if (!found || found.state === "off") return;
  const parts = [];
  if (found.state === "fitting") parts.push(result ? "is fitted again" : "is being fitted");
  if (found.fitted_at) parts.push(`of ${plural(result.runs, "run")}, ${duration(Math.max(0, state.overview.now - found.fitted_at))} ago`);
  byId("frontier-state").replaceChildren(parts.join("; "));
  if (result) byId("frontier-state").append(" · ", make("a", { href: "/frontier/report.html", target: "_blank", rel: "noopener" }, "the whole report"));
  const said = byId("frontier-said"), view = byId("frontier-view");
  if (!result || found.message) {
    said.replaceChildren(make("span", { class: "empty" }, found.message || (found.state === "fitting" ? "The first fit takes a minute." : "Nothing was fitted yet.")));
    if (!result?.budgets.length) return view.replaceChildren();
  } else if (!result.budgets.length) {
    said.replaceChildren(make("span", { class: "empty" }, "No step could be paid yet: nothing is best."));
    return view.replaceChildren();
  } else {
    const last = result.budgets.at(-1);
    said.replaceChildren("Up to ", make("b", {}, `${amount(last.compute)} ${result.unit}`), " the best number of rollouts per problem is ", make("b", {}, `n = ${last.group_size}`),
      `, with ${result.metric} ${last.reward.toFixed(3)}; ${verdictOf(last)}. `, result.switches.length ? `It was ${result.switches.map((one) => `${one.from_group_size} up to ${amount(one.compute)}`).join(", then ")}.` : "No other n is the best anywhere.",
      result.differ.length ? ` Careful: the runs differ in ${result.differ.join(", ")} too.` : "");
  }
  const sizes = [...new Set(result.budgets.map((row) => row.group_size))].sort((a, b) => a - b);
  lineChart(view, [{ name: "n*(C)", colour: "#31688e", width: 2.6, step: true, x: result.budgets.map((row) => row.compute), y: result.budgets.map((row) => Math.log2(row.group_size)) }], {
    xName: result.unit, yName: "best n", log: true, height: 150, yTicks: [], bands: result.switches.filter((one) => one.interval95).map((one) => ({ from: one.interval95[0], to: one.interval95[1] })),
  });
  const svg = view.querySelector("svg"), path = svg?.querySelector("path");
  if (!path) return;
  // The sizes stand at their steps: a scale of powers of two would say little more.
  const low = Math.log2(sizes[0]), high = Math.log2(sizes.at(-1)), span = (high - low || Math.abs(high) || 1) * 0.06;
  const from = low >= 0 && low - span < 0 ? 0 : low - span, to = high + span;
  for (const size of sizes) {
    const y = 150 - MARGIN.bottom - ((Math.log2(size) - from) / (to - from)) * (150 - MARGIN.top - MARGIN.bottom);
    mark("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, svg, String(size));
  }
}
