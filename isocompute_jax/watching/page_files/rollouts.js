// Sampled rollouts, token by token.
const UNLIKELY = 6; // nats: 1 in 400

function tokenColour(logprob) {
  return `rgb(214 104 20 / ${(0.75 * Math.min(1, -logprob / UNLIKELY)).toFixed(3)})`;
}

function drawCompletion(found, reward, most, failure) {
  const newest = Math.max(...found.policy_versions), oldest = Math.min(...found.policy_versions);
  const drawn = found.logprobs.filter((_, i) => found.drawn[i]), mean = drawn.reduce((a, b) => a + b, 0) / (drawn.length || 1);
  const facts = make("div", { class: "facts" },
    make("span", { class: `reward${reward === most && most > 0 ? " most" : ""}` }, failure ? "no reward" : `reward ${Number(reward.toPrecision(3))}`),
    make("span", {}, plural(found.num_tokens, "token")), make("span", {}, found.finish_reason === "length" ? "cut off" : "stopped"),
    make("span", {}, `mean log-probability ${mean.toFixed(2)}`), make("span", {}, oldest === newest ? `weights v${newest}` : `weights v${oldest} to v${newest}`),
    failure ? make("span", {}, failure) : null);
  const tokens = make("div", { class: "tokens" });
  found.pieces.forEach((piece, i) => {
    if (found.omitted && i === found.omitted.at) tokens.append(make("span", { class: "gap" }, `… ${amount(found.omitted.tokens)} tokens …`));
    if (!piece) return; // a part of the next token's character
    const token = make("span", { "data-at": i }, piece.endsWith("\n") ? piece.slice(0, -1) + "⏎\n" : piece);
    if (!found.drawn[i]) token.className = "context";
    else token.style.background = tokenColour(found.logprobs[i]);
    if (found.policy_versions[i] < newest) token.classList.add("older");
    tokens.append(token);
  });
  tokens.addEventListener("pointermove", (event) => {
    const at = event.target.dataset?.at;
    if (at === undefined) return hideTip();
    const i = Number(at), logprob = found.logprobs[i];
    showTip(event, [make("b", {}, JSON.stringify(found.pieces[i])), ` token ${found.tokens[i]}`],
      found.drawn[i] ? `log-probability ${logprob.toFixed(4)} (${percent(Math.exp(logprob))})` : "inserted, not drawn", `weights v${found.policy_versions[i]}`);
  });
  tokens.addEventListener("pointerleave", hideTip);
  return make("div", { class: "completion" }, facts, tokens);
}

function drawGroup(group) {
  const most = Math.max(...group.rewards), mean = group.rewards.reduce((a, b) => a + b, 0) / group.rewards.length;
  return make("div", { class: "group" },
    make("div", { class: "group-head" }, make("span", {}, "problem ", make("b", {}, group.problem_id)), group.task ? make("span", {}, group.task) : null,
      make("span", {}, `mean reward ${mean.toFixed(3)} of ${plural(group.rewards.length, "rollout")}`),
      group.completions.length < group.rewards.length ? make("span", {}, `the first ${group.completions.length} were kept`) : null),
    make("div", { class: "prompt" }, group.prompt),
    ...group.completions.map((found, i) => drawCompletion(found, group.rewards[i], most, group.failures[i])));
}

async function drawRollouts() {
  const run = state.detail, lines = run?.rollout_lines || [];
  byId("rollouts").hidden = !lines.length;
  if (!lines.length) return;
  const slider = byId("rollout-step");
  slider.max = lines.length - 1;
  if (state.follow) state.rollout = lines.length - 1;
  state.rollout = Math.min(state.rollout, lines.length - 1);
  slider.value = state.rollout;
  byId("rollout-at").textContent = `step ${lines[state.rollout][0].toLocaleString("en")}`;
  byId("rollout-latest").setAttribute("aria-pressed", String(state.follow));
  const key = `${run.name}/${lines[state.rollout][0]}/${state.rollout}`;
  if (key === state.rolloutShown) return; // what is being read is not drawn anew
  const found = await ask("rollouts", { name: run.name, index: state.rollout });
  state.rolloutShown = key;
  byId("rollout-groups").replaceChildren(...(found.groups || []).map(drawGroup));
}
