// Lines over an axis, drawn anew whenever the data change.
const MARGIN = { left: 52, right: 14, top: 10, bottom: 34 };

// series: [{ name, colour, x, y, width, dash, faint, step, dots }]; options: xName, yName, log, height, format, bands, marks.
function lineChart(view, series, options) {
  const usable = (x) => x !== null && (!options.log || x > 0);
  const points = series.flatMap((one) => one.x.map((x, i) => [x, one.y[i]]).filter(([x, y]) => usable(x) && y !== null));
  if (!points.length) {
    view.replaceChildren(make("p", { class: "empty" }, options.empty || "Nothing was logged yet."));
    return;
  }
  const width = Math.max(320, view.clientWidth), height = options.height || 330;
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  let [left, right] = [Math.min(...xs), Math.max(...xs)], [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (left === right) [left, right] = options.log ? [left / 2, right * 2] : [left - 1, right + 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  [low, high] = [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  const place = options.log ? (x) => Math.log(x / left) / Math.log(right / left) : (x) => (x - left) / (right - left);
  const X = (x) => MARGIN.left + place(x) * (width - MARGIN.left - MARGIN.right);
  const Y = (y) => height - MARGIN.bottom - ((y - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const svg = picture(width, height, `${options.yName} against ${options.xName}, ${plural(series.length, "curve")}`);
  const xTicks = options.log ? logTicks(left, right, width / 75) : ticks(left, right, 7);
  axes(svg, box, { at: X, ticks: xTicks, text: options.format || amount }, { at: Y, ticks: options.yTicks || ticks(low, high, 5), text: amount });
  mark("text", { x: width - MARGIN.right, y: height - 3, "text-anchor": "end", class: "title" }, svg, options.xName);
  mark("text", { x: 4, y: 9, class: "title" }, svg, "").textContent = options.yName;
  for (const band of options.bands || [])
    mark("rect", { x: X(Math.max(left, band.from)), y: MARGIN.top, width: Math.max(1, X(Math.min(right, band.to)) - X(Math.max(left, band.from))), height: height - MARGIN.top - MARGIN.bottom, fill: "#31688e", opacity: 0.08 }, svg);
  const drawn = [];
  for (const one of series) {
    const at = one.x.map((x, i) => [x, one.y[i]]).filter(([x, y]) => usable(x) && y !== null).map(([x, y]) => ({ x, y, px: X(x), py: Y(y) }));
    const path = at.map(({ px, py }, i) => (i ? (one.step ? `H${px.toFixed(1)}V${py.toFixed(1)}` : `L${px.toFixed(1)} ${py.toFixed(1)}`) : `M${px.toFixed(1)} ${py.toFixed(1)}`)).join("");
    mark("path", { d: path, fill: "none", stroke: one.colour, "stroke-width": one.width || 1.8, "stroke-dasharray": one.dash || "none", "stroke-linejoin": "round", opacity: one.faint ? 0.28 : 1, "data-curve": one.name }, svg);
    if (at.length === 1 || (one.dots && at.length <= 40)) for (const { px, py } of at) mark("circle", { cx: px, cy: py, r: 2.4, fill: one.colour, opacity: one.faint ? 0.28 : 1 }, svg);
    drawn.push({ one, at });
  }
  const ring = mark("circle", { r: 4.5, fill: "none", stroke: "#22262b", "stroke-width": 1.6, visibility: "hidden" }, svg);
  svg.addEventListener("pointermove", (event) => {
    const [px, py] = pointer(event, svg, width);
    let best = null, least = 40 ** 2;
    for (const { one, at } of drawn) for (const point of at) {
      const distance = (point.px - px) ** 2 + (point.py - py) ** 2;
      if (distance < least) [best, least] = [{ one, point }, distance];
    }
    ring.setAttribute("visibility", best ? "visible" : "hidden");
    if (!best) return hideTip();
    ring.setAttribute("cx", best.point.px);
    ring.setAttribute("cy", best.point.py);
    showTip(event, [make("b", {}, best.one.name)], `${options.yName} ${Number(best.point.y.toPrecision(4))}`, `${(options.format || amount)(best.point.x)} ${options.format ? "" : options.xName}`);
  });
  svg.addEventListener("pointerleave", () => { ring.setAttribute("visibility", "hidden"); hideTip(); });
  view.replaceChildren(svg);
}

// Stacked columns; parts: [{ name, colour, values }].
function stackedChart(view, steps, parts, options) {
  const totals = steps.map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] || 0), 0));
  const most = Math.max(...totals, 1e-9), width = Math.max(320, view.clientWidth), height = 190;
  const svg = picture(width, height, "Seconds of each phase, step by step");
  const inner = width - MARGIN.left - MARGIN.right, wide = Math.min(26, inner / steps.length);
  const Y = (y) => height - MARGIN.bottom - (y / (1.05 * most)) * (height - MARGIN.top - MARGIN.bottom);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const shown = [...new Set([0, Math.floor((steps.length - 1) / 2), steps.length - 1])];
  axes(
    svg, box, { at: (i) => MARGIN.left + (i + 0.5) * wide, ticks: shown, text: (i) => amount(Math.round(steps[i])) },
    { at: Y, ticks: ticks(0, 1.05 * most, 4), text: (y) => duration(y).replace(/^0 ms$/, "0") },
  );
  steps.forEach((step, i) => {
    let base = 0;
    const column = mark("g", {}, svg);
    for (const part of parts) {
      const value = part.values[i] || 0;
      if (value > 0) mark("rect", { x: MARGIN.left + i * wide, y: Y(base + value), width: Math.max(0.8, wide - (wide > 6 ? 1.5 : 0.3)), height: Math.max(0, Y(base) - Y(base + value)), fill: part.colour }, column);
      base += value;
    }
    column.addEventListener("pointermove", (event) => showTip(event, [make("b", {}, `step ${amount(Math.round(step))}`), `  ${duration(totals[i])}`],
      ...parts.filter((part) => part.values[i] > 0).map((part) => [dot(part.colour), ` ${part.name} ${duration(part.values[i])}`])));
    column.addEventListener("pointerleave", hideTip);
  });
  mark("text", { x: width - MARGIN.right, y: height - 3, "text-anchor": "end", class: "title" }, svg, options.xName);
  view.replaceChildren(svg);
}
